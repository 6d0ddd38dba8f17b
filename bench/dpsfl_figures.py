"""DPSFL's figures 4, 5 and 7 with ResNet-9, at a proved client-level epsilon, cell by cell.

    HUSH_DATA=... python bench/dpsfl_figures.py --device cuda --jobs 3  # MNIST, epsilon 8 and 4
    HUSH_DATA=... python bench/dpsfl_figures.py --data cifar10 --epsilons 8 4 2 --seeds 3 --device cuda --jobs 3

1,000 clients, Poisson cohorts of 100, T = 200, one gradient of 20 examples a client and round, released view. The compression level
is the bytes of dense gradients, up and down, over a method's, for a client that follows every round: sketches get fewer counters,
methods without a sketch fewer rounds. Every method is tuned on 5,000 validation examples by six trials of its own size of step and
clip, at level 3, each of the first `--tune-rounds` rounds under the noise of the whole run; the best two then get half of the
method's rounds, and the best of these is what runs. The last round on test is reported.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cells import play

import hush
from hush import methods
from hush.privacy.settle import settle_privacy

CLIENTS, COHORT, ROUNDS, BATCH, MODEL = 1000, 100, 200, 20, "resnet9"
ROWS = ("fedavg", "fetchsgd", "dpfl", "adpfl", "dpsfl", "dpsfl-ac")
SKETCHED, PRIVATE = ("fetchsgd", "dpsfl", "dpsfl-ac"), ("dpfl", "adpfl", "dpsfl", "dpsfl-ac")
TUNED_AT = 3
RATES, CLIPS = (0.03, 0.1, 0.3), (0.3, 1.5)


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    row: str
    level: int
    epsilon: float
    seed: int
    settings: tuple[tuple[str, Any], ...]
    rounds: int
    tuning: bool

    @property
    def name(self) -> str:
        words = "-".join(f"{key}={value:g}" for key, value in self.settings) + f"-{self.rounds}" if self.tuning else "final"
        return f"{self.data}-{self.row}-{self.level}-{self.epsilon:g}-{self.seed}-{words}"


def built(cell: Cell, settings: dict[str, Any]) -> hush.Method:
    """A method by name, its table as small as the level asks for."""
    common: dict[str, Any] = {"batch_size": BATCH, **settings}
    if cell.row in SKETCHED:
        # rows * cols * 4 bytes up, cols/10 values and places (7 bytes) down: 20.7 cols; dense gradients take 8 a coordinate
        cols = 8 / 20.7 / cell.level
        common |= {"cols": cols, "k": cols / 10}
    if cell.row == "fedavg":
        common |= {"local_steps": 1, "lr": 1.0, "server": "momentum"}
    return methods.build(cell.row, **methods.taken(cell.row, common))


def run(cell: Cell, device: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # as cuDNN does by itself
    planned = ROUNDS if cell.row in SKETCHED else ROUNDS // cell.level
    task = hush.load_task(cell.data, MODEL, clients=CLIENTS, split="iid", validation=5000 if cell.tuning else 0, seed=cell.seed)
    began, cohort = time.perf_counter(), hush.Poisson(COHORT)
    method = built(cell, dict(cell.settings))
    if cell.row in PRIVATE:  # the noise of all rounds, also where only the first of them are run
        budget = hush.Budget(cell.epsilon, CLIENTS**-1.1)
        method = settle_privacy(method, cohort, task.enrolled, planned, budget, None).method
    try:
        result = hush.simulate(
            method,
            task,
            rounds=min(planned, cell.rounds),
            cohort=cohort,
            delta=CLIENTS**-1.1 if cell.row in PRIVATE else None,
            seed=cell.seed,
            device=device,
            memory="40GiB" if device == "cuda" else None,  # the whole cohort at once
            eval_every=ROUNDS,
            diagnostics=False,
        )
    except hush.errors.Diverged:
        return {"score": 0.0, "seconds": time.perf_counter() - began, "settings": dict(cell.settings), "diverged": True}
    dim = result.parameters
    return {
        "score": result.validation_accuracy if cell.tuning else result.test_accuracy,
        "settings": dict(cell.settings),
        "epsilon": result.epsilon,
        "claimed": result.claimed_epsilon,
        "noise": result.noise_multiplier,
        "rounds": planned,
        "bytes_a_round": method.uplink(dim).bytes + (method.answer_bytes(dim) or 4 * dim),
        "dense_bytes_a_round": 8 * dim,
        "seconds": time.perf_counter() - began,
    }


def trials(data: str, row: str, epsilon: float, args: argparse.Namespace) -> list[Cell]:
    """The same six for every method; those without a clip vary momentum in its place."""
    found = []
    for rate, other in itertools.product(RATES, CLIPS):
        clip = (("clip", other),) if row in PRIVATE else (("server_momentum", 0.9 if other < 1 else 0.0),)
        settings = (("server_lr", rate), *clip)
        found.append(Cell(data, row, TUNED_AT, epsilon if row in PRIVATE else 0.0, 100, settings, args.tune_rounds, True))
    return found


def longer(data: str, row: str, epsilon: float, args: argparse.Namespace) -> list[Cell]:
    """The best two of the trials, for half of the method's rounds: what looks best at first may diverge."""
    first = trials(data, row, epsilon, args)
    tried = play(run, first, args.device, args.jobs, args.out)
    best = sorted(tried, key=lambda one: -(one["score"] or 0.0))[:2]
    half = max(args.tune_rounds, (ROUNDS if row in SKETCHED else ROUNDS // TUNED_AT) // 20 * 10)
    return [replace(first[0], settings=_settings(one), rounds=half) for one in best]


def _settings(found: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(found["settings"].items())


def finals(data: str, row: str, level: int, epsilon: float, args: argparse.Namespace) -> list[Cell]:
    """At what the trials chose."""
    longest = play(run, longer(data, row, epsilon, args), args.device, args.jobs, args.out)
    best = _settings(max(longest, key=lambda one: one["score"] or 0.0))
    told = epsilon if row in PRIVATE else 0.0
    return [Cell(data, row, level, told, seed, best, ROUNDS, False) for seed in range(args.seeds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--levels", type=int, nargs="*", default=[1, 3, 5])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 4.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tune-rounds", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/measured/dpsfl"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    whole = (args.device, args.jobs, args.out)
    every = list(itertools.product(args.rows, args.epsilons))
    play(run, list(dict.fromkeys(t for row, eps in every for t in trials(args.data, row, eps, args))), *whole)
    play(run, list(dict.fromkeys(t for row, eps in every for t in longer(args.data, row, eps, args))), *whole)
    cells = [cell for row, eps in every for level in args.levels for cell in finals(args.data, row, level, eps, args)]
    play(run, sorted(dict.fromkeys(cells), key=lambda cell: cell.row not in SKETCHED), *whole)  # the longest first
    for epsilon in args.epsilons:
        print(f"\n| {args.data}, epsilon {epsilon:g} | " + " | ".join(f"level {level}" for level in args.levels) + " | chosen |")
        print("|---" * (len(args.levels) + 2) + "|")
        for row in args.rows:
            told, words = [], ""
            for level in args.levels:
                found = play(run, finals(args.data, row, level, epsilon, args), *whole)
                scores = [100 * one["score"] for one in found]
                told.append(f"{statistics.mean(scores):.2f}" + (f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""))
                words = " ".join(f"{key}={value:g}" for key, value in found[0]["settings"].items())
            print(f"| {row} | {' | '.join(told)} | {words} |", flush=True)
    picture(args)


def picture(args: argparse.Namespace) -> None:
    """Accuracy by compression level (figures 4 and 5), and by epsilon (figure 7), with the proved epsilon."""
    import matplotlib.pyplot as plt

    def mean(row: str, level: int, epsilon: float) -> float:
        found = play(run, finals(args.data, row, level, epsilon, args), args.device, args.jobs, args.out)
        return statistics.mean(100 * one["score"] for one in found)

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for row in args.rows:
        style = "--" if row not in PRIVATE else "-"
        axes[0].plot(args.levels, [mean(row, level, args.epsilons[0]) for level in args.levels], style, marker="o", label=row)
        middle = args.levels[len(args.levels) // 2]
        axes[1].plot(args.epsilons, [mean(row, middle, eps) for eps in args.epsilons], style, marker="o", label=row)
    axes[0].set(
        xlabel="compression level",
        xticks=args.levels,
        ylabel="test accuracy, %",
        title=f"{args.data}, epsilon {args.epsilons[0]:g} (proved)",
    )
    axes[1].set(
        xlabel="proved epsilon for each client",
        xticks=args.epsilons,
        title=f"{args.data}, level {args.levels[len(args.levels) // 2]}",
    )
    axes[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(args.pictures / f"dpsfl-{args.data}.png", dpi=130)


if __name__ == "__main__":
    main()
