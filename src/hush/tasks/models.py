"""The models of the catalogue, by name. Anything that is a `torch.nn.Module` serves as well."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from hush.errors import UsageError
from hush.names import pick

Build = Callable[[torch.Size, int], nn.Module]


def logistic(shape: torch.Size, classes: int) -> nn.Module:
    """Logistic regression: one linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: torch.Size, classes: int) -> nn.Module:
    """Perceptron with one hidden layer of 64 ReLU units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, classes))


def fed_smp_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """Fed-SMP's and McMahan's CNN for 28 x 28 images: 5x5x32, 5x5x64, 512 units (1,663,370 parameters at 10 classes)."""
    if tuple(shape) != (1, 28, 28):
        raise UsageError(f"fed-smp-cnn takes 1 x 28 x 28 images, not {' x '.join(map(str, shape))}: choose logistic or mlp.")
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


MODELS: dict[str, Build] = {"logistic": logistic, "mlp": mlp, "fed-smp-cnn": fed_smp_cnn}


def build_model(name: str, shape: torch.Size, classes: int, seed: int) -> nn.Module:
    """A model by name with weights from `seed`, leaving torch's global generator as it was."""
    build = pick(MODELS, name, "model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(shape, classes)
