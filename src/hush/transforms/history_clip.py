"""A clip that follows what was already released: the norm of past noised averages. Post-processing, so it costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, State
from hush.errors import UsageError
from hush.rows import l2
from hush.secret import Secret
from hush.transforms.clip import LEAST, MovingClip, shortened

_SEEN = 2.0
"""Standard deviations by which a sum must be longer than its noise alone would be, to say anything about updates."""


@dataclass(frozen=True)
class HistoryClip(MovingClip):
    """C <- memory C + (1 - memory) factor ||average||, between `least` and 1 times the start, where the average is known to be
    more than noise; its norm is taken without the noise's share: ||sum||^2 - d std^2.

    Clients send updates in units of C, clipped to 1, so that the bound is static and the noise shrinks with C.
    """

    factor: float = 3.0
    memory: float = 0.9
    least: float = 0.01
    std: float = 0.0
    """Of the noise, in units of C: told by `covered`."""
    messages: bool = False
    """Every message has such noise, not the sum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.factor < math.inf and 0 <= self.memory < 1 and 0 < self.least <= 1):
            raise UsageError("factor must be positive, memory in [0, 1) and least in (0, 1].")

    def covered(self, multiplier: float) -> HistoryClip:
        return replace(self, std=multiplier)

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return shortened(x, l2(x), public, unit=public)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        clip, entries = float(state["clip"]), total.numel()
        variance = self.std**2 * (rnd.cohort if self.messages else 1.0)
        signal = float(total.double().square().sum()) - entries * variance
        if signal > _SEEN * math.sqrt(2 * entries) * variance:
            reached = self.factor * clip * math.sqrt(signal) / rnd.cohort
            clip = self.memory * clip + (1 - self.memory) * reached
        clip = min(max(clip, self.least * self.start, LEAST), self.start)
        return total * float(state["clip"]), {"clip": torch.tensor(clip, dtype=torch.float64)}

    def bound(self, incoming: Bound) -> Bound:
        return Bound(1.0)
