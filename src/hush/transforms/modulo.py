"""Whole numbers in so many bits: sums wrap around, as they do in the group that a secure sum works in."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform, Wire
from hush.errors import UsageError
from hush.secret import Secret

_TAILS = 6.0
"""Standard deviations of the noise that must fit: it goes beyond them once in 500 million entries."""


@dataclass(frozen=True)
class Modulo(Transform):
    """Entries and their sums modulo 2^bits, as the representative in [-2^(bits-1), 2^(bits-1)).

    It follows `Discretize` and comes before the noise, which is added in the same group. A representative is no longer than the
    number itself, so the bound holds; and a wrapped sum is a function of the whole one: privacy is the same, also where it wraps.
    """

    bits: int = 16

    def __post_init__(self) -> None:
        if not 4 <= self.bits <= 48 or self.bits != int(self.bits):
            raise UsageError(f"bits must be a whole number from 4 to 48, not {self.bits}.")

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        if x.is_floating_point():
            raise UsageError("Modulo is for whole numbers: put Discretize() before it.")
        return self.wrapped(x)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        out = self.wrapped(total)
        if float((out != total).double().mean()) > 1e-3:  # which only a plain sum can show: a secure one is wrapped already
            warnings.warn(f"Sums do not fit into {self.bits} bits and wrapped around: raise bits.", stacklevel=2)
        return out, state

    def wrapped(self, x: Tensor) -> Tensor:
        """The representative of x."""
        half = 1 << (self.bits - 1)
        return (x + half).remainder(2 * half) - half

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, bits=self.bits, integer=True)

    def bound(self, incoming: Bound) -> Bound:
        return incoming


def grid_bits(bits: int, multiplier: float | None, rows: int = 0) -> int:
    """How fine a grid a modulus has room for: the largest 2^b such that `rows` of norm 2^b under noise of so many norms fit.

    `rows=0`: a rotation has spread the clients' rows so thin that their sum hardly counts beside the noise.
    """
    room = _taken(multiplier, rows)
    if not 5 <= bits - room <= 21:
        what = "bits" if not rows else "The bits of a secure sum (--sum-bits, or --set bits)"
        who = "it takes" if not rows else "noise and clients take"
        raise UsageError(f"{what} must lie between {5 + room} and {21 + room} at this noise, not {bits}: {who} {room} of them.")
    return bits - 1 - room


def finest(multiplier: float | None, rows: int) -> int:
    """The most bits that serve: beyond them the grid gets no finer."""
    return 21 + _taken(multiplier, rows)


def _taken(multiplier: float | None, rows: int) -> int:
    """Bits that rows and noise take beside the grid's own."""
    return math.ceil(math.log2(rows + _TAILS * max(multiplier if multiplier is not None else 1.0, 1.0)))
