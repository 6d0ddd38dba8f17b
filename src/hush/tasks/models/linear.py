"""Logistic regression and perceptrons, for examples of any shape."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn


def logistic(shape: torch.Size, classes: int) -> nn.Module:
    """Logistic regression: one linear layer."""
    return nn.Sequential(nn.Flatten(), *dense(math.prod(shape), classes))


def mlp(shape: torch.Size, classes: int) -> nn.Module:
    """Perceptron with one hidden layer of 64 ReLU units."""
    return nn.Sequential(nn.Flatten(), *dense(math.prod(shape), 64, classes))


def cpfed_mlp(shape: torch.Size, classes: int) -> nn.Module:
    """CPFed's network of three linear layers with ReLU; the paper gives no widths: 64 and 64 are ours."""
    return nn.Sequential(nn.Flatten(), *dense(math.prod(shape), 64, 64, classes))


def dense(*widths: int) -> list[nn.Module]:
    """Linear layers from each width to the next, with ReLU between them."""
    layers: list[nn.Module] = []
    for inside, out in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(inside, out)]
    return layers[1:]
