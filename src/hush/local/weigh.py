"""Clients count by how much data they hold, up to a cap: FedAvg's n_i/n, bounded, so that a bound on the update still holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Public, Round, Shard, Trained
from hush.errors import UsageError
from hush.local.around import Around
from hush.local.flat import FlatModel


@dataclass(frozen=True)
class Weigh(Around):
    """clip_S(update) * min(n_i, cap)/cap, with S the clip that follows: it then finds nothing left to clip.

    The weight lies in [0, 1] and inside of the function that the clip bounds, so the sensitivity is the clip, as without it.
    Weights without a cap, or divided by what the cohort holds together, have no such bound.
    """

    cap: int

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise UsageError(f"weight_cap must be a whole number of examples, at least 1, not {self.cap:g}.")

    @property
    def needs_room(self) -> bool:
        return True

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        trained = self.local(learner, params, data, rnd, keys, public)
        weights = data.size.clamp_max(self.cap).to(params.dtype) / self.cap
        if rnd.room is not None:
            norms = torch.linalg.vector_norm(trained.updates, dim=1)
            weights = weights * (rnd.room / norms.clamp_min(rnd.room))
        return trained._replace(updates=trained.updates * weights[:, None])
