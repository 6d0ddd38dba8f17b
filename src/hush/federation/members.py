"""Who belongs to a federation: names and keys, in one order that everybody knows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hush.errors import DataError, UsageError
from hush.secagg.identity import KEY_BYTES, Identity, Roster, is_signed

CARD_FORMAT = 2
"""Cards of format 1 had no number, and named no federation."""
OWN = {"name": "name", "key": "key", "node": "node key"}
"""What no two clients share, and what it is called."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """A name that is a file's name, too."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"A name has letters, digits, '.', '_' and '-', at most 64 of them, not {name!r}.")
    return name


def key_of(text: object, whose: str) -> bytes:
    """A public key from its hexadecimal digits."""
    try:
        key = bytes.fromhex(str(text))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise DataError(f"The key of {whose} is not {KEY_BYTES} bytes in hexadecimal digits.")
    return key


@dataclass(frozen=True)
class Card:
    """What a client shows of itself: its name, the key that it signs with, that of its Flower node, and whom it shows them to."""

    name: str
    key: bytes
    node: str
    """An ECDSA public key in OpenSSH's form."""
    server: bytes
    """The key of the federation's server, from the invitation: a card is for one federation."""

    @property
    def statement(self) -> bytes:
        return b"hush card 2\0" + self.server + self.name.encode() + b"\0" + self.key + self.node.encode()

    def written(self, identity: Identity) -> str:
        """As a file; signed, so that nobody enrols a key that he does not have."""
        told = {"format": CARD_FORMAT, "server": self.server.hex()} | self.to_dict()
        return json.dumps(told | {"signature": identity.sign(self.statement).hex()}, indent=2) + "\n"

    @staticmethod
    def read(text: str, where: str) -> Card:
        value = as_object(text, where)
        try:
            if value.get("format", 1) != CARD_FORMAT:
                raise DataError(
                    f"{where} has format {value.get('format', 1)!r}, and this Hush reads {CARD_FORMAT}: enrol the client anew."
                )
            card = Card.of(value, where, key_of(value["server"], f"the server in {where}"))
            signature = bytes.fromhex(value["signature"])
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{where} is not a card that hush federation enroll writes.") from None
        if not is_signed(card.key, signature, card.statement):
            raise DataError(f"{where} was changed since it was written: its signature does not hold.")
        return card

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a roster, which names its server once."""
        return {"name": self.name, "key": self.key.hex(), "node": self.node}

    @staticmethod
    def of(value: dict[str, Any], where: str, server: bytes) -> Card:
        key = key_of(value["key"], f"a client in {where}")
        return Card(check_name(str(value["name"])), key, str(value["node"]).strip(), server)


@dataclass(frozen=True)
class Members:
    """The server's key and everybody's cards. A client's number is its place here."""

    server: bytes
    cards: tuple[Card, ...]

    def __post_init__(self) -> None:
        for what, called in OWN.items():
            if len({getattr(card, what) for card in self.cards}) < len(self.cards):
                raise UsageError(f"Two clients have the same {called}: each has its own.")

    @cached_property
    def roster(self) -> Roster:
        return Roster(self.server, tuple(card.key for card in self.cards))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(card.name for card in self.cards)

    @cached_property
    def fingerprint(self) -> str:
        """125 bits of a hash of all names and keys, to be compared by telephone: five groups of five letters and digits."""
        digest = hashlib.sha256(b"hush members" + self.to_json().encode()).digest()
        letters = base64.b32encode(digest).decode()[:25]
        return "-".join(letters[i : i + 5] for i in range(0, 25, 5))

    def to_json(self) -> str:
        told = {"server": self.server.hex(), "clients": [card.to_dict() for card in self.cards]}
        return json.dumps(told, indent=2, sort_keys=True)

    @staticmethod
    def read(text: str, where: str) -> Members:
        value = as_object(text, where)
        try:
            server = key_of(value["server"], "the server")
            return Members(server, tuple(Card.of(card, where, server) for card in value["clients"]))
        except (KeyError, TypeError):
            raise DataError(f"{where} is not a roster of Hush's.") from None


def as_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object, or one sentence."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"{where} is not JSON that Hush writes.")
    return value
