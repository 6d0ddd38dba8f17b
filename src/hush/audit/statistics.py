"""Tests that a wrong claim fails and a right one passes: exact, with the chance of a false alarm fixed beforehand."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

EPS = np.linspace(-4.0, 8.0, 241)
"""Where a claimed profile is held against what was seen."""


class Finding(NamedTuple):
    """What two sets of scores say about a claim."""

    margin: float
    """Above zero the claim is falsified: some event is more likely with the client than e^eps times without it, plus delta."""
    epsilon: float
    """An epsilon that the mechanism has at least, at the asked delta, with 99% confidence."""
    at: float = 0.0
    """The epsilon at which the margin is largest."""


LEVELS = np.linspace(0.01, 0.99, 40)
"""Quantiles of all scores at which present and absent are told apart."""
FAR = np.concatenate([LEVELS, [0.0005, 0.001, 0.002, 0.003, 0.005, 0.995, 0.997, 0.998, 0.999, 0.9995]])
"""And far out, where few victims show at all, and those clearly."""


def against_profile(
    present: np.ndarray,
    absent: np.ndarray,
    deltas: np.ndarray,
    delta: float,
    alarm: float = 1e-4,
    levels: np.ndarray = LEVELS,
) -> Finding:
    """Hold scores with and without a client against a whole claimed profile delta(eps) on `EPS`.

    Thresholds come from half of the scores, the test from the other half. Clopper and Pearson's bounds, with Bonferroni's
    correction over thresholds, tails and directions: a true claim fails with probability at most `alarm`.
    """
    cut = len(present) // 2
    thresholds = np.quantile(np.concatenate([present[:cut], absent[:cut]]), levels)
    above = (_at_least(present[cut:], thresholds), _at_least(absent[cut:], thresholds))
    trials = (len(present) - cut, len(absent) - cut)
    margin, epsilon, at = -1.0, 0.0, 0.0
    tests = 4 * len(thresholds)
    for tail in (False, True):
        hits = [n - k if tail else k for n, k in zip(trials, above, strict=True)]
        for a, b in ((0, 1), (1, 0)):
            low, high = _lower(hits[a], trials[a], alarm / tests), _upper(hits[b], trials[b], alarm / tests)
            margins = (low[:, None] - np.exp(EPS) * high[:, None] - deltas).max(0)
            if float(margins.max()) > margin:
                margin, at = float(margins.max()), float(EPS[margins.argmax()])
            low, high = _lower(hits[a], trials[a], 0.01 / tests), _upper(hits[b], trials[b], 0.01 / tests)
            with np.errstate(divide="ignore", invalid="ignore"):
                epsilon = max(epsilon, float(np.max(np.nan_to_num(np.log((low - delta) / high), nan=0.0, neginf=0.0))))
    return Finding(margin, epsilon, at)


def _at_least(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left"))


def _lower(hits: np.ndarray, trials: int, alarm: float) -> np.ndarray:
    return np.asarray(np.where(hits > 0, stats.beta.ppf(alarm, np.maximum(hits, 1), trials - np.maximum(hits, 1) + 1), 0.0))


def _upper(hits: np.ndarray, trials: int, alarm: float) -> np.ndarray:
    misses = np.maximum(trials - hits, 1)
    return np.asarray(np.where(hits < trials, stats.beta.ppf(1 - alarm, trials - misses + 1, misses), 1.0))


def roc(present: np.ndarray, absent: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """The share of present clients found at each share of absent ones accused."""
    thresholds = np.quantile(absent, 1 - rates, method="higher")
    return np.array([float((present > t).mean()) for t in thresholds])


def proved_roc(present: np.ndarray, absent: np.ndarray, rates: np.ndarray, doubt: float = 0.01) -> np.ndarray:
    """The part of that curve which chance does not explain: it holds, all of it at once, with confidence 1 - doubt."""
    thresholds = np.quantile(np.concatenate([present, absent]), np.linspace(0.002, 0.998, 100))
    each = doubt / (2 * len(thresholds))
    found = _lower(_at_least(present, thresholds), len(present), each)
    accused = _upper(_at_least(absent, thresholds), len(absent), each)
    return np.array([float(np.max(np.where(accused <= rate, found, 0.0))) for rate in rates])


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, doubt: float = 0.05) -> float:
    """The epsilon that guesses in *one* training prove, with confidence 1 - doubt (Steinke, Nasr, Jagielski 2023, theorem 5.2).

    `canaries` were each put in by a fair coin; about `guesses` of them something was said, and `right` was right.
    """
    low, high = 0.0, 20.0
    if _chance(canaries, guesses, right, low, delta) > doubt:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if _chance(canaries, guesses, right, middle, delta) < doubt else (low, middle)
    return low


def _chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The most likely that an (epsilon, delta) mechanism lets anybody guess that well."""
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, chance))
    sums = np.cumsum(stats.binom.pmf(right - np.arange(1, right + 1), guesses, chance))
    worst = float(np.max(sums / np.arange(1, right + 1), initial=0.0))
    return min(1.0, tail + worst * delta * 2 * canaries)


def scale_alarm(squares: float, count: int, chance: float = 1e-6) -> bool:
    """Whether a sum of `count` squares is not that of standard normal values."""
    return not stats.chi2.ppf(chance / 2, count) < squares < stats.chi2.ppf(1 - chance / 2, count)
