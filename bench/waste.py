"""Clients of unequal size: the share of computed examples that is padding, or of clients that wait. Nothing is trained.

HUSH_DATA=... python bench/waste.py            # rounds' cohorts are drawn, and their chunks counted, as a run has them
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

from hush.config import RunConfig
from hush.engines.diagnostics import wasted
from hush.engines.setup import assemble
from hush.engines.summing import _chunks
from hush.experiment import resolve
from hush.tasks.fetch import data_dir

CASES = (
    ("shakespeare", "natural", 10),
    ("shakespeare", "natural", 100),
    ("cifar10", "dirichlet:0.1", 50),
    ("cifar10", "dirichlet:0.1+lognormal:1", 50),
    ("cifar10", "dirichlet:0.1+zipf:1.2", 50),
)
"""Data, who holds them, cohort."""
SIDE_BY_SIDE = {"fast": (10, 100), "secure": (8, 32)}
"""Clients side by side: as on a CPU, and on a GPU."""


def measure(data: str, split: str, cohort: int, rounds: int, folder: Path) -> None:
    asked = RunConfig.read(
        {"method": "dp-fedavg", "data": data, "partition": split, "cohort": cohort, "noise": 1.0, "device": "cpu"}
    )
    experiment = resolve(asked)
    task = experiment.task(folder)
    for mode, chunks in SIDE_BY_SIDE.items():
        for chunk in chunks:
            config = replace(experiment.config, noise_mode=mode, chunk=chunk)
            run = assemble(config, experiment.method, task, experiment.cohort)
            computed = own = 0
            for index in range(rounds):
                ids, _ = run.cohort.draw(index, task.train.count, run.cohort.init(task.train.count), run.identity.secret)
                for part in _chunks(run, ids):
                    sizes = task.train.sizes[part.clamp_min(0)].masked_fill(part < 0, 0)
                    work = run.method.local.work(sizes, run.privacy.apart)
                    assert work is not None
                    computed, own = computed + work[0], own + work[1]
            print(
                f"{data:12} {split:26} cohort {cohort:3} {mode:6} {chunk:3} side by side: {wasted(computed, own):6.1%}", flush=True
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    said = parser.parse_args()
    warnings.simplefilter("ignore")
    for case in CASES:
        measure(*case, said.rounds, data_dir(None))
