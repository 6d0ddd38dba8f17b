"""Distributed DP-SGD: CPFed with one local step a round, its baseline (Hu, Guo, Gong, section VII; Abadi et al. 2016).

theta <- theta - (lr/r) sum_i (sum_j clip_C(grad l(theta, z_j)) + N(0, C^2 z^2)) / B
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from hush.core import Method
from hush.methods.common import RecordCommon, StepCommon
from hush.methods.cpfed import cpfed


def dp_sgd(
    clip: float = 1.0,
    noise: float | None = None,
    mode: str = "proved",
    secure_sum: bool = True,
    clip_per: str = "l2",
    batches: str = "poisson",
    **common: Unpack[StepCommon],
) -> Method:
    """One noisy step a round and an average, protecting a client's records."""
    settings: RecordCommon = {**common, "local_steps": 1}
    return replace(cpfed(clip, noise, mode, secure_sum, clip_per, batches, **settings), name="dp-sgd")
