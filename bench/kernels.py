"""A cohort's descent by Hush's own kernels beside PyTorch's, on a GPU: milliseconds, and how far each is from float64.

    python bench/kernels.py [--unequal]

Every model of the catalogue that the kernels change, 50 clients x 5 steps x batch 10, and the two workloads of `hush bench
simulation`. `kernels` writes every client's weights; `low rank` keeps large linear layers as factors. `--unequal`: clients of 2 to
100 steps.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from hush.local.descent import Descent, FlatDescent, Slope
from hush.local.flat import FlatModel
from hush.local.graphed import Graphed
from hush.tasks.models import build_model

FEW = 4
"""Clients that are trained in float64 as well."""
IMAGE, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (80,)
CASES: list[tuple[str, tuple[int, ...], int, int, int, float]] = [
    ("fed-smp-cnn", IMAGE, 100, 10, 10, 0.5),
    ("afo-cnn", COLOUR, 50, 5, 10, 0.0),
    *((name, IMAGE, 50, 5, 10, 0.5) for name in ("logistic", "mlp", "cpfed-mlp", "fed-spa-mnist-cnn", "afo-cnn", "ddgauss-cnn")),
    *((name, COLOUR, 50, 5, 10, 0.5) for name in ("fed-smp-svhn-cnn", "fed-spa-cifar-cnn", "resnet9")),
    ("resnet18", COLOUR, 20, 2, 10, 0.0),
    ("char-lstm", TEXT, 50, 5, 10, 0.0),
]
"""Model, shape of an example, clients, steps, batch, momentum."""


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def milliseconds(train: Callable[[], object]) -> float:
    found = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        train()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found[3:])


def measure(name: str, shape: tuple[int, ...], clients: int, steps: int, batch: int, momentum: float, unequal: bool) -> None:
    torch.manual_seed(0)
    classes, place = 80 if shape == TEXT else 10, torch.device("cuda")
    net, slope = build_model(name, torch.Size(shape), classes, seed=0), Slope(0.05, momentum)
    counts = [clients] * steps
    if unequal:  # sizes spread as those of Shakespeare's speakers
        each = torch.logspace(0.3, 2, clients).long().flip(0)
        counts = [int((each > step).sum()) for step in range(int(each[0]))]
    drawn = torch.Generator("cuda").manual_seed(0)
    sizes = (4, clients, batch)  # four batches, over and over
    x = torch.randint(0, 80, (*sizes, *shape), device=place, generator=drawn) if shape == TEXT else None
    x = torch.randn(*sizes, *shape, device=place, generator=drawn) if x is None else x
    y = torch.randint(0, classes, sizes, device=place, generator=drawn)
    learner, exact = FlatModel(net, loss, place), FlatModel(net, loss, place, torch.float64)

    def train(descent: Descent, most: int, kind: torch.dtype) -> Tensor:
        for step, those in enumerate(counts):
            count = min(those, most)
            own = x[step % 4, :count]
            weight, keys = torch.ones(count, batch, device=place, dtype=kind), torch.arange(count, device=place)
            descent.step(own.to(kind) if own.is_floating_point() else own, y[step % 4, :count], weight, keys)
        return descent.moved()

    params = learner.initial()
    true = train(FlatDescent(exact, params.double(), FEW, slope), FEW, torch.float64)
    graphed = {most: Graphed(learner, clients, slope, most) for most in (0, 1 << (len(counts) - 1).bit_length())}
    ways: dict[str, Callable[[], Tensor]] = {
        "PyTorch": lambda: train(FlatDescent(learner, params, clients, slope), clients, torch.float32),
        "kernels": lambda: train(graphed[0].begin(params, slope, clients), clients, torch.float32),
        "low rank": lambda: train(graphed[max(graphed)].begin(params, slope, clients), clients, torch.float32),
    }
    line = []
    for way, run in ways.items():
        took = milliseconds(run)
        far = float((run()[:FEW].double() - true).norm() / true.norm())
        line.append(f"{way} {took:7.1f} ms ({far:.0e})")
    print(f"{name:18} {'x'.join(map(str, shape)):8} {clients} x {len(counts):3} x {batch}: {', '.join(line)}", flush=True)


def main() -> None:
    for tf32 in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        print("TF32" if tf32 else "float32", flush=True)
        for case in CASES:
            measure(*case, "--unequal" in sys.argv)


if __name__ == "__main__":
    main()
