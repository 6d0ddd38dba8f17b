"""Norms and sums of rows in float64: the same as of a whole copy, however wide the rows are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hush import rows


@pytest.fixture(params=[1, 50, 10**9], ids=["a row at a time", "some", "all"])
def copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(rows, "_COPIED", request.param)
    return int(request.param)


@pytest.mark.parametrize("shape", [(7, 20), (1, 5), (0, 5), (3, 0), (30, 1), (5, 1000), (2, 64), (0, 300)])
def test_they_are_those_of_a_copy_in_float64(copied: int, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * torch.logspace(-15, 20, shape[0])[:, None]
    torch.testing.assert_close(rows.l2(x), x.double().norm(dim=1), rtol=rows.ROUNDING, atol=0)
    torch.testing.assert_close(rows.l2(x.double()), x.double().norm(dim=1), rtol=1e-14, atol=0)
    torch.testing.assert_close(rows.total(x), x.double().sum(0), rtol=1e-12, atol=0)
    assert rows.l2(x).dtype == rows.total(x).dtype == torch.float64


@given(st.lists(st.integers(-(2**62) // 8, 2**62 // 8), min_size=1, max_size=8))
def test_integers_are_added_as_integers(values: list[int]) -> None:
    assert rows.total(torch.tensor(values)[:, None], torch.int64).tolist() == [sum(values)]


def test_small_integers_do_not_overflow(copied: int) -> None:
    x = torch.full((40, 3), 100, dtype=torch.int8)
    assert rows.total(x, torch.int64).tolist() == [4000] * 3


@given(st.integers(0, 2**32), st.sampled_from([63, 64, 65, 4096, 100_000]), st.floats(-12, 12))
def test_a_norm_is_as_good_as_it_says(seed: int, entries: int, size: float) -> None:
    """Also of rows whose sum float32 would round the same way again and again."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(3, entries, generator=g) * 10**size
    x[1], x[2, 1:] = float(x[1, 0]) or 1.0, 0.0
    true = x.double().norm(dim=1)
    assert bool(((rows.l2(x) - true).abs() <= rows.ROUNDING * true).all())


def test_a_large_float_is_neither_infinite_nor_lost(copied: int) -> None:
    x = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [math.nan, 1.0], [math.inf, 1.0]])
    found = rows.l2(x)
    wide = rows.l2(torch.nn.functional.pad(x, (0, 500)))  # whose squares float32 does not hold
    torch.testing.assert_close(wide[0], found[0])
    assert not torch.isfinite(wide[2:]).any()
    torch.testing.assert_close(found[:2], torch.tensor([5e30, 5e-30], dtype=torch.float64), rtol=1e-6, atol=0)
    assert not torch.isfinite(found[2:]).any()


def test_the_sum_of_wide_rows_does_not_depend_on_how_they_are_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_COPIED", 1)
    x = torch.randn(9, 50)
    whole, added = rows.total(x), torch.zeros(50, dtype=torch.float64)
    for row in x:
        added += rows.total(row[None])
    assert torch.equal(whole, added)
