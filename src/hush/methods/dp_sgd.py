"""Distributed DP-SGD: CPFed with one local step a round, its baseline (Hu, Guo, Gong, section VII; Abadi et al. 2016).

theta <- theta - (lr/r) sum_i (sum_j clip_C(grad l(theta, z_j)) + N(0, C^2 z^2)) / B
"""

from __future__ import annotations

from hush.core import Method
from hush.methods.cpfed import DpSgd, noisy_steps
from hush.methods.recipe import method


@method("dp-sgd", DpSgd)
def dp_sgd(s: DpSgd) -> Method:
    """One noisy step a round and an average, protecting a client's records."""
    return noisy_steps("dp-sgd", s, 1)
