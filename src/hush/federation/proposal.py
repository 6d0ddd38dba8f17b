"""What a server proposes to its clients: a run as one piece of data, what examples look like, and who belongs to it.

Both sides make the method, the plan and the terms of the secure sum from it by themselves (`agree`). Its digest is part of the
terms: a server that runs anything else cannot even address a client.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from hush import methods
from hush.cohort import Cohort, Rotation, SecretParticipation, make_cohort
from hush.config import RunConfig
from hush.core import Method
from hush.errors import DataError, HushError, NoGuarantee, UsageError
from hush.federation.members import Members, as_object
from hush.plugins import code_of, is_in_file, shown
from hush.privacy.guarantee import Budget, Unit
from hush.privacy.plan import in_a_federation
from hush.privacy.record_plan import unit_within_clients
from hush.privacy.settle import Proof, as_charged, certify, settle_privacy
from hush.privacy.shares import SecureSum, as_run
from hush.privacy.vocabulary import Enrolled, Persons, Plan
from hush.random import derive
from hush.secagg.terms import Terms
from hush.tasks.models import build_model
from hush.tasks.models.pixels import on_pixels
from hush.version import __version__

FORMAT = 1
DTYPES = ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")
"""What inputs are made of."""
MOST_NUMBERS = 2**24
"""In one example: whoever proposes more wants a client's memory."""
MOST_ROUNDS = 100_000
"""Of one run: a day has room for some ten thousand. Whoever proposes more wants a client's time, for the accounting."""


@dataclass(frozen=True)
class Examples:
    """What one client's examples look like: how its table is read, and what the model is made for."""

    shape: tuple[int, ...]
    dtype: str
    classes: int
    target: str = "y"
    features: tuple[str, ...] | None = ("x",)
    categories: dict[str, list[Any]] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    numbers: bool = False
    """Whether the target is a number to come close to, and not a class."""
    person: str | None = None
    """The column that says whose a row is, where a person is what is protected."""
    person_rows: int | None = None
    """How many rows of a person count at most."""

    def __post_init__(self) -> None:
        known = isinstance(self.person, str) and type(self.person_rows) is int and self.person_rows >= 1
        if not known and (self.person, self.person_rows) != (None, None):
            raise ValueError("a person is a column, and a number of rows that count")

    @property
    def persons(self) -> Persons | None:
        """What is said of persons. That each one's rows lie at one client nobody here can know: it is assumed."""
        return None if self.person is None else Persons(self.person_rows)

    @property
    def loss(self) -> nn.Module | None:
        return nn.MSELoss() if self.numbers else None

    @staticmethod
    def of(value: Any) -> Examples:
        tuples = {key: tuple(value[key]) for key in ("shape", "mean", "std")}
        features = None if value["features"] is None else tuple(value["features"])
        told = Examples(**value | tuples | {"features": features})
        if wrong := [name for name, right in _sense(told).items() if not right]:
            raise UsageError(f"The proposal describes examples that there cannot be, by their {', '.join(wrong)}.")
        return told


def _sense(told: Examples) -> dict[str, bool]:
    """Whether each word on examples can be meant: whatever a server wrote, it ends here and not in the middle of training."""
    known, scales = told.categories, (*told.mean, *told.std)
    channels = told.shape[:1] if told.mean or told.std else (0,)
    return {
        "shape": _is_shape(told.shape),
        "dtype": told.dtype in DTYPES,
        "classes": type(told.classes) is int and told.classes >= 1,
        "target": isinstance(told.target, str),
        "features": _are(told.features or (), str),
        "categories": isinstance(known, dict) and all(isinstance(v, list) and _are(v, str | int | float) for v in known.values()),
        "mean and std": _are(scales, int | float) and channels == (len(told.mean),) == (len(told.std),) and 0 not in told.std,
        "numbers": isinstance(told.numbers, bool),
    }


def _is_shape(shape: tuple[int, ...]) -> bool:
    return len(shape) <= 8 and all(type(size) is int and size >= 1 for size in shape) and math.prod(shape) <= MOST_NUMBERS


def _are(values: Iterable[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


@dataclass(frozen=True)
class Proposal:
    """A run that is proposed. `run` has every default filled in, the noise too."""

    run: RunConfig
    examples: Examples
    parameters: int
    members: Members
    name: str = field(default_factory=lambda: os.urandom(16).hex())
    """No other run has it."""
    hush: str = __version__
    format: int = FORMAT

    def to_json(self) -> str:
        """In one way alone, so that it has one digest."""
        told = {
            "format": self.format,
            "hush": self.hush,
            "name": self.name,
            "run": self.run.published(),
            "examples": asdict(self.examples),
            "parameters": self.parameters,
            "members": json.loads(self.members.to_json()),
        }
        return json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(b"hush proposal" + self.to_json().encode()).digest()

    @staticmethod
    def read(text: str) -> Proposal:
        """What the other side sent, or one sentence."""
        value = as_object(text, "The proposal")
        if value.get("format") != FORMAT or value.get("hush") != __version__:
            theirs = f"Hush {value.get('hush')}, format {value.get('format')}"
            raise UsageError(f"The server runs {theirs}, and this is Hush {__version__}, format {FORMAT}: install the same one.")
        try:
            proposal = Proposal(
                run=RunConfig.read(value["run"], " of the proposal"),
                examples=Examples.of(value["examples"]),
                parameters=int(value["parameters"]),
                members=Members.read(json.dumps(value["members"]), "The proposal"),
                name=str(value["name"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError("The proposal is not one that Hush writes.") from None
        if proposal.to_json() != text:
            raise DataError("The proposal is not written as Hush writes it.")
        return proposal

    def model(self) -> nn.Module:
        """What is trained. Its weights come from the server, round by round."""
        run, told = self.run, self.examples
        assert run.model is not None
        network = build_model(run.model, torch.Size(told.shape), told.classes, derive(run.seed, 11))
        return on_pixels(network, told.mean, told.std) if told.mean else network

    def refuse_another_size(self) -> None:
        """A model of another size than the proposal says, before any memory is taken for it."""
        try:
            with torch.device("meta"):
                count = sum(p.numel() for p in self.model().parameters() if p.requires_grad)
        except HushError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}, where it is made without memory for its weights (torch.device('meta'))"
            raise UsageError(f"The size of {self.run.model} cannot be told: {why}.") from error
        if count != self.parameters:
            raise UsageError(f"The model has {count:,} parameters here, and the server says {self.parameters:,}.")


@dataclass(frozen=True)
class Agreement:
    """What a proposal means, derived here."""

    proposal: Proposal
    method: Method
    cohort: Cohort
    plan: Plan | None
    delta: float | None
    terms: Terms
    proof: Proof | None
    refused: str | None = None
    """Why nothing is proved, where that is so."""

    @property
    def run(self) -> RunConfig:
        return self.proposal.run

    @property
    def participations(self) -> int:
        """The most sums that this client is in."""
        return self.cohort.most_participations(self.run.rounds or 0, len(self.proposal.members.cards))

    @property
    def own_plan(self) -> Plan | None:
        """The plan as one client counts it for itself: every sum that it let be opened is one round."""
        if self.plan is None:
            return None
        return replace(self.plan, phases=tuple(replace(p, rounds=self.participations, period=None) for p in self.plan.phases))


def agree(proposal: Proposal, own_code: str | None = None) -> Agreement:
    """Method, plan and terms from a proposal; `own_code` is where a method of one's own lies here, as `FILE.py:NAME`."""
    run, clients = proposal.run, len(proposal.members.cards)
    refuse_what_cannot_travel(run, clients)
    proposal.refuse_another_size()
    method = methods.build(_here(run, own_code), **run.set)
    refuse_public_at_clients(method)
    named = proposal.examples.person is not None
    if unit_within_clients(method, run.unit, named) != run.unit or named != (run.unit == Unit.PERSON):
        raise UsageError("The proposal is not clear about whether a person is protected, by which column, or a row.")
    assert run.sampling is not None and run.cohort is not None and run.rounds is not None  # noqa: PT018
    cohort = make_cohort(run.sampling, run.cohort, run.participations or 1)
    cohort.check(clients)
    secure = SecureSum.of_config(run)
    assert secure is not None
    method = as_run(method, cohort, clients, False, secure, run.dropout)
    enrolled = Enrolled(clients, dim=proposal.parameters, persons=proposal.examples.persons)
    settled = settle_privacy(method, cohort, enrolled, run.rounds, Budget.of_config(run), run.delta, run.dropout)
    terms = secure.terms_of(settled.method, cohort, clients, run.dropout, proposal.parameters, run.rounds, proposal.digest)
    plan = None if settled.plan is None else in_a_federation(settled.plan)
    refused = settled.refused
    if run.noise_seed is not None:
        plan, refused = None, "The noise comes from a seed that everybody knows: nothing is hidden by it."
    proof = None
    if plan is not None:
        proof = certify(as_charged(plan, run.rounds, run.rounds), settled.delta, settled.method)
    return Agreement(proposal, settled.method, cohort, plan, settled.delta, terms, proof, refused)


def refuse_what_cannot_travel(run: RunConfig, clients: int) -> None:
    """What has no proof, or no way to the clients, among clients that come and go."""
    if not run.secure:
        raise NoGuarantee("In a federation the sum is secure.", "Leave --no-secure out.")
    kinds = {"rotation": Rotation, "secret": SecretParticipation}
    if run.sampling not in kinds:
        raise NoGuarantee(
            f"Of clients that come and go nobody knows who might have been drawn, so '{run.sampling}' sampling amplifies nothing.",
            "Take turns (--sampling rotation), or let everybody flip a coin that stays secret (--sampling secret).",
        )
    if (run.rounds or 0) > MOST_ROUNDS:
        raise UsageError(f"A run over a network has at most {MOST_ROUNDS:,} rounds, not {run.rounds:,}.")
    if run.dtype not in ("float32", "float64"):
        raise UsageError(f"dtype must be float32 or float64, not {run.dtype!r}.")
    if run.masks not in (None, "fresh"):
        raise UsageError(
            "Amortised masks cannot do without anybody, and over a network somebody is always missing: take fresh ones."
        )
    if run.model is not None and is_in_file(run.model):
        raise UsageError("A model in a file does not travel, and nobody runs a server's file: offer it as a package (hush.models).")
    if run.start != "random":
        raise UsageError(f"--start {run.start} makes layers that every client would have to make as well: use random weights.")
    if run.evaluation not in (None, "central"):
        raise UsageError("Clients judge the model under the noise, by --set score=0.3; the server on its own examples.")
    if run.clients is not None and run.clients != clients:
        raise UsageError(f"The roster has {clients:,} clients, not {run.clients:,}: leave --clients out.")


def refuse_public_at_clients(method: Method) -> None:
    """Clients get the model and what `prepare` returns, and no examples."""
    if method.pipeline.clients_need_public:
        raise UsageError(
            f"{method.name}: its clients answer the server's public examples, which do not travel to them. Choose dp-fedavg or "
            f"fed-smp-rand-k, whose clients need the model alone, or simulate it (hush run {method.name})."
        )


def _here(run: RunConfig, own_code: str | None) -> str:
    """The method by the name under which it is found on this machine."""
    name = run.method
    if is_in_file(name) or run.code is not None:
        there, _, parts = shown(name).partition("+")  # at the server it is a path, and what clients read is not
        if own_code is None or shown(own_code) != there:
            raise UsageError(f"The server proposes a method of its own, {there}: give the same file here (--code FILE.py:NAME).")
        if (code := code_of("hush.methods", own_code)) != run.code:
            raise HushError(f"{there} is another file here than at the server: here {code}, there {run.code}.")
        return f"{own_code}+{parts}" if parts else own_code
    return name
