"""The descent of a cohort by Hush's own kernels beside PyTorch's, on a GPU: milliseconds, and how far each is from float64.

    HUSH_KERNELS=1 python bench/kernels.py

Two workloads: Fed-SMP's CNN, 100 clients x 10 steps x batch 10 with momentum, and pfl-research's CIFAR-10 CNN, 50 x 5 x 10.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hush.local.descent import Descent, FlatDescent, Slope
from hush.local.flat import FlatModel
from hush.tasks.models import build_model

FEW = 8
"""Clients that are trained in float64 as well."""


def cifar_cnn() -> nn.Module:
    convolutions = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*convolutions, nn.Linear(12544, 128), nn.ReLU(), nn.Linear(128, 10))


WORKLOADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, float]] = {
    "fed-smp-cnn": (lambda: build_model("fed-smp-cnn", torch.Size((1, 28, 28)), 10, seed=0), (1, 28, 28), 100, 10, 0.5),
    "cifar cnn": (cifar_cnn, (3, 32, 32), 50, 5, 0.0),
}


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def milliseconds(train: Callable[[], object]) -> float:
    found = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        train()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found[3:])


def measure(name: str, tf32: bool) -> None:
    build, shape, clients, steps, momentum = WORKLOADS[name]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    net, slope, place = build(), Slope(0.05, momentum), torch.device("cuda")
    x, y = torch.randn(steps, clients, 10, *shape, device=place), torch.randint(0, 10, (steps, clients, 10), device=place)
    learner, exact = FlatModel(net, loss, place), FlatModel(net, loss, place, torch.float64)
    if not learner.has_kernels:
        raise SystemExit("This takes a GPU, Triton, and HUSH_KERNELS=1.")

    def train(descent: Descent, count: int, kind: torch.dtype) -> Tensor:
        weight, keys = torch.ones(count, 10, device=place, dtype=kind), torch.arange(count, device=place)
        for step in range(steps):
            descent.step(x[step, :count].to(kind), y[step, :count], weight, keys)
        return descent.moved()

    params = learner.initial()
    true = train(FlatDescent(exact, params.double(), FEW, slope), FEW, torch.float64)
    ways = {
        "PyTorch": lambda: train(FlatDescent(learner, params, clients, slope), clients, torch.float32),
        "kernels": lambda: train(learner.descent(params, clients, slope), clients, torch.float32),
    }
    for way, run in ways.items():
        took = milliseconds(run)
        far = (run()[:FEW].double() - true).norm() / true.norm()
        print(f"{name:12} {'TF32' if tf32 else 'float32':8} {way:8} {took:8.1f} ms   {far:.1e} from float64", flush=True)


def main() -> None:
    for name in WORKLOADS:
        for tf32 in (True, False):
            measure(name, tf32)


if __name__ == "__main__":
    main()
