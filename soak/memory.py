"""What processes hold in memory while a federation runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from hush.engines.flower.process import _descendants

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Resident bytes of some processes and of all that they started, looked at once a round."""

    def __init__(self) -> None:
        self._looks: list[dict[int, int]] = []
        self._names: dict[int, str] = {}

    def look(self, processes: Iterable[int]) -> None:
        found: dict[int, int] = {}
        for pid in processes:
            for one in (pid, *_descendants(pid)):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    found[one] = int(Path(f"/proc/{one}/statm").read_text().split()[1]) * _PAGE
                    self._names[one] = Path(f"/proc/{one}/comm").read_text().strip()
        self._looks.append(found)

    def growth(self, first: int) -> dict[str, tuple[float, float]]:
        """MB in look `first` and in the last one, of every process that was there from the one to the other."""
        begin, end = self._looks[first], self._looks[-1]
        there = sorted(set.intersection(*(set(look) for look in self._looks[first:])))
        return {f"{self._names[pid]} {pid}": (begin[pid] / 1e6, end[pid] / 1e6) for pid in there}

    def is_flat(self, first: int, megabytes: float) -> bool:
        """Whether nobody grew by more than that."""
        return all(after - before <= megabytes for before, after in self.growth(first).values())
