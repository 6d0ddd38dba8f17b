"""How much noise shares need: Skellam as Hush accounts it, as published, and a Gaussian: `python bench/skellam.py`.

Multiples of the sensitivity, zero-out, as the server sees the sums; a sampled client takes part in a round by its own secret coin.
The published accounting is Agarwal, Kairouz and Liu's (2021, theorem 3.5) at integer orders, which Hush used before.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from hush import calibrate
from hush.privacy import renyi
from hush.privacy.bounds import L2Ball
from hush.privacy.guarantee import Relation, View
from hush.privacy.vocabulary import Drawn, Everyone, GaussianNoise, Noise, Phase, Plan, Release, SecretParticipation, SkellamNoise

FINE, COARSE = 2.0**16, 2.0**4
"""The sensitivity in steps of the grid: as 24 bits leave it to a hundred clients, and the coarsest that Hush rounds to."""


def needed(kind: type[Noise], reach: float, rounds: int, rate: float, epsilon: float, delta: float) -> float:
    sampling = Everyone() if rate == 1 else SecretParticipation(rate, 10_000)
    release = Release(L2Ball(reach, grid=1.0), kind(reach / 10, drawn=Drawn.SHARES))
    phase = Phase((release,), sampling, rounds)
    return calibrate(Plan((phase,), 10_000, relation=Relation.ZERO_OUT, view=View.SECAGG, honest_min=100), epsilon, delta)


def published(reach: float, rounds: int, rate: float, epsilon: float, delta: float) -> float:
    def spent(noise: float) -> float:
        variance = (noise * reach) ** 2

        def curve(orders: np.ndarray) -> np.ndarray:
            tail = np.minimum(((2 * orders + 5) * reach**2) / (4 * variance**2), 1.5 * reach**2 / variance)
            return np.asarray(orders * reach**2 / (2 * variance) + tail)

        return renyi.epsilon(renyi.ORDERS, [rounds * renyi.sampled(curve, rate, order) for order in renyi.ORDERS], delta)

    return math.exp(optimize.brentq(lambda log: spent(math.exp(log)) - epsilon, math.log(0.2), math.log(500), xtol=1e-5))


def main() -> None:
    print("| delta | rate | rounds | epsilon | published | **Hush** | Gaussian | Hush, a grid of 4 bits |\n" + "|---" * 8 + "|")
    for delta in (1e-5, 1e-3):
        for rate in (1.0, 0.01):
            for rounds in (10, 1000):
                for epsilon in (1.0, 2.0, 8.0):
                    asked = (rounds, rate, epsilon, delta)
                    before, gaussian = published(FINE, *asked), needed(GaussianNoise, FINE, *asked)
                    fine, coarse = (needed(SkellamNoise, reach, *asked) for reach in (FINE, COARSE))
                    more = f"{before:.4g} (+{before / gaussian - 1:.1%})"
                    print(
                        f"| {delta:g} | {rate:g} | {rounds} | {epsilon:g} | {more} | **{fine:g}** | {gaussian:g} | {coarse:g} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
