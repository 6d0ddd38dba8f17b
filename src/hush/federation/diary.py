"""What a client remembers by itself, on its own disk: what it agreed to, how far each run came, and what that cost it.

It is written before a word of it leaves: a client that is killed and started again repeats no round, and forgets no sum.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hush.errors import DataError
from hush.federation import statement
from hush.federation.folders import ClientFolder, write_text
from hush.federation.members import as_object
from hush.federation.proposal import Agreement
from hush.federation.statement import Signed
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import Ledger, RunAccount
from hush.privacy.vocabulary import Plan, PoissonSampling, Sampling, SecretParticipation
from hush.secagg.identity import Identity


class Before(NamedTuple):
    """What a client agreed to before it is asked."""

    epsilon: float = 0.0
    """Of all other runs, added up: together they are as private as that, however a server chose them (basic composition)."""
    delta: float = 0.0
    """Of all other runs, added up as well."""
    agreed: bool = False
    """Whether it said yes to this very run."""
    members: Mapping[str, str] = {}
    """The roster of the last run that it agreed to, names and keys; empty where there is none."""


NOTHING = Before()
"""To a new client nothing was proposed."""


class Diary:
    """`diary.json`, one entry a run, and `ledger.sqlite`."""

    def __init__(self, folder: Path, population: str) -> None:
        self._folder, self._path, self._population = folder, folder / "diary.json", population
        self._runs: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            try:
                text = self._path.read_text()
            except OSError as error:
                raise DataError(f"{self._path} cannot be read: {error.strerror}.") from error
            self._runs = as_object(text, str(self._path))

    def knows(self, digest: bytes) -> bool:
        """Whether this client said yes to this very proposal."""
        return digest.hex() in self._runs

    def agreed(self, told: Agreement) -> None:
        """This client said yes."""
        entry = {
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "method": told.run.method,
            "rounds": told.run.rounds,
            "roster": told.proposal.members.fingerprint,
            "members": {card.name: card.key.hex() for card in told.proposal.members.cards},
            "next_round": 0,
            "opened": 0,
            "over": False,
        } | statement.found(told)  # to sign when it is over, be this process there or another one
        self._write(self._runs | {told.proposal.digest.hex(): entry})

    def before(self, told: Agreement) -> Before:
        """What all other runs that it agreed to cost it at most. Where the diary was lost, the ledger knows what was spent."""
        own = told.proposal.digest.hex()
        others = [entry for digest, entry in self._runs.items() if digest != own and entry.get("epsilon") is not None]
        cost = [*((float(entry["epsilon"]), float(entry["delta"])) for entry in others), *self._forgotten(told)]
        epsilon, delta = math.fsum(epsilon for epsilon, _ in cost), math.fsum(delta for _, delta in cost)
        last = next(reversed(self._runs.values()), {})
        return Before(epsilon, delta, own in self._runs, last.get("members", {}))

    def _forgotten(self, told: Agreement) -> list[tuple[float, float]]:
        """Epsilon and delta of the runs that are in the ledger, and in the diary no more."""
        if told.own_plan is None or told.delta is None:
            return []
        known = {_in_ledger(digest) for digest in (*self._runs, told.proposal.digest.hex())}
        with self._ledger() as ledger:
            return [
                (replace(pool, runs={name: run}).spent(told.delta), told.delta)
                for pool in ledger.populations.values()
                for name, run in pool.runs.items()
                if name not in known
            ]

    def standing(self, told: Agreement) -> tuple[int, int]:
        """The next round of the secure sum that it may join, and how many it was in: by the ledger, where that knows of more.

        A diary may have been restored from an old copy; of its ledger this machine remembers the last entry.
        """
        entry = self._runs.get(told.proposal.digest.hex(), {})
        opened = int(entry.get("opened", 0))
        if told.own_plan is not None:
            with self._ledger() as ledger:
                opened = max(opened, self._account(ledger, told).charges)
        return int(entry.get("next_round", 0)), opened

    def note(self, digest: bytes, next_round: int, opened: int) -> None:
        self._change(digest, next_round=next_round, opened=opened)

    def over(self, digest: bytes, identity: Identity, name: str, told: dict[str, Any]) -> Signed:
        """A run has ended; what this client signs of it, and keeps: whoever asks again gets the same."""
        entry = self._runs[digest.hex()]
        if "signed" not in entry:
            opened, ledger = int(entry["opened"]), None
            if entry["plan"] is not None:
                with self._ledger() as own:
                    run = _in_ledger(digest.hex())
                    charges = sum(pool.runs[run].charges for pool in own.populations.values() if run in pool.runs)
                    opened, ledger = max(opened, charges), {"charges": charges, "head": own.head}
            signed = statement.sign(identity, name, entry, opened, ledger, told)
            self._change(digest, over=True, signed=signed.to_dict())
            return signed
        return Signed.of(entry["signed"])

    def kept(self, digest: bytes) -> bool:
        """The server says that it has what this client signed; whether it says so for the first time."""
        first = not self._runs[digest.hex()].get("kept")
        self._change(digest, kept=True)
        return first

    @property
    def unfinished(self) -> int:
        """How many runs it agreed to of which the server has not said that they are over."""
        return sum(not entry.get("over") for entry in self._runs.values())

    def ended(self, digest: bytes) -> bool:
        """Whether the server said that this run, which was agreed to, is over."""
        return bool(self._runs.get(digest.hex(), {}).get("over"))

    def charge(self, told: Agreement, opened: int) -> None:
        """Every sum that it counted, in this client's own ledger; it raises where a budget there is spent."""
        if told.own_plan is None:
            return
        with self._ledger() as ledger:
            account = self._account(ledger, told)
            while account.charges < opened:  # one letter may have asked for several
                account.charge(account.charges, os.urandom(8).hex())

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """This client's own. A copy of its folder has another, or an older one: this machine remembers which is the client's."""
        with closing(Ledger(self._folder / "ledger.sqlite")) as ledger:
            ledger.belongs_to(ClientFolder(self._folder).card.first.hex())
            yield ledger

    def _account(self, ledger: Ledger, told: Agreement) -> RunAccount:
        plan = told.own_plan
        assert plan is not None
        return ledger.open_run(_in_ledger(told.proposal.digest.hex()), *_itself(self._population, plan))

    def _change(self, digest: bytes, **values: Any) -> None:
        entry = self._runs[digest.hex()]
        if entry | values != entry:
            self._write(self._runs | {digest.hex(): entry | values})

    def _write(self, runs: dict[str, dict[str, Any]]) -> None:
        """What cannot be written is not remembered either."""
        write_text(self._path, json.dumps(runs, indent=2) + "\n")
        self._runs = runs


def _in_ledger(digest: str) -> str:
    """A run's name there."""
    return digest[:32]


def _itself(federation: str, plan: Plan) -> tuple[str, Plan]:
    """A population of this client alone, in however large a federation, so that all its runs add up; or of a unit there."""
    phases = (replace(phase, sampling=_of_one(phase.sampling)) for phase in plan.phases)
    alone = replace(plan, population=1, phases=tuple(phases))
    return federation if plan.unit is Unit.CLIENT else f"{federation}, by {plan.unit}", alone


def _of_one(sampling: Sampling) -> Sampling:
    """The same coins, thrown by one."""
    if isinstance(sampling, SecretParticipation):
        return replace(sampling, contacted=1)
    return replace(sampling, population=1) if isinstance(sampling, PoissonSampling) else sampling
