"""A task: one model, many clients' data, a loss. A user's own takes five lines."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hush.errors import UsageError
from hush.local.flat import IGNORED, FlatModel, Loss
from hush.local.remembered import remembered
from hush.privacy.guarantee import Unit
from hush.privacy.vocabulary import Enrolled, Persons
from hush.tasks import persons
from hush.tasks.clients import Clients, Examples, Part, whole
from hush.tasks.extremes import extremes
from hush.tasks.metrics import Metric, Metrics, named, usual
from hush.tasks.overlap import overlap

__all__ = ["Clients", "Examples", "Task", "whole"]

PERSON_ROWS = 10
"""Rows of a person that count at most, unless it is said."""
_GIVEN_WEIGHTS = (
    "the starting weights came with the model: if they were trained on anybody's data, what that cost is not in this number"
)
Held = Examples | tuple[Tensor, Tensor] | Dataset[Any] | Clients | Sequence[Part] | Mapping[Any, Part]
"""Examples that nobody trains on: of no client (a pair), or each client's own (as `Task.clients`)."""


@dataclass(frozen=True)
class Task:
    """What is learned, from whom, and how it is judged.

        task = hush.Task(
            model=torch.nn.Linear(20, 2),
            clients=[(x0, y0), (x1, y1), ...],
            test=(x, y),
        )

    `clients` are pairs of tensors, `torch.utils.data.Dataset`s, or `hush.Columns(...).clients(frame)`. `loss(outputs, targets)`
    gives one value per example (default: cross-entropy). `metrics` are names (auc, macro_f1, perplexity, rmse, mae) or functions
    of all outputs and targets. `test` and `validation` are a pair, or a list of pairs where each client holds its own part.
    `public` are examples that belong to no client: top-k takes its mask from them.
    """

    model: nn.Module
    clients: Clients | Sequence[Part] | Mapping[Any, Part]
    test: Held | None = None
    validation: Held | None = None
    public: Examples | tuple[Tensor, Tensor] | None = None
    loss: Loss | nn.Module | None = None
    metrics: Metrics | None = None
    name: str = "own"
    model_name: str = "own"
    notes: tuple[str, ...] = field(default=())
    caveats: tuple[str, ...] = field(default=())
    """What a reader of a certificate must know of who the clients are, and where the model's features come from."""
    of_clients: tuple[str, ...] = field(default=())
    """Which of `validation` and `public` are examples of people who do not train: used openly, and protected by nothing."""
    of_persons: tuple[str, ...] = field(default=())
    """Which of `test`, `validation` and `public` have rows of persons who train, as far as their tables say whose a row is."""
    person_rows: int = PERSON_ROWS
    """How many rows of a person count at most, where the clients say whose rows they are (`Clients.persons`)."""
    by_person: bool = False
    """Whether clients train on persons and not on rows: for methods that protect records. A run sets it."""
    drawn: str | None = field(default=None, repr=False)
    """The weights that Hush itself made for the model, as `remembered` tells them; None where they came with it."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise UsageError(f"A model is a torch.nn.Module, not {self.model!r}.")
        if self.metrics is not None:
            named(self.metrics)
        if not isinstance(self.clients, Clients):  # read once, whatever they come as
            object.__setattr__(self, "clients", Clients.of(self.clients))
        for part in ("test", "validation"):
            held = getattr(self, part)
            if held is not None and not isinstance(held, Clients):
                object.__setattr__(self, part, _held(held, part))
        for part in ("test", "validation", "public"):
            self._refuse_other_shapes(part)

    def _refuse_other_shapes(self, part: str) -> None:
        held, train = getattr(self, part), self.train
        if held is None:
            return
        x, y = (held.x, held.y) if isinstance(held, Clients) else held
        if len(x) != len(y):
            raise UsageError(f"There are {len(x)} {part} inputs and {len(y)} {part} targets.")
        for name, own, first in (("inputs", x, train.x), ("targets", y, train.y)):
            if own.shape[1:] != first.shape[1:]:
                raise UsageError(
                    f"The {part} {name} have the shape {tuple(own.shape[1:])}, where the clients' have {tuple(first.shape[1:])}."
                )
        if isinstance(held, Clients) and held.count != train.count:
            raise UsageError(f"{held.count} clients have {part} examples of their own, and {train.count} train: give an empty one.")

    @property
    def train(self) -> Clients:
        assert isinstance(self.clients, Clients)
        return self.clients

    @property
    def enrolled(self) -> Enrolled:
        """Whom a statement about this task speaks of: its clients, and the records of the one that holds the fewest."""
        sizes = self.records
        fewest = int(sizes[sizes > 0].min()) if bool((sizes > 0).any()) else None
        dim = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        whose = Persons(self.person_rows, persons.most_clients(self.train)) if self.by_person else None
        return Enrolled(self.train.count, fewest, int(sizes.sum()) or None, dim, whose)

    @property
    def records(self) -> Tensor:
        """How many records each client holds: rows, or persons."""
        return persons.held(self.train) if self.by_person else self.train.sizes

    @property
    def names_persons(self) -> bool:
        """Whether it is known whose each row is."""
        return self.train.persons is not None

    def seen_by(self, unit: str | None) -> Task:
        """The same, as a method sees it for which a record is a person, or a row."""
        by_person = unit == Unit.PERSON
        return self if by_person == self.by_person else replace(self, by_person=by_person)

    @property
    def all_caveats(self) -> tuple[str, ...]:
        """Also that nobody knows what the model's starting weights cost, unless they are those that Hush made."""
        return self.caveats if remembered(self.model.state_dict()) == self.drawn else (*self.caveats, _GIVEN_WEIGHTS)

    def measures(self) -> dict[str, Metric]:
        """What is reported besides loss and accuracy: the user's metrics, or the usual ones for such targets."""
        return usual(self.train.y) if self.metrics is None else named(self.metrics)

    def belongs_to_clients(self, part: str) -> bool:
        """Whether `test` or `validation` are clients' own: figures of them are then un-noised views of clients."""
        return isinstance(getattr(self, part), Clients) or part in self.of_clients

    def per_example_loss(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Loss:
        """The user's loss, made to answer per example where PyTorch's own modules can."""
        loss = nn.CrossEntropyLoss() if self.loss is None else self.loss
        if not isinstance(loss, nn.Module) or not hasattr(loss, "reduction"):
            return loss
        each = copy.deepcopy(loss).to(device, dtype)
        setattr(each, "reduction", "none")  # noqa: B010  # nn.Module types its attributes as tensors
        return partial(_mean_over_targets, each, self.ignored) if self.is_cross_entropy else each

    @property
    def is_cross_entropy(self) -> bool:
        return self.loss is None or isinstance(self.loss, nn.CrossEntropyLoss)

    @property
    def ignored(self) -> int:
        """The target that stands for nothing."""
        return self.loss.ignore_index if isinstance(self.loss, nn.CrossEntropyLoss) else IGNORED

    def learner(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> FlatModel:
        """The model as functions of flat weights, on a device."""
        return FlatModel(self.model, self.per_example_loss(device, dtype), device, dtype, self.ignored)

    def placed(self, part: str, device: torch.device | str, dtype: torch.dtype) -> Examples | None:
        """One of `test`, `validation`, `public`, on the device."""
        held = getattr(self, part)
        if held is None:
            return None
        x, y = (held.x, held.y) if isinstance(held, Clients) else held
        return Examples(*self._place(x, y, device, dtype))

    def placed_train(self, device: torch.device | str, dtype: torch.dtype) -> Clients:
        return self.train.placed(torch.device(device), partial(self._place, device=device, dtype=dtype))

    def _place(self, x: Tensor, y: Tensor, device: torch.device | str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # PyTorch's losses take no other whole numbers, and cross-entropy no truth values
        labels = y.dtype if y.dtype is torch.bool and not self.is_cross_entropy else torch.int64
        return (
            x.to(device, dtype if x.is_floating_point() else x.dtype),
            y.to(device, dtype if y.is_floating_point() else labels),
        )

    def refuse_clients_examples(self) -> None:
        """What a mask is made from and figures are published of must not be what clients train on: it is used without noise.

        Some equal rows are chance, in a census of eight categories most. How often one meets a client's row among the others'
        tells how many of the examples of nobody would be met there, too; more than that, by five deviations, were taken.
        """
        if self.by_person and self.of_persons:
            raise UsageError(
                f"Persons who train have rows among the {' and '.join(self.of_persons)} examples, too, which are used without "
                "noise: take these rows out."
            )
        parts = self._nobodys(torch.float32)
        if not parts or not self.train.total:
            return
        found = overlap(self.placed_train("cpu", torch.float32), {part: examples.x for part, examples in parts.items()})
        for part, shared in found.met.items():
            rows = len(parts[part].x)
            chance = found.again * rows
            if shared > chance + 5 * math.sqrt(chance * (1 - found.again)):
                raise UsageError(
                    f"{shared} of {rows} {part} examples are among those that clients train on (by chance about {chance:.0f} "
                    "would be), and are used without noise: take them out of the clients' data first."
                )

    def _nobodys(self, dtype: torch.dtype) -> dict[str, Examples]:
        """What is used without noise, where there is any of it."""
        parts = {part: self.placed(part, "cpu", dtype) for part in ("public", "validation", "test")}
        return {part: examples for part, examples in parts.items() if examples is not None and len(examples.x)}

    @torch.no_grad()
    def refuse_impossible_values(self) -> None:
        """Labels that no class has and tokens that no row has, before a GPU trips over them in the middle of a run."""
        model = copy.deepcopy(self.model).cpu().eval()
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        others = self._nobodys(dtype)
        for part, examples in others.items():
            self._refuse_not_finite(part, examples)
        looked = {part: [(0, examples)] for part, examples in others.items()}
        own = {"": self.placed_train("cpu", dtype).pieces()} if self.train.total else {}
        for part, pieces in (own | looked).items():
            examples, numbers = extremes(pieces, self.ignored)
            outputs = _outputs_of(model, examples.x, partial(self._place_of, part, numbers))
            if not self.is_cross_entropy or outputs is None:
                continue
            _refuse_other_kinds(outputs, examples.y)
            if examples.y.is_floating_point() or outputs.dim() < 2:
                continue
            wrong = ((examples.y < 0) | (examples.y >= outputs.shape[1])) & (examples.y != self.ignored)
            if bool(wrong.any()):
                row = int(torch.nonzero(wrong.reshape(len(wrong), -1).any(1))[0, 0])
                raise UsageError(
                    f"{self._place_of(part, numbers, row)} has the label {int(examples.y[wrong][0])}, and the model has "
                    f"{outputs.shape[1]} classes: labels go from 0 to {outputs.shape[1] - 1}."
                )

    def _refuse_not_finite(self, part: str, examples: Examples) -> None:
        """A figure of examples that are no numbers is none. (A client that holds such ones contributes nothing.)"""
        for name, values in (("input", examples.x), ("target", examples.y)):
            finite = torch.isfinite(values).reshape(len(values), -1).all(1)
            if not bool(finite.all()):
                row = int(torch.nonzero(~finite)[0, 0])
                raise UsageError(f"Row {row} of the {part} examples has an {name} that is NaN or infinite: mend it, or drop it.")

    def _place_of(self, part: str, numbers: Tensor, which: int) -> str:
        """One of these rows in words: of a client, or of examples that are nobody's."""
        row = int(numbers[which])
        if part:
            return f"Row {row} of the {part} examples"
        client = int(self.train.owner[row])
        return f"Example {row - int(self.train.sizes[:client].sum())} of client {client}"


def _outputs_of(model: nn.Module, x: Tensor, where: Callable[[int], str]) -> Tensor | None:
    """What the model answers to examples that hold the extremes of all.

    A token beyond an embedding must not come to training, be it a whole number or not.
    """
    outputs: Tensor | None = None
    for part in torch.split(torch.arange(len(x)), 16):
        try:
            answer = model(x[part])
        except IndexError:
            row = next((int(r) for r in part if not _answers(model, x[r : r + 1])), int(part[0]))
            raise UsageError(
                f"{where(row)} holds a value that the model's embedding does not (they go from {float(x.min()):g} to "
                f"{float(x.max()):g}): check the tokens, or enlarge it."
            ) from None
        except Exception:  # the trial of training says what is wrong with it, and how
            return None
        outputs = answer if outputs is None and isinstance(answer, Tensor) else outputs
    return outputs


def _refuse_other_kinds(outputs: Tensor, targets: Tensor) -> None:
    """Targets that cross-entropy would take for something else."""
    if targets.is_floating_point() and (outputs.shape[1:] != targets.shape[1:] or outputs.shape[1:].numel() < 2):
        raise UsageError("The targets are fractions, and cross-entropy takes classes: give a loss, such as torch.nn.MSELoss().")
    positions = targets.shape[1:]
    if outputs.dim() == 3 and len(positions) == 1 and outputs.shape[1] == positions[0] != outputs.shape[2]:
        raise UsageError(
            f"Outputs are [n, {outputs.shape[1]} positions, {outputs.shape[2]} tokens], and PyTorch's cross-entropy takes the "
            "tokens before the positions: end the model with .movedim(-1, 1)."
        )


def _answers(model: nn.Module, x: Tensor) -> bool:
    try:
        model(x)
    except IndexError:
        return False
    return True


def _held(held: Any, part: str) -> Examples | Clients:
    """Examples of nobody (a pair of tensors, or one data set), or each client's own (a list or a dict of them)."""
    if isinstance(held, tuple | list) and len(held) == 2 and all(isinstance(part, Tensor) for part in held):
        return Examples(*held)
    try:
        if isinstance(held, Dataset):
            whole = Clients.of([held])
            return Examples(whole.x, whole.y)
        return Clients.of(held)
    except UsageError as error:
        raise UsageError(f"{part}: {error}") from None


def _mean_over_targets(loss: nn.Module, ignored: int, outputs: Tensor, targets: Tensor) -> Tensor:
    """One value per example: of several targets (a token each) the mean over those that count."""
    losses: Tensor = loss(outputs, targets)
    if losses.dim() < 2:
        return losses
    counts = (targets != ignored).flatten(1).sum(1)
    return losses.flatten(1).sum(1) / counts.clamp_min(1)
