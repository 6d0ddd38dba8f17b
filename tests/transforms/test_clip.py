from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hush import Bound, Round, UsageError
from hush.transforms import AdaptiveClip, Clip, HistoryClip

RND = Round(0, 0, 1.0)
rows = st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=5)


def clip(x: torch.Tensor, norm: float) -> torch.Tensor:
    return Clip(norm).encode(x, RND, torch.arange(len(x)), None)


@given(rows, st.floats(1e-3, 1e3))
def test_no_row_exceeds_the_norm_and_direction_stays(values: list[list[float]], norm: float) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    y = clip(x, norm)
    assert bool((y.double().norm(dim=1) <= norm).all())
    for before, after in zip(x.double(), y.double(), strict=True):
        small = before.norm() <= norm * (1 - 2**-17)
        if small:
            assert torch.equal(before, after)
        else:
            assert torch.allclose(after, before * (after.norm() / before.norm()), rtol=1e-5, atol=1e-30)
            assert float(after.norm()) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_contributes_zero_and_spoils_no_other(bad: float) -> None:
    x = torch.tensor([[1.0, 0.0], [bad, 1.0], [0.0, 3.0]])
    y = clip(x, 2.0)
    assert y[1].tolist() == [0.0, 0.0]
    assert y[0].tolist() == [1.0, 0.0]
    assert y[2].norm() <= 2.0


def test_huge_rows_do_not_overflow_to_zero_or_past_the_bound() -> None:
    x = torch.full((1, 4), 3e38)
    assert float(clip(x, 1.0).double().norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("norm", [1e-9, 1.3e-7, 1e-5])
def test_a_row_so_long_that_float32_rounds_its_factor_stays_inside(norm: float) -> None:
    """1e-44 is 7 of the smallest steps that float32 has: rounded up, the row would come out too long, at worst twice."""
    x = torch.full((4, 100), 1e30) * torch.tensor([1.0, 3.3e4, 1.7e7, 2.9e8])[:, None]
    y = clip(x, norm)
    assert bool((y.double().norm(dim=1) <= norm).all())
    assert bool((y.double().norm(dim=1) >= 0.999 * norm).all())


def test_a_million_float32_entries_stay_inside() -> None:
    x = torch.randn(2, 1_000_000, generator=torch.Generator().manual_seed(0)) * 50
    assert bool((clip(x, 1.0).double().norm(dim=1) <= 1.0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_bound_holds_in_every_precision(dtype: torch.dtype) -> None:
    x = (torch.randn(20, 3000, generator=torch.Generator().manual_seed(0)) * 2).to(dtype)
    assert bool((clip(x, 1.0).double().norm(dim=1) <= 1.0).all())


def test_bound_and_refusals() -> None:
    with pytest.raises(UsageError, match="1e-09 at least"):
        Clip(1e-12)
    assert Clip(2.0).bound(Bound()).l2 == 2.0
    assert Clip(2.0).bound(Bound(0.5)).l2 == 0.5
    for norm in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError):
            Clip(norm)


@pytest.mark.parametrize("entries", [64, 1_000_003])
@pytest.mark.parametrize("value", [1.0 + 2.0**-23, 1 / 3, 1e-5, 3e18, 3e25])
def test_no_rounding_carries_a_row_past_the_bound(entries: int, value: float) -> None:
    """Entries all alike are rounded all alike: the worst that a sum in float32 can meet."""
    x = torch.full((2, entries), value)
    x[1, ::2] *= -0.7
    norm = float(x[0].double().norm())
    for bound in (0.999999 * norm, norm, norm * (1 - 2.0**-19), 1e-3 * norm, 1.0):
        made = clip(x, bound)
        assert bool((made.double().norm(dim=1) <= bound).all())
        assert float(made[0].double().norm()) >= min(norm, bound) * (1 - 1e-5)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([1, 63, 64, 65, 1000]), st.floats(-9, 9), st.sampled_from([0.0, 10.0, 80.0]))
def test_no_row_of_whatever_floats_gets_past_any_clip(seed: int, entries: int, size: float, spread: float) -> None:
    g = torch.Generator().manual_seed(seed)
    exponents = torch.rand(3, entries, generator=g, dtype=torch.float64) * spread + float(torch.rand(1, generator=g)) * 80 - 44
    x = (torch.randn(3, entries, generator=g, dtype=torch.float64) * 10 ** exponents.clamp_max(37)).float()
    if seed % 3 == 0:
        x[0, seed % entries] = (math.nan, math.inf, -math.inf)[seed % 9 // 3]
    norm = 10**size
    adaptive = AdaptiveClip(norm)
    for made, most in (
        (clip(x, norm), norm),
        (adaptive.encode(x, RND, torch.arange(3), norm), adaptive.bound(Bound(math.inf)).l2),
        (HistoryClip(norm, least=1.0).encode(x, RND, torch.arange(3), norm), 1.0),
    ):
        assert bool((made.double().norm(dim=1) <= most).all())
