"""Stochastic gradient descent on every client of a chunk at once: one flat `[clients, d]` buffer, no loop over clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hush.core import LocalUpdate, Public, Round, Shard, Trained
from hush.errors import UsageError
from hush.local.flat import FlatModel
from hush.random import fold, words


@dataclass(frozen=True)
class Sgd(LocalUpdate):
    """theta_i <- theta_i - lr_t * v_i with v_i <- momentum * v_i + g_i, v_i = 0 at the start of every round.

    Train for `epochs` passes over the client's own examples, or for exactly `steps` batches. `lr_t = lr * decay^(t // every)`.
    `prox` adds FedProx's term (prox/2) ||theta_i - theta_t||^2 to the loss (Li et al. 2020).
    """

    lr: float = 0.1
    batch_size: int = 10
    epochs: int | None = 1
    steps: int | None = None
    momentum: float = 0.0
    decay: float = 1.0
    every: int = 1
    prox: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UsageError(f"lr must be positive, not {self.lr:g}.")
        if self.batch_size < 1 or self.every < 1:
            raise UsageError("batch_size and lr_decay_every must be at least 1.")
        if (self.epochs is None) == (self.steps is None):
            raise UsageError("Give local_epochs or local_steps, not both and not neither.")
        if (self.epochs or self.steps or 0) < 1:
            raise UsageError("Local training needs at least one epoch or step.")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"momentum must lie in [0, 1), not {self.momentum:g}.")
        if not self.decay > 0 or self.prox < 0:
            raise UsageError("lr_decay must be positive and prox not negative.")

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        lr = self.lr * self.decay ** (rnd.index // self.every)
        batches = self.batches(data, keys)
        local = params.expand(len(data.size), -1).clone()
        velocity = torch.zeros_like(local) if self.momentum else None
        seen = losses = torch.zeros(len(data.size), device=params.device, dtype=params.dtype)
        for step in range(batches.rows.shape[0]):
            rows, live = batches.rows[step], batches.live[step]
            weight = batches.real[step].to(params.dtype)
            gradient, loss = learner.gradients(local, data.x[rows], data.y[rows], weight, fold(keys, step))
            if self.prox:
                gradient += self.prox * (local - params)
            if velocity is not None:
                gradient = velocity.mul_(self.momentum).add_(gradient)
            if batches.ragged:  # a client whose own steps are over stays where it is
                local = torch.where(live[:, None], local - lr * gradient, local)
            else:
                local.sub_(gradient, alpha=lr)
            losses, seen = losses + torch.where(live, loss, 0.0), seen + live
        return Trained(local.neg_().add_(params), losses / seen.clamp_min(1.0))

    def batches(self, data: Shard, keys: Tensor) -> Batches:
        """Which rows each client reads at each step: fresh shuffles of its own examples, from its own key."""
        size = data.size
        largest = int(size.max()) if len(size) else 0
        per_epoch = (size + self.batch_size - 1) // self.batch_size
        steps = per_epoch * self.epochs if self.epochs is not None else (size > 0) * (self.steps or 0)
        count = int(steps.max()) if len(size) else 0
        width = min(self.batch_size, max(largest, 1))

        step = torch.arange(count, device=size.device)[:, None]
        live = step < steps
        epoch = torch.where(live, step // per_epoch.clamp_min(1), 0)
        place = (step % per_epoch.clamp_min(1))[..., None] * self.batch_size + torch.arange(width, device=size.device)
        real = live[..., None] & (place < size[:, None])
        order = self._shuffles(size, keys, int(epoch.max()) + 1 if count else 0, largest)
        rows = order[epoch[..., None], torch.arange(len(size), device=size.device)[:, None], place.clamp_max(max(largest - 1, 0))]
        # a padded row repeats the client's own first example and weighs nothing
        rows = data.start[:, None] + torch.where(real, rows, 0)
        return Batches(rows, real, live, ragged=bool(~live.all()))

    @staticmethod
    def _shuffles(size: Tensor, keys: Tensor, epochs: int, largest: int) -> Tensor:
        """`[epochs, clients, largest]`: a random order of each client's own examples first, padding after."""
        padding = torch.arange(largest, device=size.device) >= size[:, None]
        orders = []
        for epoch in range(epochs):
            score = words(fold(fold(keys, -2), epoch), largest) >> 1
            orders.append(score.masked_fill_(padding, torch.iinfo(torch.int64).max).argsort(dim=1))
        if not orders:
            return torch.zeros(0, len(size), largest, dtype=torch.int64, device=size.device)
        return torch.stack(orders)

    def steps_for(self, size: int) -> int:
        """How many batches a client with `size` examples trains on in a round."""
        if self.epochs is not None:
            return self.epochs * math.ceil(size / self.batch_size)
        return self.steps or 0


class Batches(NamedTuple):
    """A chunk's schedule: `[steps, clients, batch]` rows, which of them are real, and which clients still train at a step."""

    rows: Tensor
    real: Tensor
    live: Tensor
    ragged: bool
