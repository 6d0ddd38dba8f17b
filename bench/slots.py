"""What it costs that nobody's row depends on a neighbour: rounds with fast noise, and with secure noise in slots, side by side.

    python bench/slots.py [--device cuda] [--rounds 5]

Fed-SMP's CNN on random images, 100 of 1,000 clients a round (Poisson), 10 steps of batch 10 with momentum, clip and noise.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import hush
from hush.engines import simulation
from hush.engines.round import play_round
from hush.tasks.models import build_model


def seconds(mode: str, chunk: int | None, sizes: torch.Tensor, asked: argparse.Namespace) -> tuple[float, int]:
    """A round, by the median; and how many clients train side by side."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(int(sizes.sum()), 1, 28, 28, generator=generator)
    clients = hush.Clients(x, torch.randint(0, 10, (len(x),), generator=generator), sizes)
    task = hush.Task(build_model(asked.model, torch.Size((1, 28, 28)), 10, 0), clients)
    method = hush.methods.dp_fedavg(noise=1.0, lr=0.05, momentum=0.9, batch_size=10, local_steps=10)
    run = simulation.set_up(method, task, rounds=asked.rounds + 1, cohort=100, noise_mode=mode, chunk=chunk, device=asked.device)
    now, _ = simulation.start(run, None)
    took = []
    for _ in range(asked.rounds + 1):  # the first tries rows and training, and pays for set-up
        began = time.perf_counter()
        now, _, _ = play_round(run, now)
        if run.data.learner.device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return sorted(took[1:])[asked.rounds // 2], run.chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="fed-smp-cnn")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    equal, unequal = torch.full((1000,), 100), torch.randint(20, 200, (1000,), generator=torch.Generator().manual_seed(1))
    told = []
    for name, sizes in (("equal", equal), ("unequal", unequal)):
        fast, _ = seconds("fast", None, sizes, asked)
        for chunk in (None, 1, 16, 64):
            secure, slots = seconds("secure", chunk, sizes, asked)
            told.append({"sizes": name, "slots": slots, "fast": fast, "secure": secure, "ratio": secure / fast})
            print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in told[-1].items()}), flush=True)


if __name__ == "__main__":
    main()
