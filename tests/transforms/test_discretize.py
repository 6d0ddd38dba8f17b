"""Integers of bounded norm, checked in integers; noise that is exact and cannot be repeated."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import hush
from hush import Poisson, Round, UsageError, methods
from hush.core import Bound, chain
from hush.random import keys_of
from hush.secret import Secret
from hush.transforms import Clip, Discretize, ExactNoise, Gaussian
from tests.conftest import make_task

RND = Round(3, 5, 10.0)


def ready(bits: int = 18, norm: float = 1.0) -> Discretize:
    part = Discretize(bits).after(Bound(norm))
    assert isinstance(part, Discretize)
    return part


def encode(part: Discretize, x: torch.Tensor) -> torch.Tensor:
    return part.encode(x, RND, keys_of(0, torch.arange(len(x))), None)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 400), st.integers(6, 18), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_the_norm_holds_in_integers(dim: int, bits: int, norm: float, seed: int) -> None:
    part = ready(bits, norm)
    if 4**bits < 2 * (dim / 4 + 8 * 2**bits):
        return  # refused, see below
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, dim, generator=g, dtype=torch.float64)
    rows = Clip(norm).encode(rows * norm * 3, RND, keys_of(0, torch.arange(5)), None)
    z = encode(part, rows)
    assert z.dtype == torch.int64
    assert all(sum(v * v for v in row) <= part.radius**2 for row in z.tolist())  # Python's integers cannot round
    back, _ = part.decode(z.sum(0), {}, RND, None, Secret.fresh())
    assert torch.allclose(back, rows.sum(0), atol=5 * norm / math.sqrt(4**bits / 2) + 1e-9)


def test_rows_that_break_the_promise_are_cut_or_dropped() -> None:
    part = ready(8)
    x = torch.tensor([[1e9, 0, 0], [5.0, 5.0, 5.0], [math.nan, 0, 0], [0, math.inf, 0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    z = encode(part, x)
    assert bool(((z * z).sum(1) <= part.radius**2).all())
    assert z[1:4].abs().sum() == 0
    assert z[4].abs().sum() > 0


def test_rounding_is_unbiased() -> None:
    part = ready(6)
    x = torch.full((20_000, 3), 0.123, dtype=torch.float64)
    z = encode(part, x).double()
    exact = 0.123 * part._scale(3)
    error = (z.mean() - exact) / (z.std() / math.sqrt(z.numel()))
    assert abs(float(error)) < 5
    assert abs(round(exact) - exact) > 0.05  # so that plain rounding would fail


def test_the_radius_is_the_sensitivity_whatever_the_clip() -> None:
    exact = chain(Clip(0.37), Discretize(16), ExactNoise(1.4))
    noise = exact.parts[-1]
    assert isinstance(noise, ExactNoise)
    assert noise.std == pytest.approx(1.4 * 2**16)
    assert exact.wire(hush.Wire(10)).integer


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="raise bits"):
        encode(ready(4), torch.zeros(1, 1000))
    with pytest.raises(UsageError, match="between 4 and 20"):
        Discretize(21)
    with pytest.raises(UsageError, match="no scale"):
        chain(Discretize(), ExactNoise(1.0))
    with pytest.raises(UsageError, match="put Discretize"):
        chain(Clip(1.0), ExactNoise(1.0))
    with pytest.raises(UsageError, match="outside a chain"):
        encode(Discretize(), torch.zeros(1, 3))
    with pytest.raises(UsageError, match="kind of exact noise"):
        ExactNoise(1.0, kind="laplace")


@pytest.mark.parametrize("kind", ["gaussian", "discrete-gaussian", "skellam"])
def test_exact_noise_has_the_scale_it_says(kind: str) -> None:
    part = ExactNoise(1.5, sensitivity=1000.0, kind=kind)
    total = torch.zeros(200_000, dtype=torch.int64)
    noised, _ = part.decode(total, {}, RND, None, Secret.fresh())
    assert noised.dtype == torch.int64
    squares = float((noised.double() / 1500.0).square().sum())
    assert stats.chi2.ppf(1e-6, 200_000) < squares < stats.chi2.ppf(1 - 1e-6, 200_000)
    for wrong in (0.95, 1.05):  # and the test would see 5%
        assert not stats.chi2.ppf(1e-6, 200_000) < squares / wrong**2 < stats.chi2.ppf(1 - 1e-6, 200_000)
    again, _ = part.decode(total, {}, RND, None, Secret.fresh())
    assert not torch.equal(noised, again)
    with pytest.raises(UsageError, match="not of integers"):
        part.decode(total.double(), {}, RND, None, Secret.fresh())


def test_no_run_with_a_guarantee_repeats() -> None:
    task = make_task(sizes=(4,) * 30)
    method = methods.dp_fedavg(noise=1.0, lr=0.1)
    secure = [hush.simulate(method, task, rounds=3, cohort=Poisson(10), noise_mode="secure") for _ in range(2)]
    fast = [hush.simulate(method, task, rounds=3, cohort=Poisson(10)) for _ in range(2)]
    assert fast[0].test_loss != fast[1].test_loss
    assert secure[0].test_loss != secure[1].test_loss
    assert secure[0].run_id != secure[1].run_id
    assert (secure[0].noise_mode, fast[0].noise_mode) == ("secure", "fast")
    assert secure[0].epsilon == pytest.approx(fast[0].epsilon, rel=1e-9)
    with pytest.raises(UsageError, match="noise mode"):
        hush.simulate(method, task, rounds=1, noise_mode="loud")


def test_secure_training_learns_like_fast_training() -> None:
    """The grid is fine: with hardly any noise the integer pipeline trains to the same weights."""
    task = make_task(sizes=(6,) * 30)
    settings = {"rounds": 4, "cohort": Poisson(30)}
    quiet = methods.dp_fedavg(noise=1e-5, lr=0.1, clip=1.0)
    parts = quiet.pipeline.parts
    assert isinstance(parts[-1], Gaussian)
    fast = hush.simulate(quiet, task, **settings)  # type: ignore[arg-type]
    secure = hush.simulate(quiet, task, noise_mode="secure", **settings)  # type: ignore[arg-type]
    for name, weights in fast.state_dict.items():
        assert torch.allclose(weights, secure.state_dict[name], atol=1e-3)
