"""Bytes one way: as they are counted, and as they travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Traffic:
    """Of some letters."""

    counted: int = 0
    """What the method and the secure sum need: the model or what changed of it, masks, messages; and the proposal."""
    measured: int = 0
    """The letters themselves, as they were handed to their carrier or came from it: also those that came twice, late or forged."""
    letters: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.counted + other.counted, self.measured + other.measured, self.letters + other.letters)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.counted - other.counted, self.measured - other.measured, self.letters - other.letters)

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def told(up: Traffic, down: Traffic) -> dict[str, dict[str, int]]:
    """As records and results have it."""
    return {"up": up.to_dict(), "down": down.to_dict()}


def in_all(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]] | None:
    """The sum over a run's rounds; None where nothing was measured."""
    each = [record["traffic"] for record in records if record.get("traffic")]
    if not each:
        return None
    up, down = (sum((Traffic(**one[way]) for one in each), Traffic()) for way in ("up", "down"))
    return told(up, down)


def in_words(traffic: Mapping[str, Mapping[str, int]]) -> str:
    """One clause."""
    up, down = (f"{_size(traffic[way]['counted'])} ({_size(traffic[way]['measured'])} as letters)" for way in ("up", "down"))
    return f"sent {up} and received {down}"


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
