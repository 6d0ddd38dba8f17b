"""What travels: versioned, signed, length-checked bytes. Nothing is unpickled, and nothing is read before its length was checked.

    magic and version (4) | kind (1) | sender (4) | round (8) | length of the body (4) | body | Ed25519 signature (64)

The signature also covers what the message belongs to (the session, or the roster and terms where there is no session yet), so that
nothing can be moved from one round, roster or configuration to another.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

from hush.secagg.errors import BadMessage
from hush.secagg.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, Roster, is_signed
from hush.secagg.shamir import SHARE_BYTES

MAGIC = b"HSA1"
SERVER = 0xFFFFFFFF
"""The sender's number in the server's messages."""
DIGEST_BYTES = 32
_HEADER = struct.Struct(">4sBIQI")
ENVELOPE_BYTES = _HEADER.size + SIGNATURE_BYTES
"""Around a body."""
SEALED_BYTES = 2 * SHARE_BYTES + 16
"""Two shares, encrypted and authenticated."""


MOST_AHEAD = 4096
"""Rounds that keys are kept for: a client that sends them for more would fill the server's memory."""
Piece = bytes | memoryview
"""Of a body: bytes, or what lies like bytes in memory."""


class Kind(IntEnum):
    """Messages, in the order in which they travel."""

    KEYS = 1
    INVITATION = 2
    SHARES = 3
    DELIVERY = 4
    MASKED = 5
    SURVIVORS = 6
    VOTE = 7
    VOTES = 8
    REVEAL = 9
    COMPLAINT = 10


def seal(identity: Identity, kind: Kind, sender: int, round: int, about: bytes, *body: Piece) -> bytes:
    """A message, signed. `about` is what it belongs to; the body may come in pieces, which are copied once."""
    header = _HEADER.pack(MAGIC, kind, sender, round, sum(memoryview(piece).nbytes for piece in body))
    return b"".join((header, *body, identity.sign(_statement(about, header, *body))))


def addressed(about: bytes, receiver: int) -> bytes:
    """What a letter of the server's belongs to: it is for one client, and means nothing to another."""
    return about + b" to " + struct.pack(">I", receiver)


def _statement(about: bytes, header: bytes, *body: Piece) -> bytes:
    digest = hashlib.sha256(b"hush secagg message" + about + header)
    for piece in body:
        digest.update(piece)
    return digest.digest()


def peek(data: bytes, sender: int | None) -> tuple[Kind, int]:
    """The kind and round that a message claims, before its signature was checked."""
    kind, round, _ = _open(data, sender)
    return kind, round


def open_message(data: bytes, roster: Roster, sender: int | None, kind: Kind, round: int, about: bytes) -> memoryview:
    """The body of a message that must be of this kind, sender and round; `sender=None`: the server."""
    if sender is not None and not 0 <= sender < len(roster.clients):
        raise BadMessage(sender, "nobody was enrolled under this number")
    own_kind, own_round, body = _open(data, sender)
    if own_kind is not kind:
        raise BadMessage(sender, f"it is {own_kind.name.lower()} and {kind.name.lower()} was expected")
    if own_round != round:
        raise BadMessage(sender, f"it is of round {own_round} and this is round {round}")
    public = roster.server if sender is None else roster.clients[sender]
    view = memoryview(data)
    if not is_signed(public, bytes(view[-SIGNATURE_BYTES:]), _statement(about, bytes(view[: _HEADER.size]), body)):
        raise BadMessage(sender, "its signature does not hold for this sender, round, roster and terms")
    return body


def _open(data: bytes, sender: int | None) -> tuple[Kind, int, memoryview]:
    """Kind, round and body of a message whose length was checked, and whose signature was not."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadMessage(sender, "it is not bytes")
    view = memoryview(data)
    if len(view) < ENVELOPE_BYTES:
        raise BadMessage(sender, f"{len(view)} bytes are too few for a message")
    magic, kind, claimed, round, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise BadMessage(sender, "it is not of this protocol, or of another version of it")
    if kind not in Kind._value2member_map_:
        raise BadMessage(sender, f"there is no kind {kind} of message")
    if claimed != (SERVER if sender is None else sender):
        raise BadMessage(sender, "it names another sender")
    if length != len(view) - ENVELOPE_BYTES:
        raise BadMessage(sender, "its length is not the one it states")
    return Kind(kind), round, view[_HEADER.size : _HEADER.size + length]


class Reader:
    """Takes a body apart, piece by piece; a piece that is not there is the sender's mistake."""

    def __init__(self, body: memoryview, sender: int | None) -> None:
        self._left, self._sender = body, sender

    def take(self, count: int) -> bytes:
        if count > len(self._left):
            raise BadMessage(self._sender, "it ends too early")
        piece, self._left = self._left[:count], self._left[count:]
        return bytes(piece)

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f">{count}I", self.take(4 * count))

    def pieces(self, count: int, size: int) -> list[bytes]:
        raw = self.take(count * size)
        return [raw[i : i + size] for i in range(0, len(raw), size)]

    def end(self) -> None:
        if len(self._left):
            raise BadMessage(self._sender, f"{len(self._left)} bytes follow its end")


# -- bodies ------------------------------------------------------------------------------------------------------------------------

SIGNED_KEY_BYTES = 2 * KEY_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True)
class SignedKey:
    """One client's public keys of one round, under its own signature: neighbours check it, the server only carries it."""

    cipher: bytes
    """X25519, for the shares that this client sends and receives."""
    mask: bytes
    """X25519, for its masks; where it vanishes, the secret half of this one is put together again, and of this one only."""
    signature: bytes

    @staticmethod
    def statement(about: bytes, sender: int, round: int, cipher: bytes, mask: bytes) -> bytes:
        return b"hush secagg key" + about + struct.pack(">IQ", sender, round) + cipher + mask

    def holds(self, roster: Roster, about: bytes, sender: int, round: int) -> bool:
        told = self.statement(about, sender, round, self.cipher, self.mask)
        return is_signed(roster.clients[sender], self.signature, told)

    def to_bytes(self) -> bytes:
        return self.cipher + self.mask + self.signature

    @staticmethod
    def from_bytes(raw: bytes) -> SignedKey:
        return SignedKey(raw[:KEY_BYTES], raw[KEY_BYTES : 2 * KEY_BYTES], raw[2 * KEY_BYTES :])

    def digest(self, sender: int) -> bytes:
        """What the graph is drawn from. Without the signature: that could be made again and again until a graph suits."""
        return hashlib.sha256(b"hush secagg key digest" + struct.pack(">I", sender) + self.cipher + self.mask).digest()


def bitmap(chosen: set[int], cohort: tuple[int, ...]) -> bytes:
    """Who of the cohort is in `chosen`, a bit each."""
    bits = sum(1 << place for place, number in enumerate(cohort) if number in chosen)
    return bits.to_bytes(-(-len(cohort) // 8), "big")


def from_bitmap(raw: bytes, cohort: tuple[int, ...], sender: int | None) -> set[int]:
    """The inverse of `bitmap`."""
    bits = int.from_bytes(raw, "big")
    if bits >> len(cohort):
        raise BadMessage(sender, "it lists somebody who is not of the cohort")
    return {number for place, number in enumerate(cohort) if bits >> place & 1}


def vote_statement(session: bytes, survivors: bytes) -> bytes:
    """What a client signs once it was told who survived: it will open this sum of this round, and no other."""
    return b"hush secagg survivors" + session + survivors
