"""Hush's own round, as `hush.simulate` runs it."""

from __future__ import annotations

import torch

import hush
from hush.benchmarks.busy import gpu_seconds
from hush.benchmarks.own import play, task_of
from hush.benchmarks.pace import Pace
from hush.benchmarks.peers.drawn import count, settle


def main() -> None:
    pace = Pace()
    settle(pace.tf32)
    task = task_of(pace.workload)
    pace.watch = gpu_seconds if pace.device == "cuda" else None
    pace.ready(f"hush {hush.__version__}", count(task.model), torch=torch.__version__)
    play(pace.workload, task, pace.device, pace.rounds, pace.lap)


if __name__ == "__main__":
    main()
