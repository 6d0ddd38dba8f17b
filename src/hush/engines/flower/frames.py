"""Frames on a Unix socket: a length, a line of JSON, and bytes."""

import json
import socket
import struct
from typing import Any

MOST = 1 << 31


def send(link: socket.socket, head: "dict[str, Any]", body: bytes = b"") -> None:
    """One frame."""
    told = json.dumps(head).encode()
    link.sendall(struct.pack(">IQ", len(told), len(body)) + told + body)


def receive(link: socket.socket, most: int = MOST) -> "tuple[dict[str, Any], bytes] | None":
    """The next frame; None where the other side is gone."""
    sizes = _exactly(link, 12)
    if sizes is None:
        return None
    head, body = struct.unpack(">IQ", sizes)
    if head > 1 << 20 or body > most:
        raise ValueError("a frame is too large")
    told, rest = _exactly(link, head), _exactly(link, body)
    if told is None or rest is None:
        return None
    return json.loads(told), rest


def _exactly(link: socket.socket, count: int) -> "bytes | None":
    parts = []
    while count:
        part = link.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
