"""What DDGauss and Skellam share: whole numbers of b bits that a secure sum can add up, under whole noise."""

from __future__ import annotations

from typing import Unpack

from hush.core import Chain, chain
from hush.methods.common import Masked, clipping, masking
from hush.transforms import Discretize, ExactNoise, Modulo, Rotate
from hush.transforms.modulo import grid_bits


def on_integers(
    kind: str, clip: float, noise: float | None, clip_quantile: float | None, bits: int, shares: bool, **common: Unpack[Masked]
) -> Chain:
    """Clip, rotate, round, wrap, noise: every step before the noise keeps the bound that the clip made."""
    grid = Discretize(grid_bits(bits, noise), modulus=bits)
    start = (*masking(**common), clipping(clip, clip_quantile, **common))
    return chain(*start, Rotate(), grid, Modulo(bits), ExactNoise(noise, shares=shares, kind=kind))
