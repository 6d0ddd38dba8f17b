"""What a guarantee means to somebody who guesses: the best that any attack on one unit can do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import optimize

from hush.privacy.accountant import QUICK_STEP, profile
from hush.privacy.guarantee import Guarantee, at_least
from hush.privacy.rules import large_delta
from hush.privacy.vocabulary import Plan

_MOST = 0.5
"""Of an attacker's advantage, for a number to promise something."""
_MOST_RIGHT = 0.1
"""Of true positives at one false one in a hundred: ten times what guessing gets."""
_MOST_EPSILON = 10.0
"""Where cohorts are small, the chance of not being drawn bounds the other two by itself: epsilon speaks of those who were."""
_EPS = np.concatenate([np.linspace(-6, 6, 241), np.linspace(6.25, 40, 136)])


class Risk(NamedTuple):
    """Bounds on every attack that tells a unit's presence from its absence, whatever else the attacker knows."""

    true_positives: float
    """How often it can be right about a present unit, if it may accuse an absent one in 1 of 100 cases."""
    advantage: float
    """The largest difference between true and false positives: 0 is guessing, 1 is certainty."""


def doubts(plan: Plan, guarantee: Guarantee, risk: Risk) -> list[str]:
    """Why a proved number promises little; nothing where it means something."""
    found, unit = [], guarantee.unit
    if guarantee.epsilon > _MOST_EPSILON:
        found.append(
            f"epsilon is {at_least(guarantee.epsilon)}, and above {_MOST_EPSILON:g} it hides little of a {unit} that takes part"
        )
    if risk.advantage > _MOST:
        ahead = at_least(risk.advantage)
        found.append(f"an attacker may be ahead of guessing by {ahead}, where 1 is certainty and more than {_MOST} is much")
    if risk.true_positives > _MOST_RIGHT:
        right = 100 * risk.true_positives
        found.append(
            f"an attacker who accuses 1 in 100 wrongly may be right about {right:.1f} in 100, where more than "
            f"{100 * _MOST_RIGHT:g} is much"
        )
    large = large_delta(plan, guarantee.delta)
    return [*found, *([large] if large is not None else [])]


def risk(plan: Plan) -> Risk:
    """The attack figures of a plan."""
    return Risk(float(trade_off(plan, np.array([0.01]))[0]), _advantage(plan))


def _advantage(plan: Plan) -> float:
    """max over x of TPR(x) - x, where TPR is the least of the lines below: a linear program, solved exactly."""
    deltas, ratio = profile(plan, _EPS), np.exp(_EPS)
    slopes = np.concatenate([ratio - 1, 1 / ratio - 1])
    heights = np.concatenate([deltas, 1 - (1 - deltas) / ratio])
    # variables: x in [0, 1] and the advantage t in [0, 1]; t - slope x <= height for every line
    best = optimize.linprog([0, -1], np.column_stack([-slopes, np.ones_like(slopes)]), heights, bounds=[(0, 1), (0, 1)])
    exact = float(profile(plan, np.array([0.0]))[0])
    return min(exact, float(-best.fun)) if best.success else exact


def trade_off(plan: Plan, false_positives: np.ndarray, step: float = QUICK_STEP) -> np.ndarray:
    """The highest true-positive rate at each false-positive rate: f-DP read from the whole profile delta(eps).

    TPR <= e^eps FPR + delta(eps), and the same with the two data sets exchanged: 1 - FPR <= e^eps (1 - TPR) + delta(eps).
    """
    return trade_off_of(_EPS, profile(plan, _EPS, step), false_positives)


def trade_off_of(eps: np.ndarray, profile: np.ndarray, false_positives: np.ndarray) -> np.ndarray:
    """The same for any profile, given on a grid of epsilons."""
    deltas = profile[:, None]
    ratio, rates = np.exp(eps)[:, None], np.asarray(false_positives, float)[None, :]
    forward = ratio * rates + deltas
    backward = 1.0 - (1.0 - rates - deltas) / ratio
    best = np.minimum(forward.min(0), backward.min(0))
    return np.asarray(np.clip(best, false_positives, 1.0))
