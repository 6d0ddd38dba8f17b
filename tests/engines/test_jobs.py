"""Work side by side: every piece comes to its end, whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import torch

from hush.engines.beside import beside
from hush.engines.jobs import Ask, Done, Failed, Note, SideBySide
from hush.errors import UsageError


def work(piece: Any, ask: Ask) -> Any:
    """In another process."""
    if piece == "refuse":
        raise UsageError("It cannot be meant.")
    if piece == "break":
        raise ZeroDivisionError("by zero")
    if piece == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    warnings.warn(f"about {piece}", stacklevel=1)
    return ask(piece), beside().place, beside().count, torch.get_num_threads()


def test_every_piece_comes_to_its_end() -> None:
    notes: list[tuple[int, Note]] = []

    def heard(number: int, told: Any) -> Any:
        if isinstance(told, Note):
            notes.append((number, told))
            return None
        return 10 * told

    with SideBySide(work, 2) as others:
        came = dict(others.each(["refuse", 1, "die", "break", 2], heard))
        assert came[0] == Failed("It cannot be meant.")
        assert came[2] == Failed("its process was ended by signal 9")
        assert came[3] == Failed("ZeroDivisionError: by zero")
        for number, value in ((1, 10), (4, 20)):
            done = came[number]
            assert isinstance(done, Done)
            assert done.value[0] == value
            assert done.value[1] in (0, 1)
            assert done.value[2:] == (2, 1)  # of two, with a thread
        assert sorted(notes) == [(1, Note("about 1")), (4, Note("about 2"))]
        again = dict(others.each([3], heard))  # by processes that are there
        assert isinstance(again[0], Done)
        left = [hand.process for hand in others._hands]
    assert not any(process.is_alive() for process in left)
