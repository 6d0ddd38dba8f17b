"""A federation on this machine: three client processes, TLS, a secure sum; one of them is killed and comes back. (make federation)

The processes are those of a real one, started with the commands that its members type; only the network is short.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hush.config import RunConfig
from hush.engines.flower.process import naming
from hush.federation import trial

CLIENTS = 3
RUN = ["fed-smp-rand-k", "--rounds", "10", "--noise", "0.4", "--delta", "1e-3"]
HUSH = [sys.executable, "-m", "hush"]


def main() -> None:
    began = time.monotonic()
    place = Path("runs") / time.strftime("federation-%Y%m%d-%H%M%S")
    place = place.resolve()
    federation = trial.make(place, CLIENTS, RunConfig(method=RUN[0]), None)
    print(f"{CLIENTS} clients are enrolled, each with keys of its own: {place}", flush=True)
    clients = {number: start(place, number) for number in range(CLIENTS)}
    command = [*HUSH, "server", "--federation", str(federation.path), *RUN, "--out", str(place / "run")]
    print("$ hush " + " ".join(command[3:]), flush=True)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            print(line, end="", flush=True)
            if line.startswith("round 3 of"):
                clients[1].send_signal(signal.SIGKILL)
                print("--- client-1 is killed (SIGKILL): the round cannot go on without it ---", flush=True)
            if "breaks off" in line and clients[1].poll() is not None:
                print("--- client-1 is started again ---", flush=True)
                clients[1] = start(place, 1)
        if server.wait():
            sys.exit(server.returncode)
        for process in clients.values():
            process.wait(timeout=60)
    finally:
        for process in (server, *clients.values()):
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=60)
    subprocess.run([*HUSH, "certify", str(place / "run")], check=True)
    compare(place)
    left = ", ".join(f"process {pid}" for pid in {*naming(str(place)), *naming("/hush-server-"), *naming("/hush-client-")})
    print(f"Left behind: {left or 'nobody'}. It took {time.monotonic() - began:.0f} s.")


def start(place: Path, number: int) -> subprocess.Popen[bytes]:
    (process,) = trial.start(place, CLIENTS, CLIENTS, only=[number])
    return process


def compare(place: Path) -> None:
    """The same configuration, simulated with five seeds."""
    simulated = [*HUSH, "run", *RUN, "--clients", str(CLIENTS), "--cohort", str(CLIENTS), "--secure", "--sampling", "rotation"]
    out = place / "simulated"
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*simulated, "--seeds", "5", "--out", str(out)], check=True, capture_output=True, env=alone)
    seeds = sorted(json.loads(path.read_text())["test_accuracy"] for path in out.glob("seed-*/result.json"))
    own = json.loads((place / "run" / "result.json").read_text())["test_accuracy"]
    print(f"Accuracy: {own:.1%} here; five seeds of the same in simulation: {seeds[0]:.1%} to {seeds[-1]:.1%}.")


if __name__ == "__main__":
    main()
