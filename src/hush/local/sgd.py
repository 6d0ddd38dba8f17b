"""Stochastic gradient descent on every client of a chunk at once: one flat `[clients, d]` buffer, no loop over clients."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
        some = data.size > 0
        if len(some) == 0 or not bool(some.all()):  # a client without examples has nothing to say
            own = Shard(data.x, data.y, data.start[some], data.size[some])
            updates, losses = params.new_zeros(len(some), len(params)), params.new_zeros(len(some))
            if bool(some.any()):
                updates[some], losses[some] = self(learner, params, own, rnd, keys[some], public)
            return Trained(updates, losses)
        lr = self.lr * self.decay ** (rnd.index // self.every)
        local = params.expand(len(data.size), -1).clone()
        velocity = torch.zeros_like(local) if self.momentum else None
        seen = losses = params.new_zeros(len(data.size))
        for step, batch in enumerate(self.schedule(data, keys)):
            weight = batch.real.to(params.dtype)
            gradient, loss = learner.gradients(local, data.x[batch.rows], data.y[batch.rows], weight, fold(keys, step))
            if self.prox:
                gradient += self.prox * (local - params)
            if velocity is not None:
                gradient = velocity.mul_(self.momentum).add_(gradient)
            if batch.all_live:
                local.sub_(gradient, alpha=lr)
            else:  # a client whose own steps are over stays where it is
                local = torch.where(batch.live[:, None], local - lr * gradient, local)
            losses, seen = losses + torch.where(batch.live, loss, 0.0), seen + batch.live
        return Trained(local.neg_().add_(params), losses / seen.clamp_min(1.0))

    def schedule(self, data: Shard, keys: Tensor) -> Iterator[Batch]:
        """What each client reads at each step: fresh shuffles of its own examples, from its own key.

        One order a client is held at a time, and drawn anew when that client begins its next epoch.
        """
        device = data.size.device
        size = data.size.cpu()  # a few numbers: who reads what is decided on the host and sent to the device at once
        per_epoch = (size + self.batch_size - 1) // self.batch_size
        steps = per_epoch * self.epochs if self.epochs is not None else torch.full_like(size, self.steps or 0)
        step = torch.arange(int(steps.max()))[:, None]
        live, within = step < steps, step % per_epoch
        begins, epochs = live & (within == 0), (step // per_epoch).to(device)
        offsets, alive = (within * self.batch_size).to(device), live.to(device)
        largest, width = int(size.max()), min(self.batch_size, int(size.max()))
        order = torch.empty(len(size), largest, dtype=torch.int64, device=device)
        column = torch.arange(width, device=device)
        for now, (beginning, living) in enumerate(zip(begins, live, strict=True)):
            if bool(beginning.all()):
                order = self._shuffled(data.size, keys, epochs[now], largest)
            elif bool(beginning.any()):
                rows = torch.nonzero(beginning).flatten().to(device)
                order[rows] = self._shuffled(data.size[rows], keys[rows], epochs[now, rows], largest)
            place = offsets[now][:, None] + column
            real = alive[now][:, None] & (place < data.size[:, None])
            # a padded row repeats the client's own first example and weighs nothing
            chosen = torch.where(real, order.gather(1, place.clamp_max(largest - 1)), 0)
            yield Batch(data.start[:, None] + chosen, real, alive[now], bool(living.all()))

    @staticmethod
    def _shuffled(size: Tensor, keys: Tensor, epochs: Tensor, largest: int) -> Tensor:
        """`[clients, largest]`: a random order of each client's own examples first, padding after."""
        score = words(fold(fold(keys, -2), epochs), largest) >> 1
        padding = torch.arange(largest, device=size.device) >= size[:, None]
        return score.masked_fill_(padding, torch.iinfo(torch.int64).max).argsort(dim=1)

    def steps_for(self, size: int) -> int:
        """How many batches a client with `size` examples trains on in a round."""
        if self.epochs is not None:
            return self.epochs * math.ceil(size / self.batch_size)
        return self.steps or 0


class Batch(NamedTuple):
    """One step of a chunk: `[clients, batch]` rows, which of them are real, and which clients still train."""

    rows: Tensor
    real: Tensor
    live: Tensor
    all_live: bool
