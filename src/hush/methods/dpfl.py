"""DPFL, DPSFL's baseline: DP-SGD's noise (Abadi et al. 2016) on the dense gradients of FedAvg's clients (McMahan et al. 2017).

theta <- theta - lr (1/r) (sum_i clip_C(g_i) + N(0, C^2 z^2)),   g_i one stochastic gradient
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, server_step
from hush.methods.sketched import noise_of, one_gradient
from hush.privacy.claimed import claimed_by_dp_fedavg
from hush.transforms import Clip


def dpfl(clip: float = 1.5, noise: float | None = None, noise_by: str = "server", **common: Unpack[Common]) -> Method:
    """Clip every client's gradient, sum, add noise: DP-FedAvg of one step."""
    pipeline = chain(Clip(clip), *noise_of(noise, noise_by))
    settings: Common = {"server": "momentum", "server_lr": 0.1, **common}
    return Method("dpfl", one_gradient(**common), pipeline, server_step(**settings), claim=claimed_by_dp_fedavg)
