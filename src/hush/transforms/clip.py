"""Bound what one client can add to the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, Transform
from hush.errors import UsageError

_MARGIN = 1.0 - 2.0**-20
"""Rounding must not carry a clipped row past C: float32 norms of a million entries err by about 1e-7."""


@dataclass(frozen=True)
class Clip(Transform):
    """x * min(1, C / ||x||_2) for each client; a row with NaN or infinity contributes zero."""

    norm: float

    def __post_init__(self) -> None:
        if not (0 < self.norm < math.inf):
            raise UsageError(f"clip must be a positive number, not {self.norm:g}.")

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        if x.dtype in (torch.float16, torch.bfloat16):  # too coarse to hold a bound
            x = x.float()
        norms = l2(x)
        finite = torch.isfinite(norms)
        scale = torch.where(finite, (self.norm * _MARGIN / norms.clamp_min(1e-300)).clamp_max(1.0), 0.0)
        # zero * NaN is NaN, so rows that are not finite are replaced, not scaled
        return torch.where(finite[:, None], x, 0.0) * scale[:, None].to(x.dtype)

    def room(self, after: float | None, public: Public) -> float | None:
        return self.norm if after is None else min(self.norm, after)

    def bound(self, incoming: Bound) -> Bound:
        return Bound(self.norm if incoming.unproved else min(self.norm, incoming.l2))


def l2(x: Tensor) -> Tensor:
    """Row norms, accumulated in float64: a norm is what privacy rests on. NaN or infinite where the row is."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return norms
