"""DP-Fed: FedAvg with Gaussian noise on every local gradient, the baseline of Fed-SPA (Hu, Gong, Guo 2021, section 5).

theta_i <- theta_i - lr (sum_j clip_C(grad l(theta_i, z_j)) + N(0, C^2 z^2)) / B,   tau times;   theta <- mean of theta_i
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import FoundClip, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class DpFed(ServerStep, FoundClip):
    """Settings of `dp-fed`."""


@method("dp-fed", DpFed)
def dp_fed(s: DpFed) -> Method:
    """FedAvg with noise at every local step, protecting a client's records."""
    from hush.local.as_written import FedSpaAsWritten
    from hush.methods.stations import local_dp_sgd, server_step
    from hush.privacy.claimed import claimed_by_fed_spa

    local = local_dp_sgd(s, s.local_steps, as_written=FedSpaAsWritten)
    return Method("dp-fed", local, chain(), server_step(s), claim=claimed_by_fed_spa)
