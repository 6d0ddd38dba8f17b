"""Hush's own round, as `hush.simulate` runs it."""

from __future__ import annotations

from typing import Any

import torch

import hush
from hush.benchmarks.busy import gpu_seconds
from hush.benchmarks.pace import Pace
from hush.benchmarks.peers.drawn import count, examples, network, settle, wait_for


def main() -> None:
    pace = Pace()
    w, device = pace.workload, pace.device
    settle(pace.tf32)
    model = network(w, plain=False)
    task = hush.Task(model=model, clients=hush.Clients(*examples(w), torch.full((w.population,), w.samples)))
    method = hush.methods.dp_fedavg(clip=w.clip, noise=w.noise, lr=w.lr, momentum=w.momentum, batch_size=w.batch)
    pace.watch = gpu_seconds if device == "cuda" else None
    pace.ready(f"hush {hush.__version__}", count(model), torch=torch.__version__)

    def on_round(record: dict[str, Any]) -> None:
        wait_for(device)
        pace.lap()

    cohort = hush.FixedSize(w.cohort)
    hush.simulate(method, task, rounds=pace.rounds, cohort=cohort, device=device, eval_every=10**9, on_round=on_round)


if __name__ == "__main__":
    main()
