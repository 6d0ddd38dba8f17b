"""Time one noisy local step of ten clients, and beside it Opacus on the same models and batches in the same run, as a ratio.

    python bench/per_example.py [--device cuda] [--clients 10] [--steps 20]

Hush draws each client's batch of records, takes every record's gradient at that client's own weights, clips, sums, adds noise and
steps: all clients at once. Opacus (pip install opacus) does the same for one client after another, in the faster of its two ways
(per-example gradients by hooks, or ghost clipping); its batches are given to it and its sampling is not timed. `gradients` is
Hush's step without privacy. Data are random numbers. One JSON object is printed; the smallest of three repeats counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hush.core import Round
from hush.local.dp_sgd import DpSgd
from hush.local.flat import FlatModel
from hush.local.sgd import Sgd
from hush.own import OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.tasks.clients import Clients
from hush.tasks.models import build_model

CASES = (
    ("fed-spa-mnist-cnn", (1, 28, 28), 10),
    ("fed-spa-mnist-cnn", (1, 28, 28), 50),
    ("fed-spa-cifar-cnn", (3, 32, 32), 10),
    ("fed-spa-cifar-cnn", (3, 32, 32), 50),
    ("cpfed-mlp", (104,), 50),
)
RECORDS = 600


def best(run: Callable[[], Any], device: str, steps: int) -> float:
    """Seconds a step."""
    took = []
    for _ in range(4):  # the first pays for set-up
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append((time.perf_counter() - began) / steps)
    return min(took[1:])


def hush_steps(model: nn.Module, shape: tuple[int, ...], batch: int, args: argparse.Namespace) -> dict[str, float]:
    device, count = args.device, args.clients * RECORDS
    x = torch.randn(count, *shape, device=device)
    y = torch.randint(0, 10, (count,), device=device)
    learner = FlatModel(model, nn.CrossEntropyLoss(reduction="none"), device)
    learner.memory = 2**33 if device == "cuda" else 2**29
    ids = torch.arange(args.clients, device=device)
    shard = Clients(x, y, torch.full((args.clients,), RECORDS, device=device)).shard(ids)
    shard = shard._replace(own=OwnSecrets.simulated(Secret.fresh(), ids.tolist()))
    rnd, keys, found = Round(0, 0, 1.0), keys_of(0, ids), {}
    for name, local in (
        ("hush", DpSgd(batch_size=batch, steps=args.steps, noise=1.0, records="fixed")),
        ("hush_poisson", DpSgd(batch_size=batch, steps=args.steps, noise=1.0, records="poisson")),
        ("gradients", Sgd(batch_size=batch, steps=args.steps, epochs=None)),
    ):
        found[name] = best(lambda local=local: local(learner, learner.initial(), shard, rnd, keys, None), device, args.steps)
    return found


def opacus_steps(model: nn.Module, shape: tuple[int, ...], batch: int, args: argparse.Namespace) -> dict[str, float]:
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    device = args.device
    rows = [(torch.randn(batch, *shape, device=device), torch.randint(0, 10, (batch,), device=device)) for _ in range(args.steps)]

    def by_hooks() -> None:
        for _ in range(args.clients):
            module = GradSampleModule(copy.deepcopy(model).to(device))
            plain = torch.optim.SGD(module.parameters(), lr=0.1)
            optimizer = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)
            for x, y in rows:
                optimizer.zero_grad()
                F.cross_entropy(module(x), y).backward()
                optimizer.step()

    def by_ghost() -> None:
        for _ in range(args.clients):
            module = GradSampleModuleFastGradientClipping(
                copy.deepcopy(model).to(device), max_grad_norm=1.0, use_ghost_clipping=True
            )
            plain = torch.optim.SGD(module.parameters(), lr=0.1)
            optimizer = DPOptimizerFastGradientClipping(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)
            criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())
            for x, y in rows:
                optimizer.zero_grad()
                loss: Tensor = criterion(module(x), y)
                loss.backward()
                optimizer.step()

    found = {"opacus_hooks": best(by_hooks, device, args.steps)}
    try:
        found["opacus_ghost"] = best(by_ghost, device, args.steps)
    except Exception as error:  # not every version has it for every layer
        print(f"Opacus' ghost clipping: {error}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cases", type=int, default=len(CASES), help="the first so many")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name, shape, batch in CASES[: args.cases]:
        torch.manual_seed(0)
        model = build_model(name, torch.Size(shape), 10, seed=0)
        row: dict[str, Any] = {"model": name, "batch": batch} | hush_steps(model, shape, batch, args)
        try:
            row |= opacus_steps(model, shape, batch, args)
            row["opacus_over_hush"] = min(v for k, v in row.items() if k.startswith("opacus_")) / row["hush"]
        except ImportError:
            row["opacus"] = "not installed"
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(json.dumps({"device": args.device, "threads": torch.get_num_threads(), "clients": args.clients, "rows": rows}))


if __name__ == "__main__":
    main()
