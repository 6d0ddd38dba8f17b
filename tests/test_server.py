"""Server steps on three numbers, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hush import UsageError
from hush.server import Adam, Average, Averaged, Decayed, Momentum

THETA = torch.tensor([1.0, 2.0, 3.0])
U1, U2 = torch.tensor([0.1, 0.0, -0.2]), torch.tensor([0.3, 1.0, 0.0])


def two_steps(server: Average | Momentum | Adam | Averaged) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    params, state = server.step(THETA, U1, server.init(THETA))
    params, state = server.step(params, U2, state)
    return params, dict(state)


def test_average() -> None:
    params, state = two_steps(Average(0.5))
    assert torch.allclose(params, torch.tensor([0.8, 1.5, 3.1]))
    assert state == {}


def test_momentum() -> None:
    params, _ = two_steps(Momentum(1.0, 0.9))
    assert torch.allclose(params, torch.tensor([1 - 0.1 - 0.39, 2 - 1.0, 3 + 0.2 + 0.18]))


def test_adam_as_in_its_paper() -> None:
    params, _ = two_steps(Adam(lr=0.1, beta=0.9, beta2=0.99, kappa=0.01))
    u, v, theta = 0.0, 1e-4, 1.0
    for g in (0.1, 0.3):
        u, v = 0.9 * u + 0.1 * g, 0.99 * v + 0.01 * g * g
        theta -= 0.1 * u / (math.sqrt(v) + 0.01)
    assert float(params[0]) == pytest.approx(theta, rel=1e-6)


def test_averaged_iterates_are_bias_corrected() -> None:
    server = Averaged(Average(1.0), decay=0.5)
    assert torch.equal(server.model(THETA, server.init(THETA)), THETA)
    params, state = server.step(THETA, U1, server.init(THETA))
    assert torch.allclose(server.model(params, state), THETA - U1)
    params, state = server.step(params, U2, state)
    expected = (0.25 * (THETA - U1) + 0.5 * (THETA - U1 - U2)) / 0.75
    assert torch.allclose(server.model(params, state), expected)
    assert torch.allclose(params, THETA - U1 - U2)
    with pytest.raises(UsageError):
        Averaged(Average(), decay=1.5)


def test_steps_that_shrink() -> None:
    """Round t goes decay^t as far; momentum itself is not touched."""
    server = Decayed(Momentum(1.0, 0.5), 0.5)
    params = torch.zeros(1)
    state = server.init(params)
    walked = []
    for _ in range(3):
        params, state = server.step(params, torch.ones(1), state)
        walked.append(float(params))
    assert walked == [-1.0, -1.0 - 0.5 * 1.5, -1.75 - 0.25 * 1.75]
    with pytest.raises(UsageError, match="server_lr_decay"):
        Decayed(Average(), 0.0)
