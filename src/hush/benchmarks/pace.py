"""The side of a peer: it runs rounds in a process of its own, in passes, as it is told by lines of JSON.

Peers take turns, pass by pass, so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TextIO

from hush.benchmarks.workloads import Workload

Watch = Callable[[], AbstractContextManager[dict[str, float]]]
"""Watches a pass, and knows figures of it at the end."""


class Pace:
    """Says when to run a round. A peer calls `ready` once it is imported, and `lap` after every round."""

    def __init__(self) -> None:
        told = json.loads(sys.argv[1])
        self.workload = Workload.of(told["workload"])
        self.device: str = told["device"]
        self.tf32: bool = told["tf32"]
        self.way: str = told["way"]
        self.rounds: int = told["rounds"]
        """The most that there will be."""
        self.watch: Watch | None = None
        self.closing: Callable[[], object] = lambda: None
        self._out, sys.stdout = _own_stdout(), sys.stderr  # whatever a library prints is no answer
        self._warm, self._facts = int(told["warmup"]), dict[str, Any]()
        self._stamps: list[float] = []
        self._asked: dict[str, Any] = {}
        self._watching, self._seen = ExitStack(), dict[str, float]()

    def ready(self, framework: str, parameters: int, **facts: Any) -> None:
        """Everything is imported; what follows is timed alone on the machine."""
        self._facts = {"framework": framework, "parameters": parameters} | facts
        self._answer({"imported": True})
        self._listen()

    def lap(self) -> None:
        """A round is done, on the device too."""
        self._stamps.append(time.perf_counter())
        if self._warm:
            self._warm -= 1
            if not self._warm:
                self._answer(self._facts | {"warm": True})
                self._listen()
            return
        if len(self._stamps) > self._asked["rounds"] or self._stamps[-1] - self._stamps[0] > self._asked["seconds"]:
            self._watching.close()
            took = [later - earlier for earlier, later in zip(self._stamps, self._stamps[1:], strict=False)]
            self._answer({"seconds": took} | self._seen)
            self._listen()

    def _listen(self) -> None:
        line = sys.stdin.readline()
        if not line.strip():
            self.closing()
            os._exit(0)  # from wherever in a framework this was called
        self._asked = json.loads(line)
        if self._asked.get("watch") and self.watch is not None:
            self._seen = self._watching.enter_context(self.watch())
        self._stamps = [time.perf_counter()]

    def _answer(self, value: dict[str, Any]) -> None:
        print(json.dumps(value), file=self._out, flush=True)


def _own_stdout() -> TextIO:
    """Standard output for answers alone: what child processes and libraries in C write goes to standard error."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own
