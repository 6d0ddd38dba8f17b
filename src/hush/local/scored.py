"""Clients judge the model that they were sent, on examples that they do not train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Public, Round, Shard, Trained
from hush.errors import UsageError
from hush.local.around import Around
from hush.local.flat import FlatModel


@dataclass(frozen=True)
class Scored(Around):
    """The last tenth of a client's examples is kept apart; `Trained.scores` is the share of it that the model gets right.

    Client by client, so that a score is the same whoever is beside it; zero for a client that keeps nothing apart.
    """

    def _kept(self, sizes: Tensor) -> Tensor:
        """How many examples are kept apart: a tenth, and at least one of two or more."""
        return torch.where(sizes > 1, (sizes // 10).clamp_min(1), 0)

    def size_class(self, sizes: Tensor) -> Tensor:
        return self.local.size_class(sizes - self._kept(sizes))

    def steps_of(self, sizes: Tensor) -> Tensor:
        return self.local.steps_of(sizes - self._kept(sizes))

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        kept = self._kept(data.size)
        trained = self.local(learner, params, data._replace(size=data.size - kept), rnd, keys, public)
        scores = params.new_zeros(len(data.size))
        for i, (first, count) in enumerate(zip((data.start + data.size - kept).tolist(), kept.tolist(), strict=True)):
            if count:
                rows = slice(first, first + count)
                correct = learner.scores(params, data.x[rows].clone(), data.y[rows].clone()).correct
                if correct is None:
                    raise UsageError("score is the share of right answers, and these targets are no classes: leave it out.")
                scores[i] = correct.mean()
        return trained._replace(scores=scores)
