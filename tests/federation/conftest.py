"""A clock that only waiting moves, and worlds of clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hush.federation import asking, server, standing
from tests.federation.world import Clock, World

MakeWorld = Callable[..., World]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The server's."""
    clock = Clock()
    for waits in (asking, server, standing):
        monkeypatch.setattr(waits, "time", clock)
    return clock


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> MakeWorld:
    """Enrolled clients with data, and a proposal: `world(clients=6, cohort=3)`; what World does not know is the run's."""

    def make(**given: Any) -> World:
        own = {key: given.pop(key) for key in ("clients", "decide", "patience", "own_code", "place") if key in given}
        return World(place=own.pop("place", tmp_path / "world"), clock=clock, config=given, **own)

    return make
