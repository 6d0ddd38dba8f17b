"""The command line: a thin skin over the library."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def main() -> None:
    """Entry point of the `hush` command. What is heavy is imported here, where Ctrl-C is heard."""
    try:
        with _interrupted_at_once():
            from hush.cli.app import run_command

        run_command()
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr, flush=True)
        sys.exit(130)


_INTERRUPTED = "hush: interrupted."


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """While libraries load, Ctrl-C ends the process there and then: an exception in the midst of their imports can be swallowed.

    Nothing has begun yet, so there is nothing to keep.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # somebody else listens, or nobody shall
        yield
        return

    def leave(*_: Any) -> None:
        os.write(2, f"{_INTERRUPTED}\n".encode())
        os._exit(130)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
