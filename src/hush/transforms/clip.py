"""Bound what one client can add to the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, Transform
from hush.errors import UsageError
from hush.rows import ROUNDING, l2, wide

_MARGIN = (1.0 - ROUNDING) * (1.0 - 2.0**-20)
"""Rounding must not carry a clipped row past C: neither that of its norm, nor that of its entries, which are off by 2^-23."""

_TINY = 2.0**-100
"""Far above what float32 rounds coarsely."""

LEAST, MOST = 1e-9, 1e30
"""The smallest clip: entries whose squares float32 does not hold count as nothing in a norm, and must be nothing beside it.
And the largest, which float32 still holds with room to spare."""


@dataclass(frozen=True)
class Clip(Transform):
    """x * min(1, C / ||x||_2) for each client; a row with NaN or infinity contributes zero."""

    norm: float

    def __post_init__(self) -> None:
        check_clip(self.norm)

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return shortened(x, l2(x), self.norm)

    def room(self, after: float | None, public: Public) -> float | None:
        return self.norm if after is None else min(self.norm, after)

    def bound(self, incoming: Bound) -> Bound:
        return Bound(self.norm if incoming.unproved else min(self.norm, incoming.l2))


def check_clip(norm: float) -> None:
    """Refuse what bounds nothing."""
    if not LEAST <= norm <= MOST:
        raise UsageError(f"clip must be a positive number, {LEAST:g} at least and {MOST:g} at most, not {norm:g}.")


def scale_after(incoming: Bound, what: str) -> float | None:
    """The bound that `what` follows takes its scale from; None where it is not known yet."""
    if incoming.pending:
        return None
    if not math.isfinite(incoming.l2):
        raise UsageError(f"{what} has no scale here: {incoming.reason}. Put Clip(C) directly before it.")
    return incoming.l2


def shortened(x: Tensor, norms: Tensor, most: float, unit: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Rows `x` of these norms, made no longer than `most`, in units of `unit`; a row that is not finite is zero."""
    x = wide(x)
    finite = torch.isfinite(norms)
    factor = torch.where(finite, (most * _MARGIN / norms.clamp_min(1e-300)).clamp_max(1.0) / unit, 0.0)
    made = torch.mul(x, factor[:, None].to(x.dtype), out=out)
    odd = factor < _TINY
    if bool(odd.any()):  # zero * NaN is NaN, and float32 rounds a factor under 1e-38 up, by as much as twice
        precise = (x[odd].double() * factor[odd, None]).to(x.dtype)
        made[odd] = torch.where(finite[odd, None], precise, 0.0)
    return made
