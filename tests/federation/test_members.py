"""Who belongs: cards that nobody can forge, rosters that everybody can compare, secrets that nobody else reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from hush.errors import DataError, HushError, UsageError
from hush.federation.folders import INVITATION, ClientFolder, Invitation, ServerFolder, split_address
from hush.federation.keys import read_secret, write_secret
from hush.federation.members import Card, Members, check_name
from hush.secagg.identity import Identity

SERVER, WHO = Identity.generate(), [Identity.generate() for _ in range(3)]
CARDS = tuple(Card(f"client-{i}", one.public, f"ecdsa-sha2-nistp384 AAAA{i}", SERVER.public) for i, one in enumerate(WHO))
MEMBERS = Members(SERVER.public, CARDS)


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    return ServerFolder.init(tmp_path / "server", "hospitals", "127.0.0.1:9443")


def enrolled(home: ServerFolder, name: str) -> ClientFolder:
    return ClientFolder.enroll(home.path.parent / name, home.path / INVITATION, name)


# -- cards -------------------------------------------------------------------------------------------------------------------------


def test_a_card_is_read_as_it_was_written() -> None:
    assert Card.read(CARDS[0].written(WHO[0]), "card.json") == CARDS[0]


def test_a_card_with_a_key_that_its_writer_does_not_have_is_refused() -> None:
    with pytest.raises(DataError, match="signature does not hold"):
        Card.read(CARDS[0].written(WHO[1]), "card.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "client-1"),
        ("key", WHO[1].public.hex()),
        ("node", "ecdsa-sha2-nistp384 BBBB"),
        ("server", WHO[2].public.hex()),
        ("signature", "00" * 64),
    ],
    ids=("name", "key", "node", "server", "signature"),
)
def test_a_changed_card_is_refused(key: str, value: str) -> None:
    told = json.loads(CARDS[0].written(WHO[0]))
    with pytest.raises(DataError, match="signature does not hold"):
        Card.read(json.dumps(told | {key: value}), "card.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "../../etc"),
        ("name", ""),
        ("name", "a" * 65),
        ("name", "a b"),
        ("name", "a\n"),
        ("name", None),
        ("key", "00"),
        ("key", 5),
        ("key", "zz" * 32),
        ("server", "00"),
        ("server", None),
        ("format", 1),
        ("format", 3),
        ("format", "2"),
        ("signature", "zz"),
        ("signature", 7),
        ("signature", None),
    ],
)
def test_a_card_that_makes_no_sense_is_one_sentence(key: str, value: Any) -> None:
    told = json.loads(CARDS[0].written(WHO[0]))
    with pytest.raises(HushError) as error:
        Card.read(json.dumps(told | {key: value}), "card.json")
    assert str(error.value).endswith(".")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"name": "a"}', "[" * 10_000])
def test_what_is_no_card_at_all_is_one_sentence(text: str) -> None:
    for read in (Card.read, Members.read):
        with pytest.raises(DataError, match=r"card\.json"):
            read(text, "card.json")


def test_a_card_of_the_first_format_is_not_taken_for_one_of_this_federation() -> None:
    told = json.loads(CARDS[0].written(WHO[0]))
    old = {key: told[key] for key in ("name", "key", "node", "signature")}
    with pytest.raises(DataError, match="has format 1, and this Hush reads 2: enrol the client anew"):
        Card.read(json.dumps(old), "card.json")


def test_a_name_is_the_name_of_a_file_in_one_folder() -> None:
    assert check_name("St.Mary-2_b") == "St.Mary-2_b"
    for name in (".hidden", "-rf", "a/b", "..", "a\0b", "\N{SNOWMAN}", "a" * 65):
        with pytest.raises(UsageError):
            check_name(name)


# -- the roster --------------------------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_short_enough_for_the_telephone() -> None:
    groups = MEMBERS.fingerprint.split("-")
    assert [len(group) for group in groups] == [5] * 5
    assert Members.read(MEMBERS.to_json(), "roster").fingerprint == MEMBERS.fingerprint


def flipped(value: str | bytes, place: int) -> Any:
    if isinstance(value, bytes):
        return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
    return value[:place] + ("x" if value[place] != "x" else "y") + value[place + 1 :]


def test_every_byte_of_every_name_and_key_and_their_order_change_the_fingerprint() -> None:
    seen = {MEMBERS.fingerprint}
    others = [Members(flipped(MEMBERS.server, i), CARDS) for i in range(32)]
    for number, card in enumerate(CARDS):
        for what in ("name", "key", "node"):
            for place in range(len(getattr(card, what))):
                other = replace(card, **{what: flipped(getattr(card, what), place)})
                others.append(Members(SERVER.public, (*CARDS[:number], other, *CARDS[number + 1 :])))
    others += [Members(SERVER.public, CARDS[::-1]), Members(SERVER.public, CARDS[:2]), Members(SERVER.public, ())]
    swapped = (replace(CARDS[0], key=CARDS[1].key), replace(CARDS[1], key=CARDS[0].key), CARDS[2])
    others.append(Members(SERVER.public, swapped))
    seen |= {other.fingerprint for other in others}
    assert len(seen) == len(others) + 1


def test_two_clients_share_neither_name_nor_key() -> None:
    for what, called in (("name", "name"), ("key", "key"), ("node", "node key")):
        same = replace(CARDS[1], **{what: getattr(CARDS[0], what)})
        with pytest.raises(UsageError, match=f"same {called}:"):
            Members(SERVER.public, (CARDS[0], same))


def test_whoever_is_admitted_is_in_the_roster_and_whoever_is_removed_is_not(home: ServerFolder) -> None:
    cards = [enrolled(home, f"client-{i}").card for i in range(3)]
    prints = {home.members.fingerprint} | {home.admit(card).fingerprint for card in cards}
    assert home.members.names == ("client-0", "client-1", "client-2")
    assert home.members.roster.clients == tuple(card.key for card in cards)
    prints.add(home.remove("client-1").fingerprint)
    assert ServerFolder.of(home.path).members.names == ("client-0", "client-2")
    prints.add(home.admit(cards[1]).fingerprint)
    assert home.members.names == ("client-0", "client-2", "client-1")
    assert len(prints) == 6


def test_nobody_is_admitted_twice_and_no_stranger_is_removed(home: ServerFolder) -> None:
    card = enrolled(home, "client-0").card
    home.admit(card)
    before = (home.path / "roster.json").read_bytes()
    for other in (card, replace(card, name="client-9"), replace(card, key=WHO[0].public)):
        with pytest.raises(UsageError, match="already"):
            home.admit(other)
    with pytest.raises(UsageError, match="no client 'client-9'; it has client-0"):
        home.remove("client-9")
    assert (home.path / "roster.json").read_bytes() == before


def test_a_card_is_for_one_federation(home: ServerFolder, tmp_path: Path) -> None:
    """Also one that its own client signed for another: whoever collected it there cannot bring it here."""
    other = ServerFolder.init(tmp_path / "other", "other", "127.0.0.1:9444", insecure=True)
    card = enrolled(home, "client-0").card
    assert card.server == home.identity.public
    with pytest.raises(UsageError, match=r"The card of 'client-0' is for another federation: enrol it with .*invitation\.json"):
        other.admit(card)
    assert other.members.cards == ()
    assert home.admit(card).cards == (card,)
    assert home.members.cards == (card,), "a roster names its server once"


def signed(client: ClientFolder, node: str) -> Card:
    """A client's card with another node key, under its own signature."""
    return Card.read(replace(client.card, node=node).written(client.identity), "card.json")


def test_a_node_key_is_one_that_flower_takes_and_one_clients_alone(home: ServerFolder) -> None:
    """Or `hush server` stops at it, whoever sent the card."""
    first, second = enrolled(home, "client-0"), enrolled(home, "client-1")
    home.admit(first.card)
    own = second.card.node
    other_curve, other_kind = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
    for node in (
        "",
        "ecdsa-sha2-nistp384 AAAA",
        "ecdsa-sha2-nistp384 AAAA\nnot a key \x1b[2J",
        own[:-4] + "AAAA",
        f"{own} a comment",
        f"{own}\n{first.card.node}",
        "\N{SNOWMAN}",
        *(openssh(key.public_key()) for key in (other_curve, other_kind)),
    ):
        with pytest.raises(UsageError, match="'client-1' has a node key that hush federation enroll does not write"):
            home.admit(signed(second, node))
    with pytest.raises(UsageError, match="has a client with the node key of 'client-1' already"):
        home.admit(signed(second, first.card.node))
    assert home.members.names == ("client-0",)
    assert home.admit(second.card).names == ("client-0", "client-1")


def openssh(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> str:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def test_a_roster_that_was_damaged_is_one_sentence(home: ServerFolder) -> None:
    path = home.path / "roster.json"
    for text in (
        "",
        "{}",
        '{"server": "00", "clients": []}',
        '{"server": null}',
        json.dumps({"server": "00" * 32, "clients": [1]}),
    ):
        path.write_text(text)
        with pytest.raises(DataError):
            _ = home.members
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="cannot be read"):
        _ = home.members


# -- folders -----------------------------------------------------------------------------------------------------------------------


def test_secrets_are_for_their_owner_alone(home: ServerFolder) -> None:
    client = enrolled(home, "client-0")
    secrets = [home.path / "identity.key", home.path / "server.key", client.path / "identity.key", client.path / "node.key"]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 4
    assert [path.stat().st_mode & 0o777 for path in (home.path, client.path)] == [0o700] * 2
    public = b"".join(path.read_bytes() for path in (home.path / INVITATION, client.path / "card.json", home.path / "roster.json"))
    for path in secrets:
        assert path.read_bytes() not in public
        assert path.read_bytes().hex().encode() not in public


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_secret_that_others_may_touch_is_refused(mode: int, home: ServerFolder) -> None:
    client = enrolled(home, "client-0")
    holders: list[tuple[Path, Callable[[], Identity]]] = [
        (home.path / "identity.key", lambda: home.identity),
        (client.path / "identity.key", lambda: client.identity),
    ]
    for path, read in holders:
        assert read().public
        path.chmod(mode)
        with pytest.raises(DataError, match="others may read: chmod 600"):
            read()


def test_a_secret_is_never_written_over(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", b"first")
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "key", b"second")
    assert read_secret(tmp_path / "key") == b"first"
    with pytest.raises(DataError, match="cannot be read"):
        read_secret(tmp_path / "none")


def test_a_name_that_people_read_as_anothers_is_not_admitted(home: ServerFolder, tmp_path: Path) -> None:
    for name in ("client-1", "Client-1"):
        card = ClientFolder.enroll(tmp_path / name, home.path / INVITATION, name).card
        if name == "client-1":
            home.admit(card)
    with pytest.raises(UsageError, match="a client 'client-1' already, and people read 'Client-1' as the same"):
        home.admit(card)


def test_a_folder_that_holds_anything_is_not_begun_anew(home: ServerFolder) -> None:
    client = enrolled(home, "client-0")
    before = {path: path.read_bytes() for folder in (home.path, client.path) for path in folder.iterdir()}
    with pytest.raises(UsageError, match="not empty"):
        ServerFolder.init(home.path, "again", "127.0.0.1:9443")
    with pytest.raises(UsageError, match="not empty"):
        ClientFolder.enroll(client.path, home.path / INVITATION, "again")
    assert before == {path: path.read_bytes() for folder in (home.path, client.path) for path in folder.iterdir()}


def test_a_folder_of_something_else_is_refused(home: ServerFolder, tmp_path: Path) -> None:
    client = enrolled(home, "client-0")
    for kind, path in ((ServerFolder, client.path), (ClientFolder, home.path), (ServerFolder, tmp_path), (ClientFolder, tmp_path)):
        with pytest.raises(UsageError, match="hush federation"):
            kind.of(path)


def test_a_client_pins_the_server_that_invited_it(home: ServerFolder) -> None:
    client = enrolled(home, "client-0")
    assert client.invitation == home.invitation
    assert client.invitation.server == home.identity.public == home.members.server
    assert client.card.key == client.identity.public
    assert (client.path / "ca.crt").read_text() == client.invitation.ca


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"server": "00"},
        {"server": None},
        {"name": "x\x1b]0;owned\x07\x1b[2Jstudy\nThe policy says no"},
        {"name": ""},
        {"address": "127.0.0.1\x1b[2J:9443"},
        {"address": "127.0.0.1\nThe policy says no:9443"},
        {"address": "--insecure:9443"},
        {"address": "127.0.0.1:9443\n"},
        {"address": "127.0.0.1"},
        {"format": "\x1b[2J"},
        {"name": ...},
        {"address": ...},
        {"ca": ...},
        {"server": ...},
        {"format": ...},
    ],
    ids=str,
)
def test_an_invitation_that_makes_no_sense_enrols_nobody(change: dict[str, Any], home: ServerFolder, tmp_path: Path) -> None:
    told = json.loads((home.path / INVITATION).read_text()) | change
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({key: value for key, value in told.items() if value is not ...}))
    with pytest.raises(HushError) as error:
        ClientFolder.enroll(tmp_path / "client", path, "client")
    assert str(error.value).isprintable()
    assert not (tmp_path / "client").exists()


def test_only_what_was_typed_as_insecure_is(home: ServerFolder, tmp_path: Path) -> None:
    assert not home.invitation.insecure
    open_ = ServerFolder.init(tmp_path / "open", "open", "127.0.0.1:9443", insecure=True)
    assert open_.invitation.insecure
    assert open_.invitation.ca == ""
    assert not (open_.path / "server.key").exists()
    told = json.loads((home.path / INVITATION).read_text())
    for said in ("false", "true", 1, "", None):
        (tmp_path / "i.json").write_text(json.dumps(told | {"insecure": said}))
        assert not Invitation.read(tmp_path / "i.json").insecure


@pytest.mark.parametrize("host", ["fl.hospital.org", "10.1.2.3", "::1"])
def test_the_servers_certificate_is_for_its_host_and_signed_by_the_authority(host: str, tmp_path: Path) -> None:
    where = f"[{host}]:9443" if ":" in host else f"{host}:9443"
    home = ServerFolder.init(tmp_path / "server", "hospitals", where)
    ca = x509.load_pem_x509_certificate((home.path / "ca.crt").read_bytes())
    own = x509.load_pem_x509_certificate((home.path / "server.crt").read_bytes())
    own.verify_directly_issued_by(ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(value) for kind in (x509.DNSName, x509.IPAddress) for value in names.get_values_for_type(kind)}
    assert {host, "localhost", "127.0.0.1"} <= known
    assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(own.public_key(), ec.EllipticCurvePublicKey)
    assert (home.path / "ca.key").stat().st_mode & 0o777 == 0o600, "who has the authority's key could be the server"


def test_an_address_is_a_host_and_a_port() -> None:
    assert split_address("fl.hospital.org:9443") == ("fl.hospital.org", 9443)
    assert split_address("[::1]:80") == ("::1", 80)
    for wrong in ("host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:x", ""):
        with pytest.raises(UsageError, match="HOST:PORT"):
            split_address(wrong)


@pytest.mark.parametrize("host", ["fl.hospital.org", "::1"])
def test_an_invitation_names_an_address_that_can_be_split_again(host: str, tmp_path: Path) -> None:
    where = f"[{host}]:9443" if ":" in host else f"{host}:9443"
    home = ServerFolder.init(tmp_path / "server", "hospitals", where, insecure=True)
    assert home.invitation.address == where
