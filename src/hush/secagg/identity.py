"""Who is who: Ed25519 identities, and the roster of those that were enrolled.

Everybody pins the roster: a key that is not in it does not exist, whoever presents it. So a server can invent no clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hush.errors import UsageError

KEY_BYTES = 32
SIGNATURE_BYTES = 64


class Identity:
    """A long-lived signing key. It never leaves its owner, who keeps it where it keeps secrets (`to_bytes`)."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes_raw()

    @staticmethod
    def generate() -> Identity:
        return Identity(Ed25519PrivateKey.generate())

    @staticmethod
    def from_bytes(secret: bytes) -> Identity:
        if len(secret) != KEY_BYTES:
            raise UsageError(f"An identity is a secret of {KEY_BYTES} bytes, not {len(secret)}.")
        return Identity(Ed25519PrivateKey.from_private_bytes(secret))

    def to_bytes(self) -> bytes:
        """The secret itself."""
        return self._key.private_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)

    def __repr__(self) -> str:
        return f"Identity({self.public.hex()[:16]})"


def is_signed(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether the owner of `public` signed `statement`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Roster:
    """The server's public key and every enrolled client's. A client's number is its place here."""

    server: bytes
    clients: tuple[bytes, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        keys = (self.server, *self.clients)
        if any(len(key) != KEY_BYTES for key in keys):
            raise UsageError(f"A public key has {KEY_BYTES} bytes.")
        if len(set(keys)) != len(keys):
            raise UsageError("A roster lists the same key twice: each client has one of its own, and the server another.")

    @staticmethod
    def of(server: Identity, clients: Iterable[Identity]) -> Roster:
        return Roster(server.public, tuple(client.public for client in clients))

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(b"hush secagg roster" + self.server + b"".join(self.clients)).digest()

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        """A client's number by its key."""
        return {key: number for number, key in enumerate(self.clients)}

    def __repr__(self) -> str:
        return f"Roster({len(self.clients):,} clients, {self.digest.hex()[:16]})"
