"""Time the exact integer noise of Hush, beside inexact noise from torch and numpy, in ms per million draws.

    python bench/noise.py [--draws 1000000] [--repeat 7]

One core. Each figure is the best of `--repeat`; the ratio in brackets is to `torch.randn` in the same run. `build` is the time of
the table, paid once per law and std. The goals: Skellam 60 ms, discrete Gaussian 1,000 ms per million.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hush import exact_noise
from hush.exact_noise import DiscreteGaussian, IntegerNoise, KeyStream, RoundedGaussian, Skellam

STDS = (1.0, 50.0, 1000.0, 80_000.0, 1e6)
GOALS = {RoundedGaussian: 1000.0, DiscreteGaussian: 1000.0, Skellam: 60.0}


def milliseconds(work: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def build_milliseconds(noise: IntegerNoise) -> float:
    exact_noise._table.cache_clear()
    return milliseconds(lambda: noise.draw(KeyStream(os.urandom(32)), 1), 1)


def poisson_difference(std: float, count: int) -> Callable[[], object]:
    generator = np.random.default_rng()
    return lambda: generator.poisson(std * std / 2, count) - generator.poisson(std * std / 2, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    per_million = 1e6 / args.draws

    def figure(work: Callable[[], object]) -> float:
        return milliseconds(work, args.repeat) * per_million

    yardstick = figure(lambda: torch.randn(args.draws))
    table = Table("noise", *(f"std {std:,.0f}" for std in STDS), title="ms per million draws (times torch.randn)")

    def add(name: str, cells: list[float]) -> None:
        table.add_row(name, *(f"{ms:.1f} ({ms / yardstick:.1f})" for ms in cells))

    missed = []
    for kind, goal in GOALS.items():
        build = [build_milliseconds(kind(std)) for std in STDS]
        stream = KeyStream(os.urandom(32))
        draw = [figure(partial(kind(std).draw, stream, args.draws)) for std in STDS]
        add(kind.__name__, draw)
        table.add_row("  build, once", *(f"{ms:.0f}" for ms in build), end_section=True)
        missed += [
            f"{kind.__name__} at std {std:g}: {ms:.0f} ms, not {goal:g}" for std, ms in zip(STDS, draw, strict=True) if ms > goal
        ]
    add("numpy, Poisson difference", [figure(poisson_difference(std, args.draws)) for std in STDS])
    add("torch.randn", [yardstick] * len(STDS))
    add("the keystream alone", [figure(lambda: KeyStream(os.urandom(32)).words(args.draws))] * len(STDS))
    Console(width=120).print(table)
    print("goals missed: " + "; ".join(missed) if missed else "all goals met")


if __name__ == "__main__":
    main()
