"""Fed-SMP with rand-k: federated learning with sparsified model perturbation (Hu, Gong, Guo), algorithm 2.

    theta <- theta - (1/r) (sum_i clip_C((d/k) m_t * (theta - theta_i)) + N(0, C^2 z^2) on m_t)

The mask is public and the clip comes after it, so epsilon is DP-FedAvg's at the same noise for every ratio; what falls is the
noise's energy, k C^2 z^2 instead of d C^2 z^2, and the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import Clipped, Ratio, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class FedSmpRandK(ServerStep, Ratio, Clipped):
    """Settings of `fed-smp-rand-k`."""


@method("fed-smp-rand-k", FedSmpRandK)
def fed_smp_rand_k(s: FedSmpRandK) -> Method:
    """Send and noise a random share `ratio` of the coordinates."""
    from hush.methods.stations import clipping, local_training, server_step
    from hush.privacy.claimed import claimed_by_fed_smp
    from hush.transforms import Gaussian, RandK

    pipeline = chain(RandK(s.ratio), clipping(s), Gaussian(s.noise))
    return Method("fed-smp-rand-k", local_training(s), pipeline, server_step(s), claim=claimed_by_fed_smp)
