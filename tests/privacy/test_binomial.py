"""Binomial noise: both bounds against exact losses, the rounding against simulation, and what has no proof."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hush.errors import NoGuarantee
from hush.privacy import binomial
from hush.privacy.accountant import account, profile, spent
from hush.privacy.binomial import Moments, Norms, amplified, moments, rounded_apart, theorem
from hush.privacy.bounds import Bound, L2Ball, Quantised, RecordMean
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import (
    BinomialNoise,
    BoundedParticipation,
    Drawn,
    Everyone,
    FixedSampling,
    GaussianNoise,
    Noise,
    Phase,
    Plan,
    PoissonSampling,
    Release,
    Sampler,
    Sampling,
)
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.transforms.quantize import rounded


def pmf(trials: int, shift: int, p: float = 0.5, reach: int = 0) -> np.ndarray:
    """Binomial noise on -reach .. trials + reach, moved by `shift`."""
    return np.asarray(stats.binom.pmf(np.arange(-reach, trials + reach + 1) - shift, trials, p))


def exact(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """The epsilon of a pair of laws in both directions, by bisection."""

    def excess(eps: float) -> float:
        return max(float(np.maximum(a - math.exp(eps) * b, 0).sum()) for a, b in ((first, second), (second, first))) - delta

    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low


def together(first: np.ndarray, second: np.ndarray, count: int, delta: float) -> float:
    """The epsilon of `count` independent pairs, from below: without what hardly ever happens."""
    usual = (first > 1e-40) & (second > 1e-40)
    laws = [dict(enumerate(map(float, np.log(law[usual])))) for law in (first, second)]
    loss = pld.from_two_probability_mass_functions(*laws, pessimistic_estimate=False, symmetric=False)
    return float(loss.self_compose(count).get_epsilon_for_delta(delta))


def own_epsilon(norms: Norms, trials: int, entries: int, delta: float) -> float:
    """The best over the share of delta that the tails get."""
    tries = [moments(norms, trials, entries, delta * share) for share in (0.5, 0.1, 0.01)]
    return min((m.get_epsilon_for_delta(delta) for m in tries if m is not None), default=math.inf)


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("trials", [100, 500, 2000, 20_000])
def test_moments_bound_the_exact_loss_of_one_entry(trials: int, delta: float) -> None:
    seen = 0
    for shift in (1, 2, 5, 20, 100, 500):
        bound = own_epsilon(Norms(shift, shift, shift), trials, 1, delta)
        truth = exact(pmf(trials, 0, reach=shift), pmf(trials, shift, reach=shift), delta)
        assert bound >= truth
        if bound < 60:
            seen += 1
            assert trials < 500 or truth < 0.1 or bound < 1.4 * truth
    assert seen >= 3


@pytest.mark.parametrize("p", [0.5, 0.3, 0.1])
@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-9])
def test_cpsgds_theorem_bounds_the_exact_loss_of_one_entry_up_to_epsilon_one(p: float, delta: float) -> None:
    seen = 0
    for trials in (2000, 8000, 20_000, 100_000):
        for shift in (1, 2, 5, 20, 50):
            bound = theorem(Norms(shift, shift, shift), trials, p, 1, delta)
            assert bound is None or 0 < bound <= 1
            if bound is not None:
                seen += 1
                assert bound >= exact(pmf(trials, 0, p, shift), pmf(trials, shift, p, shift), delta)
    assert seen >= 3


def test_cpsgds_formula_is_false_beyond() -> None:
    """Equation 7 at p = 1/2 and its condition, by hand, against the exact loss: why `theorem` answers nothing there."""
    trials, shift, delta = 20_000, 500, 0.01
    v, long = trials / 4, math.log(10 / delta)
    assert v >= max(23 * math.log(10 / delta), 2 * shift)
    formula = shift * math.sqrt(2 * math.log(1.25 / delta) / v)
    formula += shift * (7 / 4 * math.sqrt(2 * long) + 1 / 3) / (v * (1 - delta / 10))
    formula += shift * (2 / 3 * math.log(1.25 / delta) + 2 / 3 * math.log(20 / delta) * long) / v
    truth = exact(pmf(trials, 0, reach=shift), pmf(trials, shift, reach=shift), delta)
    assert formula == pytest.approx(26.48, abs=0.01)
    assert truth == pytest.approx(40.62, abs=0.01)
    assert theorem(Norms(shift, shift, shift), trials, 0.5, 1, delta) is None


@pytest.mark.parametrize(("trials", "shift", "entries"), [(1000, 1, 50), (4000, 2, 30), (4000, 9, 10), (20_000, 5, 100)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_moments_bound_the_exact_loss_of_many_entries(trials: int, shift: int, entries: int, delta: float) -> None:
    norms = Norms(entries * shift, math.sqrt(entries) * shift, shift)
    truth = together(pmf(trials, 0, reach=shift), pmf(trials, shift, reach=shift), entries, delta)
    assert truth <= own_epsilon(norms, trials, entries, delta) < 2 * truth


@pytest.mark.parametrize(("trials", "shift", "entries"), [(10_000, 1, 4), (20_000, 1, 10), (20_000, 2, 3)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_cpsgds_theorem_bounds_the_exact_loss_of_many_entries(trials: int, shift: int, entries: int, delta: float) -> None:
    formula = theorem(Norms(entries * shift, math.sqrt(entries) * shift, shift), trials, 0.5, entries, delta)
    assert formula is not None
    assert formula >= together(pmf(trials, 0, reach=shift), pmf(trials, shift, reach=shift), entries, delta)


def test_moments_compose_and_are_symmetric() -> None:
    one = moments(Norms(3, 3, 3), 1000, 1, 1e-9)
    assert one is not None
    ten = one.times(10)
    truth = together(pmf(1000, 0, reach=3), pmf(1000, 3, reach=3), 10, 1e-5)
    assert truth <= ten.get_epsilon_for_delta(1e-5) < 1.25 * truth
    assert ten.plus(one).rho == pytest.approx(11 * one.rho)
    eps = np.array([-2.0, -0.1, 0.0, 0.1, 2.0])
    deltas = ten.get_delta_for_epsilon(eps.tolist())
    assert deltas[0] == pytest.approx(1 - math.exp(-2) + math.exp(-2) * deltas[4])
    assert bool((np.diff(deltas) <= 0).all())
    assert ten.get_delta_for_epsilon([ten.get_epsilon_for_delta(1e-5)])[0] == pytest.approx(1e-5, rel=1e-6)
    assert Moments(0.1, 0.0, 1e-3).get_epsilon_for_delta(1e-4) == math.inf
    assert moments(Norms(9, 9, 9), 10, 1, 1e-9) is None


# -- rounding --------------------------------------------------------------------------------------------------------------------


def gap(kind: str, entries: int, length: float) -> torch.Tensor:
    """A difference of this L2 norm."""
    g = torch.Generator().manual_seed(7)
    shapes = {
        "flat": torch.ones(entries),
        "one entry": torch.eye(entries)[0],
        "random": torch.randn(entries, generator=g),
        "few": (torch.arange(entries) < max(1, entries // 10)).float(),
    }
    shape = shapes[kind].double()
    return shape * (length / float(shape.norm()))


@pytest.mark.parametrize("kind", ["flat", "one entry", "random", "few"])
@pytest.mark.parametrize(
    ("entries", "length"), [(1, 0.3), (1, 7.6), (100, 0.05), (100, 2.0), (100, 30.0), (1000, 10.0), (1000, 80.0)]
)
def test_rounded_vectors_stay_as_close_as_is_proved(kind: str, entries: int, length: float) -> None:
    """With the very function that clients round with. Of 4,000 tries at beta = 1% no more than the share may be beyond."""
    g, tries, beta = torch.Generator().manual_seed(entries), 4000, 0.01
    start = torch.rand(entries, generator=g, dtype=torch.float64) * 10
    coins = torch.randint(-(2**63), 2**63 - 1, (tries, entries), generator=g)
    moved = (
        rounded((start + gap(kind, entries, length)).expand(tries, -1), coins) - rounded(start.expand(tries, -1), coins)
    ).double()
    norms = rounded_apart(length, entries, 10_001, beta)
    one, two, most = moved.abs().sum(1), moved.norm(dim=1), moved.abs().amax(1)
    assert bool((most <= norms.most).all())
    beyond = (one > norms.one) | (two > norms.two)
    assert float(beyond.double().mean()) <= beta
    if kind == "flat" and length >= 2 and entries >= 100:  # and it is no idle bound
        assert norms.one < 1.35 * float(one.max())
        assert norms.two < 1.35 * float(two.max())


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(1, 10**7), st.integers(1, 10**4), st.floats(1e-16, 0.1))
def test_the_three_norms_fit_together(length: float, entries: int, half: int, beta: float) -> None:
    one, two, most = rounded_apart(length, entries, 2 * half + 1, beta)
    assert most <= 2 * half
    assert most <= math.ceil(length * 1.0001)
    assert two <= one * (1 + 1e-12) or two <= math.sqrt(one * most) * (1 + 1e-12)
    assert one <= min(two**2, math.sqrt(entries) * two, entries * most) * (1 + 1e-12)
    wider = rounded_apart(1.5 * length, entries, 2 * half + 1, beta)
    assert all(b >= a for a, b in zip((one, two, most), wider, strict=True))


# -- plans -----------------------------------------------------------------------------------------------------------------------


def plan(
    trials: int = 2**20,
    sampling: Sampling | None = None,
    rounds: int = 45,
    relation: Relation = Relation.REPLACE_ONE,
    entries: int = 21_840,
    bound: Bound | None = None,
    noise: Noise | None = None,
    **how: object,
) -> Plan:
    """cpSGD as it would run: gradients clipped to 1, ten of 600 records, 255 levels in [-0.05, 0.05]."""
    grid = 0.1 / 254
    noise = noise or BinomialNoise(grid * math.sqrt(trials) / 2, drawn=Drawn.MESSAGE, trials=trials, entries=entries)
    release = Release(bound or Quantised(RecordMean(1.0, 10), grid, entries, 255), noise)
    phase = Phase((release,), sampling or FixedSampling(10, 600, Sampler.OWN), rounds)
    told: dict[str, object] = {"unit": Unit.RECORD, "sampled": Unit.RECORD, "view": View.MESSAGES, "noise_per_local_step": True}
    return Plan((phase,), 600, relation=relation, **(told | how))  # type: ignore[arg-type]


def test_the_papers_setting() -> None:
    """Between the Gaussian mechanism of the same variance, which rounding and tails only add to, and what was found here once."""
    once, many = account(plan(rounds=1), 1e-3).epsilon, account(plan(), 1e-3).epsilon
    assert 0.46 < many < 0.75
    assert once < many / 5
    assert account(plan(rounds=1, sampling=Everyone()), 1e-3).epsilon == pytest.approx(3.594, abs=0.02)
    assert spent(plan(), 1e-3, 45) == pytest.approx(many, rel=0.05)
    curve = profile(plan(), np.array([-1.0, 0.0, many, 5.0]))
    assert bool((np.diff(curve) <= 0).all())
    assert curve[2] == pytest.approx(1e-3, rel=0.2)


def test_noise_is_made_louder_by_trials() -> None:
    epsilons = [account(plan(trials, rounds=5), 1e-3, 1e-3).epsilon for trials in (2**16, 2**18, 2**20)]
    assert all(b < a for a, b in pairwise(epsilons))
    with pytest.raises(NoGuarantee, match="too few"):
        account(plan(2**10), 1e-3)


def small(sampling: Sampling | None, relation: Relation, rounds: int) -> float:
    """One entry, whole numbers that move by up to 3 or 6 under 400 coins."""
    noise = BinomialNoise(10.0, drawn=Drawn.MESSAGE, trials=400)
    return account(
        plan(sampling=sampling, relation=relation, rounds=rounds, noise=noise, bound=L2Ball(3.0, grid=1.0)), 1e-4
    ).epsilon


@pytest.mark.parametrize("rounds", [1, 20])
def test_amplified_bounds_hold_for_pairs_that_exist(rounds: int) -> None:
    """One record of 60 is in a batch of 6: others at -3, and it at -3 or +3; or Poisson, others at zero."""
    rate, base, moved = 0.1, pmf(400, 0, reach=6), pmf(400, 6, reach=6)
    truth = together(base, (1 - rate) * base + rate * moved, rounds, 1e-4)
    fixed = replace(FixedSampling(60, 600), by=Sampler.OWN)
    assert truth <= small(fixed, Relation.REPLACE_ONE, rounds) < 2.5 * truth
    assert small(fixed, Relation.ZERO_OUT, rounds) == small(fixed, Relation.REPLACE_ONE, rounds)
    moved = pmf(400, 3, reach=6)
    truth = max(together(a, b, rounds, 1e-4) for a, b in _orders(base, (1 - rate) * base + rate * moved))
    poisson = small(PoissonSampling(rate, 600, Sampler.OWN), Relation.ZERO_OUT, rounds)
    assert truth <= poisson < 3 * truth
    everyone = small(Everyone(), Relation.ZERO_OUT, rounds)
    assert poisson < everyone
    assert small(BoundedParticipation(rounds), Relation.ZERO_OUT, rounds) == everyone


def _orders(a: np.ndarray, b: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(a, b), (b, a)]


@given(st.floats(1e-6, 600), st.floats(1e-4, 1))
def test_amplification_by_hand(epsilon: float, rate: float) -> None:
    low = amplified(epsilon, rate)
    assert 0 < low <= epsilon * (1 + 1e-12)
    if epsilon < 300:
        assert math.exp(low) == pytest.approx(1 + rate * math.expm1(epsilon), rel=1e-9)


def test_the_theorem_stands_in_for_unfair_coins() -> None:
    """Amplified and composed as pairs, with nothing rounded."""
    fair = BinomialNoise(1000.0, drawn=Drawn.MESSAGE, trials=4_000_000, entries=10)
    noise = replace(fair, std=math.sqrt(4_000_000 * 0.21), probability=0.3)
    ball = L2Ball(5.0, grid=1.0)
    one = account(plan(noise=noise, bound=ball, sampling=Everyone(), rounds=1), 1e-6)
    assert "theorem" in one.method
    assert one.epsilon <= (theorem(Norms(math.sqrt(10) * 10, 10, 10), 4_000_000, 0.3, 10, 1e-7) or 0)
    ours = account(plan(noise=fair, bound=ball, sampling=Everyone(), rounds=1), 1e-6)
    assert "moments" in ours.method
    assert ours.epsilon < one.epsilon
    amplified_one = account(plan(noise=noise, bound=ball, rounds=1), 1e-6).epsilon
    assert amplified_one < one.epsilon / 20
    mixed = plan(noise=noise, bound=ball, rounds=3)
    both = replace(mixed, phases=(mixed.phases[0], replace(mixed.phases[0], releases=(Release(L2Ball(2.0, grid=1.0), noise),))))
    assert account(mixed, 1e-6).epsilon < account(both, 1e-6).epsilon < 2 * account(mixed, 1e-6).epsilon
    with pytest.raises(NoGuarantee, match="needs trials"):
        account(plan(noise=noise, bound=L2Ball(500.0, grid=1.0), sampling=Everyone()), 1e-6)


def test_phases_add_up() -> None:
    noise = BinomialNoise(10.0, drawn=Drawn.MESSAGE, trials=400)
    one = plan(noise=noise, bound=L2Ball(1.0, grid=1.0), rounds=2, sampling=FixedSampling(60, 600, Sampler.OWN))

    def epsilon(made: Plan) -> float:
        return account(made, 1e-4, step=1e-3).epsilon

    for part in (one, replace(one, phases=(replace(one.phases[0], sampling=Everyone()),))):
        whole = replace(part, phases=(replace(part.phases[0], rounds=5),))
        halves = replace(part, phases=(part.phases[0], replace(part.phases[0], rounds=3)))
        assert epsilon(halves) == pytest.approx(epsilon(whole), rel=1e-3)
    limited = replace(one, phases=(replace(one.phases[0], rounds=50, participations=2),))
    assert epsilon(limited) == epsilon(one)
    steps = replace(one, phases=(replace(one.phases[0], rounds=1, steps=2),))
    assert epsilon(steps) == epsilon(one)


def test_what_has_no_proof_is_refused() -> None:
    own = Sampler.OWN
    cases: list[tuple[Plan, str]] = [
        (plan(relation=Relation.REPLACE_ONE, sampling=PoissonSampling(0.1, 600, own)), "not proved"),
        (plan(relation=Relation.ADD_REMOVE, view=View.RELEASED), "not proved"),
        (plan(sampling=FixedSampling(10, 600), view=View.RELEASED), "amplifies nothing"),
        (plan(noise=BinomialNoise(1.0, drawn=Drawn.MESSAGE, trials=2**20, entries=21_840)), "integers alone"),
        (plan(noise=BinomialNoise(0.1 / 254 * 512, drawn=Drawn.MESSAGE, trials=2**20, entries=5)), "those of the noise"),
        (plan(noise=GaussianNoise(1.0, drawn=Drawn.MESSAGE)), "no L2 bound"),
    ]
    for case, why in cases:
        with pytest.raises(NoGuarantee, match=why):
            account(case, 1e-3)
    two = plan()
    phase = replace(two.phases[0], releases=two.phases[0].releases * 2)
    with pytest.raises(NoGuarantee, match="one release a round"):
        account(replace(two, phases=(phase,)), 1e-3)


def test_the_words_survive_json() -> None:
    assert plan_from_dict(json.loads(json.dumps(plan_to_dict(plan())))) == plan()
    word = Quantised(RecordMean(1.0, 10), 0.1, 5, 255)
    assert (word.reach(), word.gap(), word.lattice) == (0.1, 0.2, 0.1)


def test_the_hull_is_convex_and_below() -> None:
    g = np.random.default_rng(0)
    x = np.sort(g.random(200)) * 10
    y = np.exp(-x) * (1 + 0.3 * g.random(200))
    kept = binomial._hull(x, y)
    assert kept[0] == 0
    assert kept[-1] == 199
    assert bool((np.diff(np.diff(y[kept]) / np.diff(x[kept])) > 0).all())
    assert bool((np.interp(x, x[kept], y[kept]) <= y + 1e-12).all())
