"""A setting has one home: a field of a frozen dataclass, with its default, a line of help and its range.

`--set` and TOML, validation, `hush methods NAME`, docs/settings.md, the tuner and data sets' own defaults read the field.
Nothing here needs torch.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from hush.checks import HUGE, MANY, check_number, python_number
from hush.errors import UsageError
from hush.names import pick

_HOME = "hush"
POSITIVE, NOT_NEGATIVE, COUNT, SHARE = "(0, inf)", "[0, inf)", "[1, inf)", "[0, 1)"
"""Intervals that many settings lie in."""


class When(NamedTuple):
    """A setting means something where another one `has` one of these values, or has none of them."""

    key: str
    values: tuple[Any, ...]
    has: bool = True

    def holds(self, value: Any) -> bool:
        return (value in self.values) is self.has

    def refusal(self, name: str, value: Any) -> str:
        """One sentence: what it goes with."""
        if self.values == (None,):
            return f"{name} does nothing beside {self.key}={word(value)}: give one of the two."
        if not self.has:
            return f"{name} does nothing with {self.key}={word(value)}: change {self.key}, or leave {name} out."
        return f"{name} goes with {self.key}={' or '.join(map(word, self.values))}, not with {self.key}={word(value)}."


def only_with(key: str, *values: Any) -> When:
    """Where `key` has one of these values."""
    return When(key, values)


def not_with(key: str, *values: Any) -> When:
    """Where `key` has none of these values."""
    return When(key, values, has=False)


class Span(NamedTuple):
    """Where a search looks for a number: from `low` to `high`, on a log scale or not."""

    low: float
    high: float
    log: bool = True


def around(factor: float = 10.0) -> Callable[[Any, str], Span | None]:
    """A search so many times down and up from the value that a run would have; none where that is not positive."""
    return lambda own, key: Span(value / factor, value * factor) if (value := getattr(own, key)) and value > 0 else None


def between(low: float, high: float, log: bool = True) -> Callable[[Any, str], Span | None]:
    """A search from `low` to `high` where the setting is in use."""
    return lambda own, key: Span(low, high, log) if getattr(own, key) else None


@dataclass(frozen=True)
class Setting:
    """What is known of one setting."""

    help: str
    within: str = ""
    """An interval, as `(0, 1]`."""
    choices: tuple[str, ...] = ()
    when: tuple[When, ...] = ()
    """Where it means something; elsewhere it is refused."""
    unset: str = "none"
    """What happens where it is None."""
    keeps_plan: bool = False
    """Of one that is `free`."""
    search: Callable[[Any, str], Span | None] | None = None
    """Where `hush tune` looks by default."""
    own: bool = False
    """Whether the method's default wins over what a data set suggests."""
    flag: str = ""
    """How it is typed, where that is not its name."""

    def allowed(self, span: Span, whole: bool) -> Span | None:
        """The part of a search that lies in its range, between `whole` numbers where it is one; None where nothing is left."""
        low, high = span.low, span.high
        if self.within:
            least, most = _ends("a setting", self.within)
            low = max(low, least if self.within[0] == "[" else math.nextafter(least, math.inf))
            high = min(high, most if self.within[-1] == "]" else math.nextafter(most, -math.inf), MANY if whole else HUGE)
        low, high = (math.ceil(low), math.floor(high)) if whole else (low, high)
        return Span(low, high, span.log) if low < high else None


def setting(default: Any, help: str, within: str = "", **more: Any) -> Any:
    """A field of a settings class; `Setting` says what else it may have."""
    when = more.pop("when", ())
    known = Setting(help, within, when=(when,) if isinstance(when, When) else when, **more)
    return field(default=default, metadata={_HOME: known})


def free(default: Any, help: str, within: str = "", **more: Any) -> Any:
    """A setting that is free to choose: what is proved is the same for all its values, at the same noise multiplier."""
    return setting(default, help, within, keeps_plan=True, **more)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a method, or a group of them, can be told. Subclasses are frozen dataclasses of `setting(...)` fields."""

    follows_data: ClassVar[bool] = True
    """Whether a data set's suggestions for local training apply."""

    def __post_init__(self) -> None:
        """Fill in what follows from other settings."""

    @classmethod
    def known(cls) -> dict[str, Setting]:
        """Every setting by its name, those that the class itself declares first."""
        return dict(_known(cls))

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Every setting's type."""
        return dict(_kinds(cls))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every setting's default."""
        return {f.name: f.default for f in fields(cls)}

    @classmethod
    def redefined(cls, name: str, default: Any, **changes: Any) -> Any:
        """The same setting with another default, for a class that includes this one."""
        return field(default=default, metadata={_HOME: dataclasses.replace(_known(cls)[name], **changes)})

    @classmethod
    def read(cls, given: Mapping[str, Any], of: str) -> Self:
        """Settings from what somebody gave, or one sentence on what cannot be meant: a name, a value, or one that does nothing."""
        for key in given:
            pick(_known(cls), key, f"setting of {of}")
        own = cls(**cls.converted(given))
        for key in given:
            own.refuse_idle(key)
        return own

    @classmethod
    def converted(cls, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Values of the right kind and in their ranges; `where` they stand, as ' in run.toml'."""
        known, kinds = _known(cls), _kinds(cls)
        return {key: checked(f"{key}{where}", value, kinds[key], known[key]) for key, value in given.items()}

    def refuse_idle(self, key: str) -> None:
        """A setting that does nothing beside the others is a slip."""
        for when in _known(type(self))[key].when:
            if hasattr(self, when.key) and not when.holds(getattr(self, when.key)):
                raise UsageError(when.refusal(key, getattr(self, when.key)))

    def active(self) -> dict[str, Any]:
        """All that do something beside the others, by name: what `read` makes the same settings of."""
        return {key: getattr(self, key) for key in _known(type(self)) if self.uses(key)}

    def uses(self, key: str) -> bool:
        """Whether a setting does something beside the others."""
        conditions = _known(type(self))[key].when
        return all(when.holds(getattr(self, when.key)) for when in conditions if hasattr(self, when.key))


def _declared(cls: Any) -> dict[str, Setting]:
    declared = vars(cls).get("__annotations__", {})
    found = {f.name: f.metadata[_HOME] for f in fields(cls) if _HOME in f.metadata}
    for f in fields(cls):  # a default that could not be given is a slip, too
        if f.name in found and f.default not in (None, dataclasses.MISSING):
            checked(f"{cls.__name__}.{f.name}", f.default, _hinted(cls)[f.name], found[f.name])
    if missing := [f.name for f in fields(cls) if f.name not in found]:
        raise UsageError(f"{cls.__name__}.{missing[0]} says nothing of itself: declare it by setting(default, 'a line of help').")
    return dict(sorted(found.items(), key=lambda item: item[0] not in declared))


def _hinted(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


_known: Callable[[Any], dict[str, Setting]] = cache(_declared)
_kinds: Callable[[Any], dict[str, Any]] = cache(_hinted)


# -- values ----------------------------------------------------------------------------------------------------------------------


def checked(key: str, value: Any, kind: Any, known: Setting) -> Any:
    """A value of the right kind, in its range, or one sentence."""
    value = converted(key, value, kind)
    if value is None:
        return value
    if known.choices and value not in known.choices:
        raise UsageError(f"{key} must be {', '.join(known.choices[:-1])} or {known.choices[-1]}, not '{value}'.")
    if known.within:
        check_within(key, value, known.within)
    elif isinstance(value, float) and math.isnan(value):
        raise UsageError(f"{key} must be a number, not {value}.")
    return value


def converted(key: str, value: Any, kind: Any) -> Any:
    """A number, word or truth value out of what a command line or a file gives."""
    value = python_number(value)
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    plain = next(option for option in options if option is not type(None))
    try:
        return _KINDS[plain](value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError(f"{key} must be {_NAMES[plain]}, not {value!r}.") from None


def _whole(value: Any) -> int:
    number = float(value) if isinstance(value, str) else value
    if isinstance(value, bool) or number != int(number):
        raise ValueError
    return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return float(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_KINDS: dict[Any, Callable[[Any], Any]] = {int: _whole, float: _number, bool: _truth, str: _text}
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _ends(key: str, within: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in within[1:-1].split(","))
    except ValueError:
        raise UsageError(f"{key} lies within '{within}', which is no interval, such as '(0, 1]'.") from None
    return low, high


def check_within(key: str, value: float, within: str, why: str = "") -> None:
    """Refuse what lies outside of an interval, as `(0, 1]`, and say `why`."""
    low, high = _ends(key, within)
    if math.isinf(high):
        most = MANY if isinstance(value, int) else HUGE
        check_number(key, value, above=low if within[0] == "(" else None, least=low if within[0] == "[" else None, most=most)
        return
    above = value > low if within[0] == "(" else value >= low
    below = value < high if within[-1] == ")" else value <= high
    if above and below:
        return
    if high > 2:
        kind = "whole number" if isinstance(value, int) else "positive number," if low > 0 else "number"
        raise UsageError(f"{key} must be a {kind} from {low:g} to {high:g}, not {value:g}.")
    place = f"between {low:g} and {high:g}" if within[0] + within[-1] == "()" else f"in {within}"
    raise UsageError(f"{key} must lie {place}, not {value:g}{f': {why}' if why else ''}.")


def word(value: Any) -> str:
    """A value as `--set` takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
