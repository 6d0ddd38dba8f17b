"""The Skellam mechanism for differentially private federated learning (Agarwal, Kairouz, Liu 2021).

    theta <- theta - (1/r) U^T s (sum_i round(U clip_C(theta - theta_i) / s) + Skellam(z^2 R^2)) mod 2^b

As DDGauss, with the difference of two Poisson variables for noise. Sums of Skellam shares are Skellam, however many there are, so
it is what clients add under a secure sum whose number of survivors is not known beforehand.
"""

from __future__ import annotations

from hush.core import Method
from hush.methods.groups import WholeNumbers
from hush.methods.recipe import method


class Skellam(WholeNumbers):
    """Settings of `skellam`."""


@method("skellam", Skellam)
def skellam(s: Skellam) -> Method:
    """DP-FedAvg in whole numbers of `bits` bits, under Skellam noise, which survives dropouts."""
    from hush.methods.stations import local_training, on_integers, server_step

    return Method("skellam", local_training(s), on_integers("skellam", s), server_step(s))
