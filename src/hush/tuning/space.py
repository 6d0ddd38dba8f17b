"""Where a search looks: a range or some choices for each setting, as typed or by default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hush import methods
from hush.errors import UsageError
from hush.experiment import Spec, protects_records
from hush.methods.parts import split
from hush.names import pick
from hush.tasks.catalogue import dataset

OF_THE_RUN = ("rounds", "cohort")
"""What can be searched besides the method's settings; the noise is found anew for each."""
FIXED = ("noise", "trials")
"""What the budget decides."""
AUTO = "auto"
"""A ratio that starts from Theorem 2 of Fed-SMP."""
_RATIO = (0.001, 1.0)


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`; with `log` each factor is as likely as any other."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise UsageError(f"A search goes from a smaller number to a larger one, not from {self.low:g} to {self.high:g}.")
        if self.log and self.low <= 0:
            raise UsageError(f"A search on a log scale starts above zero, not at {self.low:g}.")
        if self.whole and (self.low != int(self.low) or self.high != int(self.high)):
            raise UsageError(f"A search over whole numbers ends at whole numbers, not at {self.low:g} and {self.high:g}.")

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of these."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values


Space = dict[str, Range | Choice]


def as_value(text: Any) -> Any:
    """A number or a truth value where a text is one."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def parse_search(texts: list[str], spec: Spec) -> Space:
    """`KEY=LOW:HIGH[:log][:int]`, `KEY=a,b,c` or `ratio=auto`, checked against what the method takes."""
    kinds: dict[str, Any] = dict.fromkeys(OF_THE_RUN, int) | methods.settings_of(spec.method)
    space: Space = {}
    for text in texts:
        key, equals, words = (part.strip() for part in text.partition("="))
        if not equals or not words:
            raise UsageError(f"--search takes KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=a,b,c, not '{text}'.")
        pick({known: None for known in kinds if known not in FIXED}, key, f"setting of {spec.method} to search, named")
        if key in spec.set or getattr(spec, key, None) is not None:
            raise UsageError(f"{key} is set and searched: give one of the two.")
        space[key] = Range(*_RATIO, log=True) if (key, words) == ("ratio", AUTO) else _parsed(text, words, kinds[key] is int)
    return space


def _parsed(text: str, words: str, whole: bool) -> Range | Choice:
    if ":" not in words:
        values = tuple(as_value(value.strip()) for value in words.split(","))
        if len(values) < 2:
            raise UsageError(f"'{text}' leaves nothing to choose: give LOW:HIGH or two values and more, or fix it with --set.")
        return Choice(values)
    low, high, *scale = (as_value(part.strip()) for part in words.split(":"))
    if not all(isinstance(end, int | float) for end in (low, high)) or not set(scale) <= {"log", "int"}:
        raise UsageError(f"'{text}' is not KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=LOW:HIGH:int.")
    return Range(low, high, log="log" in scale, whole=whole or "int" in scale)


def usual(spec: Spec) -> dict[str, Any]:
    """The settings that a run has without a search: the data set's, the name's parts', the user's, and what methods default to."""
    entry = dataset(spec.data)
    _, parts = split(spec.method)
    known = methods.settings_of(spec.method)
    given = {**(entry.record_settings if protects_records(spec.method) else entry.settings), **parts, **spec.set}
    base = {"lr": 0.1, "clip": 1.0, "ratio": 0.1, "server": "fed-spa" if spec.method.startswith("fed-spa") else "average"}
    if methods.usual(spec.method).gradients:  # one step of length 1; what the server does with it is what counts
        given, base = {**parts, **spec.set}, {"lr": 1.0, "clip": 1.5, "server": "momentum"}
    values = {key: as_value(value) for key, value in (base | given).items() if key in known}
    return {"server_lr": 1.0 if values.get("server", "average") in ("average", "momentum") else 0.01} | values


def default_space(spec: Spec) -> Space:
    """What is worth searching for a method: a factor of ten each way around the data set's defaults, unless the user fixed it."""
    values = usual(spec)
    around = {"lr": values["lr"], "clip": values.get("clip"), "blur": values.get("blur")}
    if methods.usual(spec.method).gradients:
        around.pop("lr")  # it only scales what is clipped
    space: Space = {key: Range(value / 10, value * 10, log=True) for key, value in around.items() if value}
    plain = values.get("server", "average") in ("average", "momentum")
    near, least = values["server_lr"], 0.03 if values.get("server") == "momentum" else 0.1
    space["server_lr"] = Range(least, 3.0, log=True) if plain else Range(near / 10, near * 10, log=True)
    if "ratio" in methods.taken(spec.method, values) and values.get("mask") != "none":
        space["ratio"] = Range(*_RATIO, log=True)
    if values.get("sparsity"):
        space["sparsity"] = Range(0.1, 0.95)
    return {key: where for key, where in space.items() if key not in spec.set}
