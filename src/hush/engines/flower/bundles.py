"""Several letters as one: what goes to a node, which may answer for several clients."""

from __future__ import annotations

import struct
from collections.abc import Iterable

MOST = 4096


def bundle(letters: Iterable[bytes]) -> bytes:
    """Letters one after another, each behind its length."""
    return b"".join(struct.pack(">I", len(letter)) + letter for letter in letters)


def unbundle(raw: bytes) -> list[bytes]:
    """The inverse; what is not whole is left out."""
    letters: list[bytes] = []
    place = 0
    while place + 4 <= len(raw) and len(letters) < MOST:
        (size,) = struct.unpack(">I", raw[place : place + 4])
        if place + 4 + size > len(raw):
            break
        letters.append(raw[place + 4 : place + 4 + size])
        place += 4 + size
    return letters
