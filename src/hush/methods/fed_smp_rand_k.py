"""Fed-SMP with rand-k: federated learning with sparsified model perturbation (Hu, Gong, Guo), algorithm 2.

    theta <- theta - (1/r) (sum_i clip_C((d/k) m_t * (theta - theta_i)) + N(0, C^2 z^2) on m_t)

The mask is public and the clip comes after it, so epsilon is DP-FedAvg's at the same noise for every ratio; what falls is the
noise's energy, k C^2 z^2 instead of d C^2 z^2, and the bytes.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, clipping, local_training, server_step
from hush.privacy.claimed import claimed_by_fed_smp
from hush.transforms import Gaussian, RandK


def fed_smp_rand_k(
    ratio: float = 0.1,
    clip: float = 1.0,
    noise: float | None = None,
    clip_quantile: float | None = None,
    **common: Unpack[Common],
) -> Method:
    """Send and noise a random share `ratio` of the coordinates."""
    pipeline = chain(RandK(ratio), clipping(clip, clip_quantile, **common), Gaussian(noise))
    return Method("fed-smp-rand-k", local_training(**common), pipeline, server_step(**common), claim=claimed_by_fed_smp)
