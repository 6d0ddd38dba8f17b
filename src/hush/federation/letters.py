"""Letters between the server and its clients: a line of JSON, pieces of bytes, and the sender's signature over all of it.

Whoever carries them can drop, delay and repeat them, and nothing else. A letter names whom it is for and which run it is of; an
answer names the letter that it answers, so that an old one answers nothing.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hush.errors import HushError
from hush.federation import places
from hush.secagg.identity import SIGNATURE_BYTES, Identity, is_signed

T = TypeVar("T")
_MAGIC = b"hush letter 1\n"
MOST_HEAD = 1 << 20
"""Bytes of the JSON."""
MOST_PIECES = 4096
_PLACES = "places"
_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "int64", "int32", "uint8", "bool")}


class BadLetter(HushError):
    """A letter that cannot be read, or that is not from whom it should be: it is answered by nothing."""


@dataclass(frozen=True)
class Letter:
    """What was said, once the signature was checked."""

    head: dict[str, Any]
    pieces: tuple[bytes, ...]
    name: str
    """A digest of the whole: what an answer names."""

    def text(self, key: str) -> str:
        return self._of(key, str)

    def number(self, key: str) -> int:
        return self._of(key, int)

    def _of(self, key: str, kind: type[T]) -> T:
        value = self.head.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BadLetter(f"A letter says nothing of {key!r}.")
        return value


def write(identity: Identity, head: dict[str, Any], pieces: Sequence[bytes] = ()) -> bytes:
    """A letter, signed."""
    told = json.dumps(head | {"lengths": [len(piece) for piece in pieces]}, allow_nan=False).encode()
    body = b"".join((_MAGIC, struct.pack(">I", len(told)), told, *pieces))
    return body + identity.sign(hashlib.sha512(body).digest())


def read(letter: bytes, sender: bytes) -> Letter:
    """A letter of the owner of the key `sender`; `BadLetter` for everything else."""
    start = len(_MAGIC) + 4
    if len(letter) < start + SIGNATURE_BYTES or letter[: len(_MAGIC)] != _MAGIC:
        raise BadLetter("This is no letter of Hush's, or one of another version.")
    body, signature = letter[:-SIGNATURE_BYTES], letter[-SIGNATURE_BYTES:]
    if not is_signed(sender, signature, hashlib.sha512(body).digest()):
        raise BadLetter("A letter is not signed by whom it should be from.")
    (length,) = struct.unpack(">I", body[len(_MAGIC) : start])
    if length > min(MOST_HEAD, len(body) - start):
        raise BadLetter("A letter ends before it is complete.")
    try:
        head = json.loads(body[start : start + length])
        lengths = head.pop("lengths")
        whole = isinstance(lengths, list) and len(lengths) <= MOST_PIECES and all(type(n) is int and n >= 0 for n in lengths)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise BadLetter("A letter does not begin with what Hush writes.") from None
    rest = body[start + length :]
    if not whole or sum(lengths) != len(rest):
        raise BadLetter("The pieces of a letter have other lengths than it says.")
    pieces, place = [], 0
    for size in lengths:
        pieces.append(rest[place : place + size])
        place += size
    return Letter(head, tuple(pieces), name_of(letter))


def printable(text: str) -> str:
    """What somebody else wrote, as it may be shown in a terminal: on one line, and without its commands."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def name_of(letter: bytes) -> str:
    """What an answer calls it."""
    return hashlib.sha256(letter).hexdigest()


def claimed_key(letter: bytes) -> bytes:
    """Who says that he wrote it; `read` with that key tells whether he did."""
    start = len(_MAGIC) + 4
    try:
        (length,) = struct.unpack(">I", letter[len(_MAGIC) : start])
        return bytes.fromhex(json.loads(letter[start : start + min(length, MOST_HEAD)])["key"])
    except (struct.error, ValueError, KeyError, TypeError, RecursionError):
        raise BadLetter("This is no letter of Hush's, or one of another version.") from None


# -- what a round tells, as pieces -------------------------------------------------------------------------------------------------


def pack(values: Sequence[Any], dim: int = 0) -> tuple[list[Any], list[bytes]]:
    """Tensors, numbers and nothing, as JSON and bytes; `unpack` is the inverse. Ascending places of coordinates below `dim`, masks
    above all, take a few bits each."""
    told: list[Any] = []
    pieces: list[bytes] = []
    for value in values:
        if isinstance(value, Tensor) and places.are_places(value, dim):
            end, piece = places.write(value)
            told.append([_PLACES, [len(value), end]])
            pieces.append(piece)
        elif isinstance(value, Tensor):
            held = value.detach().cpu().contiguous()
            told.append([str(held.dtype).removeprefix("torch."), list(held.shape)])
            pieces.append(held.view(-1).view(torch.uint8).numpy().tobytes())
        elif value is None or isinstance(value, int | float):
            told.append(value)
        else:
            raise HushError(f"{type(value).__name__} cannot be sent to clients: `prepare` returns tensors, numbers or None.")
    return told, pieces


def unpack(told: Any, pieces: Sequence[bytes], dim: int = 0) -> list[Any]:
    """What `pack` made bytes of, and nothing else."""
    values: list[Any] = []
    left = list(pieces)
    if not isinstance(told, list):
        raise BadLetter("A letter does not say what its pieces are.")
    for item in told:
        if not isinstance(item, list):
            values.append(item)
            continue
        try:
            kind, shape, raw = item[0], tuple(item[1]), left.pop(0)
            if kind == _PLACES:
                count, end = shape
                values.append(places.read(raw, count, end, dim))
                continue
            dtype = _DTYPES[kind]
            flat = torch.from_numpy(np.frombuffer(bytearray(raw), dtype=np.uint8))
            values.append(flat.view(dtype).reshape(shape))
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
            raise BadLetter("A piece of a letter is not the tensor that it says it is.") from None
    if left:
        raise BadLetter("A letter has more pieces than it names.")
    return values
