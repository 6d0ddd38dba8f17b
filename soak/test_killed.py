"""A federation of real processes, server and clients killed at random points: every sum is paid for before it is opened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from soak import sockets
from soak.memory import Memory

from hush.certify import verify_run
from hush.config import RunConfig
from hush.core import Public, Round
from hush.engines.federation import Remote
from hush.engines.run import Run, Snapshot
from hush.engines.simulation import train
from hush.engines.summing import Summed
from hush.federation import trial
from hush.federation.data import Held
from hush.federation.folders import ClientFolder
from hush.federation.member import Member
from hush.federation.proposal import Proposal, agree
from hush.federation.propose import ready, resolved, task_of
from hush.privacy.ledger import Ledger
from hush.secagg import Terms

pytestmark = pytest.mark.filterwarnings("ignore")
CLIENTS, ROUNDS, LONG = 5, 10, 120
PAID, SEEDED = 70, 30
"""Kills in each of two tests: two hundred in all."""
MEGABYTES = 6.0
"""That a process may grow by in a hundred rounds."""
GAVE_UP = ("hush: 3 rounds in a row were paid for and have no sum.", "hush: Round ")
"""How a server's last word begins where it stops with a reason."""
LIMITS = {"deadline": 30.0, "patience": 120.0}


MakeFederation = Callable[..., "Federation"]


class Federation:
    """Its folders and its processes."""

    def __init__(self, place: Path, asked: dict[str, Any], around: dict[str, str]) -> None:
        usual = {"method": "dp-fedavg", "rounds": ROUNDS, "noise": 2.0, "delta": 1e-3, "set": {"local_steps": 1}}
        self.place, self.asked, self.around = place, RunConfig.read(usual | asked), around
        trial.make(place, CLIENTS, self.asked, None, insecure=True)
        self.processes: dict[int | str, BaseProcess] = {}

    def start(self, who: int | str) -> None:
        if who == "server":
            if not self.has("proposal.json"):  # it was killed before anybody was asked
                shutil.rmtree(self.run, ignore_errors=True)
            self.processes[who] = sockets.start(sockets.serve, self.place, self.around, self.asked, LIMITS)
        else:
            self.processes[who] = sockets.start(sockets.answer, self.place, self.around, who)

    def kill(self, who: int | str) -> bool:
        """True if it was still running."""
        process = self.processes[who]
        running = process.is_alive()
        if running and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        return running and process.exitcode == -signal.SIGKILL

    def end(self) -> None:
        for who in self.processes:
            self.kill(who)

    @property
    def run(self) -> Path:
        return self.place / "run"

    def has(self, name: str) -> bool:
        return (self.run / name).is_file()

    def steps(self) -> int:
        """How far it came: it grows with every sum that is opened, and every round that is written down."""
        return len(self.opened()) + len(_lines(self.run / "rounds.jsonl"))

    def opened(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _lines(self.place / "opened")]

    @property
    def said(self) -> str:
        """The server's last word."""
        return (self.place / "server.log").read_text().splitlines()[-1]

    def check_books(self) -> None:
        """Charged, at the server and at each client, is at least what was opened by now."""
        opened = self.opened()  # before the ledgers are read, which go on
        assert len({one["sum"] for one in opened}) == len(opened), "no sum is opened twice"
        assert _charges(self.run / "ledger.sqlite") >= len(opened)
        for number in range(CLIENTS):
            own = sum(number in one["members"] for one in opened)
            assert _charges(trial.folder_of(self.place, number) / "ledger.sqlite") >= own


def _lines(path: Path) -> list[str]:
    """Whole ones."""
    return path.read_text().split("\n")[:-1] if path.is_file() else []


def _charges(path: Path) -> int:
    if not path.is_file() or not path.stat().st_size:
        return 0
    ledger = Ledger(path, look=True)
    try:
        return sum(run.charges for pool in ledger.populations.values() for run in pool.runs.values())
    finally:
        ledger.close()


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFederation]:
    around = {"HUSH_HOME": str(tmp_path / "home"), sockets.PLACE: tempfile.mkdtemp(prefix="hush-soak-")}
    monkeypatch.setenv("HUSH_HOME", around["HUSH_HOME"])
    made: list[Federation] = []

    def make(name: str, **asked: Any) -> Federation:
        made.append(Federation(tmp_path / name, asked, around))
        return made[-1]

    yield make
    for one in made:
        one.end()
    shutil.rmtree(around[sockets.PLACE])


def killed_again_and_again(made: Federation, chance: random.Random, kills: int, check: Callable[[], None]) -> int:
    """How often the server or a client was killed before the run was over, or could not go on."""
    done = 0
    everybody: list[int | str] = ["server", *range(CLIENTS)]
    for who in everybody:
        made.start(who)
    limit = time.monotonic() + 3600
    while done < kills and made.processes["server"].is_alive():
        until, victim = made.steps() + chance.randrange(3), chance.choice(["server", *everybody])
        while made.steps() < until and made.processes["server"].is_alive():
            assert time.monotonic() < limit, "it goes on and on"
            time.sleep(0.002)
        time.sleep(chance.random() * chance.choice([0.05, 0.5, 3.0]))  # in a round, between rounds, while something starts
        killed = made.kill(victim)
        check()
        if not killed:
            break
        done += 1
        made.start(victim)
    made.processes["server"].join(300)
    check()
    assert made.processes["server"].exitcode is not None, "it goes on and on"
    return done


def over_and_over(
    make: MakeFederation,
    name: str,
    kills: int,
    each: Callable[[Federation], None],
    check: Callable[[Federation], None],
    **asked: Any,
) -> None:
    """Runs one after the other, until so many processes were killed."""
    chance, done, runs, whole = random.Random(name), 0, 0, 0
    while done < kills:
        made = make(f"{name}{runs}", **asked)
        done += killed_again_and_again(made, chance, min(8, kills - done), lambda made=made: check(made))  # type: ignore[misc]
        runs, whole = runs + 1, whole + made.has("result.json")
        # clients are in no more sums than they agreed to, and each that a killed server opened and forgot is one
        assert made.has("result.json") or made.said.startswith(GAVE_UP), made.said
        each(made)
        made.end()
        print(f"{made.place.name}: {done} kills by now; {made.said}", flush=True)
    print(f"{done} kills in {runs} runs, of which {whole} came to their end")
    assert whole >= runs / 2


def certified(made: Federation) -> None:
    if made.has("result.json"):
        assert all(check.passed is not False for check in verify_run(made.run).checks)


@pytest.mark.parametrize("tolerate", [0.0, 0.2])
def test_what_is_opened_was_paid_for_whoever_is_killed_whenever(tolerate: float, federation: MakeFederation) -> None:
    over_and_over(federation, f"paid-{tolerate}-", PAID, certified, Federation.check_books, tolerate=tolerate)


def test_memory_of_server_and_clients_is_flat_over_rounds(federation: MakeFederation) -> None:
    made, memory, seen = federation("long", rounds=LONG), Memory(), 0
    for who in ("server", *range(CLIENTS)):
        made.start(who)
    limit = time.monotonic() + 3600
    while made.processes["server"].is_alive():
        assert time.monotonic() < limit, "it goes on and on"
        if (rounds := len(_lines(made.run / "rounds.jsonl"))) >= seen + 10 and rounds < LONG:
            seen = rounds
            memory.look(process.pid for process in made.processes.values() if process.pid is not None)
        time.sleep(0.02)
    assert made.has("result.json"), made.said
    for who, (before, after) in memory.growth(1).items():
        print(f"{who}: {before:.1f} MB after about 20 rounds, {after:.1f} MB after about {seen}")
    assert len(memory.growth(1)) == 1 + CLIENTS
    assert memory.is_flat(1, MEGABYTES)


# -- where the noise comes from a seed ---------------------------------------------------------------------------------------------


class Replayed(Remote):
    """The sums that a run had, by whoever was in them, computed here: nobody is asked, and nobody can be killed."""

    def __init__(self, made: Federation, proposal: Proposal, members: dict[int, list[int] | None]) -> None:
        self.name, self._members = proposal.digest, members
        told = agree(proposal)
        self._adds = []
        for number in range(CLIENTS):
            folder = trial.folder_of(made.place, number)
            source = str(folder / "data.safetensors")
            one = Member(ClientFolder.of(folder), source, lambda *_: True)
            self._adds.append(one._placed(told, number, Held.read(source, proposal.examples)))

    def bind(self, terms: Terms) -> Replayed:
        self.terms = terms
        return self

    def sum_of(
        self, run: Run, now: Snapshot, ids: torch.Tensor, rnd: Round, public: Public, pay: Callable[[torch.Tensor | None], int]
    ) -> Summed:
        members = self._members[rnd.index]
        if members is None:
            return Summed(None, now.charges + 1, why="lost")
        vectors = [torch.from_numpy(self._adds[number].vector(rnd.index, [now.params, *public])) for number in members]
        return Summed(torch.stack(vectors).sum(0), now.charges + 1)


def the_model_of_its_sums(made: Federation) -> None:
    """Whoever was killed: the model is, to the last bit, that of the sums which counted."""
    if not made.has("result.json"):
        return
    proposal = Proposal.read((made.run / "proposal.json").read_text())
    members: dict[int, list[int] | None] = {one["index"]: one["members"] for one in made.opened()}  # the last one counts
    for record in map(json.loads, _lines(made.run / "rounds.jsonl")):
        if "broke_off" in record:
            members[record["round"] - 1] = None
    assert set(members) == set(range(ROUNDS))
    task = task_of(resolved(made.asked, proposal.members), None)
    run, _ = ready(proposal, task, True, lambda proposed: Replayed(made, proposed, members))
    expected, is_there = train(run).state_dict, load_file(made.run / "model.safetensors")
    assert set(expected) == set(is_there)
    assert all(torch.equal(weights, is_there[name]) for name, weights in expected.items())


@pytest.mark.parametrize("tolerate", [0.0, 0.2])
def test_seeded_runs_have_the_model_of_their_sums_whoever_is_killed_whenever(tolerate: float, federation: MakeFederation) -> None:
    over_and_over(
        federation, f"seeded-{tolerate}-", SEEDED, the_model_of_its_sums, lambda made: None, tolerate=tolerate, noise_seed=7
    )
