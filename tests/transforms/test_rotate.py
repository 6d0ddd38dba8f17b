"""A rotation that both sides know: lengths stay, the inverse undoes it, and every round has another."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from hush import Round, Wire
from hush.core import Bound, bound_after, chain
from hush.random import keys_of
from hush.secret import Secret
from hush.transforms import Clip, Discretize, ExactNoise, Rotate
from hush.transforms.rotate import padded, walsh_hadamard

RND = Round(3, 5, 10.0)


def rows(count: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def encode(x: torch.Tensor, rnd: Round = RND) -> torch.Tensor:
    return Rotate().encode(x, rnd, keys_of(0, torch.arange(len(x))), None)


def decode(total: torch.Tensor, dim: int, rnd: Round = RND) -> torch.Tensor:
    return Rotate().decode(total, Rotate().init(dim), rnd, None, Secret.fresh())[0]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**31), st.integers(0, 2**40), st.sampled_from([torch.float32, torch.float64]))
def test_lengths_stay_and_the_inverse_undoes_it(dim: int, seed: int, public: int, dtype: torch.dtype) -> None:
    x, rnd = rows(4, dim, seed, dtype), Round(0, public, 4.0)
    y = encode(x, rnd)
    assert y.shape == (4, padded(dim))
    assert torch.allclose(y @ y.T, x.double() @ x.double().T, rtol=1e-6, atol=1e-6)
    for longer, before in ((y, x), (y[:1] - y[1:], x.double()[:1] - x.double()[1:])):
        assert bool((longer.norm(dim=1) <= before.double().norm(dim=1)).all())  # not even by rounding
    assert torch.allclose(decode(y.sum(0), dim, rnd), x.double().sum(0), atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_the_transform_is_hadamards(size: int) -> None:
    x = rows(3, size)
    assert torch.allclose(walsh_hadamard(x), x @ torch.from_numpy(linalg.hadamard(size)).double().T)


def test_what_one_entry_holds_is_spread_over_all() -> None:
    x = torch.zeros(1, 1000)
    x[0, 17] = 3.0
    assert torch.allclose(encode(x).abs(), torch.full((1, 1024), 3.0 / 32, dtype=torch.float64))


def test_no_vector_is_unlucky_in_every_round() -> None:
    """A flat row, which the plain transform would gather in one entry, has small entries under random signs."""
    flat = torch.ones(1, 1024, dtype=torch.float64)
    most = max(float(encode(flat, Round(i, i, 1.0)).abs().max()) for i in range(20))
    assert most < math.sqrt(2 * math.log(2 * 1024 / 1e-6))


def test_every_round_has_signs_of_its_own() -> None:
    x = rows(2, 256)
    assert torch.equal(encode(x), encode(x))
    others = [encode(x, Round(0, seed, 1.0)) for seed in range(30)]
    for i, one in enumerate(others):
        for other in others[:i]:
            assert abs(float(torch.nn.functional.cosine_similarity(one[0], other[0], dim=0))) < 0.4
    signs = torch.stack([torch.sign(encode(torch.eye(256, dtype=torch.float64), Round(0, s, 1.0))[:, 0]) for s in range(100)])
    assert abs(float(signs.mean())) < 5 / math.sqrt(signs.numel())


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    x = rows(3, 10)
    y = encode(torch.cat([x, torch.full((1, 10), math.nan)]))
    assert torch.equal(y[:3], encode(x))
    assert encode(x[:0]).shape == (0, 16)


def test_the_wire_is_padded_and_the_bound_is_passed_on() -> None:
    assert [padded(n) for n in (1, 2, 3, 21_840, 32_768)] == [1, 2, 4, 32_768, 32_768]
    assert Rotate().wire(Wire(21_840)) == Wire(32_768)
    assert bound_after(Rotate(), Bound(0.7)) == Bound(0.7)
    assert not bound_after(Rotate(), Bound(0.7, integer=True)).integer


def test_integers_survive_a_rotated_chain() -> None:
    pipeline = chain(Clip(1.0), Rotate(), Discretize(), ExactNoise(1e-6))
    x, keys = rows(5, 30, dtype=torch.float32), keys_of(0, torch.arange(5))
    public = pipeline.prepare(x[0], {}, RND, None)  # type: ignore[arg-type]
    total = pipeline.send(x, RND, keys, public, None).sum(0)
    back, _ = pipeline.decode(total, pipeline.init(30), RND, public, Secret.fresh())
    assert torch.allclose(back, Clip(1.0).encode(x, RND, keys, None).double().sum(0), atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_rotates_the_same() -> None:
    x = rows(3, 100)
    assert torch.allclose(encode(x.cuda()).cpu(), encode(x), atol=1e-12)
