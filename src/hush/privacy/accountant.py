"""From a plan to a proved epsilon, by privacy loss distributions (dp-accounting).

* Poisson: the subsampled Gaussian's own distribution, composed.
* Fixed size, add/remove: adding a client displaces one of the r, which moves the sum by 2C; the dominating pair is exactly
  Poisson's at half the noise (Lebeda, Regehr, Kamath, Steinke 2024).
* Fixed size, replace-one: the profile delta'(log(1 + q(e^eps - 1))) = q delta(eps) of Balle, Barthe, Gaboardi (2018), completed
  to negative eps by symmetry (Zhu, Dong, Wang 2022) and discretised pessimistically. Zero-out is bounded by it.
* Bounded participation: at most k plain Gaussians, exactly; no amplification.

All estimates are pessimistic, so every figure is an upper bound at any discretisation; finer steps make it smaller.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize, stats

from hush.cohort import Bounded, FixedSize, Poisson
from hush.errors import NoGuarantee, UsageError
from hush.privacy.guarantee import Guarantee, Relation, Unit, View, check_delta
from hush.privacy.plan import Plan

REPORTED_STEP = 1e-4
"""Discretisation of the privacy loss for figures that are printed."""
QUICK_STEP = 1e-3
"""The same while training or searching: a little larger, never smaller."""

_NAMES = {
    Poisson: "PLD, Poisson sampling",
    FixedSize: "PLD, fixed-size sampling",
    Bounded: "exact Gaussian composition over the participations a client is allowed",
}


def account(plan: Plan, delta: float, step: float = REPORTED_STEP) -> Guarantee:
    """The proved guarantee of the whole plan."""
    return Guarantee(
        epsilon=spent(plan, delta, plan.rounds, step),
        delta=delta,
        unit=plan.unit,
        relation=plan.relation,
        view=plan.view,
        method=_NAMES[type(plan.cohort)],
        assumptions=plan.assumptions,
    )


def spent(plan: Plan, delta: float, rounds: int, step: float = QUICK_STEP) -> float:
    """Epsilon after the first `rounds` rounds of the plan."""
    check_delta(delta)
    if plan.view is not View.RELEASED:
        raise NoGuarantee(
            f"In the view '{plan.view}' no noise covers a single message.", "Only the released models are proved here."
        )
    if plan.unit is not Unit.CLIENT:
        raise NoGuarantee("Clients are clipped and sampled, not records.", "Ask for the unit 'client'.")
    if rounds == 0:
        return 0.0
    cohort = plan.cohort
    if type(cohort) not in _NAMES:
        raise NoGuarantee(f"{type(cohort).__name__} has no proved accounting.", "Sample with Poisson, FixedSize or Bounded.")
    if isinstance(cohort, Bounded):
        times = min(cohort.participations, rounds)
        effect = 2.0 if plan.relation is Relation.REPLACE_ONE else 1.0
        noise = plan.noise_multiplier / effect / math.sqrt(times)
        return float(dp_accounting.get_epsilon_gaussian(noise, delta))
    rate, grid = cohort.size / plan.clients, _fitting(plan, step)
    try:
        loss = _loss_distribution(isinstance(cohort, FixedSize), plan.noise_multiplier, rate, plan.relation, grid)
        epsilon = float(loss.self_compose(rounds).get_epsilon_for_delta(delta))
    except OverflowError:  # so little noise that the loss leaves the range of floating point
        epsilon = math.inf
    if not math.isfinite(epsilon):
        raise NoGuarantee(f"At noise {plan.noise_multiplier:g} no finite epsilon holds at delta={delta:.1e}.", "Raise the noise.")
    return max(epsilon, 0.0)


def calibrate(plan: Plan, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier (to four digits, rounded up) whose proved epsilon is at most `epsilon`."""
    if not 0 < epsilon < math.inf:
        raise UsageError(f"epsilon must be a positive number, not {epsilon:g}.")
    check_delta(delta)

    def excess(log_noise: float) -> float:
        return spent(replace(plan, noise_multiplier=math.exp(log_noise)), delta, plan.rounds) - epsilon

    low, high = math.log(0.3), math.log(2.0)
    while excess(high) > 0:
        low, high = high, high + 1.0
        if high > math.log(1e6):
            raise NoGuarantee(f"No noise reaches epsilon {epsilon:g} at delta={delta:.1e}.", "Raise epsilon or lower the rounds.")
    while excess(low) <= 0:
        high, low = low, low - 0.5
        if low < math.log(1e-2):  # so loose a budget that hardly any noise is needed
            return math.exp(high)
    noise = math.exp(optimize.brentq(excess, low, high, xtol=1e-4))
    digits = 3 - math.floor(math.log10(noise))
    unit = 10.0**-digits
    noise = round(math.ceil(noise / unit) * unit, digits)
    while spent(replace(plan, noise_multiplier=noise), delta, plan.rounds, REPORTED_STEP) > epsilon:
        noise = round(noise + unit, digits)
    return noise


def rounds_within(plan: Plan, epsilon: float, delta: float) -> int:
    """How many of the plan's rounds fit into the budget; the next one would exceed it."""
    if spent(plan, delta, plan.rounds) <= epsilon:
        return plan.rounds
    low, high = 0, plan.rounds
    while high - low > 1:
        middle = (low + high) // 2
        if spent(plan, delta, middle) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def _fitting(plan: Plan, step: float) -> float:
    """A coarser grid where the loss of one round spans many thousands of steps: still an upper bound, and it fits memory."""
    effect = 2.0 if isinstance(plan.cohort, FixedSize) or plan.relation is Relation.REPLACE_ONE else 1.0
    span = (effect / plan.noise_multiplier) ** 2 + 10.0 * effect / plan.noise_multiplier
    return max(step, span * math.sqrt(plan.rounds) / 2e6)


@lru_cache(maxsize=32)
def _loss_distribution(fixed: bool, noise: float, rate: float, relation: Relation, step: float) -> Any:
    """One round's privacy loss."""
    if fixed and relation is not Relation.ADD_REMOVE:
        return pld.PrivacyLossDistribution(_replaced_in_fixed_size(2.0 / noise, rate, step))
    if fixed:
        noise /= 2.0
    adjacency = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if relation is Relation.REPLACE_ONE:  # the library itself doubles the sensitivity here, in its PLD accountant
        adjacency = dp_accounting.NeighboringRelation.REPLACE_ONE
    return pld.from_gaussian_mechanism(
        noise, value_discretization_interval=step, sampling_prob=rate, neighboring_relation=adjacency
    )


def _replaced_in_fixed_size(shift: float, rate: float, step: float) -> Any:
    """The dominating pair of a Gaussian of mean shift `shift` under sampling without replacement, as a probability mass."""

    def log_profile(eps: np.ndarray) -> np.ndarray:
        inner = np.where(eps > 100, eps - np.log(rate), np.log1p(np.expm1(np.minimum(eps, 100)) / rate))
        return np.asarray(np.log(rate) + _log_gaussian_delta(inner, shift))

    top = 1.0
    while log_profile(np.array([top]))[0] > -55 and top < 5000:
        top *= 1.25
    grid = np.arange(-math.ceil(top / step), math.ceil(top / step) + 1)
    eps = grid * step
    above = np.exp(log_profile(np.maximum(eps, 0.0)))
    below = np.minimum(eps, 0.0)
    mirrored = -np.expm1(below) + np.exp(below + log_profile(np.maximum(-eps, 0.0)))
    deltas = np.where(eps >= 0, above, mirrored)
    deltas = np.minimum.accumulate(np.clip(deltas * (1 + 1e-12), 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, grid, deltas)


def _log_gaussian_delta(eps: np.ndarray, shift: float) -> np.ndarray:
    """log delta(eps) of N(0,1) against N(shift,1) (Balle and Wang 2018)."""
    first = stats.norm.logcdf(shift / 2 - eps / shift)
    gap = eps + stats.norm.logcdf(-shift / 2 - eps / shift) - first
    with np.errstate(all="ignore"):
        return np.asarray(np.where(gap >= 0, -np.inf, first + np.log1p(-np.exp(np.minimum(gap, -1e-300)))))
