"""A cohort's descent on a GPU: a step's launches, captured once and repeated, with nothing for the host to do between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hush.local.descent import Slope
from hush.local.layered import Layered
from hush.local.low_rank import looked_back

if TYPE_CHECKING:
    from hush.local.flat import FlatModel

_EAGER = 2
"""Steps of one kind that are run before one is captured: what is settled or compiled at a first call is so by then."""
_MOST = 256
"""Kinds of steps that are captured; where clients end at many different times, later kinds run launch by launch."""


def rounded_up(count: int) -> int:
    """As many clients, or up to a sixteenth more: one of few numbers, and of this one alone, so that a resumed run has it, too."""
    grain = 1 << max(0, (count - 1).bit_length() - 5)
    return -(-count // grain) * grain


class Graphed(Layered):
    """In the same memory, over and over. Clients that wait fill up the cohort to one of few sizes, so that there are few kinds."""

    def __init__(self, learner: FlatModel, clients: int, slope: Slope, steps: int) -> None:
        super().__init__(learner, rounded_up(clients), slope, steps)
        self._kinds: dict[Any, _Kind] = {}
        self._pool = torch.cuda.graph_pool_handle()
        copies = 2 if slope.momentum else 1
        self.bytes = self.clients * learner.dim * copies * self._start.element_size()
        """That it holds between rounds, at most: weights, and the velocity."""

    def step(self, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> None:
        """One of those who have a batch here; who is `done` waits."""
        if not self._learner.is_due():
            return
        count, at = len(x), self._at
        self._count = self._count or count
        full = rounded_up(count)
        batch = [x, y, weight, keys]
        waits = full > count or done is not None
        seen = looked_back(at) if self._factors or self._written is None else min(at, 1)
        key = (seen, full, waits, *(one.shape[1:] for one in batch))
        if key not in self._kinds:
            given = [one.new_zeros(full, *one.shape[1:]) for one in batch]
            given += [torch.ones(full, dtype=torch.bool, device=x.device)] if waits else []
            self._kinds[key] = _Kind(given, len(self._kinds) < _MOST)
        kind = self._kinds[key]
        if waits:
            batch.append(torch.zeros(count, dtype=torch.bool, device=x.device) if done is None else done)
        for place, one in zip(kind.given, batch, strict=True):
            place[:count].copy_(one)
            if full > count:
                place[count:] = place.dtype == torch.bool  # nobody, who is done
        x, y, weight, keys, *rest = kind.given
        loss = kind.run(lambda: self._step(at, x, y, weight, keys, rest[0] if rest else None), self._pool)
        self.losses[:count] += loss[:count]
        self._at += 1


class _Kind:
    """Steps of one shape: what they read lies in one place, so that their launches can be repeated."""

    def __init__(self, given: list[Tensor], captured: bool) -> None:
        self.given = given
        self._left = _EAGER if captured else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    def run(self, step: Callable[[], Tensor], pool: Any) -> Tensor:
        """One more."""
        if self._graph is None and self._left == 0:
            self._capture(step, pool)
        if self._graph is not None:
            self._graph.replay()
            assert self._result is not None
            return self._result
        self._left -= self._left > 0
        return step()

    def _capture(self, step: Callable[[], Tensor], pool: Any) -> None:
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
