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

ROUNDS = 120


@dataclass(frozen=True)
class Child:
    """One run in its folder, on a ledger that it shares."""

    out: Path
    ledger: Path
    mode: str
    seed: int

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".draws")

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults", str(self.out), str(self.ledger), self.mode, str(self.seed)]
        return subprocess.Popen(command, start_new_session=True)

    def kill_somewhere(self, chance: random.Random) -> bool:
        """Start, and SIGKILL after a random time from its first draw; True if it was still running."""
        seen, child = len(self.draws()), self.start()
        while child.poll() is None and len(self.draws()) <= seen:
            time.sleep(0.002)
        time.sleep(chance.random() * 1.2)
        running = child.poll() is None
        if running:
            os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=60)
        assert running or child.returncode == 0
        return running

    def finish(self) -> dict[str, object]:
        """Resume to the end."""
        assert self.start().wait(timeout=300) == 0
        result = json.loads((self.out / "result.json").read_text())
        assert isinstance(result, dict)
        return result

    def draws(self) -> list[str]:
        """Every draw of noise that was made, as far as it got: attempt and round."""
        return self.log.read_text().splitlines() if self.log.is_file() else []


def main() -> None:
    """The child: train, and write down each draw before it is made, so that no draw is missed."""
    import torch

    import hush
    from hush.core import Public, Round, State
    from hush.secret import Secret
    from hush.transforms import ExactNoise, Gaussian
    from tests.conftest import make_task

    torch.set_num_threads(1)
    out, ledger, mode, seed = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    child = Child(out, Path(ledger), mode, seed)
    log = os.open(child.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

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
            os.write(log, f"{secret.key.hex()[:12]} {rnd.index}\n".encode())
            return right(self, total, state, rnd, public, secret)  # type: ignore[operator,no-any-return]

        kind.decode = decode  # type: ignore[method-assign,assignment]
    hush.simulate(
        hush.methods.dp_fedavg(noise=2.0, lr=0.1),
        make_task(sizes=(3,) * 60, seed=1),
        rounds=ROUNDS,
        cohort=6,
        seed=seed,
        noise_mode=mode,
        ledger=ledger,
        population="people",
        out=out,
        resume=True,
        device="cpu",
    )


if __name__ == "__main__":
    main()
