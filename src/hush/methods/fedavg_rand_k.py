"""FedAvg with a random mask shared by the cohort: Fed-SMP's baseline without privacy (Hu, Gong, Guo, "Fed-SMP", section 6).

theta <- theta - (1/r) sum_i (d/k) m_t * (theta - theta_i),   m_t uniform over k-subsets
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import LocalTraining, Ratio, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class FedAvgRandK(ServerStep, Ratio, LocalTraining):
    """Settings of `fedavg-rand-k`."""


@method("fedavg-rand-k", FedAvgRandK)
def fedavg_rand_k(s: FedAvgRandK) -> Method:
    """FedAvg that sends a random share `ratio` of the coordinates."""
    from hush.methods.stations import local_training, server_step
    from hush.transforms import RandK

    return Method("fedavg-rand-k", local_training(s), chain(RandK(s.ratio)), server_step(s))
