"""Whatever floats a client computes, what it sends stays within the bound that its method's guarantee rests on."""

from __future__ import annotations

import math
import random

import pytest
import torch

from hush import Bound, Round, methods
from hush.random import keys_of
from hush.transforms.noise import Noise

NAMES = [
    *("dp-fedavg", "dp-fedavg+adaptive", "dp-fedavg+free-mask", "dp-fedavg+sketch", "fed-smp-rand-k"),
    *("dpfl", "adpfl", "dpsfl", "dpsfl-ac", "ddgauss", "skellam"),
]
DIM = 700


def extreme(draw: random.Random) -> torch.Tensor:
    """From the smallest floats to the largest, alike or not, with a NaN or an infinity here and there."""
    g = torch.Generator().manual_seed(draw.getrandbits(32))
    exponents = torch.rand(3, DIM, generator=g, dtype=torch.float64) * draw.choice([0, 1, 10, 80]) + draw.uniform(-44, 36)
    x = (torch.randn(3, DIM, generator=g, dtype=torch.float64) * 10 ** exponents.clamp_max(37)).float()
    if draw.random() < 0.3:
        x = torch.full((3, DIM), 10.0 ** draw.uniform(-20, 37)) * torch.where(x < 0, -1.0, 1.0)
    if draw.random() < 0.2:
        x[:, 1:] = 0.0
    if draw.random() < 0.2:
        x[0, draw.randrange(DIM)] = draw.choice([math.nan, math.inf, -math.inf])
    return x


@pytest.mark.parametrize("clip", [1.0, 1e-6, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_rows_stay_within_the_bound(name: str, clip: float) -> None:
    method, draw = methods.build(name, noise=1.0, clip=clip), random.Random(f"{name} {clip}")
    state = method.pipeline.init(DIM)
    for index in range(40):
        rnd, keys = Round(index, draw.getrandbits(60), 10.0), keys_of(index, torch.arange(3))
        public = method.pipeline.prepare(torch.zeros(DIM), state, rnd, method.server)
        sent, bound = extreme(draw), Bound(math.inf)
        for part, told in zip(method.pipeline.parts, public, strict=True):
            if isinstance(part, Noise):
                break
            sent, bound = part.encode(sent, rnd, keys, told), part.bound(bound)
        assert math.isfinite(bound.l2)
        assert bool((sent.double().norm(dim=1) <= bound.l2).all())
