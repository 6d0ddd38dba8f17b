"""From a plan to a proved epsilon: what has no proof is refused first, the rest gets its tightest known bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import optimize

from hush.errors import NoGuarantee, UsageError
from hush.privacy.guarantee import Guarantee, check_delta
from hush.privacy.losses import Loss, loss_of, optimistic
from hush.privacy.rules import refuse_without_proof, warnings_of
from hush.privacy.vocabulary import Plan

REPORTED_STEP = 1e-4
"""Discretisation of the privacy loss for figures that are printed."""
QUICK_STEP = 1e-3
"""The same while training or searching: a little larger, never smaller."""
_SMALL = 0.1


def account(plan: Plan, delta: float, step: float = REPORTED_STEP) -> Guarantee:
    """The proved guarantee of the whole plan, or `NoGuarantee` with the reason and the fix."""
    check_delta(delta)
    loss = _loss(plan, step)
    return Guarantee(
        epsilon=_epsilon(plan, loss, delta),
        delta=delta,
        unit=plan.unit,
        relation=plan.relation,
        view=plan.view,
        method=loss.method,
        assumptions=plan.assumptions,
        warnings=tuple(warnings_of(plan, delta)),
    )


def spent(plan: Plan, delta: float, rounds: int, step: float = QUICK_STEP) -> float:
    """Epsilon after the first `rounds` rounds of the plan."""
    check_delta(delta)
    refuse_without_proof(plan)
    if not rounds:
        return 0.0
    epsilon = _epsilon(plan, _loss(plan.first(rounds), step), delta)
    if step > REPORTED_STEP and epsilon < _SMALL:  # of so little the quick grid makes much
        epsilon = min(epsilon, spent(plan, delta, rounds, REPORTED_STEP))
    return epsilon


def fits(plan: Plan, delta: float, rounds: int, epsilon: float) -> bool:
    """Whether so many rounds of the plan spend at most `epsilon`."""
    return spent(plan, delta, rounds) <= epsilon or spent(plan, delta, rounds, REPORTED_STEP) <= epsilon


def profile(plan: Plan, eps: np.ndarray, step: float = QUICK_STEP) -> np.ndarray:
    """delta(eps) of the whole plan on a grid that may be negative: the curve that an audit holds a mechanism to."""
    return np.asarray(np.clip(_loss(plan, step).deltas(np.asarray(eps, float)), 0.0, 1.0))


def lower_bound(plan: Plan, delta: float, step: float = REPORTED_STEP) -> float:
    """An epsilon that a pair of neighbouring data sets really attains: a claim below it is false. Zero where no pair is known."""
    check_delta(delta)
    refuse_without_proof(plan)
    loss = optimistic(plan, step)
    return max(0.0, loss.epsilon(delta)) if loss is not None else 0.0


def _loss(plan: Plan, step: float) -> Loss:
    refuse_without_proof(plan)
    try:
        return _cached_loss(plan, step)
    except OverflowError:
        raise NoGuarantee(f"At noise {plan.noise_multiplier:g} we can prove no finite epsilon.", "Raise the noise.") from None


_cached_loss = lru_cache(maxsize=32)(loss_of)


def _epsilon(plan: Plan, loss: Loss, delta: float) -> float:
    try:
        epsilon = loss.epsilon(delta)
    except OverflowError:  # so little noise that the loss leaves the range of floating point
        epsilon = math.inf
    if not math.isfinite(epsilon):
        raise NoGuarantee(
            f"At noise {plan.noise_multiplier:g} we can prove no finite epsilon at delta={delta:.1e}.", "Raise the noise, or delta."
        )
    return max(epsilon, 0.0)


_TOO_MUCH = 1e6
"""An epsilon that stands for none."""


def calibrate(plan: Plan, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier (to four digits, rounded up) whose proved epsilon is at most `epsilon`."""
    if not 0 < epsilon < math.inf:
        raise UsageError(f"epsilon must be a positive number, not {epsilon:g}.")
    check_delta(delta)

    refuse_without_proof(plan)

    def excess(log_noise: float, step: float = QUICK_STEP) -> float:
        try:
            return spent(plan.with_noise(math.exp(log_noise)), delta, plan.rounds, step) - epsilon
        except NoGuarantee:  # so little noise that no epsilon is finite
            return _TOO_MUCH

    low, high = math.log(0.3), math.log(2.0)
    while excess(high) > 0:
        low, high = high, high + 1.0
        if high > math.log(1e6):
            raise NoGuarantee(f"No noise reaches epsilon {epsilon:g} at delta={delta:.1e}.", "Raise epsilon or lower the rounds.")
    while excess(low) <= 0:
        high, low = low, low - 0.5
        if low < math.log(1e-2):  # so loose a budget that hardly any noise is needed
            return math.exp(high)
    found = optimize.brentq(excess, low, high, xtol=1e-4)
    step = QUICK_STEP
    if excess(found, REPORTED_STEP) < -0.02 * epsilon:  # the quick grid is too coarse for so small an epsilon
        step, low = REPORTED_STEP, found
        while excess(low, step) <= 0:
            low -= 0.5
        found = optimize.brentq(excess, low, found, args=(step,), xtol=1e-4)
    noise = math.exp(found)
    digits = 3 - math.floor(math.log10(noise))
    unit = 10.0**-digits
    noise = round(math.ceil(noise / unit) * unit, digits)
    while excess(math.log(noise), step) > 0 or excess(math.log(noise), REPORTED_STEP) > 0:
        noise = round(noise + unit, digits)
    return noise


def rounds_within(plan: Plan, epsilon: float, delta: float) -> int:
    """How many of the plan's rounds fit into the budget; the next one would exceed it."""
    return most_that(lambda rounds: fits(plan, delta, rounds, epsilon), plan.rounds)


def most_that(fits: Callable[[int], bool], most: int) -> int:
    """The largest number that fits, up to `most`; none fits always, and whatever is below one that fits."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
