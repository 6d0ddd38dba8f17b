"""How well clients find the model does, in one entry more under the same noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform, Wire
from hush.secret import Secret
from hush.settings import check_within
from hush.transforms.clip import scale_after


@dataclass(frozen=True)
class Score(Transform):
    """Behind the clip C: an entry of share * C * (score - 1/2) for each client, so that rows have a norm of C sqrt(1 + share^2/4).

    The noise takes its scale from that bound, and covers the entry as it covers all others: what comes out is one more coordinate
    of the same release. `decode` keeps the mean over the expected cohort; a client that adds nothing counts as one half.
    """

    share: float
    scale: float | None = None

    def __post_init__(self) -> None:
        check_within("score", self.share, "(0, 1]")

    @property
    def weight(self) -> float:
        assert self.scale is not None
        return self.share * self.scale

    def after(self, incoming: Bound) -> Score:
        return replace(self, scale=scale_after(incoming, "Score"))

    def init(self, dim: int) -> State:
        return {"accuracy": torch.tensor(math.nan, dtype=torch.float64)}

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1))

    def beside(self, x: Tensor, scores: Tensor) -> Tensor:
        # what rounding could add to the entry is taken off it
        own = (scores.to(x) - 0.5).clamp(-0.5, 0.5).nan_to_num() * (self.weight * (1.0 - 2.0**-20))
        return torch.cat([x[:, :-1], own[:, None]], dim=1)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        mean = total[-1].double().cpu() / (self.weight * rnd.cohort) + 0.5
        return total[:-1], {"accuracy": mean}

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, entries=incoming.entries + 1)

    def bound(self, incoming: Bound) -> Bound:
        return replace(incoming, l2=incoming.l2 * math.sqrt(1.0 + self.share**2 / 4.0))
