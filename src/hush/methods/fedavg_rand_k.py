"""FedAvg with a random mask shared by the cohort: Fed-SMP's baseline without privacy (Hu, Gong, Guo, "Fed-SMP", section 6).

theta <- theta - (1/r) sum_i (d/k) m_t * (theta - theta_i),   m_t uniform over k-subsets
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, local_training, server_step
from hush.transforms import RandK


def fedavg_rand_k(ratio: float = 0.1, **common: Unpack[Common]) -> Method:
    """FedAvg that sends a random share `ratio` of the coordinates."""
    return Method("fedavg-rand-k", local_training(**common), chain(RandK(ratio)), server_step(**common))
