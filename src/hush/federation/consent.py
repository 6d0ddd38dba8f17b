"""Does a client take part? What a proposal means, in words; and a policy that says yes or no where nobody is there to ask."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hush.engines.federation import beside_the_vector, letters_of
from hush.errors import DataError, UsageError
from hush.federation.diary import NOTHING, Before
from hush.federation.folders import read_text
from hush.federation.letters import printable
from hush.federation.members import Members, changes
from hush.federation.proposal import Agreement
from hush.federation.work import Work
from hush.local.record_gradients import RecordGradients
from hush.names import pick
from hush.privacy.attack import risk
from hush.privacy.certificate import statement
from hush.privacy.guarantee import at_least
from hush.privacy.settle import Proof, replaced_epsilon
from hush.secagg.parameters import THREATS

_ROUNDED = 1 + 1e-9


@dataclass(frozen=True)
class Policy:
    """What a client agrees to without being asked: `policy.toml`. What is left out is not limited, but for epsilon."""

    epsilon: float = 10.0
    """The greatest, for the whole run."""
    delta: float = 0.01
    epsilon_in_all: float | None = None
    """Of all runs that this client ever agreed to, added up; as much as for one, unless it is said."""
    delta_in_all: float | None = None
    """The same of delta: runs of hardly any epsilon, without end, would otherwise cost nothing."""
    methods: tuple[str, ...] | None = None
    smallest_cohort: int = 3
    """The fewest clients in a sum that is opened, those who vanished not counted."""
    parameters: int = 50_000_000
    """Of the model; no message has more than twice as many numbers."""
    steps: int = 1000
    """Of a round's training, where the server says how many; or"""
    passes: int = 100
    """over all rows, where it says that."""
    participations: int | None = None
    rounds: int | None = None
    features: tuple[str, ...] | None = None
    """The columns that may be read, the target not counted, which is then named as well."""
    target: str | None = None
    person: str | None = None
    """The column that says whose a row is: where less is protected than all that a client holds, it is persons by this column."""
    threat: str | None = None
    """`malicious`: only where the sum is safe from a server that lies."""
    roster: str | None = None
    """The roster's fingerprint. Without it nothing is agreed to: a server that may invent clients can surround one."""
    corrupted: float = 0.1
    """The least share of a cohort that may help the server without a loss of privacy."""
    unproved: bool = False
    """Also where nothing is proved: for trials on data that need no protection."""

    def __post_init__(self) -> None:
        if self.features is not None and self.target is None:
            raise UsageError("A policy that names features names the target, too: any other column could be learned as one.")

    @property
    def _in_all(self) -> tuple[float, float]:
        """The most epsilon and delta of all runs together, and as little more as adding up in floating point may err by."""
        epsilon = self.epsilon if self.epsilon_in_all is None else self.epsilon_in_all
        delta = self.delta if self.delta_in_all is None else self.delta_in_all
        return epsilon * _ROUNDED, delta * _ROUNDED

    @staticmethod
    def read(path: Path) -> Policy:
        try:
            value = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise DataError(f"{path} is not valid TOML: {error}.") from error
        kinds: dict[str, Any] = {
            "epsilon": (int, float),
            "delta": (int, float),
            "epsilon_in_all": (int, float),
            "delta_in_all": (int, float),
            "corrupted": (int, float),
            "methods": list,
            "features": list,
        }
        kinds |= dict.fromkeys(("smallest_cohort", "parameters", "steps", "passes", "participations", "rounds"), int)
        kinds |= dict.fromkeys(("target", "person", "threat", "roster"), str) | {"unproved": bool}
        for key, given in value.items():
            pick(dict.fromkeys(f.name for f in fields(Policy)), key, f"key in {path.name}")
            if not isinstance(given, kinds[key]) or isinstance(given, bool) != (key == "unproved"):
                raise UsageError(f"{key} in {path.name} cannot be {given!r}.")
            if isinstance(given, float) and math.isnan(given):
                raise UsageError(f"{key} in {path.name} cannot be {given!r}: it would limit nothing.")
            if isinstance(given, list) and not all(isinstance(one, str) for one in given):
                raise UsageError(f"{key} in {path.name} cannot be {given!r}.")
        if "threat" in value:
            pick(THREATS, value["threat"], f"threat in {path.name}")
        lists: dict[str, Any] = {key: tuple(value[key]) for key in ("methods", "features") if key in value}
        try:
            return Policy(**value | lists)
        except UsageError as error:
            raise UsageError(f"{path.name}: {error}") from None

    def objection(self, told: Agreement, before: Before = NOTHING) -> str | None:
        """Why this client does not take part, after all that it agreed to before; None where it does."""
        proof, roster = told.proof, told.proposal.members.fingerprint
        if (proof is None or proof.server is None) and not self.unproved:
            return f"nothing is proved against the server: {told.refused or (proof.no_server if proof else 'there is no noise')}"
        if self.roster is None:
            return f'the policy names no roster: compare {roster} by telephone, and write roster = "{roster}"'
        return self._too_much(told, before) or self._too_little(told) or self._not_allowed(told)

    def _too_much(self, told: Agreement, before: Before) -> str | None:
        proved = told.proof.server if told.proof is not None else None
        epsilon, delta = (proved.epsilon, proved.delta) if proved is not None else (0.0, 0.0)
        epsilon_in_all, delta_in_all = self._in_all
        limits = (
            ("epsilon", epsilon, self.epsilon),
            ("delta", delta, self.delta),
            ("epsilon in all runs", before.epsilon + epsilon, epsilon_in_all),
            ("delta in all runs", before.delta + delta, delta_in_all),
            ("the number of sums that this client is in", told.participations, self.participations),
            ("the number of rounds", told.run.rounds or 0, self.rounds),
            ("the number of parameters", told.proposal.parameters, self.parameters),
            ("the numbers in a message", told.terms.entries, 2 * self.parameters),
            *Work.of(told.method.local).limits(self.steps, self.passes),
        )
        over = ((name, value, most) for name, value, most in limits if most is not None and value > most)
        return next((f"{name} would be {_figure(value)}, and {_figure(most)} is the most" for name, value, most in over), None)

    def _too_little(self, told: Agreement) -> str | None:
        floors = (
            ("the share of a cohort that may help the server", told.terms.corrupted, self.corrupted),
            ("the number of clients in a sum", told.terms.fewest(told.terms.smallest), self.smallest_cohort),
        )
        under = (floor for floor in floors if floor[1] < floor[2])
        return next((f"{name} would be {value:g}, and {least:g} is the least" for name, value, least in under), None)

    def _not_allowed(self, told: Agreement) -> str | None:
        examples = told.proposal.examples
        by_person = self.person is not None and told.run.unit is not None
        allowed = (
            ("the method", told.run.method, self.methods),
            ("the target", examples.target, None if self.target is None else (self.target,)),
            ("the person that is protected", examples.person or "(a row)", (self.person,) if by_person else None),
            ("the roster's fingerprint", told.proposal.members.fingerprint, (self.roster,)),
            ("the threat that the sum is safe from", told.terms.threat, ("malicious",) if self.threat == "malicious" else None),
            *(("a column that is read", name, self.features) for name in examples.features or ("(all columns)",)),
            *(("a column that is read", name, self.features) for name in (examples.person,) if name is not None),
        )
        for what, proposed, known in allowed:
            if known is not None and proposed not in known:
                return f"{what} would be {proposed}, and may be {', '.join(map(str, known)) or 'none'} alone"
        return None


def by_policy(policy: Policy, say: Callable[[str, str], None]) -> Callable[[Agreement, int, Before], bool | str]:
    """A policy's yes, or why not; `say` is told a client's name and a line, of what was proposed and of what it was answered."""

    def decide(told: Agreement, number: int, before: Before) -> bool | str:
        name, objection = told.proposal.members.names[number], policy.objection(told, before)
        for line in words(told, number, before):
            say(name, line)
        say(name, f"the policy says no: {objection}" if objection else "the policy says yes")
        return objection or True

    return decide


def words(told: Agreement, me: int, before: Before = NOTHING) -> list[str]:
    """A proposal as its client should read it before it says yes."""
    run, terms, members = told.run, told.terms, told.proposal.members
    message = told.method.uplink(told.proposal.parameters)
    received = told.method.downlink_bytes(told.proposal.parameters)
    lines = [
        f"{run.method} trains {run.model} ({told.proposal.parameters:,} parameters) in {run.rounds} rounds.",
        _examples(told),
        f"In a round you train for {Work.of(told.method.local).in_words()}.",
        *_drawn(told),
        f"The roster, with the fingerprint {members.fingerprint}, has {len(members.cards)} clients: {', '.join(members.names)}.",
        *_changed(members, before),
        f"You are {members.names[me]}.",
        f"You are in at most {told.participations} sums, of at least {terms.smallest} clients each, of whom at least "
        f"{terms.fewest(terms.smallest)} must still be there when a sum is opened.",
        f"You send about {_size(message.bytes + beside_the_vector(terms))} a round and receive about "
        f"{_size(received + letters_of(terms))}, keys not counted.",
    ]
    if run.begins_with is not None:
        lines.append(f"It goes on from an earlier model (SHA-256 {run.begins_with}), whatever that cost.")
    if run.code is not None:
        lines.append(f"The method is not Hush's own: {run.code}.")
    if told.proof is None:
        return list(map(printable, [*filter(None, lines), f"NOTHING IS PROVED: {told.refused or 'no noise is added'}"]))
    proved = told.proof.server or told.proof.guarantee
    said, caught = statement(proved), risk(told.proof.plan).true_positives
    lines += [
        f"Protected is {said['protected']}; hidden is {said['hidden']}.",
        f"Against {said['against']}.",
        f"In all rounds together: epsilon {at_least(proved.epsilon)} at delta {at_least(proved.delta, 2)}.",
        *_replaced(told.proof),
        f"What that means: somebody who wrongly accuses one in a hundred of having taken part may be right about {caught:.0%}.",
        f"You agreed to epsilon {at_least(before.epsilon)} at delta {at_least(before.delta, 2)} in other runs of this federation, "
        "which add to it."
        if before.epsilon or before.delta
        else "",
        f"The server: {THREATS[terms.threat]}; at most {terms.corrupted:.0%} of a cohort help it.",
    ]
    if told.proof.server is None:
        lines.append(f"AGAINST THE SERVER NOTHING IS PROVED: {told.proof.no_server}")
    lines += [f"Mind: {line}." for line in told.proof.guarantee.warnings]
    return list(map(printable, [*filter(None, lines), *(f"Assumed: {line}." for line in proved.assumptions)]))


def _drawn(told: Agreement) -> Iterator[str]:
    """How many records a sum has room for, which no server can know of."""
    local = told.method.local
    if isinstance(local, RecordGradients):
        yield (
            f"It reads each of your records with the chance {local.rate:g}; the sum has room for about {local.batch_size:,} of a "
            "client's."
        )


def _changed(members: Members, before: Before) -> Iterator[str]:
    """What is new about the roster since this client last agreed to one."""
    if before.members and (lines := changes(before.members, members)):
        yield f"Since the last run that you agreed to: {'; '.join(lines)}."


def _replaced(proof: Proof) -> Iterator[str]:
    """The figure of the other relation of records."""
    if (epsilon := replaced_epsilon(proof.plan, proof.guarantee.delta)) is not None:
        yield f"Which of two {proof.plan.unit}s it was stays secret, too: epsilon {at_least(epsilon)} at the same delta."


def _examples(told: Agreement) -> str:
    examples = told.proposal.examples
    read = ", ".join(examples.features) if examples.features is not None else "all columns but the target"
    whose = f"; {examples.person}, which says whose a row is and never leaves" if examples.person is not None else ""
    return f"Read of your data: {read}{whose}; learned: {examples.target}."


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else at_least(value)


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
