"""The two folders of a federation: the server's, with its keys and the roster; and a client's, with keys that nobody else sees."""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hush.errors import DataError, UsageError
from hush.federation.keys import is_node_key, make_authority, make_node_key, read_secret, write_secret
from hush.federation.members import OWN, Card, Members, as_object, check_name, key_of
from hush.secagg.identity import Identity

FORMAT = 1
_ROSTER, _SECRET = "roster.json", "identity.key"
INVITATION = "invitation.json"
_HOST, _PORT = re.compile(r"\[?[A-Za-z0-9:][A-Za-z0-9.:%_-]*\]?"), re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Invitation:
    """What a client must know of a server before it trusts anything else: where it is, and its keys. Nothing in it is secret."""

    name: str
    address: str
    server: bytes
    ca: str
    insecure: bool = False

    def to_json(self) -> str:
        told = {"format": FORMAT, "name": self.name, "address": self.address, "server": self.server.hex(), "ca": self.ca}
        return json.dumps(told | {"insecure": self.insecure}, indent=2) + "\n"

    @staticmethod
    def read(path: Path) -> Invitation:
        value = as_object(read_text(path), str(path))
        try:
            if value["format"] != FORMAT:
                raise DataError(f"{path} has format {value['format']!r}, and this Hush reads {FORMAT}.")
            key, name, address = key_of(value["server"], "the server"), check_name(str(value["name"])), str(value["address"])
            split_address(address)
            return Invitation(name, address, key, str(value["ca"]), value.get("insecure") is True)
        except KeyError:
            raise DataError(f"{path} is not an invitation that hush federation init writes.") from None


@dataclass(frozen=True)
class ServerFolder:
    """What `hush federation init` makes."""

    path: Path

    @staticmethod
    def init(path: Path, name: str, address: str, insecure: bool = False) -> ServerFolder:
        """A server's keys and certificates, and the invitation to its clients."""
        check_name(name)
        host, port = split_address(address)
        identity = _new_identity(path)
        if not insecure:
            make_authority(path, name, host)
        ca = "" if insecure else (path / "ca.crt").read_text()
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"  # IPv6
        invitation = Invitation(name, where, identity.public, ca, insecure)
        (path / INVITATION).write_text(invitation.to_json())
        folder = ServerFolder(path)
        folder._write_roster(Members(identity.public, ()))
        return folder

    @staticmethod
    def of(path: Path) -> ServerFolder:
        if not (path / _ROSTER).is_file() or not (path / _SECRET).is_file():  # a client has an invitation, too
            raise UsageError(f"{path} is not a server's folder: hush federation init {path} makes one.")
        return ServerFolder(path)

    @property
    def invitation(self) -> Invitation:
        return Invitation.read(self.path / INVITATION)

    @property
    def identity(self) -> Identity:
        return Identity.from_bytes(read_secret(self.path / _SECRET))

    @property
    def members(self) -> Members:
        return Members.read(read_text(self.path / _ROSTER), str(self.path / _ROSTER))

    def admit(self, card: Card) -> Members:
        """One client more. The roster is another one then, and every client agrees to it anew."""
        members = self.members
        if card.server != members.server:
            raise UsageError(f"The card of '{card.name}' is for another federation: enrol it with {self.path / INVITATION}.")
        if not is_node_key(card.node):
            raise UsageError(f"The card of '{card.name}' has a node key that hush federation enroll does not write: enrol it anew.")
        for what, called in OWN.items():
            if getattr(card, what) in [getattr(known, what) for known in members.cards]:
                raise UsageError(f"The roster has a client with the {called} of '{card.name}' already.")
        return self._write_roster(Members(members.server, (*members.cards, card)))

    def remove(self, name: str) -> Members:
        """One client fewer."""
        members = self.members
        if name not in members.names:
            raise UsageError(f"The roster has no client '{name}'; it has {', '.join(members.names) or 'none'}.")
        return self._write_roster(Members(members.server, tuple(card for card in members.cards if card.name != name)))

    def _write_roster(self, members: Members) -> Members:
        write_text(self.path / _ROSTER, members.to_json() + "\n")
        return members


@dataclass(frozen=True)
class ClientFolder:
    """What `hush federation enroll` makes: keys, the server's invitation, and what this client agreed to and took part in."""

    path: Path

    @staticmethod
    def enroll(path: Path, invitation: Path, name: str) -> ClientFolder:
        """Keys that are made here, and a card that shows the public ones."""
        check_name(name)
        known = Invitation.read(invitation)
        identity = _new_identity(path)
        node = make_node_key(path / "node.key")
        write_text(path / INVITATION, known.to_json())
        card = Card(name, identity.public, node, known.server)
        write_text(path / "card.json", card.written(identity))
        (path / "ca.crt").write_text(known.ca)
        return ClientFolder(path)

    @staticmethod
    def of(path: Path) -> ClientFolder:
        if not (path / "card.json").is_file() or not (path / _SECRET).is_file():
            raise UsageError(f"{path} is not a client's folder: hush federation enroll makes one.")
        return ClientFolder(path)

    def lock(self) -> IO[bytes]:
        """While this is open nobody else answers for this client: two would count apart."""
        held = (self.path / "lock").open("wb")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            raise UsageError(f"Another hush client answers for {self.path} already.") from None
        return held

    @property
    def identity(self) -> Identity:
        return Identity.from_bytes(read_secret(self.path / _SECRET))

    @property
    def card(self) -> Card:
        return Card.read(read_text(self.path / "card.json"), str(self.path / "card.json"))

    @property
    def invitation(self) -> Invitation:
        return Invitation.read(self.path / INVITATION)


def _new_identity(path: Path) -> Identity:
    """A folder for its owner alone, and a key in it that nobody else has seen."""
    if path.exists() and any(path.iterdir()):
        raise UsageError(f"{path} is not empty: keys lie in a folder of their own.")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    identity = Identity.generate()
    write_secret(path / _SECRET, identity.to_bytes())
    return identity


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, in letters that a terminal shows and no command takes for a flag."""
    host, _, port = address.rpartition(":")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise UsageError(f"An address is HOST:PORT, such as fl.hospital.org:9443, not {address!r}.")
    return host.strip("[]"), int(port)


def read_text(path: Path) -> str:
    """A file's text, or one sentence."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
