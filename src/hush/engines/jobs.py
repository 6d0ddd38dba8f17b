"""Work side by side: each piece in a process of its own, as many at once as were asked for, which share cores and GPUs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, NamedTuple

import torch

from hush.engines.beside import take_place
from hush.errors import HushError

Ask = Callable[[Any], Any]
"""Tells the process that began the work something, and returns its answer."""
Work = Callable[[Any, Ask], Any]
"""A function of a module, which another process can find: a piece of work and `Ask` to what came of it."""


class Note(NamedTuple):
    """A sentence for the user."""

    text: str


class Done(NamedTuple):
    """What came of a piece of work."""

    value: Any


class Failed(NamedTuple):
    """Why nothing came of it."""

    why: str


@dataclass
class SideBySide:
    """Processes that wait for work; they end with this one."""

    work: Work
    jobs: int
    _hands: list[_Hand] = field(default_factory=list)

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hand in self._hands:
            hand.end()

    def each(self, pieces: Sequence[Any], heard: Callable[[int, Any], Any]) -> Iterator[tuple[int, Done | Failed]]:
        """What came of every piece, by its number, as they end. `heard(number, message)` answers what a piece asks."""
        waiting, working = deque(enumerate(pieces)), dict[Connection, tuple[int, _Hand]]()
        while waiting or working:
            while waiting and len(working) < self.jobs:
                number, piece = waiting.popleft()
                hand = self._free_one([one for _, one in working.values()])
                working[hand.line] = number, hand
                hand.line.send(piece)
            for line in wait(list(working)):
                assert isinstance(line, Connection)
                number, hand = working[line]
                told = hand.says()
                if isinstance(told, Done | Failed):
                    del working[line]
                    yield number, told
                else:
                    line.send(heard(number, told))

    def _free_one(self, working: list[_Hand]) -> _Hand:
        """One that waits, or another one: in the place of one that has ended, or in one of its own."""
        self._hands = [hand for hand in self._hands if hand.process.is_alive()]
        for hand in self._hands:
            if hand not in working:
                return hand
        places = {hand.place for hand in self._hands}
        self._hands.append(_Hand(self.work, next(i for i in range(self.jobs) if i not in places), self.jobs))
        return self._hands[-1]


class _Hand:
    """Another process, from here."""

    def __init__(self, work: Work, place: int, jobs: int) -> None:
        self.place = place
        spawned = multiprocessing.get_context("spawn")
        self.line, theirs = spawned.Pipe()
        threads = max(1, torch.get_num_threads() // jobs)
        self.process: SpawnProcess = spawned.Process(target=_serve, args=(theirs, work, place, jobs, threads), daemon=True)
        self.process.start()
        theirs.close()

    def says(self) -> Any:
        try:
            return self.line.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            return Failed(f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}")

    def end(self) -> None:
        """At once: what it wrote is whole, whenever it ends."""
        self.process.kill()
        self.process.join()


def _serve(line: Connection, work: Work, place: int, jobs: int, threads: int) -> None:
    """All that such a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who began it hears it, and ends it
    torch.set_num_threads(threads)
    take_place(place, jobs)

    alone = threading.Lock()

    def ask(message: Any) -> Any:
        with alone:  # threads warn, too
            line.send(message)
            return line.recv()

    warnings.showwarning = lambda message, *_, **__: ask(Note(str(message)))
    try:
        while True:
            line.send(_outcome(work, line.recv(), ask))
    except (EOFError, OSError):
        os._exit(1)  # who began it is gone


def _outcome(work: Work, piece: Any, ask: Ask) -> Done | Failed:
    try:
        return Done(work(piece, ask))
    except HushError as error:
        return Failed(str(error))
    except MemoryError:
        return Failed("out of memory: lower --memory, --cohort or --jobs.")
    except (EOFError, BrokenPipeError):
        raise
    except Exception as error:
        traceback.print_exc()
        return Failed(f"{type(error).__name__}: {error}")
