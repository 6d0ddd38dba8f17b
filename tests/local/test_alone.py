"""A client alone: what it comes to is what it comes to in a cohort, and on a CPU large convolutions have it that way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hush.engines.memory import chunk_size
from hush.local import DpSgd, FlatModel, Sgd
from hush.tasks.models import build_model


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


POOLS: dict[str, nn.Module] = {
    "plain": nn.MaxPool2d(2),
    "odd": nn.MaxPool2d((3, 2), stride=2, padding=1, dilation=(1, 1)),
    "ceil": nn.MaxPool2d(3, ceil_mode=True),
    "mean": nn.AvgPool2d(2),
}


@pytest.mark.parametrize("name", POOLS)
def test_alone_and_side_by_side_are_the_same(name: str) -> None:
    layers = nn.Conv2d(2, 4, 3, padding=1), POOLS[name], nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.LazyLinear(5)
    net = nn.Sequential(*layers)
    net(torch.zeros(1, 2, 9, 11))
    learner = FlatModel(net, cross_entropy, dtype=torch.float64)
    x, y = torch.randn(3, 4, 2, 9, 11, dtype=torch.float64), torch.randint(0, 5, (3, 4))
    params = learner.initial() + 0.1 * torch.randn(3, learner.dim, dtype=torch.float64)
    weight, keys = torch.ones(3, 4, dtype=torch.float64), torch.arange(3)
    together = learner.gradients(params, x, y, weight, keys)
    for i in range(3):
        own = slice(i, i + 1)
        alone = learner.gradients(params[own], x[own], y[own], weight[own], keys[own])
        for one, all_ in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], all_[i], rtol=1e-10, atol=1e-12)


def test_pooling_that_says_where_it_took_from_alone() -> None:
    class Unpools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 3, 3), nn.Linear(108, 2)

        def forward(self, x: Tensor) -> Tensor:
            largest, where = F.max_pool2d(self.conv(x), 2, return_indices=True)
            return self.last(F.max_unpool2d(largest, where, 2).flatten(1))

    learner = FlatModel(Unpools(), cross_entropy, dtype=torch.float64)
    x, y = torch.randn(1, 4, 1, 8, 8, dtype=torch.float64), torch.randint(0, 2, (1, 4))
    found, _ = learner.gradients(learner.initial()[None], x, y, torch.ones(1, 4, dtype=torch.float64), torch.arange(1))
    net = learner.module
    loss = F.cross_entropy(net(x[0]), y[0])
    true = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(net.parameters()))])
    torch.testing.assert_close(found[0], true, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "local", "alone"),
    [
        ("fed-smp-cnn", Sgd(), True),
        ("fed-spa-mnist-cnn", Sgd(), False),
        ("mlp", Sgd(), False),
        ("fed-smp-cnn", DpSgd(noise=1.0), False),
    ],
)
def test_large_convolutions_train_one_client_after_another_on_a_cpu(model: str, local: Any, alone: bool) -> None:
    learner = FlatModel(build_model(model, torch.Size((1, 28, 28)), 10, seed=0), cross_entropy)
    x, y = torch.zeros(20, 1, 28, 28), torch.zeros(20, dtype=torch.int64)
    assert (chunk_size(learner, local, x, y, 2**30) == 1) == alone
