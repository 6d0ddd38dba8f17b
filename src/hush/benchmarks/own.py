"""Hush's own rounds on a workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hush
from hush.benchmarks.peers.drawn import examples, network, wait_for
from hush.benchmarks.workloads import Workload


def task_of(workload: Workload) -> hush.Task:
    """Clients of equal size on drawn data."""
    sizes = torch.full((workload.population,), workload.samples)
    return hush.Task(model=network(workload, plain=False), clients=hush.Clients(*examples(workload), sizes))


def play(workload: Workload, task: hush.Task, device: str, rounds: int, after_each: Callable[[], None]) -> None:
    """DP-FedAvg as `hush.simulate` runs it; nothing is evaluated, and the device is done `after_each` round."""
    w = workload

    def on_round(record: dict[str, Any]) -> None:
        wait_for(device)
        after_each()

    method = hush.methods.dp_fedavg(clip=w.clip, noise=w.noise, lr=w.lr, momentum=w.momentum, batch_size=w.batch)
    cohort = hush.FixedSize(w.cohort)
    hush.simulate(method, task, rounds=rounds, cohort=cohort, device=device, eval_every=10**9, on_round=on_round)
