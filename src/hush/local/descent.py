"""Gradient descent of many clients at once, each from the same weights on batches of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hush.local.pull import pull_back

if TYPE_CHECKING:
    from hush.local.flat import FlatModel


@dataclass(frozen=True)
class Slope:
    """How each step goes: v <- momentum v + gradient, and weights <- weights - lr v; `prox` and `blur` as in `hush.local.pull`."""

    lr: float
    momentum: float = 0.0
    prox: float = 0.0
    blur: float = 0.0
    limit: float | None = None

    @property
    def shape(self) -> Any:
        """What decides which computations a step is made of."""
        return self.momentum, self.prox, self.blur, self.limit is None


class Descent(Protocol):
    """Of a cohort. Clients come with the longest training first, so those who still train are a prefix."""

    losses: Tensor
    """Of every client, added up over its steps."""

    def step(self, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> None:
        """One of those who have a batch here; who is `done` waits."""

    def moved(self) -> Tensor:
        """`[clients, d]`: how far each is from where it began, which is what it sends. Called once, at the end."""


class FlatDescent:
    """On `[clients, d]` weights, by what `gradients` of the model says."""

    def __init__(self, learner: FlatModel, params: Tensor, clients: int, slope: Slope) -> None:
        self._learner, self._params, self._slope = learner, params, slope
        self._weights = params.expand(clients, -1).clone()
        self._velocity = torch.zeros_like(self._weights) if slope.momentum else None
        self.losses = params.new_zeros(clients)
        self._begun = False

    def step(self, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> None:
        """On the gradient of all layers in one row a client."""
        slope, now = self._slope, self._weights[: len(x)]
        at, self._begun = now if self._begun else self._params, True  # before the first step all are at one place
        gradient, loss = self._learner.gradients(at, x, y, weight, keys)
        if slope.prox or slope.blur:
            gradient = pull_back(gradient, now - self._params, slope.prox, slope.blur, slope.limit)
        if self._velocity is not None:
            gradient = self._velocity[: len(now)].mul_(slope.momentum).add_(gradient)
        if done is not None:
            gradient, loss = gradient.masked_fill(done[:, None], 0.0), loss.masked_fill(done, 0.0)
        now.sub_(gradient, alpha=slope.lr)
        self.losses[: len(now)] += loss

    def moved(self) -> Tensor:
        """In the weights' own memory."""
        return torch.sub(self._params, self._weights, out=self._weights)


class LoneDescent(FlatDescent):
    """Of one client on a CPU: weights move layer by layer, and no gradient of all is put together. Nothing pulls it back."""

    def step(self, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> None:
        """On the gradients of each layer."""
        if not self._learner.is_due() or (done is not None and bool(done[0])):
            return
        gradients, loss = self._learner.lone_gradients(self._weights[0], x[0], y[0], weight[0], keys[0])
        for name, gradient in gradients.items():
            there, flat = self._learner.places[name], gradient.reshape(-1)
            if self._velocity is not None:
                flat = self._velocity[0, there].mul_(self._slope.momentum).add_(flat)
            self._weights[0, there].sub_(flat, alpha=self._slope.lr)
        self.losses[0] += loss
