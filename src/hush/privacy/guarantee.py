"""The statement: who is protected, against whom, by how much, on what assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hush.checks import check_number, keep_python_numbers
from hush.errors import UsageError
from hush.plain import plain

if TYPE_CHECKING:
    from hush.config import RunConfig


def at_least(value: float, digits: int = 3) -> str:
    """A figure in words, rounded *up* to so many digits: what is printed must hold, too."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    power = math.floor(math.log10(value)) - digits + 1
    unit = 10.0**power
    up = math.ceil(value / unit * (1 - 1e-12)) * unit
    return f"{up:.{digits - 1}e}" if up < 1e-3 else f"{up:.{max(0, -power)}f}"


class Unit(StrEnum):
    """What is hidden: everything a client holds, one record of it, or all records of one person there."""

    CLIENT = "client"
    RECORD = "record"
    PERSON = "person"

    @property
    def within_client(self) -> bool:
        """Whether it is a part of what a client holds, which the client's own batches and noise cover."""
        return self is not Unit.CLIENT


class Relation(StrEnum):
    """Which two data sets must look alike."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"


class View(StrEnum):
    """What the adversary sees: the released models, the secure sums, or every message."""

    RELEASED = "released"
    SECAGG = "secagg"
    MESSAGES = "messages"


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of `unit` under `relation` against whoever sees `view`, if `assumptions` hold."""

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    view: View
    method: str
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"(eps={at_least(self.epsilon)}, delta={at_least(self.delta, 2)}) for each {self.unit} against {_READERS[self.view]}"

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in plain(self).items() if key != "kind"}

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Guarantee:
        """The inverse of `to_dict`."""
        kinds = {"unit": Unit(value["unit"]), "relation": Relation(value["relation"]), "view": View(value["view"])}
        lists = {key: tuple(value[key]) for key in ("assumptions", "warnings")}
        return Guarantee(**value | kinds | lists)


_READERS = {
    View.RELEASED: "anyone who reads the model",
    View.SECAGG: "the server and anyone who reads the model",
    View.MESSAGES: "anyone who reads this client's messages",
}


@dataclass(frozen=True)
class Budget:
    """The most privacy a run may spend. `delta=None` is `default_delta` of those who are protected."""

    epsilon: float
    delta: float | None = None

    def __post_init__(self) -> None:
        keep_python_numbers(self)
        check_number("epsilon", self.epsilon, above=0)

    @staticmethod
    def of_config(config: RunConfig) -> Budget | None:
        """The epsilon that a run finds its noise for, or that one of a given noise stops before."""
        limit = config.epsilon if config.epsilon is not None else config.budget
        return Budget(limit, config.delta) if limit is not None else None


LARGEST_DELTA = 0.01
"""The largest that is taken without a word of the user's, however few there are to protect."""


def default_delta(units: int) -> float:
    """min(n^-1.1, 0.01), n the clients or records: below 1/n, at which publishing one outright would be allowed."""
    return min(1.0 / math.pow(max(units, 1), 1.1), LARGEST_DELTA)


def check_delta(delta: float) -> None:
    """Refuse what is not a probability."""
    if not (isinstance(delta, int | float) and 0 < delta < 1):
        raise UsageError(f"delta must lie between 0 and 1, not {delta!r}.")
