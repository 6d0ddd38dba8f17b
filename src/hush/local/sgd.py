"""Stochastic gradient descent on every client of a chunk at once: one flat `[clients, d]` buffer, no loop over clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
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
from hush.random import fold, orders
from hush.rows import places

_PLANNED = 1 << 20
"""Rows that are planned at once."""
_SENT = 16
"""Steps that are sent to a device at once."""
_FEW = 1 << 15
"""Examples of which a host draws an order sooner than a device has begun to."""


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
        size = data.size.cpu()
        steps = self.steps_of(size)
        if not data.slots and bool((steps[1:] > steps[:-1]).any()):  # the longest first: who still trains is then a prefix
            order = steps.argsort(descending=True, stable=True).to(keys.device)
            own = data._replace(start=data.start[order], size=data.size[order], own=None)  # it draws nothing by itself
            trained, back = self(learner, params, own, rnd, keys[order], public), order.argsort()
            return Trained(trained.updates[back], trained.losses[back])
        lr = self.lr * self.decay ** (rnd.index // self.every)
        if max(steps.tolist(), default=0) == 1:
            return self._one_step(learner, params, data, lr, keys)
        slope = Slope(lr, self.momentum, self.prox, self.blur, self.blur_limit or rnd.room)
        known = self._most_steps if data.slots else max(steps.tolist(), default=0)
        descent = learner.descent(params, len(size), slope, known, self._width(data, size))
        for step, batch in enumerate(self.schedule(data, keys)):
            done = (steps <= step).to(keys.device) if data.slots else None  # who has finished waits
            descent.step(data.x[batch.rows], data.y[batch.rows], batch.real.to(params.dtype), batch.keys, done)
        return Trained(descent.moved(), descent.losses / steps.clamp_min(1).to(descent.losses))

    def _one_step(self, learner: FlatModel, params: Tensor, data: Shard, lr: float, keys: Tensor) -> Trained:
        """A single step is the gradient itself: nothing pulls back yet, and no weights are needed of each client's own."""
        (batch,) = self.schedule(data, keys)
        idle = len(data.size) - len(batch.rows)
        at = (data.x[batch.rows], data.y[batch.rows], batch.real.to(params.dtype), batch.keys)
        gradient, loss = learner.gradients(params, *at)
        updates = gradient.mul_(lr)
        return Trained(*(F.pad(value, (0, 0) * (value.dim() - 1) + (0, idle)) if idle else value for value in (updates, loss)))

    @property
    def needs_room(self) -> bool:
        return self.blur > 0 and self.blur_limit is None

    def schedule(self, data: Shard, keys: Tensor) -> Iterator[Planned]:
        """What each client reads at each step: fresh shuffles of its own examples, from its own key.

        Few orders are drawn by the host and sent together, for a device would wait for hundreds of launches of nothing; many are
        drawn where the examples are. Both are the same, to the last bit.
        """
        device, size = data.size.device, data.size.cpu()
        if device.type == "cpu" or int(size.sum()) > _FEW:
            yield from self._planned(data, size, keys)
            return
        here = data._replace(start=data.start.cpu(), size=size)
        planned = self._planned(here, size, keys.cpu())
        while block := list(islice(planned, _SENT)):
            counts = [len(batch.rows) for batch in block]
            sent = (torch.split(torch.cat(values).to(device, non_blocking=True), counts) for values in zip(*block, strict=True))
            yield from map(Planned, *sent)

    def _planned(self, data: Shard, size: Tensor, keys: Tensor) -> Iterator[Planned]:
        """Clients come with the longest training first; whoever is done is left out, so nobody is padded to the largest. One order
        a client is held at a time, end to end, and drawn anew when that client begins its next epoch. In slots everybody stays.
        """
        device = data.size.device
        steps, per_epoch = self.steps_of(size), _batches(size, self.batch_size).clamp_min(1)
        orders = _Orders(data.size, size, keys)
        last = max(steps.tolist(), default=0)
        column = torch.arange(self._width(data, size), device=device)
        start = data.start.clamp_max(max(len(data.x) - 1, 0)) if data.slots else data.start  # somewhere, also without examples
        block = max(1, _PLANNED // max(1, len(size) * len(column)))
        for first in range(0, last, block):
            step = torch.arange(first, min(first + block, last))[:, None]
            live, within = step < steps, step % per_epoch
            begins, offsets, epochs = live & (within == 0), (within * self.batch_size).to(device), (step // per_epoch).to(device)
            counts = [len(size)] * len(live) if data.slots else live.sum(1).tolist()
            drawn = torch.nonzero(begins.any(1)).flatten().tolist()
            # from one drawing to the next all steps are planned together
            for begin, end in zip([0, *drawn], [*drawn, len(live)], strict=True):
                if begin == end:
                    continue
                if begin in drawn:
                    orders.draw(begins[begin], epochs[begin])
                most = max(counts[begin:end])
                place = offsets[begin:end, :most, None] + column
                real = place < data.size[:most, None]
                # a padded row repeats the client's own first example and weighs nothing
                rows = start[:most, None] + torch.where(real, orders.at(place), 0)
                drawing = fold(keys[:most], step[begin:end].to(device))
                for count, *planned in zip(counts[begin:end], rows, real, drawing, strict=True):
                    yield Planned(*(values[:count] for values in planned))

    def _width(self, data: Shard, size: Tensor) -> int:
        """Of every batch."""
        largest = max(size.tolist(), default=0)
        return batch_width(largest, self.batch_size) if data.slots else min(self.batch_size, largest)

    @property
    def _most_steps(self) -> int:
        """As settings alone say, of nobody's size; 0: they do not."""
        return min((n for n in (self.steps, self.most) if n is not None), default=0)

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
        held = self.on_host[begins]
        order = orders(fold(self.keys[clients], epochs[clients]), held)
        if len(order) == len(self.order):
            self.order = order
        else:
            self.order[places(self.first[clients], held.to(order.device))[0]] = order

    def at(self, place: Tensor) -> Tensor:
        """The examples at `place[steps, clients, batch]` of the first clients' orders; beyond a client's last, anything."""
        return self.order[(self.first[: place.shape[1], None] + place).clamp_max(len(self.order) - 1)]


class Batch(NamedTuple):
    """One step of the clients that still train, the longest first: `[clients, batch]` rows, and which of them are real."""

    rows: Tensor
    real: Tensor


class Planned(NamedTuple):
    """A batch of a step, and `[clients]` keys that each draws from in it."""

    rows: Tensor
    real: Tensor
    keys: Tensor
