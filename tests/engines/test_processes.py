"""Two processes train what one does, to the last figure; where one is lost, the run ends and goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hush.cli.together import together, told_to_set_up
from hush.config import RunConfig
from hush.engines.processes import Processes
from hush.engines.result import Result
from hush.engines.rundir import RunDir
from hush.engines.sharded import Begin, follow, led
from hush.engines.simulation import train
from hush.errors import UsageError
from hush.experiment import Experiment, resolve


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def _environment(rank: int, port: str) -> dict[str, str]:
    """What torchrun sets."""
    own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return os.environ | own | {"OMP_NUM_THREADS": "1", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}


def _hush(*typed: str, rank: int, port: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hush", *typed]
    return subprocess.Popen(command, env=_environment(rank, port), stdout=-1, stderr=-1, text=True)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """This process leads another one."""
    port, was, heard = _free_port(), dict(os.environ), signal.getsignal(signal.SIGTERM)
    helper = _hush("run", rank=1, port=port)
    os.environ.update(_environment(0, port))
    try:
        with together(RunDir(tmp_path_factory.mktemp("nothing"))) as joined:
            assert joined is not None
            yield joined
    finally:
        os.environ.clear()
        os.environ.update(was)
        signal.signal(signal.SIGTERM, heard)
    told, failed = helper.communicate(timeout=60)
    assert (helper.returncode, told, failed) == (0, "", "")


def _asked(method: str, **more: Any) -> Experiment:
    usual = {"rounds": 2, "clients": 60, "cohort": 12.0, "noise": None if method.startswith("fedavg") else 1.0}
    return resolve(RunConfig.read({"method": method} | usual | more))


def _both(experiment: Experiment, processes: Processes, folder: Path) -> tuple[Result, Result]:
    """Alone and together."""
    task = experiment.task()
    alone = train(experiment.set_up(task), out=folder / "alone")
    told_to_set_up(processes, experiment, task.name, None)
    return alone, train(led(experiment.set_up(task), processes), out=folder / "together")


def _like(a: Any, b: Any) -> bool:
    """The same, but for the rounding of sums, for clocks, and for what depends on who trains beside whom."""
    if isinstance(a, dict) and isinstance(b, dict):
        others = [key for key in a if "second" not in key and key not in ("run_id", "wasted_work")]
        return a.keys() == b.keys() and all(_like(a[key], b[key]) for key in others)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_like, a, b))
    return a == pytest.approx(b, rel=1e-4) if isinstance(a, float) and isinstance(b, float) else a == b


@pytest.mark.usefixtures("one_secret")
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {"partition": "dirichlet:0.3"}),  # with what diagnostics tell
        ("dp-fedavg", {"chunk": 2, "dropout": 0.2}),
        ("fed-smp-top-k", {"noise_seed": 1}),  # a mask that the server learns, and sends
        ("dpsfl-ac", {"noise_seed": 1}),  # sketches, and a clip that follows
        ("skellam", {"noise_seed": 1}),  # whole numbers
        ("dp-fedavg", {"noise_mode": "secure", "sampling": "bounded", "participations": 1}),
        ("fed-spa", {"cohort": 4.0, "clients": 8, "noise_seed": 1}),  # noise that clients draw
        ("dp-fedavg", {"secure": True}),  # row by row
    ],
)
def test_two_processes_do_what_one_does(method: str, more: dict[str, Any], processes: Processes, tmp_path: Path) -> None:
    alone, both = _both(_asked(method, **more), processes, tmp_path)
    for name, value in alone.state_dict.items():
        torch.testing.assert_close(both.state_dict[name], value, rtol=1e-4, atol=1e-6)
    assert _like(alone.to_dict(), both.to_dict())
    assert _like(alone.certificate(""), both.certificate(""))
    if (one := tmp_path / "alone" / "diagnostics.jsonl").is_file():
        other = tmp_path / "together" / "diagnostics.jsonl"
        assert _like(*([json.loads(line) for line in file.read_text().splitlines()] for file in (one, other)))
    exact = method == "skellam" or more.get("secure") or more.get("noise_mode") == "secure"
    if exact:  # whole numbers add up to the same, whoever adds them
        assert all(torch.equal(both.state_dict[name], value) for name, value in alone.state_dict.items())


@pytest.mark.usefixtures("one_secret")
def test_what_clients_get_may_name_what_every_process_has(processes: Processes, tmp_path: Path) -> None:
    """Voters are told the model's functions, which no process can send."""
    alone, both = _both(_asked("ae-dpfl", rounds=1, noise_seed=1, public=60, set={"queries": 50}), processes, tmp_path)
    assert all(torch.equal(both.state_dict[name], value) for name, value in alone.state_dict.items())


def test_another_run_in_another_process_is_refused() -> None:
    run = _asked("fedavg").set_up(_asked("fedavg").task())
    others = dict(run.identity.fingerprint) | {"data": "0" * 64}
    with pytest.raises(UsageError, match="process 1 has other data"):
        follow(run, Begin(others, 1), Processes(1, 2, None))


def test_a_lost_process_ends_the_run_and_it_goes_on(tmp_path: Path) -> None:
    typed = ("run", "dp-fedavg", "--noise", "1", "--noise-seed", "1", "--rounds", "200", "--out", str(tmp_path / "run"))
    port = _free_port()
    first, second = (_hush(*typed, rank=rank, port=port) for rank in (0, 1))
    rounds, patience = tmp_path / "run" / "rounds.jsonl", time.monotonic() + 60
    while not (rounds.is_file() and rounds.read_text().count("\n") > 3):
        assert time.monotonic() < patience
        assert first.poll() is None
        time.sleep(0.02)
    second.kill()
    second.communicate()
    _, said = first.communicate(timeout=30)
    assert first.returncode == 2
    go_on = f"torchrun --nproc-per-node 2 -m hush run --resume {tmp_path / 'run'}"
    assert said.count("hush:") == 1
    assert f"hush: Another process of this run was lost, so all of them ended. What was done is kept; go on with: {go_on}" in said
    folder = RunDir(tmp_path / "run")
    (config,) = folder.read_json("config.json")["runs"]
    experiment = Experiment.of(RunConfig.read(config))
    shorter = 1 + len(rounds.read_text().splitlines())  # by one process, and no further than needed
    task = experiment.task()
    went_on = train(replace(experiment.set_up(task), rounds=shorter), out=folder.path, resume=True)
    whole = train(replace(experiment.set_up(task), rounds=shorter))
    assert _like(went_on.history, whole.history)
    assert all(torch.allclose(went_on.state_dict[name], value, atol=1e-5) for name, value in whole.state_dict.items())
