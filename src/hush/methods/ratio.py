"""How many coordinates to send: the ratio that minimises Fed-SMP's convergence bound (Hu, Gong, Guo, Theorem 2, rand-k).

    bound(k) = ... + 8 eta tau L (2 kappa^2 + zeta^2) (d/k - 1) + 4 L k C^2 sigma^2 / (eta tau r^2)

The first of these is what the mask loses, the second what the noise adds; the paper says that some k balances them and leaves it
there. The derivative in k vanishes at

    p* = k*/d = eta tau r sqrt(2 (2 kappa^2 + zeta^2) / d) / (C sigma)

from which the smoothness L has gone. The more noise and the larger the model, the fewer coordinates; top-k's bound is linear in k,
so it has no such point.
"""

from __future__ import annotations

import math


def best_ratio(
    lr: float,
    steps: float,
    cohort: float,
    dim: int,
    clip: float,
    noise: float,
    dissimilarity: float = 1.0,
    deviation: float = 0.0,
) -> float:
    """p* of Theorem 2 for rand-k, at least one coordinate and at most all of them.

    `noise` is sigma, the standard deviation over the clip of the noise on the *sum*, as everywhere in Hush. `dissimilarity` is
    kappa, by how much clients' gradients differ (Assumption 3), and `deviation` zeta, the deviation of a batch's gradient
    (Assumption 2). Nobody knows them beforehand: with 1 and 0, their defaults, p* is a place to start a search, not a result.
    """
    if noise <= 0:
        return 1.0
    best = lr * steps * cohort * math.sqrt(2 * (2 * dissimilarity**2 + deviation**2) / dim) / (clip * noise)
    return min(1.0, max(1.0 / dim, best))
