"""Runs that are killed: a child process that really trains, and an account of every draw of noise that it made."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import hush
from hush.core import Public, Round, State
from hush.secret import Secret
from hush.transforms import ExactNoise, Gaussian
from tests.conftest import make_task


@dataclass(frozen=True)
class Child:
    """One run in its folder, on a ledger that it shares."""

    out: Path
    ledger: Path
    mode: str
    seed: int
    rounds: int

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".draws")

    def start(self) -> subprocess.Popen[bytes]:
        settings = [str(self.out), str(self.ledger), self.mode, str(self.seed), str(self.rounds)]
        script = "from tests.faults import main; main()"  # by its name: a run is known by its code, and where that is from
        return subprocess.Popen([sys.executable, "-c", script, *settings], start_new_session=True)

    def kill_somewhere(self, chance: random.Random) -> bool:
        """Start, and SIGKILL at a random moment of a random round that is to come; True if it was still running."""
        drawn = self.draws()
        left = self.rounds - len({line.split()[1] for line in drawn})
        more, child = 1 + chance.randrange(max(1, left // 2)), self.start()
        while child.poll() is None and len(self.draws()) < len(drawn) + more:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        running = child.poll() is None
        if running:
            os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=60)
        assert running or child.returncode == 0
        return running

    def finish(self) -> dict[str, object]:
        """Resume to the end, in this process."""
        train(self)
        result = json.loads((self.out / "result.json").read_text())
        assert isinstance(result, dict)
        return result

    def draws(self) -> list[str]:
        """Every draw of noise that was made, as far as it got: attempt and round."""
        return self.log.read_text().splitlines() if self.log.is_file() else []


def train(child: Child) -> None:
    """Train, or go on, and write down each draw before it is made, so that no draw is missed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUSH_TEST_DRAWS", str(child.log))
        for kind in (Gaussian, ExactNoise):
            right = kind.decode

            def decode(
                self: Gaussian | ExactNoise,
                total: torch.Tensor,
                state: State,
                rnd: Round,
                public: Public,
                secret: Secret,
                right: object = right,
            ) -> tuple[torch.Tensor, State]:
                log = os.open(os.environ["HUSH_TEST_DRAWS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.write(log, f"{secret.key.hex()[:12]} {rnd.index}\n".encode())
                os.close(log)
                return right(self, total, state, rnd, public, secret)  # type: ignore[operator,no-any-return]

            patch.setattr(kind, "decode", decode)
        hush.simulate(
            hush.methods.dp_fedavg(noise=2.0, lr=0.1),
            make_task(sizes=(3,) * 60, seed=1),
            rounds=child.rounds,
            cohort=6,
            seed=child.seed,
            noise_mode=child.mode,
            ledger=child.ledger,
            population="people",
            out=child.out,
            resume=True,
            device="cpu",
            eval_every=10,  # epsilon is told where a round is judged, and takes longer than a round
        )


def main() -> None:
    """The child."""
    torch.set_num_threads(1)
    train(Child(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
