"""The two folders of a federation: the server's, with its keys and the roster; and a client's, with keys that nobody else sees."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from hush.errors import DataError, UsageError
from hush.federation.keys import (
    Lifetime,
    can_sign,
    is_node_key,
    make_authority,
    make_node_key,
    make_server_certificate,
    public_node_key,
    read_secret,
    write_secret,
)
from hush.federation.members import OWN, Card, Former, Members, as_object, check_name, key_of
from hush.secagg.identity import Identity, is_signed

FORMAT = 1
_ROSTER, _SECRET = "roster.json", "identity.key"
_NEXT = {"node.key": "node.key.next", _SECRET: f"{_SECRET}.next"}
"""Keys that were drawn, and are not yet in their places."""
INVITATION = "invitation.json"
WARN_DAYS = 30
"""Before a certificate expires."""
_HOST, _PORT = re.compile(r"\[?[A-Za-z0-9:][A-Za-z0-9.:%_-]*\]?"), re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Invitation:
    """What a client must know of a server before it trusts anything else: where it is, and its keys. Nothing in it is secret."""

    name: str
    address: str
    server: bytes
    ca: str
    insecure: bool = False
    issued: int = 0
    """When, in Unix seconds: of two invitations the later one holds."""
    signature: str = ""
    """The server's own: who was invited before takes no other (`ClientFolder.take`)."""

    @property
    def statement(self) -> bytes:
        """What is signed."""
        return b"hush invitation\0" + json.dumps(self._told(), sort_keys=True).encode()

    def _told(self) -> dict[str, Any]:
        told = {"format": FORMAT, "name": self.name, "address": self.address, "server": self.server.hex(), "ca": self.ca}
        return told | {"insecure": self.insecure, "issued": self.issued}

    def signed(self, identity: Identity, after: int = 0) -> Invitation:
        """The same, issued now, and later than another."""
        now = replace(self, issued=max(int(time.time()), after + 1))
        return replace(now, signature=identity.sign(now.statement).hex())

    def holds(self, key: bytes) -> bool:
        """Whether the owner of this key signed it as it is."""
        try:
            return is_signed(key, bytes.fromhex(self.signature), self.statement)
        except ValueError:
            return False

    def to_json(self) -> str:
        return json.dumps(self._told() | {"signature": self.signature}, indent=2) + "\n"

    @staticmethod
    def read(path: Path) -> Invitation:
        value = as_object(read_text(path), str(path))
        try:
            if value["format"] != FORMAT:
                raise DataError(f"{path} has format {value['format']!r}, and this Hush reads {FORMAT}.")
            key, name, address = key_of(value["server"], "the server"), check_name(str(value["name"])), str(value["address"])
            split_address(address)
            issued, signature = value.get("issued", 0), value.get("signature", "")
            insecure, when = value.get("insecure") is True, issued if isinstance(issued, int) else 0
            return Invitation(name, address, key, str(value["ca"]), insecure, when, str(signature))
        except KeyError:
            raise DataError(f"{path} is not an invitation that hush federation init writes.") from None


class Trouble(NamedTuple):
    """What a certificate needs, in one sentence."""

    told: str
    usable: bool
    """Whether clients still get through."""


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
            make_authority(path, name)
            make_server_certificate(path, host)
        ca = "" if insecure else (path / "ca.crt").read_text()
        invitation = Invitation(name, _address(host, port), identity.public, ca, insecure)
        (path / INVITATION).write_text(invitation.signed(identity).to_json())
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

    def renew(self, address: str | None = None) -> bool:
        """A new certificate, of the same authority where that is to be had, and for another address, if one is given.

        Whether there is a new invitation, too, which every client has to take.
        """
        known = self.invitation
        host, port = split_address(address or known.address)
        if not known.insecure:
            if not can_sign(self.path):
                make_authority(self.path, known.name)
            make_server_certificate(self.path, host)
        elif address is None:
            raise UsageError(f"{self.path} was made with --insecure: it has no certificates.")
        ca = "" if known.insecure else (self.path / "ca.crt").read_text()
        renewed = replace(known, address=_address(host, port), ca=ca)
        if renewed == known:
            return False
        write_text(self.path / INVITATION, renewed.signed(self.identity, known.issued).to_json())
        return True

    def trouble(self) -> Trouble | None:
        """What is wrong with the certificates, or will soon be."""
        if self.invitation.insecure:
            return None
        for file, called in (("server.crt", "server"), ("ca.crt", "federation's authority")):
            held = Lifetime.of(_read_bytes(self.path / file))
            left, renew = _days_left(held), f"hush federation renew {self.path}"
            if held.begins > _now():
                told = f"The certificate of the {called} is not valid before {held.begins:%Y-%m-%d %H:%M} UTC, and this machine's"
                return Trouble(f"{told} clock says {_now():%Y-%m-%d %H:%M}: set the clock, or {renew}.", False)
            if left < 0:
                return Trouble(f"The certificate of the {called} expired on {held.ends:%Y-%m-%d}: {renew}.", False)
            if left < WARN_DAYS:
                return Trouble(f"The certificate of the {called} expires on {held.ends:%Y-%m-%d}: {renew}.", True)
        return None

    def admit(self, card: Card) -> Members:
        """One client more, or one with a new key in its old place. The roster is another one then, and all agree to it anew."""
        members = self.members
        if card.server != members.server:
            raise UsageError(f"The card of '{card.name}' is for another federation: enrol it with {self.path / INVITATION}.")
        if not is_node_key(card.node):
            raise UsageError(f"The card of '{card.name}' has a node key that hush federation enroll does not write: enrol it anew.")
        if card in members.cards:
            raise UsageError(f"The roster has this card of '{card.name}' already.")
        others = [known for known in members.cards if not card.follows(known)]
        if like := [known.name for known in others if known.name.casefold() == card.name.casefold() and known.name != card.name]:
            raise UsageError(
                f"The roster has a client '{like[0]}' already, and people read '{card.name}' as the same: take another."
            )
        for what, called in OWN.items():
            if getattr(card, what) in [getattr(known, what) for known in others]:
                raise UsageError(
                    f"The roster has a client with the {called} of '{card.name}' already. A client with a new key is rotated "
                    "(hush federation rotate), or removed before it is admitted anew."
                )
        if len(others) == len(members.cards):
            return self._write_roster(Members(members.server, (*members.cards, card)))
        return self._write_roster(Members(members.server, tuple(card if card.follows(one) else one for one in members.cards)))

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
        if not known.holds(known.server):  # what says who the server is may be another's; the fingerprint tells
            raise DataError(f"{invitation} is not as its server signed it: it was changed on its way, ask for it again.")
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
        folder = ClientFolder(path)
        if folder._is_between_keys:
            try:
                held = folder.lock()
            except UsageError:  # a process that is just rotating: these keys are its own, and not left over
                return folder
            with closing(held):
                folder._finish_rotation()
        return folder

    def rotate(self, node_only: bool = False) -> Card:
        """New keys. The old one signs for the new one, and is gone: diary and ledger are the same client's. Be alone (`lock`).

        The card is what counts: keys that it does not show were drawn by a process that was killed, and those that it shows are put
        in their places by the next one.
        """
        old, identity = self.card, self.identity
        for name in _NEXT.values():
            (self.path / name).unlink(missing_ok=True)
        node = make_node_key(self.path / _NEXT["node.key"])
        if node_only:
            card = replace(old, node=node)
        else:
            following = Identity.generate()
            card = replace(old, node=node, key=following.public, before=(*old.before, Former.of(identity, following.public)))
            identity = following
            write_secret(self.path / _NEXT[_SECRET], identity.to_bytes())
        write_text(self.path / "card.json", card.written(identity))
        self._finish_rotation()
        return card

    @property
    def _is_between_keys(self) -> bool:
        return any((self.path / name).exists() for name in _NEXT.values())

    def _finish_rotation(self) -> None:
        card = self.card
        for name, told in (("node.key", card.node), (_SECRET, card.key)):
            drawn = self.path / _NEXT[name]
            if drawn.exists() and _shown(name, read_secret(drawn)) == told:
                drawn.replace(self.path / name)
            drawn.unlink(missing_ok=True)

    def lock(self) -> IO[bytes]:
        """While this is open nobody else answers for this client: two would count apart."""
        held = (self.path / "lock").open("wb")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            raise UsageError(f"Another hush client answers for {self.path} already.") from None
        return held

    def take(self, path: Path) -> Invitation:
        """A new invitation of the same server: another address, another certificate authority."""
        known, new = self.invitation, Invitation.read(path)
        if new.server != known.server:
            raise UsageError(f"{path} is of another server than the one that invited this client: that is another federation.")
        if not new.holds(known.server):
            raise DataError(f"{path} is not as the server that invited this client signed it: ask for it again.")
        if (new.name, new.insecure) != (known.name, known.insecure):
            raise UsageError(f"{path} says another name, or another word on TLS, than this client was enrolled with.")
        if new.issued < known.issued:
            raise UsageError(f"{path} is older than the invitation that this client has: ask for the newest.")
        (self.path / "ca.crt").write_text(new.ca)
        write_text(self.path / INVITATION, new.to_json())
        return new

    @property
    def identity(self) -> Identity:
        return Identity.from_bytes(read_secret(self.path / _SECRET))

    @property
    def card(self) -> Card:
        return Card.read(read_text(self.path / "card.json"), str(self.path / "card.json"))

    @property
    def invitation(self) -> Invitation:
        return Invitation.read(self.path / INVITATION)


def _shown(name: str, secret: bytes) -> object:
    """What a card shows of a key."""
    return Identity.from_bytes(secret).public if name == _SECRET else public_node_key(secret)


def _new_identity(path: Path) -> Identity:
    """A folder for its owner alone, and a key in it that nobody else has seen."""
    if path.exists() and any(path.iterdir()):
        raise UsageError(f"{path} is not empty: keys lie in a folder of their own.")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    identity = Identity.generate()
    write_secret(path / _SECRET, identity.to_bytes())
    return identity


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"  # IPv6


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _days_left(held: Lifetime) -> float:
    return (held.ends - _now()) / datetime.timedelta(days=1)


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


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
