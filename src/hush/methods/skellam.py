"""The Skellam mechanism for differentially private federated learning (Agarwal, Kairouz, Liu 2021).

    theta <- theta - (1/r) U^T s (sum_i round(U clip_C(theta - theta_i) / s) + Skellam(z^2 R^2)) mod 2^b

As DDGauss, with the difference of two Poisson variables for noise. Sums of Skellam shares are Skellam, however many there are, so
it is what clients add under a secure sum whose number of survivors is not known beforehand.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method
from hush.methods.common import Masked, local_training, server_step
from hush.methods.distributed import on_integers


def skellam(
    clip: float = 1.0,
    noise: float | None = None,
    clip_quantile: float | None = None,
    bits: int = 16,
    shares: bool = False,
    **common: Unpack[Masked],
) -> Method:
    """DP-FedAvg in whole numbers of `bits` bits, under Skellam noise, which survives dropouts."""
    pipeline = on_integers("skellam", clip, noise, clip_quantile, bits, shares, **common)
    return Method("skellam", local_training(**common), pipeline, server_step(**common))
