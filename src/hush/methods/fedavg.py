"""FedAvg: communication-efficient learning of deep networks from decentralized data (McMahan et al. 2017).

    theta <- theta - (1/r) sum_i (theta - theta_i)

No privacy: the sum is released as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import Masked, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class FedAvg(ServerStep, Masked):
    """Settings of `fedavg`."""


@method("fedavg", FedAvg)
def fedavg(s: FedAvg) -> Method:
    """Average the clients' models."""
    from hush.methods.stations import local_training, masking, server_step

    return Method("fedavg", local_training(s), chain(*masking(s)), server_step(s))
