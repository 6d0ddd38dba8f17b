"""From clipped floats to integers, with the norm enforced in integers: what exact noise and secure sums need."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform, Wire
from hush.errors import UsageError
from hush.random import fold, uniform
from hush.rows import wide
from hush.secret import Secret
from hush.transforms.clip import scale_after
from hush.transforms.modulo import grid_bits

_ROUNDING = 0x67726964
"""The word of the rounding's stream, apart from what else a client draws from its key."""
_TRIES = 8
"""Each fails with a chance of about one in a thousand, where the row is as long as may be."""


@dataclass(frozen=True)
class Discretize(Transform):
    """Scale a row of norm <= C to the integer ball of radius R = 2^bits, round each entry up or down at random, and check.

    Rounding is unbiased and lengthens a row: |z|^2 has mean at most |y|^2 + d/4 and a standard deviation of about R. So rows are
    scaled to sqrt(R^2 - d/4 - 8R). A row for which z.z <= R^2, computed in integers, fails all the same is drawn again (conditional
    rounding: Kairouz, Liu, Steinke 2021), and at last rounded towards zero, which never lengthens. R is then the sensitivity,
    exactly: no float took part in the comparison, and none of their bounds on it is needed. (`nearest` lengthens a row by at most
    sqrt(d)/2, so rows are scaled to R - sqrt(d)/2 - 1; the same check holds them to R.)
    """

    bits: int = 18
    norm: float | None = None
    modulus: int | None = None
    """Bits of the group that sums and noise must fit into (`Modulo`): `bits` then follows the noise."""
    rows: int = 0
    """How many clients' rows must fit into it beside the noise, whatever they are; 0: a rotation has spread them."""
    spread: bool = False
    """A rotation comes before: of `rows` that are all alike, an entry then gets what six standard deviations of chance leave it."""
    louder: float = 1.0
    """How much stronger than it must be the noise may get, where it comes in shares."""
    nearest: bool = False
    """Round to the nearest integer, without coins: for single records on a fine grid, where drawing them would take longest."""

    def __post_init__(self) -> None:
        if not 4 <= self.bits <= 20:
            raise UsageError(f"bits must lie between 4 and 20, not {self.bits}.")

    def after(self, incoming: Bound) -> Transform:
        return replace(self, norm=scale_after(incoming, "Discretize"))

    @property
    def radius(self) -> int:
        return int(2**self.bits)

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        if self.nearest:
            return self._to_nearest(x)
        y = self._scaled(x)
        low, rounded = y.floor(), torch.zeros_like(y, dtype=torch.int64)
        left = torch.arange(len(y), device=y.device)
        for again in range(_TRIES):
            coins = uniform(fold(keys[left], _ROUNDING + again), (x.shape[1],)).double()
            drawn = (low[left] + (coins < y[left] - low[left])).long()
            fits = self._fits(drawn)[:, 0]
            rounded[left[fits]] = drawn[fits]
            left = left[~fits]
            if not len(left):
                return rounded
        rounded[left] = self._towards_zero(y[left])
        return rounded

    def _scaled(self, x: Tensor) -> Tensor:
        y = x.double() * self._scale(x.shape[1])
        return torch.where(torch.isfinite(y).all(1, keepdim=True), y, 0.0).clamp(-self.radius, self.radius)

    def _to_nearest(self, x: Tensor) -> Tensor:
        """In float32 where rows are: it holds all whole numbers up to the radius. What does not fit is done again, towards zero."""
        y = wide(x) * self._scale(x.shape[1])
        broken = ~torch.isfinite(y.sum(1))
        rounded = y.clamp_(-self.radius, self.radius).round_().long()
        again = ~self._fits(rounded)[:, 0] | broken
        if bool(again.any()):
            rounded[again] = self._towards_zero(self._scaled(x[again]))
        return rounded

    def _towards_zero(self, y: Tensor) -> Tensor:
        shorter = y.trunc().long()
        return torch.where(self._fits(shorter), shorter, 0)

    def sized(self, dim: int) -> Transform:
        if not self.spread:
            return self
        return replace(self, rows=min(self.rows, math.ceil(6 * self.rows / math.sqrt(dim))), spread=False)

    def covered(self, multiplier: float) -> Transform:
        if self.modulus is None:
            return self
        rows = 0 if self.spread else self.rows  # how thin they are spread is not known yet
        return replace(self, bits=grid_bits(self.modulus, multiplier * self.louder, rows))

    def step(self, entries: int) -> float:
        """What one whole number stands for."""
        return 1.0 / self._scale(entries)

    def check(self, entries: int) -> None:
        """Refuse rows of so many entries that no grid of these bits can hold."""
        self._scale(entries)

    def _fits(self, rows: Tensor) -> Tensor:
        """z.z <= R^2, in integers; `_scale` has made sure that they cannot overflow."""
        return (rows * rows).sum(1, keepdim=True) <= self.radius**2

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total.double() / self._scale(total.numel()), state

    def _scale(self, entries: int) -> float:
        if self.norm is None:
            raise UsageError("Discretize stands outside a chain, so it does not know the clip: build the pipeline with chain(...).")
        room = self._room(self.radius, entries)
        if room < self.radius / math.sqrt(2):
            left = "" if self.modulus is None else f", which is what noise leaves of {self.modulus}"
            enough = next(b for b in range(self.bits + 1, 64) if self._room(2**b, entries) >= 2**b / math.sqrt(2))
            name = "--sum-bits" if self.rows else "bits"
            enough += 0 if self.modulus is None else self.modulus - self.bits
            raise UsageError(f"{entries:,} entries do not fit a grid of {self.bits} bits{left}: raise {name} to {enough}.")
        if entries * self.radius**2 >= 2**62:
            raise UsageError(f"{entries:,} entries of {self.bits} bits overflow 64: lower {'--sum-bits' if self.rows else 'bits'}.")
        return room / self.norm

    def _room(self, radius: int, entries: int) -> float:
        """The norm that a row may have so that rounding hardly ever carries it past the radius; 0 where there is none."""
        if self.nearest:
            return max(0.0, radius - math.sqrt(entries) / 2 - 1)
        return math.sqrt(max(0.0, radius**2 - entries / 4 - 8 * radius))

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, integer=True)

    def bound(self, incoming: Bound) -> Bound:
        if not math.isfinite(incoming.l2):
            return incoming
        return Bound(float(self.radius), bit=incoming.bit / incoming.l2 * self.radius, integer=True)
