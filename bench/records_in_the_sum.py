"""Records against the server beside one server that holds them all, and beside noise of each client's own: the same epsilon.

    HUSH_DATA=... python bench/records_in_the_sum.py --data adult --model logistic      # pip install opacus
    HUSH_DATA=... python bench/records_in_the_sum.py --data mnist --model fed-spa-mnist-cnn --clients 100 --delta 1e-3

`dp-sgd --secure`: everybody in every round, zero-out, shares of Skellam noise, epsilon against the server. Opacus: DP-SGD on the
pooled records, add-remove, its PRV accountant, Poisson batches of the same rate. `cpfed` and `dp-sgd` with local noise: records
replaced, epsilon against whoever reads messages. Learning rate, clip and rounds are tuned on validation records with seed 0, each
on the same grid; figures are means over seeds on test records, in percent.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import multiprocessing
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

import hush
from hush import methods
from hush.tasks.task import Task

KINDS = ["dp-sgd --secure", "Opacus, pooled", "dp-sgd, local noise", "cpfed, local noise"]
Cell = tuple[str, float, float, int, int]
"""A way to train, its learning rate, clip and rounds, and a seed."""


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


def ours(task: Task, method: Any, rounds: int, args: argparse.Namespace, seed: int, secure: bool) -> tuple[nn.Module, float]:
    how: dict[str, Any] = {"secure_sum": hush.SecureSum(tolerate=0.0, corrupted=0.0)} if secure else {}
    cohort = hush.FixedSize(task.train.count) if secure else hush.Rotation(args.cohort or task.train.count)
    budget = hush.Budget(args.epsilon, args.delta)
    result = hush.simulate(
        method, task, rounds=rounds, cohort=cohort, privacy=budget, seed=seed, eval_every=10**9, device=args.device, **how
    )
    model = copy.deepcopy(task.model)
    model.load_state_dict(result.state_dict)
    return model, float(result.epsilon or 0.0)


def pooled(task: Task, lr: float, clip: float, rounds: int, args: argparse.Namespace, seed: int) -> tuple[nn.Module, float]:
    """Opacus' own parts: per-sample gradients, optimiser, Poisson loader, noise by its PRV accountant."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    x, y = examples(task, "train")
    model = copy.deepcopy(task.model).to(args.device)
    loader = DataLoader(TensorDataset(x, y), batch_size=max(1, round(args.rate * len(x))))
    engine = PrivacyEngine(accountant="prv")
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        data_loader=loader,
        target_epsilon=args.epsilon,
        target_delta=args.delta,
        epochs=max(1, math.ceil(rounds / len(loader))),
        max_grad_norm=clip,
        poisson_sampling=True,
    )
    loss = nn.CrossEntropyLoss()
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for rows, targets in itertools.islice(batches, rounds):
        optimizer.zero_grad()
        loss(private(rows.to(args.device)), targets.to(args.device)).backward()
        optimizer.step()
    return private._module.cpu(), engine.get_epsilon(args.delta)


@lru_cache(maxsize=1)
def the_task(data: str, model: str, clients: int, start: str) -> Task:
    return hush.load_task(data, model, clients=clients, start=start)


def score(args: argparse.Namespace, cell: Cell) -> tuple[float, float, float, float]:
    """Accuracy on validation and test records, epsilon, seconds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began, (kind, lr, clip, rounds, seed) = time.perf_counter(), cell
    task = the_task(args.data, args.model, args.clients, args.start)
    each = max(1, round(args.rate * len(task.train.x) / args.clients))
    one_step = partial(methods.dp_sgd, lr=lr, clip=clip, rate=args.rate, batch_size=each)
    if kind == "Opacus, pooled":
        model, epsilon = pooled(task, lr, clip, rounds, args, seed)
    elif kind == "cpfed, local noise":
        model, epsilon = ours(task, methods.cpfed(lr=lr, clip=clip, batch_size=64, local_steps=10), rounds, args, seed, False)
    else:
        model, epsilon = ours(task, one_step(), rounds, args, seed, kind == "dp-sgd --secure")
    kept, test = (accuracy(model, *examples(task, part)) for part in ("validation", "test"))
    return kept, test, epsilon, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="adult")
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--start", default="random")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--cohort", type=int, help="of methods with local noise, by turns; default: everybody")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--lr", type=float, nargs="+", default=[0.3, 1.0, 3.0, 10.0])
    parser.add_argument("--clip", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    args = parser.parse_args()
    grid = list(itertools.product(args.lr, args.clip, args.rounds))
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        tried = {kind: [pool.submit(score, args, (kind, *asked, 0)) for asked in grid] for kind in args.kinds}
        print(f"{args.data}, {args.model}, {args.clients} clients, rate {args.rate:g}, delta {args.delta:g}", flush=True)
        for kind, cells in tried.items():
            best, first = max(zip(grid, (cell.result() for cell in cells), strict=True), key=lambda pair: pair[1][0])
            rest = [pool.submit(score, args, (kind, *best, seed)) for seed in range(1, args.seeds)]
            found = [first, *(cell.result() for cell in rest)]
            tests = [test for _, test, _, _ in found]
            spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
            settings = "lr {:g}, clip {:g}, {} rounds".format(*best)
            seconds = statistics.median(seconds for *_, seconds in found)
            told = f"{kind:20s} {statistics.mean(tests):.2f} +- {spread:.2f}  epsilon {first[2]:.3f}"
            print(f"{told}  {settings}  {seconds:.0f} s a run", flush=True)


if __name__ == "__main__":
    main()
