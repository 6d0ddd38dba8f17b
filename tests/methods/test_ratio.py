"""The ratio that minimises Fed-SMP's Theorem 2."""

from __future__ import annotations

import pytest

from hush.methods.ratio import best_ratio


def test_best_ratio_by_hand_and_as_the_minimum_of_the_bound() -> None:
    given = {"lr": 0.1, "steps": 10, "cohort": 100, "dim": 40_000, "clip": 1.0, "noise": 2.0}
    assert best_ratio(**given) == pytest.approx(0.5)  # type: ignore[arg-type]  # 0.1 * 10 * 100 * sqrt(4 / 40000) / 2
    assert best_ratio(**given | {"noise": 0.0}) == 1.0  # type: ignore[arg-type]
    assert best_ratio(**given | {"noise": 1e9}) == 1 / 40_000  # type: ignore[arg-type]

    def bound(p: float, kappa: float = 1.5, zeta: float = 0.7) -> float:
        lost = 8 * 0.1 * 10 * (2 * kappa**2 + zeta**2) * (1 / p - 1)
        return lost + 4 * p * 40_000 * 8.0**2 / (0.1 * 10 * 100**2)

    best = best_ratio(**given | {"noise": 8.0}, dissimilarity=1.5, deviation=0.7)  # type: ignore[arg-type]
    assert bound(best) < min(bound(0.99 * best), bound(1.01 * best))
