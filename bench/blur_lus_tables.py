"""BLUR+LUS's tables 2 and 3 and its figure 2 on CIFAR-10, at a proved client-level epsilon, cell by cell.

    HUSH_DATA=... python bench/blur_lus_tables.py table2 --device cuda --jobs 6
    HUSH_DATA=... python bench/blur_lus_tables.py table3 --device cuda --jobs 6
    HUSH_DATA=... python bench/blur_lus_tables.py figure2 --device cuda

500 clients (the paper does not say how many), Dirichlet, Poisson cohorts of 30, T = 300, 30 local steps on batches of 50, delta =
1/500 to match the paper. Every method of table 2 is tuned on 5,000 validation examples by the same eight trials, each of the first
`--tune-rounds` rounds under the noise of the whole run; the last round on test is reported. AE-DPFL has no clip and no rounds to
speak of: its eight trials vary how long clients train, how often they vote, and how the server learns. Every cell is
a line in OUT: what was stopped goes on with those that are missing, and `--jobs` cells run side by side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import play

import hush
from hush import methods
from hush.privacy.settle import settle_privacy
from hush.random import keys_of

CLIENTS, COHORT, ROUNDS, STEPS, BATCH = 500, 30, 300, 30, 50
ROWS = ("dp-fedavg", "dp-fedavg+blur", "dp-fedavg+lus", "dp-fedavg+blur+lus", "ddgauss", "ae-dpfl")
PAPER = {  # table 2, CNN; "ours" is +blur+lus, and the two parts alone are not in it
    "0.1": {"dp-fedavg": 53.84, "ae-dpfl": 55.79, "ddgauss": 53.55, "dp-fedavg+blur+lus": 58.95},
    "1": {"dp-fedavg": 58.67, "ae-dpfl": 60.00, "ddgauss": 58.28, "dp-fedavg+blur+lus": 63.74},
    "10": {"dp-fedavg": 62.25, "ae-dpfl": 63.93, "ddgauss": 62.43, "dp-fedavg+blur+lus": 65.34},
    "100": {"dp-fedavg": 63.73, "ae-dpfl": 64.51, "ddgauss": 63.80, "dp-fedavg+blur+lus": 66.05},
}
TRIALS = [{"lr": lr, "clip": clip} for lr, clip in itertools.product((0.03, 0.1), (0.1, 0.3, 1.0, 3.0))]
VOTES = [
    {"local_steps": steps, "rounds": rounds, "server_train_lr": lr}
    for steps, rounds, lr in itertools.product((30, 60), (1, 2), (0.03, 0.1))
]


@dataclass(frozen=True)
class Cell:
    """One run: a row, its settings, its data, and for how many rounds of which it is calibrated."""

    row: str
    alpha: str
    epsilon: float
    seed: int
    settings: tuple[tuple[str, Any], ...]
    rounds: int
    tuning: bool
    name: str


def run(cell: Cell, device: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # as cuDNN does by itself
    settings: dict[str, Any] = {"batch_size": BATCH, "local_steps": STEPS, **dict(cell.settings)}
    votes = cell.row == "ae-dpfl"
    planned = settings.pop("rounds", ROUNDS)
    if votes:
        settings["server_batch_size"] = BATCH
    task = hush.load_task(
        "cifar10",
        "afo-cnn",
        clients=CLIENTS,
        split=f"dirichlet:{cell.alpha}",
        validation=5000 if cell.tuning else 0,
        public=2000 if votes else 0,
        seed=cell.seed,
    )
    began = time.perf_counter()
    budget = hush.Budget(cell.epsilon, 1 / CLIENTS)
    method = methods.build(cell.row, **settings)
    cohort = hush.Poisson(CLIENTS if votes else COHORT)
    settled = settle_privacy(method, cohort, task.enrolled, planned, budget, None)
    if not votes:  # the noise of all rounds, also where only the first of them are run
        method = settled.method
    curve: list[float] = []
    found = {"row": cell.row, "alpha": cell.alpha, "seed": cell.seed, "settings": dict(cell.settings)}
    try:
        result = hush.simulate(
            method,
            task,
            rounds=planned if votes else cell.rounds,
            cohort=cohort,
            privacy=budget if votes else None,
            delta=1 / CLIENTS,
            seed=cell.seed,
            device=device,
            memory="16GiB" if device == "cuda" else None,
            eval_every=10,
            diagnostics=False,
            on_round=lambda record: curve.append(record.get("validation_accuracy")),
        )
    except hush.errors.Diverged:
        return found | {"validation": 0.0, "score": 0.0, "test": 0.0, "diverged": True, "seconds": time.perf_counter() - began}
    return found | {
        "validation": result.validation_accuracy,
        "score": result.validation_accuracy if cell.tuning else result.test_accuracy,
        "test": None if cell.tuning else result.test_accuracy,
        "epsilon": result.epsilon,
        "noise": result.noise_multiplier,
        "megabytes": result.uplink_bytes_per_client / 1e6,
        "seconds": time.perf_counter() - began,
        "curve": curve,
    }


def trials_of(row: str, alpha: str, epsilon: float, args: argparse.Namespace) -> list[Cell]:
    trials = VOTES if row == "ae-dpfl" else TRIALS
    return [
        Cell(row, alpha, epsilon, 100, tuple(t.items()), args.tune_rounds, True, f"tune-{row}-{alpha}-{epsilon:g}-{i}")
        for i, t in enumerate(trials)
    ]


def chosen(row: str, alpha: str, epsilon: float, args: argparse.Namespace) -> tuple[tuple[str, Any], ...]:
    """The best of the eight trials on validation."""
    found = play(run, trials_of(row, alpha, epsilon, args), args.device, args.jobs, args.out)
    best = max(found, key=lambda one: one["validation"] or 0.0)
    return tuple(best["settings"].items())


def finals(row: str, alpha: str, args: argparse.Namespace) -> list[Cell]:
    settings = chosen(row, alpha, args.epsilon, args)
    return [
        Cell(row, alpha, args.epsilon, seed, settings, ROUNDS, False, f"final-{row}-{alpha}-{args.epsilon:g}-{seed}")
        for seed in range(args.seeds)
    ]


def table2(args: argparse.Namespace) -> None:
    every = list(itertools.product(args.rows, args.alphas))
    play(run, [t for row, alpha in every for t in trials_of(row, alpha, args.epsilon, args)], args.device, args.jobs, args.out)
    play(run, [cell for row, alpha in every for cell in finals(row, alpha, args)], args.device, args.jobs, args.out)
    print(f"| epsilon {args.epsilon:g} | " + " | ".join(f"alpha = {a}" for a in args.alphas) + " | paper | MB up | chosen |")
    print("|---" * (len(args.alphas) + 4) + "|")
    for row in args.rows:
        told, last = [], {}
        for alpha in args.alphas:
            found = play(run, finals(row, alpha, args), args.device, args.jobs, args.out)
            scores = [100 * one["test"] for one in found]
            told.append(f"{statistics.mean(scores):.2f}" + (f" ± {statistics.pstdev(scores):.2f}" if len(scores) > 1 else ""))
            last = found[0]
        paper = ", ".join(str(PAPER.get(alpha, {}).get(row, "none")) for alpha in args.alphas)
        words = " ".join(f"{key}={value}" for key, value in last["settings"].items())
        print(f"| {row} | {' | '.join(told)} | {paper} | {last.get('megabytes', math.nan):.1f} | {words} |", flush=True)


def table3(args: argparse.Namespace) -> None:
    """Sparsity by BLUR, at what table 2 chose for each."""
    alpha, shares = args.alphas[0], (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    bases = {"DP-FedAvg + LUS": "dp-fedavg+lus", "DP-FedAvg + BLUR + LUS": "dp-fedavg+blur+lus"}
    cells = {
        (name, share): finals(row, alpha, args)[0]
        if share == 0.7  # what table 2 ran
        else Cell(
            row,
            alpha,
            args.epsilon,
            0,
            (*chosen(row, alpha, args.epsilon, args), ("sparsity", share)),
            ROUNDS,
            False,
            f"table3-{row}-{share}",
        )
        for name, row in bases.items()
        for share in shares
    }
    found = dict(zip(cells, play(run, list(cells.values()), args.device, args.jobs, args.out), strict=True))
    print("| sparsity | " + " | ".join(bases) + " |")
    print("|---|---|---|")
    for share in shares:
        print(f"| {share:g} | " + " | ".join(f"{100 * found[name, share]['test']:.2f}" for name in bases) + " |")


def figure2(args: argparse.Namespace) -> None:
    """Norms of updates before they are clipped, round by round, with and without BLUR and LUS, at a clip of 0.1."""
    panels = {}
    for row in ("dp-fedavg", "dp-fedavg+blur", "dp-fedavg+blur+lus"):
        kept = args.out / f"figure2-{row}.json"  # as every cell: made once, perhaps where there is nothing to plot with
        if not kept.is_file():
            task = hush.load_task("cifar10", "afo-cnn", clients=CLIENTS, split=f"dirichlet:{args.alphas[0]}", seed=0)
            method = methods.build(row, lr=0.1, clip=0.1, batch_size=BATCH, local_steps=STEPS)
            kept.write_text(json.dumps(norms_by_round(method, task, args)))
        panels[row] = {int(number): norms for number, norms in json.loads(kept.read_text()).items()}
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharex=True, sharey=True)
    for axis, (row, norms) in zip(axes, panels.items(), strict=True):
        rounds = sorted(norms)
        axis.violinplot([norms[r] for r in rounds], positions=range(len(rounds)), orientation="horizontal", showmedians=True)
        axis.axvline(0.1, color="black", linewidth=0.8, linestyle="--")
        axis.set(title=row, xlabel="norm of a client's update before the clip", yticks=range(len(rounds)), yticklabels=rounds)
        axis.set_xscale("log")
    axes[0].set_ylabel("round")
    figure.tight_layout()
    figure.savefig(args.pictures / "blur-figure-2.png", dpi=130)
    for row, norms in panels.items():
        middle = {r: f"{statistics.median(n):.3f}" for r, n in norms.items()}
        inside = statistics.mean(statistics.mean(x <= 0.1 * 1.05 for x in n) for n in norms.values())
        print(f"{row}: median norms {middle}, {100 * inside:.0f}% within 5% of the clip or below it")


def norms_by_round(method: hush.Method, task: hush.Task, args: argparse.Namespace) -> dict[int, list[float]]:
    """What thirty clients would send, at some rounds of one private run."""
    from hush.engines.round import play_round
    from hush.engines.simulation import set_up, start
    from hush.engines.summing import clients_of

    warnings.simplefilter("ignore")
    run = set_up(
        method,
        task,
        rounds=args.figure_rounds,
        cohort=hush.Poisson(COHORT),
        privacy=hush.Budget(args.epsilon, 1 / CLIENTS),
        device=args.device,
        diagnostics=False,
        eval_every=args.figure_rounds,
    )
    now, _ = start(run, None, False)
    ids, found = torch.arange(COHORT, device=run.data.learner.device), {}
    for _ in range(args.figure_rounds):
        if now.round % max(1, args.figure_rounds // 6) == 0:
            rnd = run.round(now.round)
            data, _ = clients_of(run, ids, rnd)
            told = hush.Round(rnd.index, rnd.seed, rnd.cohort, run.method.pipeline.room())
            trained = run.method.local(run.data.learner, now.params, data, told, keys_of(now.round, ids), None)
            found[now.round] = trained.updates.norm(dim=1).tolist()
        now, _, _ = play_round(run, now)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="BLUR+LUS's tables on CIFAR-10.")
    parser.add_argument("what", choices=["table2", "table3", "figure2"])
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument("--alphas", type=lambda text: text.split(","), default=["1"])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tune-rounds", type=int, default=30)
    parser.add_argument("--figure-rounds", type=int, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench/measured/blur-lus"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    {"table2": table2, "table3": table3, "figure2": figure2}[args.what](args)


if __name__ == "__main__":
    main()
