"""DPSFL-AC: DPSFL whose clip adapts (AAAI 2026), algorithms 3 and 4.

    b_i <- [ ||top(clip_C(g_i)) - top(g_i)|| <= theta ||top(g_i)|| ],   C <- C exp(-lr_C (mean b - gamma))

Clipping only scales, so whatever coordinates `top` picks, b_i = [ ||g_i|| <= C / (1 - theta) ]: it is adaptive clipping to the
quantile gamma, with a tolerance. The paper sends b_i in the clear under noise of 0.1, which costs epsilon 92 by itself; here it is
centred, one entry more under the noise of the sketch, and part of the plan. What is clipped is the sketch, so its norm counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import Clipped, NoiseBy, Sketched
from hush.methods.recipe import method
from hush.settings import setting


@dataclass(frozen=True, kw_only=True)
class DpsflAc(Sketched, NoiseBy):
    """Settings of `dpsfl-ac`."""

    clip_quantile: float = Clipped.redefined("clip_quantile", 0.9)
    clip_tolerance: float = setting(
        0.5, "the share that clipping may take of an update that still counts as inside", within="[0, 1)"
    )
    clip_lr: float = setting(0.01, "how fast the clip follows", "(0, 2]")


@method("dpsfl-ac", DpsflAc)
def dpsfl_ac(s: DpsflAc) -> Method:
    """DPSFL whose clip follows a quantile of the sketches' norms, at the price of a noisy bit."""
    from hush.methods.stations import count_sketch, noise_by, sketched_gradient
    from hush.privacy.claimed import claimed_by_dpsfl
    from hush.server import Average
    from hush.transforms import AdaptiveClip

    adaptive = AdaptiveClip(s.clip, s.clip_quantile, s.clip_lr, tolerance=s.clip_tolerance)
    pipeline = chain(count_sketch(s), adaptive, *noise_by(s))
    return Method("dpsfl-ac", sketched_gradient(s), pipeline, Average(), claim=claimed_by_dpsfl)
