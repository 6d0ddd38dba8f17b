"""FedAvg with the mask that public data suggest: Fed-SMP's other baseline without privacy (Hu, Gong, Guo, "Fed-SMP", section 6).

theta <- theta - (1/r) sum_i m_t * (theta - theta_i),   m_t = top k of |update on public data|
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import LocalTraining, PublicMask, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class FedAvgTopK(ServerStep, PublicMask, LocalTraining):
    """Settings of `fedavg-top-k`."""


@method("fedavg-top-k", FedAvgTopK)
def fedavg_top_k(s: FedAvgTopK) -> Method:
    """FedAvg that sends the share `ratio` of coordinates that move most on public data."""
    from hush.methods.stations import local_training, public_top_k, server_step

    return Method("fedavg-top-k", local_training(s), chain(public_top_k(s, s)), server_step(s))
