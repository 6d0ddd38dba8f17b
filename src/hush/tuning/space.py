"""Where a search looks: a range or some choices for each setting, as typed or by default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hush import methods
from hush.config import RunConfig
from hush.errors import UsageError
from hush.experiment import Experiment, resolve
from hush.names import pick
from hush.settings import Span

OF_THE_RUN = ("rounds", "cohort")
"""What can be searched besides the method's settings; the noise is found anew for each."""
FIXED = ("noise", "trials")
"""What the budget decides."""
AUTO = "auto"
"""A ratio that starts from Theorem 2 of Fed-SMP."""
_RATIO = (0.001, 1.0)
_WHOLE = (int, int | None)


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


def as_value(text: str) -> Any:
    """A number or a truth value where a text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def parse_search(texts: list[str], config: RunConfig) -> Space:
    """`KEY=LOW:HIGH[:log][:int]`, `KEY=a,b,c` or `ratio=auto`, checked against what the method takes."""
    kinds: dict[str, Any] = dict.fromkeys(OF_THE_RUN, int) | methods.settings_of(config.method)
    space: Space = {}
    for text in texts:
        key, equals, words = (part.strip() for part in text.partition("="))
        if not equals or not words:
            raise UsageError(f"--search takes KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=a,b,c, not '{text}'.")
        pick({known: None for known in kinds if known not in FIXED}, key, f"setting of {config.method} to search, named")
        if key in config.set or getattr(config, key, None) is not None:
            raise UsageError(f"{key} is set and searched: give one of the two.")
        space[key] = Range(*_RATIO, log=True) if (key, words) == ("ratio", AUTO) else _parsed(text, words, kinds[key] in _WHOLE)
    own = resolve(config).method.settings
    assert own is not None
    for key in space.keys() & own.known().keys():  # unless another setting that is searched decides
        if not space.keys() & {when.key for when in own.known()[key].when}:
            own.refuse_idle(key)
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


def default_space(asked: RunConfig, experiment: Experiment | None = None) -> Space:
    """What is worth searching for a method, as its settings say, unless the user fixed it."""
    experiment = experiment or resolve(asked)
    own = experiment.method.settings
    assert own is not None
    space: Space = {}
    for key, known in own.known().items():
        span = known.search(own, key) if known.search is not None and own.uses(key) and key not in asked.set else None
        whole = own.kinds()[key] in _WHOLE
        if span is not None and (span := known.allowed(span, whole)) is not None and _means_something(experiment, key, span):
            space[key] = Range(*span, whole=whole)
    return space


def _means_something(experiment: Experiment, key: str, span: Span) -> bool:
    """Whether the method takes the setting: one that its function never reads would be refused in every trial."""
    config = experiment.config
    try:
        for value in span[:2]:
            methods.build(config.method, **{**config.set, key: value})
    except UsageError:
        return False
    return True
