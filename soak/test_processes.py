"""Four processes of torchrun, of which one is killed again and again, whichever: `make soak`."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from hush.certify import verify_run
from hush.engines.result import Result
from hush.engines.rundir import RunDir

KILLS = 4
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone", "-m", "hush", "run"]
TYPED = ["dp-fedavg", "--noise", "1", "--rounds", "40", "--clients", "100", "--cohort", "40"]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_run_whose_processes_are_killed_comes_to_its_end(tmp_path: Path) -> None:
    chance, folder, killed = random.Random("processes"), tmp_path / "run", 0
    rounds = folder / "rounds.jsonl"
    for _ in range(3 * KILLS):
        done = rounds.read_text().count("\n") if rounds.is_file() else 0
        typed = ["--resume", str(folder)] if done else [*TYPED, "--out", str(folder)]
        run = subprocess.Popen([*TORCHRUN, *typed], stdout=-1, stderr=-1, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if killed < KILLS:
            until = min(39, done + chance.randrange(1, 6))
            while run.poll() is None and (not rounds.is_file() or rounds.read_text().count("\n") < until):
                time.sleep(0.01)
            time.sleep(0.2 * chance.random())
            if run.poll() is None:
                os.kill(chance.choice(_children(run.pid)), signal.SIGKILL)
                killed += 1
        _, said = run.communicate(timeout=120)
        if run.returncode == 0:
            break
        assert len(re.findall(r"^hush: Another process of this run was lost", said, re.MULTILINE)) == 1, said
        assert "Traceback" not in said.split("torch/distributed")[0], said
    result = Result.read(RunDir(folder))
    assert (killed, result.rounds, result.rounds_charged) == (KILLS, 40, 40), "the same sum is the same release"
    _, checks, *_ = verify_run(folder)
    assert all(check.passed is not False for check in checks), checks
