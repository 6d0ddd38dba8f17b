"""The least a round can take: every client's weights through memory, at the speed of a copy, measured in the same run."""

from __future__ import annotations

import statistics
import time

import torch

from hush.benchmarks.workloads import Workload

PASSES = 8
"""Of a step with gradients written: forward, backward, gradient there and back, momentum and weights there and back."""


def fused_passes(workload: Workload) -> int:
    """Where no gradient is written: forward, backward, weights there and back, and momentum too."""
    return 6 if workload.momentum else 4


def copy_speed(device: str) -> float:
    """Bytes a second, read and written, of a large copy."""
    size = 2**30 if device == "cuda" else 2**27
    here, there = torch.ones(size // 4, device=device), torch.empty(size // 4, device=device)
    found = []
    for _ in range(12):
        began = time.perf_counter()
        there.copy_(here)
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return 2 * size / statistics.median(found[2:])


def floors(workload: Workload, parameters: int, speed: float) -> dict[str, float]:
    """Seconds a round: as a step is usually written, and with everything fused."""
    once = workload.cohort * workload.steps * parameters * 4 / speed
    return {"floor_s": PASSES * once, "fused_floor_s": fused_passes(workload) * once}
