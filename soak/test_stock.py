"""A method of Hush's inside a Flower app that is not Hush's, over Flower's own processes, as docs/federation-python.md has it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from hush.config import RunConfig
from hush.engines.flower.process import free_port, stop
from hush.engines.rundir import RunDir
from hush.federation import trial
from hush.federation.diary import Diary
from hush.federation.kept import kept
from hush.federation.proposal import agree
from hush.federation.running import ANOTHERS

CLIENTS, ROUNDS = 3, 3
APP = Path(__file__).parents[1] / "examples" / "federation" / "stock"


def test_a_flower_app_of_ones_own_trains_with_a_method_of_hushs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    place = tmp_path / "federation"
    made = trial.make(place, CLIENTS, RunConfig(method="dp-fedavg"), None)
    around = os.environ | {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    around |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1"}
    around["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    port = free_port()
    (tmp_path / "flwr").mkdir()
    connection = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (tmp_path / "flwr" / "config.toml").write_text(connection)

    with ExitStack() as stack:

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, env=around, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(stop, process)
            return process

        start("superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--insecure")
        hospitals = []
        for number in range(CLIENTS):
            folder, door = trial.folder_of(place, number), str(tmp_path / f"{number}.sock")
            data, policy = str(folder / "data.safetensors"), str(place / "policy.toml")
            typed = [
                "-m",
                "hush",
                "client",
                "--once",
                "--federation",
                str(folder),
                "--data",
                data,
                "--policy",
                policy,
                "--socket",
                door,
            ]
            own = [str(APP / "hospital.py"), str(folder), data, policy, door]
            hospitals.append(start(f"hospital-{number}", sys.executable, *(typed if number == 0 else own)))
        wait_for_port(port)
        for number in range(CLIENTS):
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
            told = json.dumps(str(tmp_path / f"{number}.sock"))
            start(f"node-{number}", *node, "--port", str(free_port()), "--node-config", f"hush-socket={told}")
        told = f"federation={json.dumps(str(made.path))} out={json.dumps(str(tmp_path / 'run'))}"
        flower = start("run", "flwr", "run", str(APP), "lab", "--run-config", told, "--stream")
        for hospital in hospitals:
            assert hospital.wait(timeout=900) == 0
        assert flower.wait(timeout=60) == 0

    run = RunDir(tmp_path / "run")
    result, proposal = run.read_json("result.json"), kept(run)
    assert result["rounds_counted"] == ROUNDS
    assert result["epsilon"] is not None
    assert ANOTHERS in run.read_json("certificate.json")["caveats"]
    assert (tmp_path / "run" / "certificate.html").exists()
    for number in range(CLIENTS):  # everybody agreed, and counted for itself
        assert "the policy says yes" in (tmp_path / f"hospital-{number}.log").read_text()
        assert Diary(trial.folder_of(place, number), "trial").standing(agree(proposal)) == (ROUNDS, ROUNDS)
    certify = [sys.executable, "-m", "hush", "certify", str(tmp_path / "run")]
    told = subprocess.run(certify, env=around, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    print(told.stdout[-1500:])


def wait_for_port(port: int) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("Flower's SuperLink does not listen")
