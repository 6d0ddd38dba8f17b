"""DPFL, DPSFL's baseline: DP-SGD's noise (Abadi et al. 2016) on the dense gradients of FedAvg's clients (McMahan et al. 2017).

theta <- theta - lr (1/r) (sum_i clip_C(g_i) + N(0, C^2 z^2)),   g_i one stochastic gradient
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import NoiseBy, OneGradient, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class Dpfl(ServerStep, OneGradient, NoiseBy):
    """Settings of `dpfl`."""

    server: str = ServerStep.redefined("server", "momentum")
    server_lr: float = ServerStep.redefined("server_lr", 0.1)


@method("dpfl", Dpfl)
def dpfl(s: Dpfl) -> Method:
    """Clip every client's gradient, sum, add noise: DP-FedAvg of one step."""
    from hush.methods.stations import local_training, noise_by, server_step
    from hush.privacy.claimed import claimed_by_dp_fedavg
    from hush.transforms import Clip

    return Method("dpfl", local_training(s), chain(Clip(s.clip), *noise_by(s)), server_step(s), claim=claimed_by_dp_fedavg)
