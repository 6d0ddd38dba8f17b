"""DPSFL-AC: DPSFL whose clip adapts (AAAI 2026), algorithms 3 and 4.

    b_i <- [ ||top(clip_C(g_i)) - top(g_i)|| <= theta ||top(g_i)|| ],   C <- C exp(-lr_C (mean b - gamma))

Clipping only scales, so whatever coordinates `top` picks, b_i = [ ||g_i|| <= C / (1 - theta) ]: it is adaptive clipping to the
quantile gamma, with a tolerance. The paper sends b_i in the clear under noise of 0.1, which costs epsilon 92 by itself; here it is
centred, one entry more under the noise of the sketch, and part of the plan. What is clipped is the sketch, so its norm counts.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.sketched import Sketched, count_sketch, noise_of, sketched_gradient
from hush.privacy.claimed import claimed_by_dpsfl
from hush.server import Average
from hush.transforms import AdaptiveClip


def dpsfl_ac(
    clip: float = 1.5,
    noise: float | None = None,
    clip_quantile: float = 0.9,
    clip_tolerance: float = 0.5,
    clip_lr: float = 0.01,
    noise_by: str = "server",
    **common: Unpack[Sketched],
) -> Method:
    """DPSFL whose clip follows a quantile of the sketches' norms, at the price of a noisy bit."""
    adaptive = AdaptiveClip(clip, clip_quantile, clip_lr, tolerance=clip_tolerance)
    pipeline = chain(count_sketch(**common), adaptive, *noise_of(noise, noise_by))
    return Method("dpsfl-ac", sketched_gradient(**common), pipeline, Average(), claim=claimed_by_dpsfl)
