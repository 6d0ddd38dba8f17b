"""DP-FedAvg: learning differentially private recurrent language models (McMahan et al. 2018).

theta <- theta - (1/r) (sum_i clip_C(theta - theta_i) + N(0, C^2 z^2 I)),   r the expected cohort
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, clipping, local_sgd, server_step
from hush.privacy.claimed import claimed_by_dp_fedavg
from hush.transforms import Gaussian


def dp_fedavg(
    clip: float = 1.0, noise: float | None = None, clip_quantile: float | None = None, **common: Unpack[Common]
) -> Method:
    """Clip every client's update, sum, add noise. `noise=None` is calibrated from the budget."""
    pipeline = chain(clipping(clip, clip_quantile), Gaussian(noise))
    return Method("dp-fedavg", local_sgd(**common), pipeline, server_step(**common), claim=claimed_by_dp_fedavg)
