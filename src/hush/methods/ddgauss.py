"""DDGauss: the distributed discrete Gaussian mechanism for federated learning with secure aggregation (Kairouz, Liu, Steinke 2021).

    theta <- theta - (1/r) U^T s (sum_i round(U clip_C(theta - theta_i) / s) + N_Z(0, z^2 R^2)) mod 2^b

U is a random rotation, s the grid, R the norm in steps of the grid: it is checked in integers, so no float is part of the proof.
The noise is drawn once, by a server that is trusted to add it; with `shares` every client adds a part of it under a secure sum.
Then the server is covered, too, but sees who takes part, so that sampling amplifies nothing (docs/privacy.md).
"""

from __future__ import annotations

from hush.core import Method
from hush.methods.groups import WholeNumbers
from hush.methods.recipe import method


class DdGauss(WholeNumbers):
    """Settings of `ddgauss`."""


@method("ddgauss", DdGauss)
def ddgauss(s: DdGauss) -> Method:
    """DP-FedAvg in whole numbers of `bits` bits, under discrete Gaussian noise: what a secure sum adds up."""
    from hush.methods.stations import local_training, on_integers, server_step

    return Method("ddgauss", local_training(s), on_integers("discrete-gaussian", s), server_step(s))
