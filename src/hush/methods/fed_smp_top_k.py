"""Fed-SMP with top-k: federated learning with sparsified model perturbation (Hu, Gong, Guo), algorithm 2.

    theta <- theta - (1/r) (sum_i clip_C(m_t * (theta - theta_i)) + N(0, C^2 z^2) on m_t),   m_t = top k of |update on public data|

Sound only if the public examples belong to no client: Hush removes them from the clients first.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import Clipped, PublicMask, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class FedSmpTopK(ServerStep, PublicMask, Clipped):
    """Settings of `fed-smp-top-k`."""


@method("fed-smp-top-k", FedSmpTopK)
def fed_smp_top_k(s: FedSmpTopK) -> Method:
    """Send and noise the share `ratio` of coordinates that move most on public data."""
    from hush.methods.stations import clipping, local_training, public_top_k, server_step
    from hush.privacy.claimed import claimed_by_fed_smp
    from hush.transforms import Gaussian

    pipeline = chain(public_top_k(s, s), clipping(s), Gaussian(s.noise))
    return Method("fed-smp-top-k", local_training(s), pipeline, server_step(s), claim=claimed_by_fed_smp)
