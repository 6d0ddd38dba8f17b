"""Bundles of letters inside Flower's messages, at both ends. Without torch or the rest of Hush: Flower's app has a copy.

Flower starts a process for every message, so whoever answers letters is another one, which stays: this one passes them on.
"""

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from . import frames

_LARGE = 1 << 20


def wrap(bundle: bytes) -> RecordDict:
    """A bundle as a message's content.

    Flower fetches every part of a message by a request of its own, of about a kilobyte. Bytes in a ConfigRecord are one part; an
    array is three, and goes in chunks: that is for what is large.
    """
    if len(bundle) < _LARGE:
        return RecordDict({"letters": ConfigRecord({"bundle": bundle})})
    return RecordDict({"letters": ArrayRecord({"bundle": Array(np.frombuffer(bundle, dtype=np.uint8))})})


def unwrap(content: RecordDict) -> bytes:
    """The inverse."""
    held: Any = content["letters"]["bundle"]
    raw: bytes = held if isinstance(held, bytes) else held.numpy().tobytes()
    return raw


def answered(message: Message, door: str) -> Message:
    """At a client: hand a bundle to the process that holds data and keys and listens at `door`; its answers are the reply."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(door)
        frames.send(link, {}, unwrap(message.content))
        answer = frames.receive(link)
    if answer is None:
        parent = os.getppid()
        time.sleep(3)
        if os.getppid() != parent:  # Flower's processes are gone as well: there is nobody to tell
            os._exit(1)
        raise ConnectionError("hush client is gone")
    return Message(wrap(answer[1]), reply_to=message)


def _answers_in(answer: Message) -> "tuple[bytes | None, str]":
    """What a node answered, or why that is nothing. Whoever has a node's key answers what he likes: that ends nobody else's run."""
    try:
        if answer.has_error():
            return None, str(answer.error.reason)[:500]
        return unwrap(answer.content), ""
    except Exception as error:  # Flower's own readers raise anything
        return None, f"no bundle of letters: {type(error).__name__}"


class UnderWay:
    """At the server: bundles that were pushed to nodes, each under a number of its sender's, until they are answered or too old."""

    def __init__(self, grid: Any, kind: str = "query") -> None:
        self._grid, self._kind = grid, kind
        self._waiting: dict[str, tuple[int, float]] = {}
        self._each_alone = False
        """Since Flower could not read what some node answered, which loses all that comes with it."""

    def push(self, number: int, node: int, ttl: float, bundle: bytes) -> bool:
        """Whether it is on its way."""
        message = Message(wrap(bundle), dst_node_id=node, message_type=self._kind, ttl=ttl)
        pushed = list(self._grid.push_messages([message]))
        if not pushed or pushed[0] is None:
            return False
        self._waiting[pushed[0]] = number, time.monotonic() + ttl
        return True

    def pull(self) -> Iterator[tuple[int, "bytes | None", str]]:
        """What came back: under which number; and the answers, or why there are none."""
        names = list(self._waiting)
        for some in [[name] for name in names] if self._each_alone else [names] if names else []:
            try:
                came = list(self._grid.pull_messages(some))
            except Exception as error:  # by whom it was, is seen when they come one by one; a server that is gone, elsewhere
                if self._each_alone:
                    yield self._waiting.pop(some[0])[0], None, f"nothing that Flower reads: {type(error).__name__}"
                self._each_alone = True
                continue
            for answer in came:
                number, _ = self._waiting.pop(answer.metadata.reply_to_message_id, (None, 0.0))
                if number is not None:
                    yield number, *_answers_in(answer)
        self._waiting = {name: held for name, held in self._waiting.items() if held[1] > time.monotonic()}
