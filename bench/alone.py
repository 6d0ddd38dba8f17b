"""Clients of each model side by side and one after another on one core: milliseconds of a step, and which is faster.

python bench/alone.py
"""

from __future__ import annotations

import time
import warnings

import torch
from torch import Tensor
from torch.nn import functional as F

from hush.local.descent import Slope
from hush.local.flat import FlatModel
from hush.tasks.models import build_model

IMAGE, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (80,)
CASES = [
    *(("logistic", IMAGE, 10, 16), ("mlp", IMAGE, 10, 16)),
    *(("fed-spa-mnist-cnn", IMAGE, 10, 16), ("fed-spa-mnist-cnn", IMAGE, 50, 16)),
    *(("fed-smp-cnn", IMAGE, 10, 10), ("fed-smp-cnn", IMAGE, 50, 10), ("afo-cnn", IMAGE, 10, 10)),
    *(("fed-spa-cifar-cnn", COLOUR, 10, 4), ("resnet9", COLOUR, 10, 2), ("char-lstm", TEXT, 5, 8)),
]
"""Model, shape of an example, batch, clients."""
STEPS, TIMES = 2, 4


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def measure(name: str, shape: tuple[int, ...], batch: int, clients: int) -> None:
    text, classes = shape == TEXT, 80 if shape == TEXT else 10
    torch.manual_seed(0)
    learner = FlatModel(build_model(name, torch.Size(shape), classes, seed=0), loss)
    sizes = clients, STEPS, batch
    x = torch.randint(0, 80, (*sizes, *shape)) if text else torch.randn(*sizes, *shape)
    y = torch.randint(0, classes, sizes)
    weight, keys, params = torch.ones(clients, batch), torch.arange(clients), learner.initial()

    def train(chunk: int) -> float:
        began = time.thread_time()
        for first in range(0, clients, chunk):
            some, descent = slice(first, first + chunk), learner.descent(params, chunk, Slope(0.05))
            for step in range(STEPS):
                descent.step(x[some, step], y[some, step], weight[some], keys[some])
            descent.moved()
        return 1e3 * (time.thread_time() - began) / clients / STEPS

    together, alone = (min(train(chunk) for _ in range(TIMES)) for chunk in (clients, 1))
    print(f"{name:18} batch {batch:2}: side by side {together:7.2f} ms, alone {alone:7.2f} ms, {together / alone:.2f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for case in CASES:
        measure(*case)
