"""Fed-SMP with top-k: federated learning with sparsified model perturbation (Hu, Gong, Guo), algorithm 2.

    theta <- theta - (1/r) (sum_i clip_C(m_t * (theta - theta_i)) + N(0, C^2 z^2) on m_t),   m_t = top k of |update on public data|

Sound only if the public examples belong to no client: Hush removes them from the clients first.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, clipping, local_sgd, local_training, server_step
from hush.methods.public_mask import public_top_k
from hush.privacy.claimed import claimed_by_fed_smp
from hush.transforms import Gaussian


def fed_smp_top_k(
    ratio: float = 0.1,
    clip: float = 1.0,
    noise: float | None = None,
    clip_quantile: float | None = None,
    public_steps: int = 0,
    **common: Unpack[Common],
) -> Method:
    """Send and noise the share `ratio` of coordinates that move most on public data."""
    mask = public_top_k(ratio, local_sgd(**common), public_steps)
    pipeline = chain(mask, clipping(clip, clip_quantile, **common), Gaussian(noise))
    return Method("fed-smp-top-k", local_training(**common), pipeline, server_step(**common), claim=claimed_by_fed_smp)
