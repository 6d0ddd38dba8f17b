"""How long a round's training takes, as far as that can be told before anybody looks at a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hush.core import LocalUpdate

_ROWS = 2**30
"""More than anybody has: whose steps do not grow from there on, they do not depend on rows."""


@dataclass(frozen=True)
class Work:
    """So many steps at most, so many passes over a client's own rows, or the less of both."""

    steps: int | None
    passes: int | None

    @staticmethod
    def of(local: LocalUpdate) -> Work:
        one, many, twice = local.steps_of(torch.tensor([1, _ROWS, 2 * _ROWS])).tolist()
        steps = many if many == twice else None
        return Work(steps, one if steps != one else None)

    def limits(self, steps: int, passes: int) -> Iterator[tuple[str, float, float]]:
        """What there is of it, by name, and the most of it: one of both is enough."""
        if self.steps is not None and (self.passes is None or self.steps <= steps):
            yield "the steps of a round's training", self.steps, steps
        elif self.passes is not None:
            yield "the passes over your rows in a round", self.passes, passes

    def in_words(self) -> str:
        passes = "" if self.passes is None else f"{self.passes:,} {'pass' if self.passes == 1 else 'passes'} over your rows"
        steps = "" if self.steps is None else f"{self.steps:,} {'step' if self.steps == 1 else 'steps'}"
        return f"{passes}, {steps} at most" if passes and steps else passes or steps
