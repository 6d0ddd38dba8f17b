"""FedAvg with the mask that public data suggest: Fed-SMP's other baseline without privacy (Hu, Gong, Guo, "Fed-SMP", section 6).

theta <- theta - (1/r) sum_i m_t * (theta - theta_i),   m_t = top k of |update on public data|
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, local_sgd, local_training, server_step
from hush.methods.public_mask import public_top_k


def fedavg_top_k(ratio: float = 0.1, public_steps: int = 0, **common: Unpack[Common]) -> Method:
    """FedAvg that sends the share `ratio` of coordinates that move most on public data."""
    mask = public_top_k(ratio, local_sgd(**common), public_steps)
    return Method("fedavg-top-k", local_training(**common), chain(mask), server_step(**common))
