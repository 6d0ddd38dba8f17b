"""Few levels, unbiased; binomial noise of the client's own on them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hush import Round, UsageError, Wire
from hush.core import Bound, bound_after, chain
from hush.own import OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.transforms import BinomialMechanism, Clip, Gaussian, Quantize, Rotate

RND = Round(3, 5, 10.0)


def encode(part: Quantize, x: torch.Tensor) -> torch.Tensor:
    return part.encode(x, RND, keys_of(0, torch.arange(len(x))), None)


def own(count: int, byte: int = 1) -> OwnSecrets:
    return OwnSecrets.simulated(Secret(bytes([byte]) * 32), range(count))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.floats(1e-6, 1e6), st.integers(1, 50), st.integers(0, 2**31))
def test_levels_are_next_to_what_was_clamped(half: int, most: float, dim: int, seed: int) -> None:
    part = Quantize(2 * half + 1, most)
    x = torch.randn(4, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * most
    z = encode(part, x)
    assert z.dtype == torch.int64
    assert int(z.abs().max()) <= half
    back, _ = part.decode(z[0], {}, RND, None, Secret.fresh())
    assert bool(((back - x[0].clamp(-most, most)).abs() <= part.grid * (1 + 1e-9)).all())
    exact = torch.arange(-half, half + 1)[None].double() * part.grid
    assert bool(((encode(part, exact) - torch.arange(-half, half + 1)).abs() <= 1).all())


@pytest.mark.parametrize("kind", ["public coins", "own coins"])
def test_rounding_is_unbiased_with_the_variance_of_one_coin(kind: str) -> None:
    levels, most, value = 7, 0.3, 0.123
    grid, count = 2 * most / (levels - 1), 60_000
    x = torch.full((20, count // 20), value, dtype=torch.float32)
    if kind == "public coins":
        z, noise = encode(Quantize(levels, most), x), 0.0
    else:
        part = BinomialMechanism(levels, most, 2)
        z, noise = part.cover(encode(part, x), RND, own(20)), 0.5
    fraction = float(torch.tensor(value)) / grid % 1
    spread = math.sqrt((fraction * (1 - fraction) + noise) / count)
    mean = float(z.double().mean())
    assert abs(mean - value / grid) < 5 * spread
    for wrong in (0.95, 1.05, round(value / grid) / (value / grid)):  # and the test would see 5%, or plain rounding
        assert abs(mean - wrong * value / grid) > 5 * spread
    assert float(z.double().var()) == pytest.approx(fraction * (1 - fraction) + noise, rel=0.04)


def test_rows_that_are_not_finite_become_zero_and_long_ones_are_clamped() -> None:
    x = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [9.0, -9.0], [0.5, -0.5]])
    for part in (Quantize(5, 0.5), BinomialMechanism(5, 0.5, 2)):
        assert encode(part, x).tolist() == [[0, 0], [0, 0], [2, -2], [2, -2]]


def test_a_message_depends_on_its_client_alone() -> None:
    x = torch.full((6, 40), 0.1)
    for part in (Quantize(5, 0.7), BinomialMechanism(5, 0.7, 100)):
        together = part.cover(encode(part, x), RND, own(6))
        keys = keys_of(0, torch.arange(6))
        alone = [part.cover(part.encode(x[i : i + 1], RND, keys[i : i + 1], None), RND, own(6).pick([i])) for i in range(6)]
        assert torch.equal(together, torch.cat(alone))
        assert len({tuple(row) for row in together.tolist()}) == 6


def test_the_noise_is_the_clients_own_and_new_every_round() -> None:
    part, zeros = BinomialMechanism(5, 0.7, 2**13), torch.zeros(4, 300, dtype=torch.float64)
    first = part.cover(zeros, RND, own(4))
    assert torch.equal(first, part.cover(zeros, RND, own(4)))
    assert not torch.equal(first, part.cover(zeros, Round(4, 5, 10.0), own(4)))
    assert not torch.equal(first, part.cover(zeros, RND, own(4, byte=2)))
    with pytest.raises(UsageError, match="no secrets"):
        part.cover(zeros, RND, None)
    with pytest.raises(UsageError, match="do not go together"):
        part.cover(zeros, RND, own(3))


@pytest.mark.parametrize("trials", [2, 64, 2**13, 2**20])
def test_the_noise_has_the_scale_it_says(trials: int) -> None:
    part, count = BinomialMechanism(3, 0.5, trials), 200_000
    noise = part.cover(torch.zeros(10, count // 10, dtype=torch.float64), RND, own(10))
    assert int(noise.abs().max()) <= trials // 2
    decoded, _ = part.decode(noise.reshape(-1), {}, RND, None, Secret.fresh())
    ratio = float(decoded.square().mean()) / part.std**2
    kurtosis = 3 - 2 / trials  # of the binomial; the variance of the mean square follows
    limit = 5 * math.sqrt((kurtosis - 1) / count)
    assert abs(ratio - 1) < limit
    assert limit < 0.05  # 5% in the scale would be seen
    assert abs(float(decoded.mean())) < 5 * part.std / math.sqrt(count)


def test_bits_are_counted_as_the_paper_does() -> None:
    assert Quantize(255, 1.0).wire(Wire(10)) == Wire(10, 8, True)
    assert Quantize(3, 1.0).wire(Wire(10)).bits == 2
    for levels, trials in ((3, 2), (3, 6), (255, 2**10), (255, 2**13), (257, 2**16 - 256), (257, 2**16 - 258)):
        bits = BinomialMechanism(levels, 1.0, trials).wire(Wire(10, 32)).bits
        assert bits == math.ceil(math.log2(levels + trials))
    part = BinomialMechanism(3, 1.0, 2)  # and all levels + trials values do occur
    rows = torch.tensor([-1.0, 0.0, 1.0]).repeat(30, 1)
    assert set(part.cover(encode(part, rows), RND, own(30)).reshape(-1).tolist()) == set(range(-2, 3))


def test_other_noise_finds_no_bound_after_it() -> None:
    for part in (Quantize(5, 1.0), BinomialMechanism(5, 1.0, 4)):
        assert bound_after(part, Bound(1.0)).l2 == math.inf
        with pytest.raises(UsageError, match="rounding at random"):
            chain(Clip(1.0), part, Gaussian(1.0))


def test_a_whole_pipeline_gives_back_the_sum() -> None:
    pipeline = chain(Clip(1.0), Rotate(), BinomialMechanism(255, 0.5, 1000))
    mechanism = pipeline.parts[-1]
    assert isinstance(mechanism, BinomialMechanism)
    clients, dim = 50, 200
    x = torch.randn(clients, dim, generator=torch.Generator().manual_seed(1))
    keys, public = keys_of(0, torch.arange(clients)), (None,) * 3
    total = pipeline.send(x, RND, keys, public, own(clients)).sum(0)
    assert total.dtype == torch.int64
    back, _ = pipeline.decode(total, pipeline.init(dim), RND, public, Secret.fresh())
    error = (back - Clip(1.0).encode(x, RND, keys, None).double().sum(0)) / (mechanism.std * math.sqrt(clients))
    assert stats.chi2.ppf(1e-6, dim) < float(error.square().sum()) < stats.chi2.ppf(1 - 1e-6, dim)


@pytest.mark.parametrize("levels", [1, 2, 4, 256, 3.5, 2**31 + 1])
def test_levels_that_cannot_be_are_refused(levels: int) -> None:
    with pytest.raises(UsageError, match="odd whole number"):
        Quantize(levels, 1.0)


@pytest.mark.parametrize("trials", [0, 1, 3, 2.5, 2**53])
def test_trials_that_cannot_be_are_refused(trials: int) -> None:
    with pytest.raises(UsageError, match="even whole number"):
        BinomialMechanism(3, 1.0, trials)


@pytest.mark.parametrize("most", [0.0, -1.0, math.inf, math.nan])
def test_a_range_that_cannot_be_is_refused(most: float) -> None:
    with pytest.raises(UsageError, match="most must be"):
        Quantize(3, most)
