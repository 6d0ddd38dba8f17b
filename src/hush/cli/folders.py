"""What a command leaves on the disk: a folder of its own, pictures in it, and nothing where it was refused."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hush.cli.console import say
from hush.cli.interrupt import heard
from hush.engines.rundir import RunDir
from hush.errors import HushError, LostProcess, UsageError
from hush.report.plots import as_png


def as_folder(name: str) -> str:
    """A method's name as part of a path."""
    return name.replace(":", "-")


def new_folder(name: str) -> Path:
    """One under runs/ that is not there yet."""
    start = Path("runs") / f"{as_folder(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    tries = (start, *(start.with_name(f"{start.name}-{i}") for i in range(2, 1000)))
    return next(path for path in tries if not path.exists())


def picture(folder: RunDir, name: str, draw: Callable[[], Any]) -> str | None:
    """Where it was written; None where it cannot be drawn, which is said."""
    try:
        folder.write_bytes(name, as_png(draw()))
    except UsageError as error:
        say(f"note: {error}")
        return None
    return str(folder.path / name)


def done(folder: RunDir, picture: str | None) -> None:
    """Where everything is."""
    say(f"Everything is in {folder.path}" + (f"; the picture is {picture}" if picture else ""))


@contextmanager
def kept(folder: RunDir, told: Callable[[], str], unused: Callable[[], tuple[str, ...]] = tuple) -> Iterator[None]:
    """When Ctrl-C ends it, say where the work is; what is refused before its first round leaves nothing behind.

    `unused` names what else may lie there and is no loss.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if heard() or isinstance(error, KeyboardInterrupt):
            if folder.started:
                say(told())
            raise KeyboardInterrupt from None
        left = [path.name for path in folder.path.rglob("*") if path.is_file()] if folder.path.is_dir() else []
        refused = isinstance(error, HushError) and not isinstance(error, LostProcess)
        if refused and left and {*left} <= {"config.json", "run.json", "ledger.sqlite", *unused()}:
            shutil.rmtree(folder.path)
        raise
