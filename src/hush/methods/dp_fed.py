"""DP-Fed: FedAvg with Gaussian noise on every local gradient, the baseline of Fed-SPA (Hu, Gong, Guo 2021, section 5).

theta_i <- theta_i - lr (sum_j clip_C(grad l(theta_i, z_j)) + N(0, C^2 z^2)) / B,   tau times;   theta <- mean of theta_i
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.local.as_written import FedSpaAsWritten
from hush.methods.common import RecordCommon, as_written, clip_rule, local_dp_sgd, server_step
from hush.privacy.claimed import claimed_by_fed_spa


def dp_fed(
    clip: float | None = None,
    noise: float | None = None,
    mode: str = "proved",
    clip_per: str = "l2",
    batches: str = "poisson",
    **common: Unpack[RecordCommon],
) -> Method:
    """FedAvg with noise at every local step, protecting a client's records."""
    local = local_dp_sgd(clip_rule(clip if clip is not None else 1.0, clip_per), noise, batches, None, **common)
    if as_written(mode):
        local = FedSpaAsWritten.of(local, clip)
    return Method("dp-fed", local, chain(), server_step(**common), claim=claimed_by_fed_spa)
