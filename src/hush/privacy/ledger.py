"""What was spent, on disk before it is spent: an append-only chain of entries in SQLite.

A round is charged, and the charge is durable, before its noise is drawn. A crash after that over-counts by a round; nothing
under-counts. Every entry holds the hash of the one before it, so an edited, reordered or removed entry breaks the chain. This
machine remembers the last entry it saw of each ledger, so that a chain cut short, rewritten as a whole, or restored from a backup
is found out too; and which ledger it charged each run in, so that no other can take its place. Charges are checked against the
population's budget and appended in one transaction: two processes cannot spend the same budget.

Rounds of one run follow a plan that was fixed before it began, so they compose by their exact loss. *Which* runs follow may
have been chosen by looking at earlier results; a budget set with `adaptive=True` is therefore enforced by a Renyi filter, one
order fixed beforehand, whose sums hold however the runs were chosen (Feldman and Zrnic 2021).
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hush.errors import HushError, NoGuarantee, UsageError
from hush.names import pick
from hush.plain import plain
from hush.privacy import seen
from hush.privacy.accountant import most_that
from hush.privacy.guarantee import Relation, Unit, check_delta
from hush.privacy.population import Population, Released, Spending, looks_like
from hush.privacy.vocabulary import DiscreteGaussianNoise, Drawn, Phase, Plan
from hush.privacy.written import phase_from_dict
from hush.secret import state_dir

T = TypeVar("T")

_SCHEMA = "CREATE TABLE entries (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)"
_START = "0" * 64
_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""How SQLite's journals begin; four bytes from the 16th on say how many pages there were before: none while a file is made."""
_WAIT = seen.WAIT
UNPROTECTED = "the ledger was used without rollback protection: whether it was an older copy of one that went on cannot be seen"
"""What a certificate says where `rollback_protection=False` was typed."""


class LedgerError(HushError):
    """A ledger that cannot be trusted, or cannot be written."""


class BudgetSpent(HushError):
    """The next round would exceed the budget of its population."""


class DrawnBefore(HushError):
    """This round of this run was released with another sum: the same noise again would show how the two differ."""


class Ledger:
    """One file. Open it, set budgets, charge rounds, read what was spent.

    `own` is the ledger of one run in its own folder, which may be deleted with it; a shared one may not vanish unnoticed, so it is
    refused where this machine cannot remember it, unless `rollback_protection` is given up. What is remembered counts all the same.
    `look` is for whoever verifies one, perhaps a stranger's: it is held against what is remembered, and nothing is written, not
    even that it was seen. A forged copy that was looked at first must not make the true one look forged.
    """

    def __init__(self, path: Path | str, own: bool = False, rollback_protection: bool = True, look: bool = False) -> None:
        self.path, self._own, self.rollback_protection, self._look = Path(path), own, rollback_protection, look
        self.no_memory: str | None = None
        """Why this machine could not remember a shared ledger, where it could not."""
        self._claimed: set[str] = set()
        self._seq, self._hash = 0, _START
        self.id = ""
        self.populations: dict[str, Population] = {}
        self._known_fit: tuple[Any, int] = (None, 0)
        try:
            if look and not self.path.is_file():
                raise LedgerError(f"There is no ledger {self.path}.")
            if own:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif not self.path.parent.is_dir():
                raise LedgerError(f"There is no folder {self.path.parent} for a ledger.")
            _refuse_another_file(self.path)
            self._db = sqlite3.connect(self.path.absolute(), timeout=_WAIT, isolation_level=None)
            try:
                self._db.execute("PRAGMA synchronous=FULL")
                with self._transaction():
                    if not look and self._db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                        self._db.execute(_SCHEMA)
                    self._catch_up()
                    self._compare_with_memory()
                    if self._seq == 0:
                        self._append("open", {"id": uuid.uuid4().hex, "version": 1})
                if not look:
                    with suppress(sqlite3.OperationalError):  # where others are just opening it, one of them does it
                        self._db.execute("PRAGMA journal_mode=WAL")  # not before: a crash leaves an empty file or a ledger
                self._remember()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"{self.path} is not a ledger that can be used: {error}.") from None

    @property
    def head(self) -> str:
        """The hash of the last entry: publish it, and nobody can rewrite what came before."""
        return self._hash

    @property
    def entries(self) -> int:
        return self._seq

    def contains(self, digest: str) -> bool:
        """Whether an entry of this hash is in the chain."""
        return self._db.execute("SELECT 1 FROM entries WHERE hash = ?", (digest,)).fetchone() is not None

    def hash_of(self, entry: int) -> str | None:
        """The hash of an entry, by its number."""
        row = self._db.execute("SELECT hash FROM entries WHERE seq = ?", (entry,)).fetchone()
        return str(row[0]) if row else None

    def populations_at(self, entries: int) -> dict[str, Population]:
        """Everybody's spending as it stood after so many entries."""
        past: dict[str, Population] = {}
        for seq, kind, body in self._db.execute("SELECT seq, kind, body FROM entries WHERE seq <= ? ORDER BY seq", (entries,)):
            _tell(past, kind, json.loads(body), seq)
        return past

    def close(self) -> None:
        self._db.close()

    def set_budget(
        self,
        name: str,
        size: int,
        epsilon: float,
        delta: float,
        relation: Relation = Relation.ADD_REMOVE,
        adaptive: bool = False,
        change: bool = False,
        unit: Unit = Unit.CLIENT,
    ) -> Population:
        """Enrol a population of clients, with the most that all runs on it may spend together.

        A budget that is there already stays, unless `change` says so. One that is adaptive is fixed from the first charge on: its
        filter's proof needs an order that was chosen before.
        """
        if not 0 < epsilon < math.inf:
            raise UsageError(f"epsilon must be a positive number, not {epsilon:g}.")
        if size < 1:
            raise UsageError(f"A population has at least one member, not {size}.")
        name = name.strip()
        if not name:
            raise UsageError("A population needs a name.")
        check_delta(delta)
        with self._up_to_date():
            self._refuse_look_alike(name)
            known = self.populations.get(name)
            if known is not None and (known.size, known.unit, known.relation) != (size, unit, relation):
                raise UsageError(
                    f"'{name}' is enrolled with {known.size:,} {known.unit}s under {known.relation}; that cannot change."
                )
            if known is not None and known.epsilon is not None and not change:
                raise UsageError(f"'{name}' has a budget of epsilon {known.epsilon:g} already: say --change to change it.")
            if known is not None and known.runs and (known.adaptive or adaptive):
                raise UsageError(f"An adaptive budget is fixed before the first round is charged, and '{name}' has been charged.")
            body = {"name": name, "size": size, "unit": str(unit), "relation": str(relation)}
            self._append("population", body | {"epsilon": epsilon, "delta": delta, "adaptive": adaptive})
        return self.populations[name]

    def open_run(self, run: str, population: str, plan: Plan, roster: Mapping[str, str] | None = None) -> RunAccount:
        """An account for one run of `plan` on a population, enrolled without a budget where it is new.

        A federation's run comes with its roster, names and keys. Then the population is whoever was in any of them: it may grow and
        shrink from run to run, and all runs add up for everybody, which is never too little.
        """
        population = population.strip()
        with self._up_to_date():
            self._refuse_look_alike(population)
            known = self.populations.get(population)
            new = known is None
            if known is None:
                self._welcome(population)
                body = {"name": population, "size": plan.population, "unit": str(plan.unit), "relation": str(plan.relation)}
                self._append("population", body | {"epsilon": None, "delta": None, "adaptive": False})
                known = self.populations[population]
            self._enrol(run, known, plan, roster or {})
            known = self.populations[population]
        for what, here, there in (
            ("as its unit", known.unit, plan.unit),
            ("as its relation", known.relation, plan.relation),
            ("members", plan.population if roster and plan.unit is Unit.CLIENT else known.size, plan.population),
        ):
            if here != there:
                raise NoGuarantee(
                    f"The population '{population}' of {self.path} has {here} {what}, and this run {there}: they do not add up.",
                    f"Use another population, made with --unit {plan.unit} --relation {plan.relation}, or run on the same terms.",
                )
        phase = as_released(plan)
        self._refuse_another_plan(run, self.populations[population].runs.get(run), phase)
        return RunAccount(self, run, population, phase, new)

    def _enrol(self, run: str, pool: Population, plan: Plan, roster: Mapping[str, str]) -> None:
        """Write down who is in a run; the population is as large as the largest roster."""
        if not roster or run in pool.rosters or (pool.unit, pool.relation) != (plan.unit, plan.relation):
            return
        if plan.unit is Unit.CLIENT and plan.population > pool.size:
            body = {"name": pool.name, "size": plan.population, "unit": str(pool.unit), "relation": str(pool.relation)}
            self._append("population", body | {"epsilon": pool.epsilon, "delta": pool.delta, "adaptive": pool.adaptive})
        self._append("roster", {"population": pool.name, "run": run, "clients": dict(roster)})

    def _refuse_another_plan(self, run: str, own: Spending | None, phase: Phase) -> None:
        if own is not None and own.phase != phase:
            raise LedgerError(f"{self.path} knows the run {run} with another plan: a run cannot change what it releases.")

    def _refuse_look_alike(self, population: str) -> None:
        """The same people under a name that a reader takes for the same would have a second budget."""
        known = next((name for name in self.populations if looks_like(name, population)), None)
        if known is not None and population not in self.populations:
            raise UsageError(f"{self.path} knows the population '{known}', which reads like '{population}': use that name.")

    def _welcome(self, population: str) -> None:
        """A population that nobody enrolled: fine in a ledger without budgets, and a way around one in a ledger that has some."""
        budgeted = [name for name, pool in self.populations.items() if pool.epsilon is not None]
        if budgeted:
            pick(dict.fromkeys(budgeted), population, f"population of {self.path} (enrol it with hush ledger create)")

    def charge(self, run: str, population: str, phase: Phase, round: int, attempt: str, fresh: bool = True) -> None:
        """One round, on disk when this returns; the same attempt at the same round is charged once.

        Noise that is not `fresh`, but made again from the key of the run, is for one sum in a round.
        """
        told = plain(replace(phase, rounds=1))
        with self._up_to_date():
            pool = self.populations[population]
            own = pool.runs.setdefault(run, Spending(phase))
            self._refuse_another_plan(run, own, phase)
            if (round, attempt) in own.drawn:
                return  # the very same draws, from the same key over the same sum: nothing new is released
            if not fresh and round in own.rounds:
                raise DrawnBefore(f"round {round + 1} of this run was released before, with another sum")
            if not (pool.fits(run, 0, again=1) if round in own.rounds else self._fits(pool, run)):
                figure = f"epsilon {pool.epsilon:g} at delta={pool.delta:.1e}"
                raise BudgetSpent(f"the budget of '{population}', {figure}, would be exceeded")
            self._claim(run)
            self._append("charge", {"population": population, "run": run, "round": round, "attempt": attempt, "phase": told})

    def release(self, run: str, population: str, sha256: dict[str, str]) -> None:
        """What a run that was charged gives out at its end, by its hashes: nothing of it can be swapped afterwards.

        A process that is killed after this does it again, and says the same.
        """
        with self._up_to_date():
            if run in self.populations[population].runs:
                self._append("release", {"population": population, "run": run, "sha256": sha256})

    def sign(self, run: str, sha256: dict[str, str]) -> None:
        """Which clients signed a run that was charged here, by the hashes of what they signed; each is written down once."""
        with self._up_to_date():
            for name, pool in self.populations.items():
                if run in pool.runs and (new := dict(sha256.items() - pool.runs[run].signed.items())):
                    self._append("signed", {"population": name, "run": run, "sha256": new})

    def rounds_left(self, run: str, population: str, phase: Phase, most: int) -> int:
        """How many rounds of this run the population's budget still allows, up to `most`."""
        with self._up_to_date():
            pool = self.populations[population]
        pool.runs.setdefault(run, Spending(phase))
        return most_that(lambda rounds: pool.fits(run, rounds), most)

    def _fits(self, pool: Population, run: str) -> bool:
        """Whether one more round fits; while nobody else charges and nothing is drawn again, one answer serves many rounds."""
        others = tuple((name, s.charges) for name, s in pool.runs.items() if name != run)
        own = pool.runs[run]
        key = (pool.name, run, others, own.charges - len(own.rounds), pool.epsilon, pool.delta, pool.adaptive)
        charged = own.charges
        if self._known_fit[0] == key and charged + 1 <= self._known_fit[1]:
            return True
        if not pool.fits(run, 1):
            return False
        ahead = 1
        while ahead < 64 and pool.fits(run, 2 * ahead):
            ahead *= 2
        self._known_fit = (key, charged + ahead)
        return True

    # -- the chain --

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        """A transaction on all that is there, which is not less than this machine has seen; and then it has seen this, too."""
        with self._transaction():
            self._catch_up()
            self._compare_with_memory()  # each time: a copy may have been opened when they were still alike, or the memory gone
            yield
        self._remember()  # after the commit: a memory that is ahead of its ledger would refuse it for good

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Alone with the file from the first read to the commit; nothing is kept of what fails."""
        try:
            self._db.execute("BEGIN" if self._look else "BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                self._start_over()
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path} cannot be written: {error}.") from None

    def _start_over(self) -> None:
        """Forget what was read in a transaction that failed, and read what is really there."""
        self._seq, self._hash, self.populations = 0, _START, {}
        with suppress(LedgerError, sqlite3.Error):
            self._catch_up()

    def _catch_up(self) -> None:
        """Read what others appended, link by link."""
        for seq, kind, body, digest in self._db.execute("SELECT * FROM entries WHERE seq > ? ORDER BY seq", (self._seq,)):
            if seq != self._seq + 1:
                raise LedgerError(f"{self.path} has been tampered with: entry {self._seq + 1} is missing.")
            if digest != _link(self._hash, seq, kind, body):
                raise LedgerError(f"{self.path} has been tampered with: entry {seq} is not what it was.")
            self._take(seq, kind, json.loads(body), digest)

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        if self._look:
            raise LedgerError(f"{self.path} was opened to be looked at alone.")
        text = json.dumps(body | {"time": round(time.time(), 3)}, sort_keys=True, allow_nan=False)
        seq = self._seq + 1
        digest = _link(self._hash, seq, kind, text)
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (seq, kind, text, digest))
        self._take(seq, kind, body, digest)

    def _take(self, seq: int, kind: str, body: dict[str, Any], digest: str) -> None:
        """Let one entry tell what it says."""
        self._seq, self._hash = seq, digest
        if kind == "open":
            self.id = body["id"]
        _tell(self.populations, kind, body, seq)

    # -- what this machine remembers of a ledger it has seen --

    def _recall(self, ask: Callable[[], T]) -> T | None:
        """What the memory says. A run's own ledger may go without one; a shared one only where that was typed."""
        try:
            return ask()
        except (sqlite3.Error, OSError) as error:
            if self._own:
                return None
            why = getattr(error, "strerror", None) or error
            self.no_memory = f"{state_dir()} cannot keep what this machine has seen of ledgers ({why})"
            if self.rollback_protection:
                raise LedgerError(
                    f"{self.no_memory}, and without that an older copy of {self.path} would pass unseen: let HUSH_HOME name a "
                    "folder that can be written, or go on without (--no-rollback-protection, rollback_protection=False)."
                ) from None
            return None

    def _compare_with_memory(self) -> None:
        there, last = self._recall(lambda: seen.known(self.id, self.path, self._look)) or (None, None)
        if not self._own and there is not None and there != self.id:
            raise LedgerError(
                f"{self.path} is not the ledger that this machine has seen there: what was spent in that one would be forgotten. "
                "Bring it back, or begin a new one under another name."
            )
        self._compare(last)

    def _compare(self, last: seen.Entry | None) -> None:
        """With the last entry that this machine has seen."""
        if last is None:
            return
        seq, digest = last
        there = self.hash_of(seq)
        if there is None and self._look:  # somebody may have gone on since this was read: what is there now is no older than that
            self._db.execute("COMMIT")
            self._db.execute("BEGIN")
            self._catch_up()
            there = self.hash_of(seq)
        if there is None:
            raise LedgerError(
                f"{self.path} ends at entry {self._seq}, and this machine has seen entry {seq} of it: it was cut short, or it is "
                "an older copy of a ledger that went on. Use the one that went on."
            )
        if there != digest:
            raise LedgerError(f"{self.path} has been tampered with: entry {seq} is not the one this machine has seen.")

    def _remember(self) -> None:
        """What is there now. Of two copies that append at the same time one is remembered, and the other refused."""
        if not self._look:
            path = None if self._own else self.path
            self._compare(self._recall(lambda: seen.remember(self.id, self._seq, self._hash, path)))

    def _claim(self, run: str) -> None:
        """Remember, before it is charged, that it is here: another ledger cannot take this one's place."""
        if run not in self._claimed and not self._look:
            self._recall(lambda: seen.claim(run, self.id))
            self._claimed.add(run)

    def belongs_to(self, owner: str) -> None:
        """Whoever has one ledger has no second one, of a copy of all else: what was spent in the first would not be in it."""
        name = f"the ledger of {owner}"
        self._claim(name)
        if self.charged_here(name) is False:
            raise LedgerError(
                f"{self.path} is not the ledger that this machine has seen of the same owner: what was spent in that one would be "
                "forgotten. Use the folder that it is in."
            )

    def charged_here(self, run: str) -> bool | None:
        """Whether this machine remembers that a run was charged in this ledger, or in another; None where it does not know it."""
        known = self._recall(lambda: seen.charged_in(run, self._look))
        return None if known is None else known == self.id


def _refuse_another_file(path: Path) -> None:
    """Nothing is written into a file that is neither empty nor a ledger.

    Looked at before SQLite may write, which takes whatever is shorter than a page for a new database; and without locks where it
    can be, since they would leave files beside a stranger's.
    """
    if not path.exists():
        return
    file = path.resolve()
    wal, journal = (file.with_name(file.name + end) for end in ("-wal", "-journal"))
    if not file.is_file():
        raise OSError("it is not a file")
    if file.stat().st_size == 0:
        if wal.is_file() and wal.stat().st_size:
            raise OSError(f"it is empty, while {wal} still holds what was written to it")
        return
    with suppress(FileNotFoundError), journal.open("rb") as f:  # after the size: who fills an empty file makes the journal first
        told = f.read(20)
        if told[:8] == _JOURNAL and told[16:] == bytes(4):
            return
    how = "mode=ro" if wal.exists() else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{file.as_uri()}?{how}", uri=True, timeout=_WAIT)) as db:
        first = db.execute("SELECT * FROM entries WHERE seq = 1").fetchone()
    if first is None or len(first) != 4 or first[1] != "open":
        raise OSError("it does not begin as ledgers do")


def _tell(populations: dict[str, Population], kind: str, body: dict[str, Any], seq: int) -> None:
    """What one entry changes."""
    if kind == "population":
        name, unit, relation = body["name"], Unit(body["unit"]), Relation(body["relation"])
        known = populations.get(name)
        runs, rosters = ({}, {}) if known is None else (known.runs, known.rosters)
        most = (body["epsilon"], body["delta"], body["adaptive"])
        populations[name] = Population(name, int(body["size"]), unit, relation, *most, runs, rosters)
    elif kind == "roster":
        populations[body["population"]].rosters[body["run"]] = body["clients"]
    elif kind == "charge":
        runs = populations[body["population"]].runs
        own = runs.setdefault(body["run"], Spending(phase_from_dict(body["phase"])))
        own.drawn.add((body["round"], body["attempt"]))
        own.charges += 1
    elif kind == "release":
        populations[body["population"]].runs[body["run"]].released.append(Released(seq, body["sha256"]))
    elif kind == "signed":
        populations[body["population"]].runs[body["run"]].signed.update(body["sha256"])


def _link(previous: str, seq: int, kind: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{seq}\n{kind}\n{body}".encode()).hexdigest()


def as_released(plan: Plan) -> Phase:
    """A run's round as readers of the model see it: shares of noise as the one noise they add up to."""
    (phase,) = plan.phases
    releases = []
    for release in phase.releases:
        shares = plan.shares(release)
        drawn = Drawn.MESSAGE if plan.unit.within_client else Drawn.SERVER
        noise = replace(release.noise, std=release.noise.std * math.sqrt(shares), drawn=drawn)
        if isinstance(noise, DiscreteGaussianNoise):  # the others' shares add up to noise of their own kind
            noise = replace(noise, draws=noise.draws * shares)
        releases.append(replace(release, noise=noise))
    return replace(phase, releases=tuple(releases), rounds=1)


@dataclass(frozen=True)
class RunAccount:
    """One run's side of a ledger."""

    ledger: Ledger
    run: str
    population: str
    phase: Phase
    new: bool = False
    """Whether nobody had enrolled the population before: it has no budget."""

    def charge(self, round: int, attempt: str, fresh: bool = True) -> None:
        """Charge a round before its noise is drawn. `attempt` names the draw: the same one is paid for once."""
        self.ledger.charge(self.run, self.population, self.phase, round, attempt, fresh)

    def release(self, **sha256: str) -> None:
        """Write down what the run gives out: the hashes of its model, its certificate, its result and its rounds."""
        self.ledger.release(self.run, self.population, sha256)

    @property
    def _own(self) -> Spending:
        """What was charged so far."""
        return self.ledger.populations[self.population].runs.get(self.run, Spending(self.phase))

    def has_paid(self, round: int, attempt: str) -> bool:
        """Whether this very draw was paid for."""
        return (round, attempt) in self._own.drawn

    def rounds_left(self, most: int) -> int:
        return self.ledger.rounds_left(self.run, self.population, self.phase, most)

    @property
    def rounds(self) -> int:
        """How many different rounds of it were."""
        return len(self._own.rounds)

    @property
    def charges(self) -> int:
        """How often this run was charged."""
        return self._own.charges
