"""Noise on the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform
from hush.errors import UsageError
from hush.secret import Secret


@dataclass(frozen=True)
class Gaussian(Transform):
    """N(0, (multiplier * sensitivity)^2) on every entry of the *sum*, once a round, whoever took part and however many.

    The scale does not depend on the cohort that came: an empty one gets the same noise. The sensitivity is the bound of what
    precedes it in the chain; `multiplier=None` is filled in from a privacy budget.
    """

    multiplier: float | None = None
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        if self.multiplier is not None and not (0 < self.multiplier < math.inf):
            raise UsageError(f"noise must be a positive number, not {self.multiplier:g}.")

    def after(self, incoming: Bound) -> Gaussian:
        if not math.isfinite(incoming.l2):
            raise UsageError(f"Gaussian noise has no scale here: {incoming.reason}. Put Clip(C) directly before it.")
        return Gaussian(self.multiplier, incoming.l2)

    @property
    def std(self) -> float:
        if self.multiplier is None or self.sensitivity is None:
            raise UsageError("The noise is not set: give noise=... or a budget, privacy=hush.Budget(epsilon=...).")
        return self.multiplier * self.sensitivity

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total + secret.noise(rnd.index, total, self.std), state
