"""Ctrl-C, remembered: an exception that it raises in the midst of a library can come out as another one, or not at all.

PyTorch, for one, pops its stack of modes once too often where the interrupt falls between two of its lines: a RuntimeError arrives.
Whatever ends a command after Ctrl-C was heard is the user's wish, not a fault.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = "hush: interrupted."

_heard = threading.Event()


def heard() -> bool:
    """Whether Ctrl-C was pressed since this process listens."""
    return _heard.is_set()


def stop_if_heard() -> None:
    """Stop here where a library swallowed it."""
    if heard():
        raise KeyboardInterrupt


def _remember(*_: Any) -> None:
    _heard.set()
    raise KeyboardInterrupt


def on_terminate() -> None:
    """SIGTERM ends a command as Ctrl-C does: for those that have started other processes, which must end with them."""
    signal.signal(signal.SIGTERM, _remember)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """While libraries load, Ctrl-C ends the process there and then; from then on it is remembered.

    An exception in the midst of their imports can be swallowed, and nothing has begun yet, so there is nothing to keep.
    """
    if signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, _remember):  # somebody else listens, or nobody shall
        yield
        return

    def leave(*_: Any) -> None:
        os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(130)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _remember)
