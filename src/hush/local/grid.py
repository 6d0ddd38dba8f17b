"""A record's gradient as whole numbers: clipped, scaled and rounded by itself, so that exact noise can cover the sum of many.

The sum of a batch is then a sum of whole numbers, which is exact in any order, and one record more changes it by that record's row.
The row's norm was checked in whole numbers: no rounding of floats is left for a proof to bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Round
from hush.errors import UsageError
from hush.exact_noise import LARGEST_STD
from hush.local.per_example import ClipRule, L2Clip
from hush.rows import wide
from hush.transforms.clip import Clip
from hush.transforms.discretize import Discretize

_BITS, _FEWEST = 20, 16
_RND = Round(0, 0, 1.0)  # neither the clip nor rounding to the nearest looks at it


class Grid(ABC):
    """Rows of so many entries in whole numbers."""

    @property
    @abstractmethod
    def radius(self) -> int:
        """The L2 norm that no row exceeds, in whole numbers."""

    @property
    @abstractmethod
    def step(self) -> float:
        """What one whole number stands for."""

    @abstractmethod
    def encode(self, rows: Tensor) -> Tensor:
        """`[rows, entries]` gradients to int64, row by row; a row that is not finite is zero."""


@dataclass(frozen=True)
class Ball(Grid):
    """Clipped to an L2 norm."""

    clip: Clip
    rounding: Discretize
    entries: int

    @property
    def radius(self) -> int:
        return self.rounding.radius

    @property
    def step(self) -> float:
        return self.rounding.step(self.entries)

    def encode(self, rows: Tensor) -> Tensor:
        own = torch.empty(0)
        return self.rounding.encode(self.clip.encode(rows, _RND, own, None), _RND, own, None)


@dataclass(frozen=True)
class Box(Grid):
    """Every coordinate clamped to `most`, which is `highest` in whole numbers."""

    most: float
    highest: int
    entries: int

    @property
    def radius(self) -> int:
        return math.isqrt(self.entries * self.highest**2 - 1) + 1  # the root, rounded up

    @property
    def step(self) -> float:
        return self.most / self.highest

    def encode(self, rows: Tensor) -> Tensor:
        rows = wide(rows) * (1.0 / self.step)
        broken = ~torch.isfinite(rows).all(1)
        return rows.clamp_(-self.highest, self.highest).round_().masked_fill_(broken[:, None], 0.0).long()


def grid_of(clip: ClipRule, entries: int, noise: float) -> Grid:
    """The finest grid on which neither norms nor the noise are too large to be drawn."""
    fits = (b for b in range(_BITS, _FEWEST - 1, -1) if entries * 4**b < 2**62 and noise * (2**b + 1) <= LARGEST_STD)
    bits = next(fits, None)
    if bits is None:
        raise UsageError(
            f"{entries:,} entries under {noise:g} times the clip as noise fit no grid of whole numbers: ask for less noise, or "
            "--noise-mode fast."
        )
    if isinstance(clip, L2Clip):
        return Ball(Clip(clip.norm), Discretize(bits, clip.norm, nearest=True), entries)
    return Box(clip.most, max(1, int(2**bits / math.sqrt(entries))), entries)
