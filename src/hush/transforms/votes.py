"""Clients vote on the classes of public examples, and the server learns from the noised counts: AE-DPFL's half of a round.

What a client can change is bounded by the votes themselves, so that nothing is clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hush.core import Bound, LocalUpdate, Public, Round, Server, Shard, State, Transform, Wire
from hush.errors import UsageError
from hush.local.flat import FlatModel
from hush.random import derive, key_of, words
from hush.secret import Secret
from hush.settings import check_within

_ASKED, _TRAINED = 0x61736B65, 0x766F7465
"""The words of two streams, apart from what else is drawn from a seed: which examples are asked about, and the training."""


class Ballot(NamedTuple):
    """What a round asks: the model that everybody starts from, and the public examples, without their labels."""

    learner: FlatModel
    params: Tensor
    x: Tensor


@dataclass(frozen=True)
class Votes(Transform):
    """From clients' updates to their votes, and from the noised counts of votes to the server's update.

    A client's model, theta - x_i, votes for one class of each of Q public examples: Q one-hot rows. Its message has the L2 norm
    sqrt(Q), exactly and whatever it trained on; a model that returns NaN or infinity votes for nothing. So sqrt(Q) is the
    sensitivity where a client is added, removed or zeroed out. Where its data are replaced, Q votes move by sqrt(2) each, by
    sqrt(2 Q) in all, and the 2 sqrt(Q) that is stated, as for any message of this norm, is safe.

    The server's `training` sees the noised counts alone: all of `decode` is post-processing and free, also that it learns less from
    an example whose counts are close, and remembers those of former rounds (`memory` is what the last one weighs against this one).
    Answering only where the majority is large, before the noise, is not offered: what that costs depends on the data, and no
    accounting of ours covers it.

    `queries` is the most examples that are asked about: `fitted` lowers it to as many as there are.
    """

    training: LocalUpdate
    queries: int = 2000
    classes: int = 10
    memory: float = 0.8
    bits_per_query: int = 0
    """What one public example costs on the way down, every round; zero: they lie on the devices already."""

    def __post_init__(self) -> None:
        if self.queries < 1 or self.bits_per_query < 0:
            raise UsageError("queries must be at least 1, and bits_per_query at least 0.")
        check_within("memory", self.memory, "[0, 1)")

    @property
    def needs_public(self) -> bool:
        return True

    @property
    def clients_need_public(self) -> bool:
        return True

    def fitted(self, public: int, classes: int) -> Votes:
        return replace(self, queries=max(1, min(self.queries, public)), classes=classes)

    def init(self, dim: int) -> State:
        return {
            "counts": torch.zeros(self.queries, self.classes, dtype=torch.float64),
            "weight": torch.zeros((), dtype=torch.float64),
        }

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Ballot:
        x = params.new_zeros(0) if server.public is None else server.public.x  # never their labels
        if len(x) < self.queries:
            raise UsageError(
                f"Clients vote on {self.queries:,} public examples, and the task has {len(x):,}: give more, or ask less."
            )
        if len(x) > self.queries:  # the same ones in every round, so that their counts add up
            x = x[words(key_of(_ASKED, x.device), len(x))[0].topk(self.queries).indices.sort().values]
        _refuse_no_classifier(server.learner, server.learner.predictions(params[None], x[:1])[0], self.classes)
        return Ballot(server.learner, params, x)

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        learner, params, asked = public
        answers = learner.predictions((params - x).to(params.dtype), asked)
        votes = F.one_hot(answers.argmax(2), self.classes).to(x.dtype).flatten(1)
        return torch.where(torch.isfinite(answers).flatten(1).all(1, keepdim=True), votes, 0.0)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        counts = self.memory * state["counts"].to(total.device) + total.double().reshape(self.queries, self.classes)
        weight = self.memory * state["weight"] + 1.0
        shares = nearest_shares(counts / (float(weight) * rnd.cohort))
        learner, params, asked = public
        keys = key_of(derive(rnd.seed, _TRAINED), params.device)
        data = Shard(asked, shares.to(params.dtype), torch.zeros_like(keys), torch.full_like(keys, len(asked)))
        update = self.training(learner, params, data, rnd, keys, None).updates[0]
        return update * rnd.cohort, {"counts": counts, "weight": weight}  # `Method.finish` divides by the cohort

    def wire(self, incoming: Wire) -> Wire:
        return Wire(self.queries * self.classes)

    def broadcast(self, dim: int) -> int:
        return self.queries * self.bits_per_query

    def bound(self, incoming: Bound) -> Bound:
        return Bound(math.sqrt(self.queries))

    def room(self, after: float | None, public: Public) -> float | None:
        return None  # no update is too long to vote


def nearest_shares(x: Tensor) -> Tensor:
    """Every row's nearest point among shares, which are not negative and add up to 1: the likeliest under Gaussian noise.

    max(x - t, 0) with the t for which it adds up (Held, Wolfe, Crowder 1974): what noise alone made of a class vanishes.
    """
    high = x.sort(1, descending=True).values
    t = (high.cumsum(1) - 1) / torch.arange(1, x.shape[1] + 1, device=x.device)
    last = (high > t).sum(1, keepdim=True) - 1
    return (x - t.gather(1, last)).clamp_min(0)


def _refuse_no_classifier(learner: FlatModel, answers: Tensor, classes: int) -> None:
    """Votes are for one class of an example, and the server learns shares of votes."""
    if answers.shape != (1, classes) or classes < 2:
        raise UsageError(
            f"Clients vote for one of {classes} classes, and the model answers an example with {tuple(answers.shape[1:])} values: "
            "voting takes a classifier."
        )
    try:
        learner.per_example(answers, torch.full_like(answers, 1 / classes))
    except Exception as error:
        raise UsageError("The server learns from shares of votes, which this loss does not take: use cross-entropy.") from error
