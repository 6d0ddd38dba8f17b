"""Skellam noise as the Gaussian that stands for it: the formula, the theorem, and exact losses by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from hush import account
from hush.cohort import Rotation
from hush.methods import dp_fedavg
from hush.privacy import renyi
from hush.privacy.accountant import profile
from hush.privacy.bounds import L2Ball
from hush.privacy.guarantee import Relation, View
from hush.privacy.losses import GaussianLoss
from hush.privacy.plan import plan_of
from hush.privacy.shares import SecureSum, with_secure_sum
from hush.privacy.skellam import gaussian_std, step_shift
from hush.privacy.vocabulary import (
    Drawn,
    Everyone,
    FixedSampling,
    GaussianNoise,
    Noise,
    Phase,
    Plan,
    PoissonSampling,
    Release,
    SecretParticipation,
    SkellamNoise,
)
from hush.transforms import NoiseShares

LOSSES = np.linspace(-4, 14, 91)
Law = np.ndarray


def smallest_shift(variance: float, digits: int = 60) -> mpmath.mpf:
    """m by its definition, in long numbers."""
    with mpmath.workdps(digits):
        v = mpmath.mpf(variance)
        return 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.exp(-v) * mpmath.besseli(0, v))


def skellam(variance: float, vector: tuple[int, ...], reach: int) -> Law:
    """The joint law of Skellam noise around a vector, on the integers up to `reach` from zero in every entry."""
    k = np.arange(-reach, reach + 1)
    return reduce(np.multiply.outer, [special.ive(np.abs(k - j), variance) for j in vector])


def hockey_stick(first: Law, second: Law) -> np.ndarray:
    """delta at every one of the losses, exactly but for the tails, which can only be missing."""
    return np.array([np.maximum(first - math.exp(eps) * second, 0).sum() for eps in LOSSES])


def excess(variance: float, vector: tuple[int, ...], shift: float, rate: float = 1.0, reach: int | None = None) -> float:
    """The most by which exact losses, in either direction, exceed the Gaussian's: positive if `shift` is too small for a step."""
    if reach is None:
        reach = math.ceil(12 * math.sqrt(variance) + 10) + max(map(abs, vector))
    still, moved = skellam(variance, (0,) * len(vector), reach), skellam(variance, vector, reach)
    mixed = (1 - rate) * still + rate * moved
    pair, gamma = GaussianLoss(shift * math.hypot(*vector), ""), np.exp(LOSSES)
    left = np.maximum(1 - gamma * (1 - rate), 0.0)
    with np.errstate(all="ignore"):
        removed = np.where(gamma > 1 - rate, rate * pair.deltas(np.log((gamma - 1 + rate) / rate)), 1 - gamma)
        added = np.where(left > 0, left * pair.deltas(np.log(rate * gamma / left)), 0.0)
    allowed = np.concatenate([removed, added])
    exact = np.concatenate([hockey_stick(mixed, still), hockey_stick(still, mixed)])
    return float(np.max(exact - allowed * (1 + 1e-9) - 1e-13))


@pytest.mark.parametrize("power", range(-12, 19))
def test_the_shift_is_never_below_its_definition(power: int) -> None:
    for variance in (10.0**power, 10.0 ** (power + 0.37)):
        above = float(step_shift(variance) / smallest_shift(variance) - 1)
        assert 0 < above < (3e-12 if power >= -3 else 1e-3)  # what hardly moves is rounded up by more
        with mpmath.workdps(60):
            stays = mpmath.exp(-mpmath.mpf(variance)) * mpmath.besseli(0, mpmath.mpf(variance))
            assert abs(special.i0e(variance) / stays - 1) < 4e-15


def test_the_shift_is_a_little_more_than_the_gaussians() -> None:
    for std in (3.0, 10.0, 100.0, 1e5):
        assert step_shift(std * std) * std == pytest.approx(1 + 1 / (6 * std * std), abs=0.2 / std**4 + 3e-12)


@pytest.mark.parametrize("variance", [0.01, 0.4, 1.0, 7.0, 60.0, 900.0])
def test_the_largest_step_is_at_zero(variance: float) -> None:
    """The theorem itself, out to where a tail holds 1e-25: steps between normal quantiles fall, and the first of them is m."""
    with mpmath.workdps(50):
        v, z = mpmath.mpf(variance), []
        left = (1 - mpmath.exp(-v) * mpmath.besseli(0, v)) / 2  # beyond zero
        k = 0
        while left > 1e-25:
            z.append(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * left))
            k += 1
            left -= mpmath.exp(-v) * mpmath.besseli(k, v)
        steps = [2 * z[0], *(b - a for a, b in pairwise(z))]
        assert abs(steps[0] - smallest_shift(variance)) < 1e-40
        assert all(a > b for a, b in pairwise(steps))
        assert len(steps) >= 8


@given(variance=st.floats(0.05, 300), step=st.integers(1, 50), rate=st.sampled_from([1.0, 0.5, 0.01]))
@settings(max_examples=60, deadline=None)
def test_no_loss_exceeds_the_gaussians(variance: float, step: int, rate: float) -> None:
    assert excess(variance, (step,), step_shift(variance), rate) <= 0


@given(variance=st.floats(0.2, 6), vector=st.tuples(*[st.integers(-4, 4)] * 3), rate=st.sampled_from([1.0, 0.1]))
@settings(max_examples=15, deadline=None)
def test_no_loss_of_a_vector_exceeds_the_gaussians(variance: float, vector: tuple[int, ...], rate: float) -> None:
    if any(vector):
        assert excess(variance, vector, step_shift(variance), rate, reach=28) <= 0
        assert excess(variance, vector[:2], step_shift(variance), rate) <= 0 or not any(vector[:2])


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize(("variance", "vector"), [(25.0, (1,)), (25.0, (7,)), (2.0, (1,)), (1.5, (1, 1, 1)), (6.0, (2, 3))])
def test_a_shift_that_is_too_small_is_noticed(variance: float, vector: tuple[int, ...], rate: float) -> None:
    assert excess(variance, vector, 0.99 / math.sqrt(variance), rate) > 1e-6
    assert excess(variance, vector, step_shift(variance), rate) <= 0


def test_noise_of_the_gaussians_own_strength_would_not_do() -> None:
    """1/std is not enough, and nor is anything else below m: one step attains it."""
    for variance in (0.5, 2.0, 9.0):
        assert excess(variance, (1,), 1 / math.sqrt(variance)) > 1e-4
        for_one = np.array([special.ive(0, variance), (1 + special.ive(0, variance)) / 2])
        beta = for_one[1] - for_one[0]  # F(-1), where alpha is 1 - F(0)
        assert special.ndtr(special.ndtri(for_one[1]) - step_shift(variance)) == pytest.approx(beta, rel=1e-9)


def covered(noise: Noise, sampling: object = None, rounds: int = 10, relation: Relation = Relation.ZERO_OUT, **how: object) -> Plan:
    """64 steps of the grid at most, under 40 shares, as the server sees them unless told otherwise."""
    phase = Phase((Release(L2Ball(64.0, grid=1.0), noise),), sampling or Everyone(), rounds)  # type: ignore[arg-type]
    return Plan((phase,), 1000, relation=relation, **({"view": View.SECAGG, "honest_min": 40} | how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "how"),
    [
        (Everyone(), {}),
        (Everyone(), {"relation": Relation.REPLACE_ONE}),
        (SecretParticipation(0.05, 1000), {}),
        (PoissonSampling(0.05, 1000), {"view": View.RELEASED, "relation": Relation.ADD_REMOVE, "honest_min": None}),
        (FixedSampling(50, 1000), {"view": View.RELEASED, "relation": Relation.ADD_REMOVE}),
        (FixedSampling(50, 1000), {"view": View.RELEASED, "relation": Relation.REPLACE_ONE}),
    ],
)
def test_epsilon_is_that_of_the_gaussian_that_stands_for_it(sampling: object, how: dict[str, object]) -> None:
    drawn = Drawn.SERVER if how.get("honest_min", 40) is None else Drawn.SHARES
    std, shares = (100.0, 1) if drawn is Drawn.SERVER else (15.0, 40)
    noise = SkellamNoise(std, drawn=drawn)
    stands = GaussianNoise(gaussian_std(noise, shares) / math.sqrt(shares), drawn=drawn)
    for delta in (1e-3, 1e-7):
        ours, gaussian = (account(covered(each, sampling, **how), delta).epsilon for each in (noise, stands))  # type: ignore[arg-type]
        assert ours == pytest.approx(gaussian, rel=1e-6)
    plain = account(covered(GaussianNoise(std, drawn=drawn), sampling, **how), 1e-7).epsilon  # type: ignore[arg-type]
    assert plain < ours < 1.001 * plain


def test_a_grid_is_a_matter_of_units() -> None:
    fine = SkellamNoise(3.0, drawn=Drawn.SHARES)
    phase = Phase((Release(L2Ball(0.64, grid=0.01), SkellamNoise(0.03, drawn=Drawn.SHARES, grid=0.01)),), Everyone(), 10)
    scaled = Plan((phase,), 1000, relation=Relation.ZERO_OUT, view=View.SECAGG, honest_min=40)
    assert account(scaled, 1e-5).epsilon == pytest.approx(account(covered(fine), 1e-5).epsilon, rel=1e-9)


def test_a_renyi_filter_counts_it_as_that_gaussian() -> None:
    noise = SkellamNoise(2.0, drawn=Drawn.SHARES)
    stands = GaussianNoise(gaussian_std(noise, 40) / math.sqrt(40), drawn=Drawn.SHARES)
    for sampling in (Everyone(), SecretParticipation(0.1, 1000)):
        for order in (2, 17, 256):
            ours = renyi.renyi(covered(noise, sampling), order)
            assert ours == pytest.approx(renyi.renyi(covered(stands, sampling), order))


@given(multiplier=st.floats(0.05, 1e3), sensitivity=st.integers(4, 20), among=st.integers(1, 10**6))
def test_shares_that_are_drawn_add_up_to_what_is_accounted(multiplier: float, sensitivity: int, among: int) -> None:
    """What floats do to the variance on both ways stays a hundred times below what the shift is rounded up by."""
    part = NoiseShares(multiplier, float(2**sensitivity), among=among)
    drawn = among * part.share_std**2
    share = SkellamNoise(part.std / math.sqrt(among), drawn=Drawn.SHARES)
    told = (share.std * math.sqrt(among)) ** 2
    assert abs(drawn / told - 1) < 1e-14
    assert step_shift(told) > float(smallest_shift(drawn, 30))


def test_a_secure_sum_needs_the_noise_of_a_gaussian() -> None:
    """Against the tenth more that Renyi divergences ask for: from the objects that run."""
    sum_of = with_secure_sum(dp_fedavg(noise=1.0), Rotation(100), 1000, SecureSum(), 0.1)
    secured = plan_of(sum_of, Rotation(100), 1000, 60)
    plain = plan_of(dp_fedavg(noise=1.0), Rotation(100), 1000, 60)
    ours, gaussian = account(secured, 1e-5), account(plain, 1e-5)
    assert secured.view is View.SECAGG
    assert ours.epsilon == pytest.approx(gaussian.epsilon, rel=1e-6)
    assert ours.method.startswith("exact Gaussian composition")


def replaced(variance: float, reach: int, rate: float, rounds: int = 1) -> Plan:
    noise = SkellamNoise(math.sqrt(variance), drawn=Drawn.SERVER)
    phase = Phase((Release(L2Ball(float(reach), grid=1.0), noise),), PoissonSampling(rate, 1000), rounds)
    return Plan((phase,), 1000, relation=Relation.REPLACE_ONE)


@given(variance=st.floats(1.0, 200), reach=st.integers(1, 12), rate=st.sampled_from([0.9, 0.3, 0.02]), share=st.floats(-1, 1))
@settings(max_examples=15, deadline=None)
def test_no_loss_of_one_that_is_replaced_under_coins_exceeds_what_is_accounted(
    variance: float, reach: int, rate: float, share: float
) -> None:
    far = math.ceil(12 * math.sqrt(variance) + 10) + reach
    still, one, other = (skellam(variance, (j,), far) for j in (0, reach, round(share * reach)))
    first, second = ((1 - rate) * still + rate * law for law in (one, other))
    allowed = profile(replaced(variance, reach, rate), LOSSES)
    for exact in (hockey_stick(first, second), hockey_stick(second, first)):
        assert float(np.max(exact - allowed * (1 + 1e-9) - 1e-12)) <= 0


def test_replacing_costs_more_than_leaving_out_and_that_would_show() -> None:
    variance, reach, rate = 100.0, 8, 0.3
    far = math.ceil(12 * math.sqrt(variance) + 10) + reach
    still, one, other = (skellam(variance, (j,), far) for j in (0, reach, -reach))
    exact = hockey_stick((1 - rate) * still + rate * one, (1 - rate) * still + rate * other)
    left_out = profile(replace(replaced(variance, reach, rate), relation=Relation.ZERO_OUT), LOSSES)
    assert float(np.max(exact - left_out)) > 1e-3
    gaussian = replaced(variance, reach, rate)
    (phase,) = gaussian.phases
    (release,) = phase.releases
    same = replace(phase, releases=(replace(release, noise=GaussianNoise(gaussian_std(release.noise, 1))),))
    assert account(gaussian, 1e-5).epsilon == pytest.approx(account(replace(gaussian, phases=(same,)), 1e-5).epsilon, rel=1e-6)
