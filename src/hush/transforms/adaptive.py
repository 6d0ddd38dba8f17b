"""Clips that change from round to round: they follow the clients' norms, by one noisy bit each (Andrew, Thakkar, McMahan, Ramaswamy
2021), or what was already released."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, Server, State, Transform, Wire
from hush.errors import UsageError
from hush.rows import l2, wide
from hush.secret import Secret
from hush.settings import check_within
from hush.transforms.clip import LEAST, check_clip, shortened

_SEEN = 2.0
"""Standard deviations by which a sum must be longer than its noise alone would be, to say anything about updates."""


@dataclass(frozen=True)
class MovingClip(Transform):
    """A clip that the server keeps, changes from round to round, and tells the cohort; rows are sent in units of it."""

    start: float = 1.0

    def __post_init__(self) -> None:
        check_clip(self.start)

    def init(self, dim: int) -> State:
        return {"clip": torch.tensor(self.start, dtype=torch.float64)}

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> float:
        return float(state["clip"])

    def broadcast(self, dim: int) -> int:
        return 64

    def room(self, after: float | None, public: Public) -> float | None:
        return self.start if public is None else float(public)


@dataclass(frozen=True)
class AdaptiveClip(MovingClip):
    """C <- C exp(-lr (b - quantile)), where b is the noisy share of clients whose norm was at most C.

    A client sends its update clipped to C, in units of C, and one entry more: weight * (1/2 if its norm was at most C, else -1/2).
    Both stand under the same noise, as one vector of norm at most sqrt(1 + weight^2/4), whatever C is: the bound is static and
    the bit is paid for. The next C is a function of noised sums alone.
    """

    quantile: float = 0.5
    lr: float = 0.2
    weight: float = 0.2
    tolerance: float = 0.0
    """By which share clipping may shorten an update that still counts as inside: its norm is at most C / (1 - tolerance)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("clip_quantile", self.quantile, "(0, 1)")
        check_within("The tolerance", self.tolerance, "[0, 1)", "clipping never takes a whole update")
        if not (0 < self.lr <= 2 and 0 < self.weight <= 2):
            raise UsageError("clip_lr and the bit's weight must lie in (0, 2].")

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        x = wide(x)
        norms = l2(x)
        inside = (norms <= public / (1 - self.tolerance)).to(x.dtype) - 0.5
        made = x.new_empty(len(x), x.shape[1] + 1)
        # a row and its bit are bounded together: what rounding could add to the bit is taken off it too
        made[:, -1] = torch.where(torch.isfinite(norms), self.weight * inside, 0.0) * (1.0 - 2.0**-20)
        shortened(x, norms, public, unit=public, out=made[:, :-1])
        return made

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        clip = state["clip"]
        share = total[-1].double().cpu() / (self.weight * rnd.cohort) + 0.5
        following = clip * torch.exp(-self.lr * (share.clamp(0.0, 1.0) - self.quantile))
        return total[:-1] * float(clip), {"clip": following.clamp(LEAST, 1e9)}

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, entries=incoming.entries + 1)

    def bound(self, incoming: Bound) -> Bound:
        return Bound(math.sqrt(1.0 + self.weight**2 / 4), bit=self.weight)


@dataclass(frozen=True)
class HistoryClip(MovingClip):
    """C <- memory C + (1 - memory) factor ||average||, between `least` and 1 times the start, where the average is known to be
    more than noise; its norm is taken without the noise's share: ||sum||^2 - d std^2.

    Clients send updates in units of C, clipped to 1, so that the bound is static and the noise shrinks with C. C follows the norm
    of past noised averages: post-processing, so it costs nothing.
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
