"""Sensitivity of correlated noise C^-1 z (DP-FTRL, matrix factorisation) under bounded, well separated participations."""

from __future__ import annotations

import numpy as np

from hush.privacy.vocabulary import MinSeparation


def toeplitz_sensitivity(sampling: MinSeparation, rounds: int) -> float:
    """max over allowed patterns of ||sum_j C[:, j]||_2, for contributions of norm one.

    For a Toeplitz C whose column is non-negative and not increasing the worst pattern takes part in rounds 0, b, 2b, ...
    (Kalinin and Lampert 2024, theorem 2): columns then overlap in every later row, and none is cut short by the last round.
    """
    column = np.zeros(rounds)
    column[: min(rounds, len(sampling.strategy))] = sampling.strategy[:rounds]
    total = np.zeros(rounds)
    for start in range(0, min(rounds, sampling.times * sampling.separation), sampling.separation):
        total[start:] += column[: rounds - start]
    return float(np.linalg.norm(total))


def square_root_strategy(rounds: int) -> tuple[float, ...]:
    """(2j choose j)/4^j: square root of the all-ones matrix, best among Toeplitz (Fichtenberger, Henzinger, Upadhyay 2023)."""
    column = [1.0]
    for j in range(1, rounds):
        column.append(column[-1] * (2 * j - 1) / (2 * j))
    return tuple(column)
