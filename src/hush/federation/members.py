"""Who belongs to a federation: names and keys, in one order that everybody knows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hush.errors import DataError, UsageError
from hush.secagg.identity import KEY_BYTES, Identity, Roster, is_signed

CARD_FORMAT = 2
"""Cards of format 1 had no number, and named no federation."""
OWN = {"name": "name", "key": "key", "node": "node key", "first": "first key"}
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
class Former:
    """A key that a client had before, and its signature over the one that followed."""

    key: bytes
    signature: bytes

    @staticmethod
    def of(identity: Identity, following: bytes) -> Former:
        return Former(identity.public, identity.sign(succession(identity.public, following)))

    def to_dict(self) -> dict[str, str]:
        return {"key": self.key.hex(), "signature": self.signature.hex()}


def succession(key: bytes, following: bytes) -> bytes:
    """What a client's old key signs."""
    return b"hush key, and the one that follows\0" + key + following


@dataclass(frozen=True)
class Card:
    """What a client shows of itself: its name, the key that it signs with, that of its Flower node, and whom it shows them to."""

    name: str
    key: bytes
    node: str
    """An ECDSA public key in OpenSSH's form."""
    server: bytes
    """The key of the federation's server, from the invitation: a card is for one federation."""
    before: tuple[Former, ...] = ()
    """The keys that this client had, from the first on."""

    def __post_init__(self) -> None:
        """Of keys that do not follow from each other one may be anybody's."""
        keys = (*(former.key for former in self.before), self.key)
        for former, following in zip(self.before, keys[1:], strict=True):
            if not is_signed(former.key, former.signature, succession(former.key, following)):
                raise DataError(f"The card of '{self.name}' has a former key that did not sign for the next one.")

    @property
    def first(self) -> bytes:
        """The key that this client enrolled with: it stays the same client, whatever key it has now."""
        return self.before[0].key if self.before else self.key

    @property
    def statement(self) -> bytes:
        former = b"".join(one.key for one in self.before)
        return b"hush card 2\0" + self.server + self.name.encode() + b"\0" + self.key + self.node.encode() + former

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
        told: dict[str, Any] = {"name": self.name, "key": self.key.hex(), "node": self.node}
        return told | ({"before": [one.to_dict() for one in self.before]} if self.before else {})

    @staticmethod
    def of(value: dict[str, Any], where: str, server: bytes) -> Card:
        whose = f"a client in {where}"
        key, former = key_of(value["key"], whose), value.get("before", [])
        before = tuple(Former(key_of(one["key"], whose), bytes.fromhex(one["signature"])) for one in former)
        return Card(check_name(str(value["name"])), key, str(value["node"]).strip(), server, before)

    def follows(self, other: Card) -> bool:
        """Whether this is the card of the same client, with its next key, or another key of its node."""
        return self.name == other.name and (self.key == other.key or other.key in [one.key for one in self.before])


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
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{where} is not a roster of Hush's.") from None


def changes(before: Mapping[str, str], now: Members) -> list[str]:
    """What became of a roster, names with keys, since a client agreed to it."""
    names, keys = {card.name: card for card in now.cards}, {key: name for name, key in before.items()}
    lines = [f"{name} is not in it any more" for name in before if name not in names]
    for card in now.cards:
        known = before.get(card.name)
        if known is None:
            lines.append(f"{card.name} is new")
        elif known in [former.key.hex() for former in card.before]:
            lines.append(f"{card.name} has a new key, which its old one signed for")
        elif known != card.key.hex():
            lines.append(f"{card.name} HAS ANOTHER KEY, which its old one did not sign for: ask why by telephone")
        if (other := keys.get(card.key.hex(), card.name)) != card.name:
            lines.append(f"{card.name} was called {other}")
    return lines


def as_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object, or one sentence."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"{where} is not JSON that Hush writes.")
    return value
