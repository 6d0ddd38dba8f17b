"""Those whose privacy is spent, and what was spent of it, run by run."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hush.errors import NoGuarantee
from hush.privacy import renyi
from hush.privacy.accountant import fits, spent
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import Phase, Plan, SecretParticipation


class Released(NamedTuple):
    """What a run gave out at its end."""

    entry: int
    """Of the ledger."""
    sha256: dict[str, str]
    """Of its model, its certificate, its result and its rounds."""


@dataclass
class Spending:
    """One run's charges on a population."""

    phase: Phase
    drawn: set[tuple[int, str]] = field(default_factory=set)
    """Rounds, each with the attempt that drew it."""
    charges: int = 0
    released: list[Released] = field(default_factory=list)
    """One, or one more for each time that the process was killed after it."""
    signed: dict[str, str] = field(default_factory=dict)
    """Of real clients: who signed when it was over, and the hash of what."""

    @property
    def rounds(self) -> set[int]:
        return {round for round, _ in self.drawn}

    def as_phase(self, more: int = 0, again: int = 0) -> Phase:
        """All charges, `more` to come and `again` drawn again, as one phase.

        A round charged twice was drawn twice, and a client may have been in both.
        """
        phase = replace(self.phase, rounds=self.charges + more + again)
        return phase.again(self.charges - len(self.rounds) + again)


class OneClient(NamedTuple):
    """What a client of a federation was in, as its rosters have it, and what that cost it at most."""

    name: str
    keys: tuple[str, ...]
    """Its first key; several where somebody else, or the same client without its old keys, came under its name."""
    runs: tuple[str, ...]
    charged: int
    epsilon: float | None


@dataclass
class Population:
    """Those whose privacy is spent: how many, in which sense, and the most that may be."""

    name: str
    size: int
    unit: Unit
    relation: Relation
    epsilon: float | None = None
    delta: float | None = None
    adaptive: bool = False
    runs: dict[str, Spending] = field(default_factory=dict)
    rosters: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of runs of a federation: its clients' names, with the first key of each. `size` is that of the largest."""

    def of_client(self, name: str) -> Population:
        """The runs that cost this client something: all whose roster has one of its names or keys, or is not known.

        A name that came back under another key may be the same client, so it pays for both; and so does a key under another name.
        """
        names, keys, before = {name}, set[str](), 0
        while len(names) + len(keys) > before:
            before = len(names) + len(keys)
            for called, key in ((called, key) for roster in self.rosters.values() for called, key in roster.items()):
                if called in names or key in keys:
                    names.add(called)
                    keys.add(key)
        known = ((run, self.rosters.get(run)) for run in self.runs)
        there = [run for run, roster in known if roster is None or names & roster.keys()]
        return replace(self, runs={run: self.runs[run] for run in there})

    def by_client(self, delta: float) -> list[OneClient]:
        """Everybody who was in a run that was charged, in the order of the rosters."""
        found: dict[str, dict[str, None]] = {}
        for run, roster in self.rosters.items():
            for name, key in roster.items() if run in self.runs else ():
                found.setdefault(name, {})[key] = None
        return [self._one(name, tuple(keys), delta) for name, keys in found.items()]

    def _one(self, name: str, keys: tuple[str, ...], delta: float) -> OneClient:
        own = self.of_client(name)
        try:
            epsilon = own.spent(delta)
        except NoGuarantee:
            epsilon = None
        return OneClient(name, keys, tuple(own.runs), sum(run.charges for run in own.runs.values()), epsilon)

    def plan(self, run: str | None = None, more: int = 0, again: int = 0) -> Plan | None:
        """Everything released so far about this population, and rounds of one run that are to come."""
        phases = [s.as_phase(more, again) if name == run else s.as_phase() for name, s in self.runs.items()]
        phases = [_among(self.size, phase) for phase in phases if phase.rounds > 0]
        if not phases:
            return None
        view = View.MESSAGES if self.unit.within_client else View.RELEASED  # records are covered by their own client
        return Plan(tuple(phases), self.size, self.unit, self.relation, view, sampled=self.unit)

    def spent(self, delta: float, run: str | None = None, more: int = 0, again: int = 0) -> float:
        """Epsilon of everything, by its exact composition."""
        plan = self.plan(run, more, again)
        return spent(plan, delta, plan.rounds) if plan is not None else 0.0

    def filtered(self, run: str | None = None, more: int = 0, again: int = 0) -> float:
        """Epsilon of everything, however later runs were chosen: one Renyi order, fixed by the budget alone."""
        plan = self.plan(run, more, again)
        if plan is None:
            return 0.0
        assert self.epsilon is not None
        assert self.delta is not None
        order = filter_order(self.epsilon, self.delta)
        return renyi.epsilon((order,), [renyi.renyi(plan, order)], self.delta)

    def fits(self, run: str, more: int, again: int = 0) -> bool:
        """Whether `more` rounds of a run, and `again` drawn again, stay within the budget."""
        if self.epsilon is None or self.delta is None:
            return True
        if self.adaptive:
            return self.filtered(run, more, again) <= self.epsilon
        plan = self.plan(run, more, again)
        return plan is None or fits(plan, self.delta, plan.rounds, self.epsilon)


def _among(size: int, phase: Phase) -> Phase:
    """A phase in a population of another size than its run's roster had: whose coins are secret, theirs do not depend on others."""
    if isinstance(phase.sampling, SecretParticipation):
        return replace(phase, sampling=replace(phase.sampling, contacted=size))
    return phase


def looks_like(one: str, other: str) -> bool:
    """Whether two names differ in nothing but case, spaces, or how their letters are encoded."""
    read = ("".join(unicodedata.normalize("NFKC", name).casefold().split()) for name in (one, other))
    return next(read) == next(read)


def filter_order(epsilon: float, delta: float) -> int:
    """The order at which a Gaussian mechanism of just this (epsilon, delta) converts best."""
    spread = 2 * math.log(1 / delta)
    shift = math.sqrt(spread + 2 * epsilon) - math.sqrt(spread)
    return max(2, round(1 + math.sqrt(spread) / shift))
