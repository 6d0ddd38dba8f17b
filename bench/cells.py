"""Cells of a table: each is one run and one file, made side by side, and never twice."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Cell(Protocol):
    """Something with a name of its own, that can be sent to another process."""

    @property
    def name(self) -> str: ...


Run = Callable[[Any, str], dict[str, Any]]
"""A cell and a device to what was found, which has a `score` and `seconds`."""


def work(job: tuple[Run, Cell, str, str]) -> None:
    """One cell, unless it is there."""
    run, cell, device, out = job
    path = Path(out) / f"{cell.name}.json"
    if path.is_file():
        return
    found = run(cell, device)
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)  # a cell is whole or not there
    print(f"{cell.name}: {100 * (found['score'] or 0):.2f}  {found['seconds']:.0f} s", flush=True)


def play(run: Run, cells: list[Any], device: str, jobs: int, out: Path) -> list[dict[str, Any]]:
    """All cells, those that are missing side by side, and what they found."""
    todo = [(run, cell, device, str(out)) for cell in cells if not (out / f"{cell.name}.json").is_file()]
    if jobs == 1:
        for job in todo:
            work(job)
    elif todo:
        with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
            for _ in pool.imap_unordered(work, todo, chunksize=1):
                pass
    return [json.loads((out / f"{cell.name}.json").read_text()) for cell in cells]
