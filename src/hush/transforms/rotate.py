"""A random rotation that both sides know: it spreads what a few entries hold over all of them, before they are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform, Wire
from hush.random import derive, key_of, words
from hush.secret import Secret

_SIGNS = 0x726F7461
"""The word of the signs' stream, apart from what else a round draws from its seed."""
_MARGIN = 1.0 - 2.0**-30
"""Rounding must not lengthen a row, nor the gap between two: in float64 the transform errs by less than 2^-46 of a row's norm,
which this covers also where two rows differ in one of 2^15 records alone."""


@dataclass(frozen=True)
class Rotate(Transform):
    """H D x / sqrt(n): signs D from `Round.seed`, fresh every round and public, then the Walsh-Hadamard transform.

    Rows are padded with zeros to n, a power of two. It is an isometry, so every bound and every distance holds after it as before
    it; no entry of a rotated row exceeds norm * sqrt(2 log(2n/b) / n) but with probability b, whatever the row was. Computed and
    left in float64, on any device: integers are what usually follows.
    """

    def init(self, dim: int) -> State:
        return {"dim": torch.tensor(dim)}

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        size = padded(x.shape[1])
        signed = torch.nn.functional.pad(x.double(), (0, size - x.shape[1])) * _signs(rnd.seed, size, x.device)
        return walsh_hadamard(signed) * (_MARGIN / math.sqrt(size))

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        size = total.numel()
        back = walsh_hadamard(total.double()[None])[0] * _signs(rnd.seed, size, total.device)
        return back[: int(state["dim"])] / (_MARGIN * math.sqrt(size)), state

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, entries=padded(incoming.entries))

    def bound(self, incoming: Bound) -> Bound:
        return replace(incoming, integer=False)


def padded(dim: int) -> int:
    """The smallest power of two that holds `dim` entries."""
    return 1 << max(0, dim - 1).bit_length()


def walsh_hadamard(x: Tensor) -> Tensor:
    """H x for each row, where H has entries of +-1 and H H = n: log2(n) sums and differences of halves."""
    rows, size = x.shape
    half = 1
    while half < size:
        low, high = x.reshape(rows, size // (2 * half), 2, half).unbind(2)
        x = torch.stack((low + high, low - high), dim=2)
        half *= 2
    return x.reshape(rows, size)


@lru_cache(maxsize=4)
def _signs(seed: int, size: int, device: torch.device) -> Tensor:
    """+-1 by fair coins: the sign bits of random words. Equal on every device."""
    return torch.where(words(key_of(derive(seed, _SIGNS, size), device), size)[0] < 0, -1.0, 1.0).double()
