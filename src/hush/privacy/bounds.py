"""The words for what one unit can add to a sum; the sensitivity follows from the word and the relation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from hush.errors import NoGuarantee
from hush.privacy.guarantee import Relation


@dataclass(frozen=True)
class Bound(ABC):
    """The most that one unit adds: `l2` under a relation, in the units of the noise."""

    @property
    def lattice(self) -> float | None:
        """The grid whose multiples the entries are, where they are; integer noise needs it."""
        return getattr(self, "grid", None)

    @abstractmethod
    def reach(self) -> float:
        """The L2 norm of one contribution: what adding, removing or zeroing it changes."""

    def gap(self) -> float:
        """The most by which two contributions differ: what replacing one by another changes."""
        return 2.0 * self.reach()

    def l2(self, relation: Relation) -> float:
        """Sensitivity."""
        return self.gap() if relation is Relation.REPLACE_ONE else self.reach()


@dataclass(frozen=True)
class L2Ball(Bound):
    """Clipped to `norm`, as the last step before the noise. `adaptive`: the norm follows the data, by a `Bit` beside it."""

    norm: float
    adaptive: bool = False
    grid: float | None = None

    def reach(self) -> float:
        return self.norm


@dataclass(frozen=True)
class LInfBox(Bound):
    """Every one of `entries` coordinates, on a public mask, clipped to `most` (Fed-SPA done right)."""

    most: float
    entries: int

    def reach(self) -> float:
        return self.most * math.sqrt(self.entries)


@dataclass(frozen=True)
class LinearImage(Bound):
    """Clipped to `norm`, then a public linear map (a sketch); without a proved operator norm there is no bound."""

    norm: float
    operator_norm: float | None = None

    def reach(self) -> float:
        return self.norm * (self.operator_norm if self.operator_norm is not None else math.inf)


@dataclass(frozen=True)
class OneVote(Bound):
    """A one-hot vote: moving it from one class to another changes two entries."""

    @property
    def lattice(self) -> float | None:
        return 1.0

    def reach(self) -> float:
        return 1.0

    def gap(self) -> float:
        return math.sqrt(2.0)


@dataclass(frozen=True)
class Bit(Bound):
    """An indicator, such as adaptive clipping's: +-weight/2 where centred, else 0 or `weight`."""

    weight: float = 1.0
    centred: bool = True
    grid: float | None = None

    def reach(self) -> float:
        return self.weight / 2 if self.centred else self.weight

    def gap(self) -> float:
        return self.weight


@dataclass(frozen=True)
class RecordMean(Bound):
    """The mean over a constant batch size of gradients clipped to `norm`, record by record."""

    norm: float
    batch: int
    per_record: bool = True

    def reach(self) -> float:
        return self.norm / self.batch


@dataclass(frozen=True)
class Weighted(Bound):
    """A contribution times its client's weight, which is at most `largest`."""

    inner: Bound
    largest: float | None = None

    @property
    def adaptive(self) -> bool:
        return bool(getattr(self.inner, "adaptive", False))

    def reach(self) -> float:
        return self.inner.reach() * (self.largest if self.largest is not None else math.inf)

    def l2(self, relation: Relation) -> float:
        self.inner.l2(relation)  # which may have none to be weighted
        return super().l2(relation)


@dataclass(frozen=True)
class Rounded(Bound):
    """Clipped to `norm`, rounded at random to a grid and redrawn until short enough (Kairouz, Liu, Steinke 2021, proposition 4).

    In grid units, c = norm/grid grows to min(c + sqrt(d), sqrt(c^2 + d/4 + sqrt(2 log(1/beta)) (c + sqrt(d)/2))).
    """

    norm: float
    grid: float
    entries: int
    beta: float = math.exp(-0.5)

    def reach(self) -> float:
        c, root = self.norm / self.grid, math.sqrt(self.entries)
        conditional = math.sqrt(c * c + self.entries / 4 + math.sqrt(2 * math.log(1 / self.beta)) * (c + root / 2))
        return min(c + root, conditional) * self.grid


@dataclass(frozen=True)
class Quantised(Bound):
    """A contribution rounded at random to `levels` multiples of `grid`, in `entries` places, by coins of the client's own (cpSGD).

    `reach` and `gap` are those before the rounding, and no sensitivity after it: how far apart it leaves two contributions is a
    matter of probability, which `hush.privacy.binomial` works out for binomial noise. So any other noise is refused an `l2`.
    """

    inner: Bound
    grid: float
    entries: int
    levels: int

    def reach(self) -> float:
        return self.inner.reach()

    def gap(self) -> float:
        return self.inner.gap()

    def l2(self, relation: Relation) -> float:
        raise NoGuarantee("Rounding to levels at random has no L2 bound that always holds.", "Cover it with binomial noise.")
