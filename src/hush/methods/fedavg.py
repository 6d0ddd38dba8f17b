"""FedAvg: communication-efficient learning of deep networks from decentralized data (McMahan et al. 2017).

    theta <- theta - (1/r) sum_i (theta - theta_i)

No privacy: the sum is released as it is.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Masked, local_training, masking, server_step


def fedavg(**common: Unpack[Masked]) -> Method:
    """Average the clients' models."""
    return Method("fedavg", local_training(**common), chain(*masking(**common)), server_step(**common))
