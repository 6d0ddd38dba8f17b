"""A federation over Flower between network namespaces: 50 ms, lost packets, a cut of 20 s; a client and the server are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from soak import network

from hush.certify import verify_run
from hush.config import RunConfig
from hush.engines.flower import process
from hush.engines.simulation import train
from hush.experiment import resolve
from hush.federation import trial

CLIENTS, ROUNDS = 5, 5
ASKED = {"method": "dp-fedavg", "rounds": ROUNDS, "noise": 1.0, "delta": 1e-3, "noise_seed": 3, "set": {"local_steps": 2}}
LONGEST = 1800.0


def rounds_of(run: Path) -> list[dict[str, object]]:
    path = run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def killed(started: subprocess.Popen[bytes]) -> None:
    """`ip netns exec` becomes the command, which is killed; Flower's processes see that it is gone."""
    os.kill(started.pid, signal.SIGKILL)
    started.wait()


@pytest.mark.skipif(bool(network.why_not()), reason=network.why_not())
@pytest.mark.filterwarnings("ignore")
def test_a_bad_network_and_two_kills_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    place, asked = tmp_path / "federation", RunConfig.read(ASKED)
    trial.make(place, CLIENTS, asked, None, address=network.ADDRESS)
    run, hush = place / "run", [sys.executable, "-m", "hush"]
    flags = ["dp-fedavg", "--rounds", str(ROUNDS), "--noise", "1", "--delta", "1e-3", "--noise-seed", "3", "--set", "local_steps=2"]

    with network.Network(CLIENTS, delay=0.05, loss=0.01) as between, (tmp_path / "log").open("ab") as log:

        def start(command: list[str]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def serve(*more: str) -> subprocess.Popen[bytes]:
            own = [*between.at_server, *hush, "server", "--federation", str(place / "server"), "--bind", "0.0.0.0"]
            return start([*own, "--deadline", "300", "--patience", "600", *more])

        clients = [start([*between.at_client(number), *trial.command(place, [number])]) for number in range(CLIENTS)]
        server, began = serve(*flags, "--out", str(run)), time.monotonic()
        try:
            until(lambda: len(rounds_of(run)) >= 1, server)
            between.cut(20.0)
            until(lambda: len(rounds_of(run)) >= 2, server)
            killed(clients[2])
            clients[2] = start([*between.at_client(2), *trial.command(place, [2])])
            until(lambda: len(rounds_of(run)) >= 3, server)
            time.sleep(3.0)  # in the next round: a sum that is opened and forgotten would be one sum more to clients
            killed(server)
            server = serve("--resume", str(run))
            until(lambda: server.poll() is not None, server)
            dropped, seconds = between.dropped(), time.monotonic() - began
        finally:
            for one in (server, *clients):
                if one.poll() is None:
                    one.terminate()
                one.wait(60)
    records = rounds_of(run)
    again = sum(int(str(record.get("tried_again", 0))) for record in records)
    print(f"{seconds:.0f} s, {dropped} packets lost, {again} rounds that broke off and were tried again")
    for record in records:
        print(record["round"], record["trip_seconds"])
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert not any("broke_off" in record for record in records)
    assert dropped > 0
    assert all(check.passed is not False for check in verify_run(run).checks)
    same = resolve(replace(asked, secure=True, clients=CLIENTS, cohort=float(CLIENTS), sampling="rotation", chunk=1))
    expected, there = train(same.set_up(same.task(None))).state_dict, load_file(run / "model.safetensors")
    assert all(torch.equal(weights, there[name]) for name, weights in expected.items())
    assert not process.naming(str(place)), "nobody is left behind"


def until(done: object, server: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + LONGEST
    while not done():  # type: ignore[operator]
        assert time.monotonic() < limit, "it does not complete"
        assert server.poll() is None or done(), "the server ended"  # type: ignore[operator]
        time.sleep(0.1)
