"""Renyi privacy at integer orders: for discrete Gaussian noise, and for budgets whose runs are chosen on the way.

* Discrete Gaussian, drawn once: E_Q[(P/Q)^a] <= exp(a (a - 1) D^2 / (2 s^2)), as for the continuous one (Canonne, Kamath,
  Steinke 2020, theorem 14). A sum of n shares is off by tau = 10 sum_{k<n} exp(-2 pi^2 s^2 k/(k+1)) in each entry, s^2 the
  variance of a share in grid units (Kairouz, Liu, Steinke 2021, theorem 5).
* Skellam noise has the divergences of the Gaussian that stands for it (`hush.privacy.skellam`), or smaller ones.
* Poisson sampling at rate q: (1/(a - 1)) log sum_i C(a, i) (1 - q)^(a - i) q^i E_Q[(P/Q)^i]: the binomial expansion of Mironov,
  Talwar, Zhang (2019), exact at integer orders. The other direction is no larger, because the lattice reflection x -> v - x swaps P
  and Q (their theorem 5). Tighter than the generic bound for any mechanism by 16 to 28%.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import special

from hush.errors import NoGuarantee
from hush.privacy import vocabulary as say
from hush.privacy.guarantee import Relation
from hush.privacy.skellam import gaussian_std
from hush.privacy.vocabulary import Phase, Plan, Release

ORDERS = (*range(2, 129), *range(136, 257, 8), *range(288, 513, 32), 768, 1024, 1536, 2048, 4096)

Orders = np.ndarray
Curve = Callable[[Orders], np.ndarray]
"""Renyi divergences between neighbours, in one round without sampling, at some orders."""


def renyi(plan: Plan, order: int) -> float:
    """The Renyi divergence of the whole plan at an integer order: additive over rounds, also where they are chosen on the way."""
    return sum(_phase(plan, phase, order) for phase in plan.phases)


def epsilon(orders: tuple[int, ...], values: list[float], delta: float) -> float:
    """The best conversion (Canonne, Kamath, Steinke 2020, proposition 12) over the orders."""
    return float(rdp.compute_epsilon(np.array(orders, float), np.array(values), delta)[0])


def delta(orders: tuple[int, ...], values: list[float], eps: float) -> float:
    """The same the other way round."""
    return float(rdp.compute_delta(np.array(orders, float), np.array(values), eps)[0])


def _phase(plan: Plan, phase: Phase, order: int) -> float:
    sampling = phase.sampling
    if isinstance(sampling, say.Everyone | say.BoundedParticipation):
        return times(phase) * at(_joint(plan, phase, plan.relation), order)
    if isinstance(sampling, say.FixedSampling) and plan.relation is Relation.ADD_REMOVE:
        # adding a unit displaces another, which changes the sum as replacing would
        return phase.times * sampled(_joint(plan, phase, Relation.REPLACE_ONE), sampling.rate, order)
    if isinstance(sampling, say.PoissonSampling | say.SecretParticipation) and plan.relation is not Relation.REPLACE_ONE:
        return phase.times * sampled(_joint(plan, phase, plan.relation), sampling.rate, order)
    raise NoGuarantee(
        f"Renyi accounting of {type(sampling).__name__} under {plan.relation} is not proved here.",
        "Ask for zero-out or add-remove, or use Gaussian noise.",
    )


def times(phase: Phase) -> int:
    """How many releases of a phase one unit can have been in."""
    sampling, rounds = phase.sampling, phase.rounds
    if not isinstance(sampling, say.BoundedParticipation):
        return phase.times
    assert sampling.times is not None
    distinct = max(rounds - sampling.repeats, 1)
    return min(rounds, min(sampling.times, distinct) + sampling.repeats) * phase.steps * phase.holders


def at(curve: Curve, order: int) -> float:
    """One value of a curve."""
    return float(curve(np.array([order], dtype=float))[0])


def sampled(curve: Curve, rate: float, order: int) -> float:
    """Amplification by Poisson sampling at an integer order."""
    if rate >= 1:
        return at(curve, order)
    i = np.arange(order + 1, dtype=float)
    moments = np.concatenate([[0.0, 0.0], (i[2:] - 1) * curve(i[2:])])
    choose = special.gammaln(order + 1) - special.gammaln(i + 1) - special.gammaln(order - i + 1)
    terms = choose + i * math.log(rate) + (order - i) * math.log1p(-rate) + moments
    return max(0.0, float(special.logsumexp(terms)) / (order - 1))


def _joint(plan: Plan, phase: Phase, relation: Relation) -> Curve:
    """Releases of one round are one vector under independent noise: their divergences add."""
    curves = [_curve(plan, release, relation) for release in phase.releases]
    return lambda orders: np.sum([curve(orders) for curve in curves], axis=0)


def _curve(plan: Plan, release: Release, relation: Relation) -> Curve:
    noise, shares = release.noise, plan.shares(release)
    std, reach = gaussian_std(noise, shares), release.bound.l2(relation)
    if isinstance(noise, say.DiscreteGaussianNoise) and shares * noise.draws != 1:
        return _sum_of_discrete_gaussians(reach, std, noise, shares * noise.draws)
    if isinstance(noise, say.GaussianNoise | say.DiscreteGaussianNoise | say.SkellamNoise):
        return lambda orders: orders * (reach / std) ** 2 / 2
    raise NoGuarantee(f"{type(noise).__name__} has no Renyi bound.", "Use Gaussian, discrete Gaussian or Skellam noise.")


def _sum_of_discrete_gaussians(reach: float, std: float, noise: say.DiscreteGaussianNoise, draws: int) -> Curve:
    assert noise.entries is not None
    share = (std / noise.grid) ** 2 / draws
    tau = 10 * math.fsum(math.exp(-2 * math.pi**2 * share * k / (k + 1)) for k in range(1, draws))
    entries, ratio = noise.entries, reach / std
    # every entry's P/Q is within e^tau of the discrete Gaussian's, and Q itself too: sum P^a Q^(1-a) grows by e^((2a-1) tau d)
    return lambda orders: orders * ratio**2 / 2 + (2 * orders - 1) / (orders - 1) * tau * entries
