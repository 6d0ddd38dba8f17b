"""Where a round's time goes over Flower: to Flower, to training, and to Hush at clients and at the server.

    python bench/federation_time.py [CLIENTS] [ROUNDS] [STEPS]       # 3, 6 and 2; two minutes on idle cores

Clients are processes on this machine, which all have one clock. Each writes down for itself when a letter came, when its answer
left and how long it trained: no answer says so, and the server does not ask. In a trip the client whose answer left last counts;
what the trip took beyond that client's own time is Flower's. The first round, with enrolment, is left out.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hush.cli.interrupt import on_terminate
from hush.config import RunConfig
from hush.engines.flower.superlink import SuperLink
from hush.engines.flower.supernode import SuperNode
from hush.engines.rundir import RunDir
from hush.engines.simulation import train
from hush.federation import trial
from hush.federation.consent import Policy
from hush.federation.folders import ClientFolder
from hush.federation.member import Member
from hush.federation.propose import propose, ready, resolved, task_of
from hush.federation.server import RemoteFederation

Trip = tuple[float, float]


class Timed(Member):
    """A client that writes down its time, on its own disk."""

    log: Path
    trained = 0.0

    def answer(self, letter: bytes) -> bytes:
        came, self.trained = time.monotonic(), 0.0
        answer = super().answer(letter)
        with self.log.open("a") as out:
            out.write(json.dumps([came, time.monotonic(), self.trained]) + "\n")
        return answer

    def _trained(self, *given: Any) -> np.ndarray:
        began = time.monotonic()
        vector = super()._trained(*given)
        self.trained = time.monotonic() - began
        return vector


class Watched(RemoteFederation):
    """A server that remembers when each trip began and ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trips: list[Trip] = []

    def _trip(self, *given: Any) -> None:
        began = time.monotonic()
        super()._trip(*given)
        self.trips.append((began, time.monotonic()))


def client(place: Path, number: int) -> None:
    on_terminate()
    folder, policy = ClientFolder.of(trial.folder_of(place, number)), Policy.read(place / "policy.toml")
    one = Timed(folder, str(folder.path / "data.safetensors"), lambda told, _, before: policy.objection(told, before) or True)
    one.log = folder.path / "times"
    with SuperNode(folder, [one], place / f"logs-{number}"):
        while not one.over.is_set():
            time.sleep(0.2)


def measured(place: Path, clients: int, rounds: int, steps: int) -> list[dict[str, float]]:
    """Seconds of each round but the first, by whose they are."""
    asked = RunConfig.read({"method": "dp-fedavg", "rounds": rounds, "noise": 1.0, "delta": 1e-3, "set": {"local_steps": steps}})
    made = trial.make(place, clients, asked, None)
    started, ends = [], []
    with SuperLink(made, made.members, place / "logs") as carrier:
        for number in range(clients):
            started.append(subprocess.Popen([sys.executable, __file__, "client", str(place), str(number)]))
        try:
            experiment = resolved(asked, made.members)
            task = task_of(experiment, None)
            proposal = propose(experiment, task, made.members)
            run, remote = ready(proposal, task, False, lambda told: Watched(made.identity, told, carrier))
            train(run, out=place / "run", on_round=lambda record: ends.append(time.monotonic()))
            remote.finish(RunDir(place / "run"))
        finally:
            for one in started:
                one.terminate()
                one.wait(30)
    answers = [tuple(json.loads(line)) for path in place.glob("clients/*/times") for line in path.read_text().splitlines()]
    return [_split(began, ended, remote.trips, answers) for began, ended in itertools.pairwise(ends)]


def _split(began: float, ended: float, trips: list[Trip], answers: list[tuple[float, ...]]) -> dict[str, float]:
    own = [trip for trip in trips if began <= trip[0] < ended]
    last = [max((one for one in answers if first <= one[1] <= end), key=lambda one: one[1]) for first, end in own]
    trained, worked = sum(one[2] for one in last), sum(one[1] - one[0] for one in last)
    waited = sum(end - first for first, end in own)
    return {
        "trips": len(own),
        "round": ended - began,
        "Flower": waited - worked,
        "training": trained,
        "Hush at clients": worked - trained,
        "Hush at the server": ended - began - waited,
    }


def main() -> None:
    clients, rounds, steps = (int(word) for word in [*sys.argv[1:], *("3", "6", "2")[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), clients, rounds, steps)
    middle = {what: statistics.median(one[what] for one in found) for what in found[0]}
    print(f"{clients} clients, {steps} steps a round; medians of rounds 2 to {rounds}, {middle.pop('trips'):.0f} trips each")
    for what, seconds in middle.items():
        print(f"{what:20} {seconds:8.2f} s {seconds / middle['round']:6.1%}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
