"""Distributed DP-SGD: CPFed with one local step a round, its baseline (Hu, Guo, Gong, section VII; Abadi et al. 2016).

theta <- theta - (lr/r) sum_i (sum_j clip_C(grad l(theta, z_j)) + N(0, C^2 z^2)) / B
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from hush.core import Method
from hush.errors import UsageError
from hush.methods.common import RecordCommon
from hush.methods.cpfed import cpfed


def dp_sgd(
    clip: float = 1.0,
    noise: float | None = None,
    mode: str = "proved",
    secure_sum: bool = True,
    clip_per: str = "l2",
    batches: str = "poisson",
    **common: Unpack[RecordCommon],
) -> Method:
    """One noisy step a round and an average, protecting a client's records."""
    if common.get("local_steps", 1) != 1:
        raise UsageError("dp-sgd makes one local step a round: for more, use cpfed.")
    settings: RecordCommon = {**common, "local_steps": 1}
    return replace(cpfed(clip, noise, mode, secure_sum, clip_per, batches, **settings), name="dp-sgd")
