"""Cells of a table: each is one run and one line of OUT/cells.jsonl, made side by side, and never twice.

What was measured for the docs lies in bench/measured, where scripts look unless told otherwise: they print their tables from there
and compute only what is missing.
"""

from __future__ import annotations

import json
import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Cell(Protocol):
    """Something with a name of its own, that can be sent to another process."""

    @property
    def name(self) -> str: ...


Found = dict[str, Any]
Run = Callable[[Any, str], Found]
"""A cell and a device to what was found, which has a `score` and `seconds`."""


def known(out: Path) -> dict[str, Found]:
    """What is there, by the cells' names."""
    path, found = out / "cells.jsonl", dict[str, Found]()
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            told = json.loads(line)
        except json.JSONDecodeError:  # the last line of a run that was killed
            continue
        found[told.pop("cell")] = told
    return found


def work(job: tuple[Run, Cell, str]) -> tuple[str, Found | None]:
    """One cell; None where it failed, so that the others go on."""
    run, cell, device = job
    try:
        return cell.name, run(cell, device)
    except Exception:
        print(f"{cell.name}: failed\n{traceback.format_exc()}", flush=True)
        return cell.name, None


def play(run: Run, cells: list[Any], device: str, jobs: int, out: Path) -> list[Found]:
    """All cells, those that are missing side by side, and what they found."""
    there = known(out)
    todo = [(run, cell, device) for cell in cells if cell.name not in there]
    if not todo:
        return [there[cell.name] for cell in cells]
    if jobs == 1:
        for job in todo:
            _keep(out, *work(job))
    else:
        with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
            for name, found in pool.imap_unordered(work, todo, chunksize=1):
                _keep(out, name, found)
    there = known(out)
    if missing := [cell.name for cell in cells if cell.name not in there]:
        raise SystemExit(f"{len(missing)} of {len(cells)} cells failed, see above: {', '.join(missing)}. Run this again for them.")
    return [there[cell.name] for cell in cells]


def _keep(out: Path, name: str, found: Found | None) -> None:
    if found is None:
        return
    path = out / "cells.jsonl"
    torn = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")  # as a kill may leave it
    with path.open("a") as f:
        f.write(("\n" if torn else "") + json.dumps({"cell": name, **found}) + "\n")
    print(f"{name}: {100 * (found['score'] or 0):.2f}  {found['seconds']:.0f} s", flush=True)
