"""Whole numbers in so many bits: what wraps, what does not, and what sums decode to."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush import Budget, NoGuarantee, Round, SecretParticipation, UsageError, methods
from hush.core import Bound, Chain, Wire, chain
from hush.privacy.plan import plan_of, with_noise
from hush.privacy.vocabulary import Enrolled
from hush.random import keys_of
from hush.secret import Secret
from hush.transforms import Clip, Discretize, Modulo, Rotate
from hush.transforms.modulo import grid_bits
from tests.conftest import make_task

RND = Round(3, 5, 10.0)


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 48), st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=6))
def test_the_group(bits: int, numbers: list[int]) -> None:
    """Wrapping is a homomorphism: wrapping first and summing gives what summing first and wrapping does."""
    part = Modulo(bits)
    x = torch.tensor(numbers)
    wrapped = part.wrapped(x)
    half = 2 ** (bits - 1)
    assert bool((wrapped >= -half).all())
    assert bool((wrapped < half).all())
    assert bool(((wrapped - x) % (2 * half) == 0).all())
    assert bool((wrapped.abs() <= x.abs()).all())  # so that no norm grows
    assert torch.equal(part.wrapped(wrapped.sum(0)), part.wrapped(x.sum(0)))


def pipeline(bits: int, grid: int, dim: int) -> Chain:
    return chain(Clip(1.0), Rotate(), Discretize(grid, modulus=bits), Modulo(bits))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 2**31))
def test_integer_sums_decode_to_the_float_sum(dim: int, clients: int, seed: int) -> None:
    """Every entry of every client is off by less than one step of the grid, before the rotation is undone."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(clients, dim, generator=g, dtype=torch.float64)
    parts = pipeline(24, 14, dim)
    keys, public, state = keys_of(0, torch.arange(clients)), (None,) * 4, parts.init(dim)
    encoded = parts.encode(rows, RND, keys, public)
    assert encoded.dtype == torch.int64
    decoded, _ = parts.decode(encoded.sum(0), state, RND, public, Secret.fresh())
    clipped = Clip(1.0).encode(rows, RND, keys, None).sum(0)
    padded = 1 << max(0, dim - 1).bit_length()
    step = 1.0 / math.sqrt(4.0**14 - padded / 4 - 8 * 2**14)
    assert float((decoded - clipped).norm()) <= clients * step * math.sqrt(padded) * (1 + 1e-6)


def test_what_wraps_around_is_off_by_the_whole_group_and_warned_of() -> None:
    part = Modulo(8)
    total = torch.tensor([127, 128, -128, -129, 300])
    with pytest.warns(UserWarning, match="raise bits"):
        out, _ = part.decode(total, {}, RND, None, Secret.fresh())
    assert out.tolist() == [127, -128, -128, 127, 44]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part.decode(torch.tensor([127, -128]), {}, RND, None, Secret.fresh())


def test_clients_send_residues_and_the_sum_is_the_groups() -> None:
    """What a secure sum would return, the sum of residues modulo 2^b, decodes to what the plain one does: identical integers."""
    parts = pipeline(16, 12, 64)
    rows = torch.randn(30, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    encoded = parts.encode(rows, RND, keys_of(0, torch.arange(30)), (None,) * 4)
    secure = (encoded % 2**16).sum(0) % 2**16  # in [0, 2^16), as a protocol has it
    plain, _ = parts.decode(encoded.sum(0), parts.init(64), RND, (None,) * 4, Secret.fresh())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a secure sum is wrapped already
        same, _ = parts.decode(secure, parts.init(64), RND, (None,) * 4, Secret.fresh())
    assert torch.equal(plain, same)


def test_the_grid_leaves_room_for_the_noise() -> None:
    assert grid_bits(16, None) == grid_bits(16, 0.3) == grid_bits(16, 1.3) == 12
    assert grid_bits(16, 1.4) == 11
    assert grid_bits(16, 6.0) == 9
    method = methods.ddgauss(bits=16)
    assert [part.bits for part in method.pipeline.parts if isinstance(part, Discretize)] == [12]
    louder = with_noise(method, 6.0)
    assert [part.bits for part in louder.pipeline.parts if isinstance(part, Discretize)] == [9]
    assert louder.pipeline.parts[-1].sensitivity == 2**9  # type: ignore[attr-defined]
    assert methods.ddgauss(noise=6.0) == louder


def test_bytes_at_b_bits() -> None:
    for bits in (12, 16, 20):
        wire = methods.build("ddgauss", bits=bits).uplink(1000)
        assert wire == Wire(1024, bits, integer=True)
        assert wire.bytes == 1024 * bits // 8
    with pytest.raises(UsageError, match="what noise leaves of 8: raise bits to 10"):
        hush.simulate(methods.ddgauss(bits=8, noise=1.0), make_task(features=400), rounds=1, cohort=3)
    for bits in (2, 7, 25):
        with pytest.raises(UsageError, match=f"between 8 and 24 at this noise, not {bits}"):
            methods.ddgauss(bits=bits)


@pytest.mark.parametrize("name", ["ddgauss", "skellam"])
def test_who_is_covered(name: str) -> None:
    """Drawn once: who reads the models. In shares, under a secure sum: the server, too, and its sampling amplifies nothing."""
    enrolled = Enrolled(100, dim=1000)
    central = plan_of(methods.build(name, noise=1.0), hush.Poisson(10), enrolled, 20)
    assert central.view == "released"
    shared = plan_of(methods.build(name, noise=1.0, shares=True), hush.Rotation(10), enrolled, 20)
    assert (shared.view, shared.relation, shared.honest_min) == ("secagg", "zero-out", 10)
    assert not shared.phases[0].sampling.amplifies
    secret = plan_of(methods.build(name, noise=1.0, shares=True), SecretParticipation(10), enrolled, 20)
    assert secret.phases[0].sampling.amplifies
    with pytest.raises(NoGuarantee, match="any size"):
        plan_of(methods.build(name, noise=1.0, shares=True), hush.Poisson(10), enrolled, 20)


def test_discrete_gaussian_shares_pay_for_the_entries() -> None:
    """A sum of shares is not quite discrete Gaussian: with the grid of 16 bits that costs nothing, with small shares it does."""
    from hush.privacy.accountant import account

    enrolled, cohort = Enrolled(1000, dim=2**20), hush.Rotation(100)
    fine = account(plan_of(methods.ddgauss(noise=0.4, shares=True), cohort, enrolled, 10), 1e-5)
    plain = account(plan_of(methods.cpfed_output(noise=0.4), cohort, enrolled, 10), 1e-5)
    assert fine.epsilon == pytest.approx(plain.epsilon, rel=0.1)
    coarse = Discretize(4)
    method = methods.ddgauss(noise=0.4, shares=True)
    parts = [coarse if isinstance(part, Discretize) else part for part in method.pipeline.parts]
    worse = plan_of(method.with_pipeline(*parts), cohort, enrolled, 10)
    assert account(worse, 1e-5).epsilon > 1.1 * fine.epsilon


def test_a_budget_is_kept_whatever_the_grid() -> None:
    """The noise of a small budget needs a coarser grid, which is found together with it."""
    for name in ("ddgauss", "skellam"):
        result = hush.simulate(
            methods.build(name), make_task(sizes=(4,) * 50), rounds=20, cohort=10, privacy=Budget(0.3, 1e-3), seed=1
        )
        assert result.noise_multiplier is not None
        assert result.noise_multiplier > 3
        assert result.epsilon is not None
        assert result.epsilon <= 0.3


def test_floats_are_refused() -> None:
    with pytest.raises(UsageError, match="whole numbers"):
        Modulo(16).encode(torch.randn(2, 3), RND, torch.arange(2), None)
    with pytest.raises(UsageError, match="4 to 48"):
        Modulo(2)
    assert Modulo(16).bound(Bound(3.0, integer=True)) == Bound(3.0, integer=True)
