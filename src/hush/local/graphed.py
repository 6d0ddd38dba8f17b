"""A cohort's descent on a GPU: a step's launches, captured once and repeated, with nothing for the host to do between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from hush.kernels.layers import CohortLayers, Kept
from hush.kernels.steps import Step, descend, descend_linear, products_precision
from hush.local.descent import Descent, Slope

if TYPE_CHECKING:
    from hush.local.flat import FlatModel

_EAGER = 2
"""Steps of one kind that are run before one is captured: what is settled or compiled at a first call is so by then."""
_SIZES = 8
"""Of cohorts that are still training, for which steps are captured."""
_MOST = 32
"""Kinds of steps that are captured; where clients end at many different times, later kinds run launch by launch."""


class Graphed(Descent):
    """The descent of so many clients, over and over, in the same memory: `begin`, steps, `moved`."""

    def __init__(self, learner: FlatModel, clients: int, slope: Slope) -> None:
        self._learner = learner
        self._start = torch.empty(learner.dim, device=learner.device)
        self._weights = torch.empty(clients, learner.dim, device=learner.device)
        self._velocity = torch.empty_like(self._weights) if slope.momentum else None
        self.losses = torch.empty(clients, device=learner.device)
        self._lr, self._limit = (torch.empty(1, device=learner.device) for _ in range(2))
        self._kinds: dict[Any, _Kind] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def begin(self, params: Tensor, slope: Slope) -> Graphed:
        """From these weights."""
        self._slope, self._begun = slope, False
        self._start.copy_(params)
        self._weights.copy_(params.expand_as(self._weights))
        if self._velocity is not None:
            self._velocity.zero_()
        self.losses = torch.zeros_like(self.losses)
        self._lr.fill_(slope.lr)
        if slope.limit is not None:
            self._limit.fill_(slope.limit)
        return self

    def step(self, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> None:
        """One of those who have a batch here; who is `done` waits."""
        count = len(x)
        given = self._filled_up([x, y, weight, keys], done)
        key = (self._begun, *(one.shape for one in given))
        if key not in self._kinds:
            self._kinds[key] = _Kind([torch.empty_like(one) for one in given], len(self._kinds) < _MOST)
        kind, shared = self._kinds[key], not self._begun and self._learner.shares
        self._begun = True
        for place, one in zip(kind.given, given, strict=True):
            place.copy_(one)
        loss = kind.run(lambda: self._step(shared, *kind.given), self._pool)
        self.losses[:count] += loss[:count]

    def _filled_up(self, batch: list[Tensor], done: Tensor | None) -> list[Tensor]:
        """With clients that wait, up to an eighth of all: so there are few kinds of steps, wherever clients end."""
        count, clients = len(batch[0]), len(self._weights)
        room = -(-clients * -(-count * _SIZES // clients) // _SIZES)
        if room == count:
            return batch if done is None else [*batch, done]
        waiting = torch.arange(room, device=self._weights.device) >= count
        if done is not None:
            waiting[:count] |= done
        return [*(torch.cat([one, one.new_zeros(room - count, *one.shape[1:])]) for one in batch), waiting]

    def _step(self, shared: bool, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> Tensor:
        learner, slope, count = self._learner, self._slope, len(x)
        learner.prepare_training()
        kept = Kept()

        def mean_loss(named: dict[str, Tensor], *batch: Tensor) -> Tensor:
            with CohortLayers({id(one): name for name, one in named.items()}, kept):
                return learner.mean_loss(named, *batch)

        at = learner.named(self._start) if shared else learner.named_rows(self._weights[:count])
        gradients, loss = vmap(grad_and_value(mean_loss), (None if shared else 0, 0, 0, 0, 0))(at, x, y, weight, keys)
        pull = self._pull(self._weights[:count]) if slope.prox or slope.blur else None
        step = Step(self._lr, slope.momentum, pull, done)
        first = 0
        for name, gradient in gradients.items():
            there = slice(first, first + gradient[0].numel())
            first = there.stop
            weights, start = self._weights[:count, there], self._start[there]
            velocity = None if self._velocity is None else self._velocity[:count, there]
            pairs = kept.pairs.get(name, [])
            if len(pairs) == 1 and not any(gradient.stride()):  # of nothing else than one linear layer
                descend_linear(weights, velocity, *pairs[0], start, step, products_precision())
                continue
            whole = sum((back.mT @ given for given, back in pairs), gradient)
            descend(weights, velocity, whole, start, step)
        alone: Tensor = loss if done is None else loss.masked_fill(done, 0.0)
        return alone

    def _pull(self, weights: Tensor) -> Tensor:
        """How strongly each client is drawn back, as in `hush.local.pull`."""
        slope = self._slope
        if not slope.blur or slope.limit is None:
            return torch.full((len(weights),), slope.prox, device=weights.device)
        outside = torch.linalg.vector_norm(weights - self._start, dim=1) > self._limit
        return torch.where(outside, slope.prox + slope.blur, slope.prox)

    def moved(self) -> Tensor:
        """`[clients, d]`: how far each is from where it began, which is what it sends."""
        return self._start - self._weights


class _Kind:
    """Steps of one shape: what they read lies in one place, so that their launches can be repeated."""

    def __init__(self, given: list[Tensor], captured: bool) -> None:
        self.given = given
        self._left = _EAGER if captured else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    def run(self, step: Any, pool: Any) -> Tensor:
        """One more."""
        if self._graph is None and self._left == 0:
            self._capture(step, pool)
        if self._graph is not None:
            self._graph.replay()
            assert self._result is not None
            return self._result
        self._left -= self._left > 0
        result: Tensor = step()
        return result

    def _capture(self, step: Any, pool: Any) -> None:
        """A module that asks for a value while it computes cannot be captured, and goes on as before."""
        graph = torch.cuda.CUDAGraph()
        self._left = -1
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=pool):
                self._result = step()
        except RuntimeError:
            torch.cuda.synchronize()
            return
        self._graph = graph
