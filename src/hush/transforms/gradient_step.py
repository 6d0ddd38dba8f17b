"""From a sum of gradients to a step, after the noise: what local training does by itself where clients send updates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform
from hush.secret import Secret


@dataclass(frozen=True)
class GradientStep(Transform):
    """lr_t / B times what comes out of the sum, with lr_t = lr * decay^(t // every): clients send gradients as they are."""

    lr: float
    batch_size: int
    decay: float = 1.0
    every: int = 1

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total * (self.lr * self.decay ** (rnd.index // self.every) / self.batch_size), state

    def bound(self, incoming: Bound) -> Bound:
        return incoming
