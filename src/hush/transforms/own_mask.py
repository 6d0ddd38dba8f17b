"""Send k of d coordinates, each client its own: a random mask that the server derives as well, so that it never travels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, Server, State, Wire
from hush.random import fold, words
from hush.transforms.sparsify import Share

_MASK = 0x6D61736B
_AT_ONCE = 1 << 24
"""Words drawn at a time."""


@dataclass(frozen=True)
class OwnRandK(Share):
    """k coordinates of each client, drawn anew every round from its public key; only their values are sent.

    No scaling: local training that keeps to the mask scales by 1/p itself. Masks differ, so the server lays messages out before it
    adds them up: it sees each of them, and a secure sum of k entries is not possible.
    """

    def places(self, keys: Tensor, dim: int) -> Tensor:
        """`[clients, k]`: each client's coordinates of this round, ascending."""
        some = max(1, _AT_ONCE // max(1, dim))
        drawn = [words(part, dim).topk(self.kept(dim), largest=False).indices for part in torch.split(fold(keys, _MASK), some)]
        return torch.cat(drawn).sort(dim=1).values

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return x.gather(1, self.places(keys, x.shape[1])) if self.ratio < 1 else x

    def unpack(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        if self.ratio == 1:
            return x
        dim = int(public)
        return x.new_zeros(len(x), dim).scatter_(1, self.places(keys, dim), x)

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> int:
        return params.numel()

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, entries=self.kept(incoming.entries), opened=incoming.entries)

    def answer(self, dim: int) -> None:
        """Each client's coordinates are others."""

    def bound(self, incoming: Bound) -> Bound:
        return incoming  # fewer entries are never longer
