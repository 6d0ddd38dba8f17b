"""Taking masks off a sum, on all cores: what the server's time goes to.

The cipher holds Python's lock, so threads would take turns. Large work goes to processes of their own, each with a range of the
entries, which a counter mode can begin anywhere; seeds go in through a pipe, and the range comes back through another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np

from hush.secagg.masks import BLOCK, add_masks
from hush.secagg.packing import Vector

_WORTH_IT = 2 << 30
"""Bytes of keystream above which the start of a process, a third of a second, is soon made up for."""


def take_masks(total: Vector, plus: Sequence[bytes], minus: Sequence[bytes], workers: int | None = None) -> None:
    """Takes the masks `plus` from `total` in place, and adds those in `minus`: the inverse of `add_masks`.

    `workers=None` is as many as there are cores where it is worth it.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if total.nbytes * (len(plus) + len(minus)) < _WORTH_IT:
            workers = 1
    step = BLOCK // total.itemsize
    cuts = [round(len(total) * i / workers) // step * step for i in range(workers)] + [len(total)]
    ranges = [(a, b) for a, b in pairwise(cuts) if b > a]
    if len(ranges) < 2 or not (plus or minus):
        add_masks(total, minus, plus)
        return
    others = [_Worker(total, minus, plus, a, b) for a, b in ranges[1:]]
    try:
        a, b = ranges[0]
        add_masks(total[a:b], minus, plus, a)
        for worker, (a, b) in zip(others, ranges[1:], strict=True):
            masks = worker.masks()
            if masks is not None:
                np.add(total[a:b], masks, out=total[a:b])
            else:  # it died: the work is done here
                add_masks(total[a:b], minus, plus, a)
    finally:
        for worker in others:
            worker.stop()


class _Worker:
    """A process that computes one range of the masks' sum."""

    def __init__(self, total: Vector, plus: Sequence[bytes], minus: Sequence[bytes], begin: int, end: int) -> None:
        self._begin, self._end, self._kind = begin, end, total.dtype
        command = [sys.executable, "-P", "-c", "from hush.secagg.unmask import work; work()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        header = np.array(
            [total.itemsize, begin, end, len(plus), len(minus), len(plus[0] if plus else minus[0])], dtype="<u8"
        ).tobytes()
        with suppress(BrokenPipeError):
            self._process.stdin.write(header + b"".join(plus) + b"".join(minus))
            self._process.stdin.close()

    def masks(self) -> Vector | None:
        """Their sum in this range; None where the process has died."""
        assert self._process.stdout is not None
        raw = self._process.stdout.read()
        whole = self._process.wait() == 0 and len(raw) == (self._end - self._begin) * self._kind.itemsize
        return np.frombuffer(raw, dtype=self._kind) if whole else None

    def stop(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def work() -> None:
    """The process's half: a header and seeds on standard input, the range on standard output."""
    given = sys.stdin.buffer.read()
    size, begin, end, plus, minus, key = (int(v) for v in np.frombuffer(given, dtype="<u8", count=6))
    seeds = [given[48 + key * i : 48 + key * (i + 1)] for i in range(plus + minus)]
    own = np.zeros(end - begin, dtype=f"<u{size}")
    add_masks(own, seeds[:plus], seeds[plus:], begin)
    sys.stdout.buffer.write(own.tobytes())
