"""Records against the server beside one server that holds them all, and beside noise of each client's own: the same epsilon.

    HUSH_DATA=... python bench/records_in_the_sum.py --data adult --model logistic --epsilon 1      # pip install opacus

`dp-sgd --secure`: everybody in every round, zero-out, shares of Skellam noise, epsilon against the server. Opacus: DP-SGD on the
pooled records, add-remove, its PRV accountant, Poisson batches of the same rate. `cpfed` and `dp-sgd` with local noise: records
replaced, epsilon against whoever reads messages. Learning rate and clip are tuned on validation records with seed 0, each on the
same grid; figures are means over seeds on test records, in percent.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import time
import warnings
from typing import Any

import torch
from torch import nn

import hush
from hush import methods
from hush.tasks.task import Task

RATES, CLIPS = (0.3, 1.0, 3.0), (0.5, 2.0)


def examples(task: Task, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All records of a part, whoever holds them, in one precision."""
    held = getattr(task, part)
    x, y = (held.x, held.y) if hasattr(held, "x") else held
    return x.float(), y


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        out = model(x)
        right = (out.argmax(1) == y) if out.shape[1] > 1 else ((out[:, 0] > 0).long() == y.long().flatten())
        return 100 * float(right.float().mean())


def ours(task: Task, method: Any, args: argparse.Namespace, seed: int, secure: bool) -> tuple[nn.Module, float]:
    how: dict[str, Any] = {"secure_sum": hush.SecureSum(tolerate=0.0, corrupted=0.0)} if secure else {}
    cohort = hush.FixedSize(task.train.count) if secure else hush.Rotation(task.train.count)
    budget = hush.Budget(args.epsilon, args.delta)
    result = hush.simulate(method, task, rounds=args.rounds, cohort=cohort, privacy=budget, seed=seed, eval_every=10**9, **how)
    model = copy.deepcopy(task.model)
    model.load_state_dict(result.state_dict)
    return model, float(result.epsilon or 0.0)


def pooled(task: Task, rate: float, lr: float, clip: float, args: argparse.Namespace, seed: int) -> tuple[nn.Module, float]:
    """Opacus' own parts: per-sample gradients, optimiser, Poisson loader, noise by its PRV accountant."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    x, y = examples(task, "train")
    model = copy.deepcopy(task.model)
    model.load_state_dict(args.start)
    batch = max(1, round(rate * len(x)))
    loader = DataLoader(TensorDataset(x, y), batch_size=batch)
    engine = PrivacyEngine(accountant="prv")
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        data_loader=loader,
        target_epsilon=args.epsilon,
        target_delta=args.delta,
        epochs=max(1, round(args.rounds * rate)),
        max_grad_norm=clip,
        poisson_sampling=True,
    )
    loss, done = nn.CrossEntropyLoss(), 0
    while done < args.rounds:
        for rows, targets in loader:
            optimizer.zero_grad()
            loss(private(rows), targets).backward()
            optimizer.step()
            done += 1
            if done == args.rounds:
                break
    return private._module, engine.get_epsilon(args.delta)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="adult")
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    task = hush.load_task(args.data, args.model, clients=args.clients)
    args.start = {name: value.clone() for name, value in task.model.state_dict().items()}
    kept, test = examples(task, "validation"), examples(task, "test")
    each = max(1, round(args.rate * len(task.train.x) / args.clients))
    kinds: dict[str, Any] = {
        "dp-sgd --secure": lambda lr, clip, seed: ours(
            task, methods.dp_sgd(lr=lr, clip=clip, rate=args.rate, batch_size=each), args, seed, True
        ),
        "Opacus, pooled": lambda lr, clip, seed: pooled(task, args.rate, lr, clip, args, seed),
        "dp-sgd, local noise": lambda lr, clip, seed: ours(
            task, methods.dp_sgd(lr=lr, clip=clip, rate=args.rate, batch_size=each), args, seed, False
        ),
        "cpfed, local noise": lambda lr, clip, seed: ours(
            task, methods.cpfed(lr=lr, clip=clip, batch_size=64, local_steps=10), args, seed, False
        ),
    }
    print(f"{args.data}, {args.model}, {len(task.train.x):,} records, {args.clients} clients, {args.rounds} rounds")
    for name, train in kinds.items():
        began = time.perf_counter()
        scores = {grid: accuracy(train(*grid, 0)[0], *kept) for grid in itertools.product(RATES, CLIPS)}
        lr, clip = max(scores, key=lambda grid: scores[grid])
        figures, epsilon = [], 0.0
        for seed in range(args.seeds):
            model, epsilon = train(lr, clip, seed)
            figures.append(accuracy(model, *test))
        spread = statistics.stdev(figures) if len(figures) > 1 else 0.0
        took = (time.perf_counter() - began) / (len(scores) + args.seeds)
        settings = f"lr {lr:g} clip {clip:g}"
        print(
            f"{name:20s} {statistics.mean(figures):.2f} +- {spread:.2f}  epsilon {epsilon:.3f}  {settings}  {took:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
