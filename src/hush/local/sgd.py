"""Stochastic gradient descent on every client of a chunk at once: one flat `[clients, d]` buffer, no loop over clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hush.checks import MANY, check_number
from hush.core import LocalUpdate, Public, Round, Shard, Trained
from hush.errors import UsageError
from hush.local.descent import Slope
from hush.local.flat import FlatModel
from hush.local.pull import check_steps
from hush.random import fold, word_at

_BLOCK = 1024
"""Steps that are planned at once."""


@dataclass(frozen=True)
class Sgd(LocalUpdate):
    """theta_i <- theta_i - lr_t * v_i with v_i <- momentum * v_i + g_i, v_i = 0 at the start of every round.

    Train for `epochs` passes over the client's own examples, or for exactly `steps` batches, and for `most` at most;
    `lr_t = lr * decay^(t // every)`. `prox` and `blur` add the terms of `hush.local.pull` to the loss.
    """

    lr: float = 0.1
    batch_size: int = 10
    epochs: int | None = 1
    steps: int | None = None
    momentum: float = 0.0
    decay: float = 1.0
    every: int = 1
    prox: float = 0.0
    most: int | None = None
    """The most batches that a client trains on in a round, whatever its size."""
    blur: float = 0.0
    blur_limit: float | None = None
    """The norm that BLUR keeps an update within; None: the clip that follows, whatever it is today."""

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        for name, value in (("batch_size", self.batch_size), ("local_epochs", self.epochs), ("local_steps", self.steps)):
            if value is not None:
                check_number(name, value, least=1, most=MANY)
        if self.every < 1:
            raise UsageError("batch_size and lr_decay_every must be at least 1.")
        if (self.epochs is None) == (self.steps is None):
            raise UsageError("Give local_epochs or local_steps, not both and not neither.")
        if self.most is not None and self.most < 1:
            raise UsageError(f"max_local_steps must be at least 1, not {self.most}.")
        check_steps(self.lr, self.momentum, self.decay, self.prox, self.blur, self.blur_limit)

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        steps = self.steps_of(data.size.cpu())
        if not data.slots and bool((steps[1:] > steps[:-1]).any()):  # the longest first: who still trains is then a prefix
            order = steps.argsort(descending=True, stable=True).to(keys.device)
            own = data._replace(start=data.start[order], size=data.size[order], own=None)  # it draws nothing by itself
            trained, back = self(learner, params, own, rnd, keys[order], public), order.argsort()
            return Trained(trained.updates[back], trained.losses[back])
        lr = self.lr * self.decay ** (rnd.index // self.every)
        if max(steps.tolist(), default=0) == 1:
            return self._one_step(learner, params, data, lr, keys)
        slope = Slope(lr, self.momentum, self.prox, self.blur, self.blur_limit or rnd.room)
        descent = learner.descent(params, len(data.size), slope)
        for step, batch in enumerate(self.schedule(data, keys)):
            done = (steps <= step).to(keys.device) if data.slots else None  # who has finished waits
            weight, drawn = batch.real.to(params.dtype), fold(keys[: len(batch.rows)], step)
            descent.step(data.x[batch.rows], data.y[batch.rows], weight, drawn, done)
        return Trained(descent.moved(), descent.losses / steps.to(descent.losses).clamp_min(1.0))

    def _one_step(self, learner: FlatModel, params: Tensor, data: Shard, lr: float, keys: Tensor) -> Trained:
        """A single step is the gradient itself: nothing pulls back yet, and no weights are needed of each client's own."""
        (batch,) = self.schedule(data, keys)
        count, idle = len(batch.rows), len(data.size) - len(batch.rows)
        at = (data.x[batch.rows], data.y[batch.rows], batch.real.to(params.dtype), fold(keys[:count], 0))
        gradient, loss = learner.gradients(params, *at)
        updates = gradient.mul_(lr)
        return Trained(*(F.pad(value, (0, 0) * (value.dim() - 1) + (0, idle)) if idle else value for value in (updates, loss)))

    @property
    def needs_room(self) -> bool:
        return self.blur > 0 and self.blur_limit is None

    def schedule(self, data: Shard, keys: Tensor) -> Iterator[Batch]:
        """What each client reads at each step: fresh shuffles of its own examples, from its own key.

        Clients come with the longest training first; whoever is done is left out, so nobody is padded to the largest. One order
        a client is held at a time, end to end, and drawn anew when that client begins its next epoch. In slots everybody stays.
        """
        device, size = data.size.device, data.size.cpu()  # who reads what is decided on the host and sent to the device in blocks
        steps, per_epoch = self.steps_of(size), _batches(size, self.batch_size).clamp_min(1)
        orders = _Orders(data.size, size, keys)
        largest, last = max(size.tolist(), default=0), max(steps.tolist(), default=0)
        column = torch.arange(batch_width(largest, self.batch_size) if data.slots else min(self.batch_size, largest), device=device)
        start = data.start.clamp_max(max(len(data.x) - 1, 0)) if data.slots else data.start  # somewhere, also without examples
        for first in range(0, last, _BLOCK):
            step = torch.arange(first, min(first + _BLOCK, last))[:, None]
            live, within = step < steps, step % per_epoch
            begins, offsets, epochs = live & (within == 0), (within * self.batch_size).to(device), (step // per_epoch).to(device)
            counts = [len(size)] * len(live) if data.slots else live.sum(1).tolist()
            for now, (count, some) in enumerate(zip(counts, begins.any(1).tolist(), strict=True)):
                if some:
                    orders.draw(begins[now], epochs[now])
                place = offsets[now, :count, None] + column
                real = place < data.size[:count, None]
                # a padded row repeats the client's own first example and weighs nothing
                yield Batch(start[:count, None] + torch.where(real, orders.at(place), 0), real)

    def shortened(self, steps: int) -> Sgd:
        """The same for so many batches only."""
        return replace(self, epochs=None, steps=steps)

    def work(self, sizes: Tensor, slots: bool) -> tuple[int, int]:
        """Batches as wide as the widest; in slots as many for each client as for the one with the most."""
        sizes = sizes.cpu()
        steps, per_epoch = self.steps_of(sizes), _batches(sizes, self.batch_size).clamp_min(1)
        largest = max(sizes.tolist(), default=0)
        width = batch_width(largest, self.batch_size) if slots else min(self.batch_size, largest)
        batches = len(sizes) * max(steps.tolist(), default=0) if slots else int(steps.sum())
        own = steps // per_epoch * sizes + (steps % per_epoch * self.batch_size).clamp_max(sizes)
        return batches * width, int(own.sum())

    def size_class(self, sizes: Tensor) -> Tensor:
        """How wide its batches are, and whether it makes a single step, which takes a way of its own."""
        widths = [2 * batch_width(size, self.batch_size) for size in sizes.tolist()]
        return torch.tensor(widths, dtype=torch.int64) + (self.steps_of(sizes.cpu()) == 1)

    def steps_of(self, sizes: Tensor) -> Tensor:
        """How many batches clients of these sizes train on in a round; one without examples has nothing to say."""
        if self.epochs is None:
            steps = torch.full_like(sizes, self.steps or 0).masked_fill(sizes == 0, 0)
        else:
            steps = self.epochs * _batches(sizes, self.batch_size)
        return steps if self.most is None else steps.clamp_max(self.most)


def batch_width(size: int, batch: int) -> int:
    """Rows of a batch of a client of this size, where its size may be known by its power of two alone."""
    return min(batch, 1 << max(size - 1, 0).bit_length())


def _batches(sizes: Tensor, batch: int) -> Tensor:
    return (sizes + batch - 1) // batch


class _Orders:
    """The order in which each client reads its own examples, one client after another without padding."""

    def __init__(self, size: Tensor, on_host: Tensor, keys: Tensor) -> None:
        self.size, self.on_host, self.keys = size, on_host, fold(keys, -2)
        self.first = torch.cumsum(size, 0) - size
        self.order = torch.empty(int(on_host.sum()), dtype=torch.int64, device=size.device)

    def draw(self, begins: Tensor, epochs: Tensor) -> None:
        """A fresh order for the clients that begin an epoch (known on the host), each for its own."""
        count = int(begins.sum())
        clients: slice | Tensor = slice(count)  # the usual case, for which nothing has to travel to the device
        if not bool(begins[:count].all()):
            clients = torch.nonzero(begins).flatten().to(self.size.device)
        size, total = self.size[clients], int(self.on_host[begins].sum())
        owner = torch.repeat_interleave(torch.arange(len(size), device=size.device), size, output_size=total)
        place = torch.arange(total, device=size.device) - (torch.cumsum(size, 0) - size)[owner]
        # shuffled client by client: one sort for all, by client and then by 40 bits of a random word
        word = word_at(fold(self.keys[clients], epochs[clients])[owner], place)
        shuffled = place[((owner << 40) + (word >> 24) + (1 << 39)).argsort(stable=True)]
        self.order[self.first[clients][owner] + place] = shuffled

    def at(self, place: Tensor) -> Tensor:
        """The examples at these places of the first clients' orders; beyond a client's last, anything."""
        return self.order[(self.first[: len(place), None] + place).clamp_max(len(self.order) - 1)]


class Batch(NamedTuple):
    """One step of the clients that still train, the longest first: `[clients, batch]` rows, and which of them are real."""

    rows: Tensor
    real: Tensor
