"""Send k of d coordinates: one mask for the whole cohort, so that the sum stays a sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from hush.core import Bound, LocalUpdate, Public, Round, Server, State, Transform, Wire
from hush.errors import UsageError
from hush.random import derive, key_of, words
from hush.secret import Secret
from hush.settings import check_within


def kept(ratio: float, dim: int) -> int:
    """k = ratio * d, at least one."""
    return max(1, round(ratio * dim))


def mask_bits(count: int, dim: int) -> int:
    """Which `count` of `dim` coordinates: the shorter of a bitmap and a list of indices."""
    return min(dim, count * max(1, math.ceil(math.log2(dim))))


@dataclass(frozen=True)
class Share(Transform):
    """k = ratio * d coordinates are sent, whoever chooses them."""

    ratio: float

    def __post_init__(self) -> None:
        check_within("ratio", self.ratio, "(0, 1]", "it is the share of coordinates that are sent")

    def kept(self, dim: int) -> int:
        return kept(self.ratio, dim)

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, entries=self.kept(incoming.entries))

    def answer(self, dim: int) -> int | None:
        """k values and their places."""
        return 32 * self.kept(dim) + mask_bits(self.kept(dim), dim)


@dataclass(frozen=True)
class RandK(Share):
    """k coordinates drawn from `Round.seed`, scaled by d/k so that the decoded update is unbiased: E[decode(encode(x))] = x.

    Both sides derive the mask, so it never travels. The scaling happens before the clip that must follow: privacy does not
    depend on the mask, and by itself sparsification amplifies nothing.
    """

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        dim = x.shape[1]
        return x[:, self.mask(rnd, dim, x.device)] * (dim / self.kept(dim))

    def init(self, dim: int) -> State:
        return {"dim": torch.tensor(dim)}

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        dim = int(state["dim"])
        return spread(total, self.mask(rnd, dim, total.device), dim), state

    def mask(self, rnd: Round, dim: int, device: torch.device) -> Tensor:
        """This round's coordinates, ascending."""
        return _random_coordinates(rnd.seed, self.kept(dim), dim, device)

    def room(self, after: float | None, public: Public) -> float | None:
        """A row whose norm is spread evenly keeps sqrt(k/d) of it and is then scaled by d/k."""
        return None if after is None else after * math.sqrt(self.ratio)

    def bound(self, incoming: Bound) -> Bound:
        return Bound(reason="RandK scales updates by d/k after they were clipped")


@dataclass(frozen=True)
class ToldMask(Share):
    """k coordinates that the server chooses in `prepare` and tells the cohort, once a round; no scaling."""

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        chosen, told = x[:, public], torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        told[public] = True
        if int(told.sum()) != chosen.shape[1]:  # sent twice, it would weigh more than the clip allowed
            raise UsageError(f"{type(self).__name__} told the clients a coordinate twice: choose each once.")
        return chosen

    def broadcast(self, dim: int) -> int:
        return mask_bits(self.kept(dim), dim)

    def bound(self, incoming: Bound) -> Bound:
        return incoming


@dataclass(frozen=True)
class TopK(ToldMask):
    """The k coordinates that moved most when the server trained the same way on public data; no scaling.

    The mask depends on public examples alone, which are held by no client, so it costs no privacy. It travels down once a
    round. `training` is the clients' own local update, for as many steps or epochs as its settings say.
    """

    training: LocalUpdate

    @property
    def needs_public(self) -> bool:
        return True

    def init(self, dim: int) -> State:
        return {"dim": torch.tensor(dim)}

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Tensor:
        if server.public is None:
            raise UsageError("Top-k takes its mask from public examples and the task has none.")
        keys = key_of(derive(rnd.seed, 1), params.device)
        # the server trains the plain model: nothing of the pipeline has been prepared yet
        update = self.training(server.learner, params, server.public, rnd, keys, None).updates[0]
        return update.abs().topk(self.kept(update.numel())).indices.sort().values

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return spread(total, public, int(state["dim"])), state


def spread(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """A dense vector that holds `values` at `mask` and zero elsewhere."""
    return values.new_zeros(dim).index_copy_(0, mask, values)


@lru_cache(maxsize=4)
def _random_coordinates(seed: int, count: int, dim: int, device: torch.device) -> Tensor:
    """A uniform `count`-subset of range(dim): the places of the smallest of `dim` random words. Equal on every device."""
    return words(key_of(derive(seed, dim, count), device), dim)[0].topk(count, largest=False).indices.sort().values
