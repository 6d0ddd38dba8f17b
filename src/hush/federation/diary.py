"""What a client remembers by itself, on its own disk: what it agreed to, how far each run came, and what that cost it.

It is written before a word of it leaves: a client that is killed and started again repeats no round, and forgets no sum.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hush.errors import DataError
from hush.federation.folders import write_text
from hush.federation.members import as_object
from hush.federation.proposal import Agreement
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import Ledger, RunAccount
from hush.privacy.vocabulary import Plan


class Diary:
    """`diary.json`, one entry a run, and `ledger.sqlite`."""

    def __init__(self, folder: Path, population: str) -> None:
        self._path, self._ledger_path, self._population = folder / "diary.json", folder / "ledger.sqlite", population
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
        proved = told.proof.server if told.proof is not None else None
        self._runs[told.proposal.digest.hex()] = {
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "method": told.run.method,
            "rounds": told.run.rounds,
            "epsilon": proved.epsilon if proved is not None else None,
            "delta": told.delta,
            "roster": told.proposal.members.fingerprint,
            "next_round": 0,
            "opened": 0,
            "over": False,
        }
        self._write()

    @property
    def epsilon(self) -> float:
        """What all runs that this client agreed to cost it at most, added up."""
        return sum(float(entry.get("epsilon") or 0.0) for entry in self._runs.values())

    def standing(self, told: Agreement) -> tuple[int, int]:
        """The next round of the secure sum that it may join, and how many it was in: by the ledger, where that knows of more.

        A diary may have been restored from an old copy; of its ledger this machine remembers the last entry.
        """
        entry = self._runs[told.proposal.digest.hex()]
        opened = int(entry["opened"])
        if told.own_plan is not None:
            ledger = Ledger(self._ledger_path)
            try:
                opened = max(opened, self._account(ledger, told).charges)
            finally:
                ledger.close()
        return int(entry["next_round"]), opened

    def note(self, digest: bytes, next_round: int, opened: int) -> None:
        self._change(digest, next_round=next_round, opened=opened)

    def over(self, digest: bytes) -> None:
        self._change(digest, over=True)

    def charge(self, told: Agreement, round: int) -> None:
        """One sum more that was opened, in this client's own ledger; it raises where a budget there is spent."""
        plan = told.own_plan
        if plan is None:
            return
        ledger = Ledger(self._ledger_path)
        try:
            self._account(ledger, told).charge(round, os.urandom(8).hex())  # whatever the diary says: one more
        finally:
            ledger.close()

    def _account(self, ledger: Ledger, told: Agreement) -> RunAccount:
        plan = told.own_plan
        assert plan is not None
        return ledger.open_run(told.proposal.digest.hex()[:32], *_itself(self._population, plan))

    def _change(self, digest: bytes, **values: Any) -> None:
        entry = self._runs[digest.hex()]
        if entry | values != entry:
            entry |= values
            self._write()

    def _write(self) -> None:
        write_text(self._path, json.dumps(self._runs, indent=2) + "\n")


def _itself(federation: str, plan: Plan) -> tuple[str, Plan]:
    """A population of this client alone, in however large a federation, so that all its runs add up; or of one of its records."""
    if plan.unit is Unit.CLIENT:
        return federation, replace(plan, population=1)
    phases = (replace(phase, sampling=replace(phase.sampling, population=1)) for phase in plan.phases)  # type: ignore[call-arg]
    return f"{federation}, by record", replace(plan, population=1, phases=tuple(phases))
