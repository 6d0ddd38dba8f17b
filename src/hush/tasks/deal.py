"""From a data set to a task's data: who trains on what, and what nobody trains on.

Public and validation examples are taken out first and belong to no client: a mask made from them costs no privacy. Where clients
are given by nature, whole clients are taken out, since somebody who trains must not be judged or masked by his own examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from hush.errors import UsageError
from hush.random import derive, keys_of, uniform
from hush.tasks.clients import Clients, Examples
from hush.tasks.partition import NO_NATURE, Index, partition
from hush.tasks.raw import Raw

EVALUATIONS = ("central", "clients")


@dataclass(frozen=True)
class Dealt:
    """Everything a task holds but its model."""

    clients: Clients
    test: Examples | Clients
    validation: Examples | Clients | None
    public: Examples | None
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    """What a reader of a certificate must know of who the clients are."""
    of_clients: tuple[str, ...] = ()
    """Which of `validation` and `public` are examples of clients by nature, who were taken out."""
    persons: Mapping[str, Tensor] = field(default_factory=dict)
    """Whose the examples are that nobody trains on, where that is known."""

    @property
    def of_persons(self) -> tuple[str, ...]:
        """Which of them are of persons who train as well."""
        train = self.clients.persons
        return tuple(part for part, whose in self.persons.items() if train is not None and bool(torch.isin(whose, train).any()))


def deal(raw: Raw, split: str, clients: int | None, validation: int, public: int, seed: int, evaluation: str) -> Dealt:
    """`raw` over `clients` (by nature: all of them, if None)."""
    if raw.stored is not None:
        return _on_disk(raw, clients, validation + public, seed, evaluation)
    examples = len(raw.train.x) + (len(raw.test.x) if evaluation == "clients" else 0)
    if validation < 0 or public < 0:
        raise UsageError(f"validation and public are numbers of examples, 0 or more, not {min(validation, public)}.")
    if validation + public >= examples:
        raise UsageError(f"Of {examples:,} examples, {validation:,} for validation and {public:,} public are too many.")
    if (validation and raw.validation is not None) or (public and raw.public is not None):
        raise UsageError("The data set comes with validation or public examples of its own: ask for none of the clients'.")
    if evaluation == "clients":
        dealt = _each_its_own(raw, split, clients, public, seed)
    elif split == "natural":
        dealt = _by_nature(raw, clients, validation, public, seed)
    else:
        dealt = _invented(raw, split, clients, validation, public, seed)
    if split != "natural":
        spread = (
            "; those that it has by nature are spread over them, and nothing is proved for these" if raw.owner is not None else ""
        )
        dealt = replace(dealt, caveats=(*dealt.caveats, f"the clients are simulated: examples were dealt by '{split}'{spread}"))
    persons = {**dealt.persons, **raw.other_persons}
    return replace(dealt, validation=raw.validation or dealt.validation, public=raw.public or dealt.public, persons=persons)


def _on_disk(raw: Raw, clients: int | None, nobodys: int, seed: int, evaluation: str) -> Dealt:
    """Clients as they lie there, or some of them."""
    told = raw.stored
    assert told is not None
    if nobodys or evaluation == "clients":
        raise UsageError(
            "Clients on disk keep no examples apart: give validation and public examples of nobody in tables of their own, and "
            "judge on them (--evaluation central)."
        )
    if clients is not None and clients > told.count:
        raise UsageError(f"There are {told.count:,} clients on disk: {clients:,} are too many.")
    if clients is not None and clients < told.count:
        some = np.random.default_rng(derive(seed, 13)).choice(told.count, clients, replace=False)
        told = told.some(torch.from_numpy(np.sort(some)))
    return Dealt(told, raw.test, raw.validation, raw.public)


def _invented(raw: Raw, split: str, clients: int | None, validation: int, public: int, seed: int) -> Dealt:
    """Examples of nobody in particular, dealt to so many clients."""
    order = torch.from_numpy(np.random.default_rng(derive(seed, 12)).permutation(len(raw.train.x)))
    rest = order[validation + public :]
    parts = partition(split, raw.train.y[rest].numpy(), clients or 1, derive(seed, 13))
    return Dealt(
        _clients(raw.train, [rest[torch.from_numpy(part)] for part in parts], raw.persons),
        raw.test,
        _take(raw.train, order[:validation]) if validation else None,
        _take(raw.train, order[validation : validation + public]) if public else None,
    )


def _by_nature(raw: Raw, clients: int | None, validation: int, public: int, seed: int) -> Dealt:
    if raw.owner is None:
        raise UsageError(NO_NATURE)
    owner, rng = raw.owner.numpy(), np.random.default_rng(derive(seed, 12))
    waiting = rng.permutation(np.unique(owner))
    sizes = np.bincount(owner, minlength=int(owner.max()) + 1)
    notes, gone_in_all, whose = [], 0, dict[str, Tensor]()

    def whole_clients(wanted: int, what: str) -> Examples | None:
        """`wanted` examples of a few clients (3 in 100, or as many as it takes), who are then out."""
        nonlocal waiting, gone_in_all
        if not wanted:
            return None
        enough = max(int(np.searchsorted(np.cumsum(sizes[waiting]), wanted)) + 1, len(sizes) * 3 // 100)
        gone, waiting = waiting[:enough], waiting[enough:]
        gone_in_all += len(gone)
        rows = np.flatnonzero(np.isin(owner, gone))
        if len(rows) < wanted or not len(waiting):
            raise UsageError(f"{wanted:,} {what} examples take every client there is: ask for fewer.")
        notes.append(f"{wanted:,} {what} examples are of {len(gone):,} clients that do not train")
        taken = torch.from_numpy(np.sort(rng.permutation(rows)[:wanted]))
        whose.update({} if raw.persons is None else {what: raw.persons[taken]})
        return _take(raw.train, taken)

    held, shown = whole_clients(validation, "validation"), whole_clients(public, "public")
    left = np.flatnonzero(np.isin(owner, waiting))
    if clients is not None and clients > len(waiting):
        raise UsageError(f"There are {len(waiting):,} clients by nature besides those held out: {clients:,} are too many.")
    parts = partition("natural", raw.train.y.numpy(), clients or len(waiting), derive(seed, 13), owner[left])
    rows = [torch.from_numpy(left[part]) for part in parts]
    test: Examples | Clients = raw.test
    if raw.test_owner is not None:
        chosen = np.array([owner[part[0]] for part in rows])
        test = _clients(raw.test, _rows_of(raw.test_owner.numpy(), chosen))
        notes.append("test examples are those of the clients that train: each has its own")
    elif raw.test_persons is not None:
        whose["test"] = raw.test_persons
    open_parts = tuple(part for part, examples in (("validation", held), ("public", shown)) if examples is not None)
    caveat = f"{gone_in_all:,} clients were taken out: their examples are used without noise, and nothing is proved for them"
    caveats = (caveat,) if open_parts else ()
    return Dealt(_clients(raw.train, rows, raw.persons), test, held, shown, tuple(notes), caveats, open_parts, whose)


def _each_its_own(raw: Raw, split: str, clients: int | None, public: int, seed: int) -> Dealt:
    """All examples over the clients, and of each client's own 80% to train on, 10% for validation, 10% to test."""
    every = Examples(torch.cat([raw.train.x, raw.test.x]), torch.cat([raw.train.y, raw.test.y]))
    owner = None if raw.owner is None or raw.test_owner is None else torch.cat([raw.owner, raw.test_owner]).numpy()
    rng = np.random.default_rng(derive(seed, 12))
    order = rng.permutation(len(every.x))
    rest, notes = order[public:], []
    if split == "natural" and owner is not None:
        if public:
            raise UsageError(
                "Public examples of natural clients that are judged on their own would be theirs: use --evaluation central."
            )
        rest = order = np.arange(len(every.x))
        clients = clients or len(np.unique(owner))
    if split == "iid" and clients and len(rest) % clients:  # equal devices, as CPFed has them
        notes.append(f"{len(rest) % clients} examples are left over: every client holds {len(rest) // clients:,}")
        rest = rest[: len(rest) // clients * clients]
    parts = partition(split, every.y[rest].numpy(), clients or 1, derive(seed, 13), None if owner is None else owner[rest])
    mine = [torch.from_numpy(rest[rng.permutation(part)]) for part in parts]
    persons = _everybodys(raw)
    what = "examples" if persons is None else "persons"
    notes.append(f"80% of each client's {what} train, 10% validate, 10% test: figures are of the clients' own")
    train, test, validation = zip(*(_in_three(part, persons, derive(seed, 15)) for part in mine), strict=True)
    return Dealt(
        _clients(every, train, persons),
        _clients(every, test),
        _clients(every, validation),
        _take(every, torch.from_numpy(order[:public])) if public else None,
        tuple(notes),
    )


def fewer(test: Examples | Clients, wanted: int | None, seed: int) -> tuple[Examples | Clients, tuple[str, ...]]:
    """`wanted` of the test examples, drawn by the seed, where there are more."""
    count = len(test.x)
    if wanted is None or wanted >= count:
        return test, ()
    if wanted < 1:
        raise UsageError(f"test examples must be at least 1, not {wanted}.")
    rows = torch.from_numpy(np.sort(np.random.default_rng(derive(seed, 14)).permutation(count)[:wanted]))
    note = (f"{wanted:,} of {count:,} test examples, drawn by the seed (--test-examples)",)
    if isinstance(test, Clients):
        return Clients(test.x[rows], test.y[rows], torch.bincount(test.owner[rows], minlength=test.count)), note
    return _take(test, rows), note


def _take(examples: Examples, rows: Tensor) -> Examples:
    return Examples(examples.x[rows], examples.y[rows])


def _everybodys(raw: Raw) -> Tensor | None:
    """Whose every example is, where training and test examples are dealt together."""
    if raw.persons is None:
        return None
    if raw.test_persons is None:
        raise UsageError("Test rows are dealt to the clients as well, and no column says whose they are: use --evaluation central.")
    return torch.cat([raw.persons, raw.test_persons])


def _in_three(part: Tensor, persons: Tensor | None, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """80%, 10% and 10% of a client's shuffled rows; or of its persons, each by a coin of its own: nobody is judged by her own rows,
    and how many rows one has moves nobody else."""
    if persons is None:
        tenth, share = len(part) // 10, torch.arange(len(part))
    else:
        part = part.sort().values  # as the table has them
        tenth, share = 1, 10 * uniform(keys_of(seed, persons[part]), ())
    return part[share >= 2 * tenth], part[(share >= tenth) & (share < 2 * tenth)], part[share < tenth]


def _clients(examples: Examples, parts: Sequence[Tensor], persons: Tensor | None = None) -> Clients:
    rows = torch.cat(list(parts))
    sizes = torch.tensor([len(part) for part in parts])
    return Clients(examples.x[rows], examples.y[rows], sizes, None if persons is None else persons[rows])


def _rows_of(owner: Index, chosen: Index) -> list[Tensor]:
    """The rows of each of the chosen owners, in their order."""
    order = np.argsort(owner, kind="stable")
    first, last = (np.searchsorted(owner[order], chosen, side=side) for side in ("left", "right"))
    return [torch.from_numpy(order[a:b]) for a, b in zip(first, last, strict=True)]
