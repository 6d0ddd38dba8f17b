"""Logistic regression and perceptrons, for examples of any shape."""

from __future__ import annotations

import math

import torch
from torch import nn


def logistic(shape: torch.Size, classes: int) -> nn.Module:
    """Logistic regression: one linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: torch.Size, classes: int) -> nn.Module:
    """Perceptron with one hidden layer of 64 ReLU units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, classes))


def cpfed_mlp(shape: torch.Size, classes: int) -> nn.Module:
    """CPFed's network of three linear layers with ReLU; the paper gives no widths: 64 and 64 are ours."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
