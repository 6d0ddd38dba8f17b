"""LUS: keep the coordinates of an update that the client's loss depends on most, layer by layer (Cheng et al. 2022, section 4.2).

    T = |dL/dw * (w_0 - w)|,   the s_j = (1 - c) d_j largest of every layer j stay and the others become zero

The gradient is taken at the end of local training, over all of the client's examples. Which coordinates stay is as private as the
update itself: it is decided inside the function that the clip bounds, so noise must cover *every* coordinate, and all travel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Public, Round, Shard, Trained
from hush.local.around import Around
from hush.local.flat import FlatModel
from hush.random import fold
from hush.settings import check_within

_KEYS = -3
"""The word of the dropout's keys in the gradient at the end, apart from those of the steps."""


@dataclass(frozen=True)
class Saliency(Around):
    """`local`, and then all but a share `1 - sparsity` of every layer's coordinates set to zero."""

    sparsity: float = 0.7

    def __post_init__(self) -> None:
        check_within("sparsity", self.sparsity, "[0, 1)", "it is the share of coordinates set to zero")

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        trained = self.local(learner, params, data, rnd, keys, public)
        if self.sparsity == 0:
            return trained
        gradient = gradient_over_all(learner, params - trained.updates, data, fold(keys, _KEYS), self.batch_size)
        kept = most_salient(gradient * trained.updates, learner.layers, self.sparsity)
        return trained._replace(updates=torch.where(kept, trained.updates, 0.0))


def gradient_over_all(learner: FlatModel, weights: Tensor, data: Shard, keys: Tensor, batch: int) -> Tensor:
    """`[clients, d]`: the gradient of each client's mean loss over all its examples, at its own weights."""
    total, column = torch.zeros_like(weights), torch.arange(batch, device=data.size.device)
    start = data.start.clamp_max(max(len(data.x) - 1, 0))  # of a client without examples, which reads nothing
    for first in range(0, max(data.size.tolist(), default=0), batch):
        real = first + column < data.size[:, None]
        some = torch.nonzero(real.any(1) | data.slots).flatten()
        rows = start[some, None] + torch.where(real[some], first + column, 0)
        weight = real[some].to(weights.dtype)
        gradient, _ = learner.gradients(weights[some], data.x[rows], data.y[rows], weight, fold(keys[some], first))
        counted = weight.sum(1, keepdim=True)
        total.index_add_(0, some, (gradient * counted).masked_fill_(counted == 0, 0.0))
    return total / data.size[:, None].clamp_min(1)


def most_salient(scores: Tensor, layers: list[slice], sparsity: float) -> Tensor:
    """`[clients, d]`: whether a coordinate is among the (1 - sparsity) d_j of its layer whose scores are largest in size.

    At least one of every layer; among equals, any of them, but never more.
    """
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for layer in layers:
        size = layer.stop - layer.start
        most = max(1, round((1 - sparsity) * size))
        # NaN is largest for topk, on every device: a client that diverged keeps its NaN, and the clip drops the row
        kept[:, layer].scatter_(1, scores[:, layer].abs().topk(most).indices, True)
    return kept
