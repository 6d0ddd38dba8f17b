"""Certificates that are renewed and that expire, and invitations that clients take anew."""

from __future__ import annotations

import datetime
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from hush.errors import HushError
from hush.federation import folders, keys
from hush.federation.folders import INVITATION, ClientFolder, Invitation, ServerFolder
from hush.federation.keys import Lifetime
from hush.secagg.identity import Identity
from tests.cli.test_cli import hush


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    return ServerFolder.init(tmp_path / "server", "study", "fl.example.org:9443")


@pytest.fixture
def client(home: ServerFolder, tmp_path: Path) -> ClientFolder:
    return ClientFolder.enroll(tmp_path / "client", home.path / INVITATION, "client")


def holds(home: ServerFolder, ca: str) -> x509.Certificate:
    """The server's certificate, by the authority that somebody pinned."""
    own = x509.load_pem_x509_certificate((home.path / "server.crt").read_bytes())
    own.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.encode()))
    return own


def later(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """The clock of everybody, so many days from now."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    for place in (keys, folders):
        monkeypatch.setattr(place, "_now", lambda: then)


def test_a_renewed_certificate_needs_nothing_of_the_clients(home: ServerFolder, client: ClientFolder) -> None:
    before = {name: (home.path / name).read_bytes() for name in ("server.crt", "server.key", "ca.crt", "ca.key", INVITATION)}
    assert home.renew() is False
    after = {name: (home.path / name).read_bytes() for name in before}
    assert {name for name in before if before[name] != after[name]} == {"server.crt", "server.key"}
    holds(home, client.invitation.ca)
    assert (home.path / "server.key").stat().st_mode & 0o777 == 0o600
    assert home.members.server == client.invitation.server == home.identity.public


def test_a_server_that_moves_invites_its_clients_to_another_address(home: ServerFolder, client: ClientFolder) -> None:
    assert home.renew("10.1.2.3:9444") is True
    own = holds(home, client.invitation.ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.1.2.3" in map(str, names.get_values_for_type(x509.IPAddress))
    key = (client.path / "identity.key").read_bytes()
    assert client.take(home.path / INVITATION).address == client.invitation.address == "10.1.2.3:9444"
    assert (client.path / "identity.key").read_bytes() == key


@pytest.mark.parametrize("why", ["lost", "short", "other"])
def test_an_authority_that_cannot_sign_is_followed_by_another(
    why: str, home: ServerFolder, client: ClientFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = client.invitation.ca
    if why == "lost":  # as in a folder that was made before the key was kept
        (home.path / "ca.key").unlink()
    elif why == "short":
        later(monkeypatch, 365 * 29.5)
    else:
        keys.write_secret_anew(home.path / "ca.key", (home.path / "server.key").read_bytes())
    assert home.renew() is True
    with pytest.raises(InvalidSignature):
        holds(home, old)
    client.take(home.path / INVITATION)
    holds(home, client.invitation.ca)
    assert (client.path / "ca.crt").read_text() == client.invitation.ca != old


def test_a_certificate_outlives_no_authority(home: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Lifetime.of((home.path / "ca.crt").read_bytes()).ends
    later(monkeypatch, 365 * 28)
    assert home.renew() is False
    assert Lifetime.of((home.path / "server.crt").read_bytes()).ends == ends


@pytest.mark.parametrize(
    "change",
    [
        {"address": "evil.example.org:9443"},
        {"ca": "another"},
        {"issued": 2**40},
        {"signature": ""},
        {"signature": "zz"},
        {"insecure": True},
        {"name": "other"},
        {"server": "00" * 32},
    ],
    ids=str,
)
def test_no_invitation_is_taken_that_the_pinned_server_did_not_sign(
    change: dict[str, Any], home: ServerFolder, client: ClientFolder, tmp_path: Path
) -> None:
    home.renew("fl2.example.org:9443")
    before = {path: path.read_bytes() for path in client.path.iterdir()}
    told = json.loads((home.path / INVITATION).read_text()) | change
    (tmp_path / "changed.json").write_text(json.dumps(told))
    with pytest.raises(HushError) as error:
        client.take(tmp_path / "changed.json")
    assert str(error.value).endswith(".")
    assert before == {path: path.read_bytes() for path in client.path.iterdir()}


def test_an_invitation_signed_by_anybody_else_is_not_taken(home: ServerFolder, client: ClientFolder, tmp_path: Path) -> None:
    other = replace(home.invitation, address="evil.example.org:9443").signed(Identity.generate(), home.invitation.issued)
    (tmp_path / "other.json").write_text(other.to_json())
    with pytest.raises(HushError, match="is not as the server that invited this client signed it"):
        client.take(tmp_path / "other.json")


def test_tls_is_not_switched_off_by_an_invitation(home: ServerFolder, client: ClientFolder, tmp_path: Path) -> None:
    """Not even by the server itself: whoever enrolled with TLS keeps it."""
    open_ = replace(home.invitation, insecure=True, ca="").signed(home.identity, home.invitation.issued)
    (tmp_path / "open.json").write_text(open_.to_json())
    with pytest.raises(HushError, match="another word on TLS"):
        client.take(tmp_path / "open.json")


def test_an_older_invitation_is_not_taken_again(home: ServerFolder, client: ClientFolder, tmp_path: Path) -> None:
    shutil.copy(home.path / INVITATION, tmp_path / "old.json")
    home.renew("fl2.example.org:9443")
    client.take(home.path / INVITATION)
    with pytest.raises(HushError, match="older than the invitation that this client has"):
        client.take(tmp_path / "old.json")
    assert client.take(home.path / INVITATION) == client.invitation, "the same again changes nothing"


def test_what_is_about_to_expire_is_said_thirty_days_before(home: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home.trouble() is None
    for days, usable in ((3619, None), (3621, True), (3649.9, True), (3650.1, False)):
        later(monkeypatch, days)
        trouble = home.trouble()
        assert (None if trouble is None else trouble.usable) == usable
        assert trouble is None or f"hush federation renew {home.path}" in trouble.told
    home.renew()
    assert home.trouble() is None


def test_an_authority_that_expires_is_said_as_well(home: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 365 * 28)
    home.renew()
    later(monkeypatch, 365 * 30 + 1)
    (home.path / "server.crt").write_bytes(_long(home))
    trouble = home.trouble()
    assert trouble is not None
    assert "authority expired" in trouble.told


def _long(home: ServerFolder) -> bytes:
    """A certificate that is in order by itself."""
    other = ServerFolder.init(home.path.parent / "other", "study", "fl.example.org:9443")
    return (other.path / "server.crt").read_bytes()


def test_a_clock_that_is_behind_is_told_from_a_certificate_that_expired(
    home: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(monkeypatch, -2)
    trouble = home.trouble()
    assert trouble is not None
    assert not trouble.usable
    assert "not valid before" in trouble.told
    assert "set the clock" in trouble.told


def test_without_tls_there_is_nothing_to_renew_but_the_address(tmp_path: Path) -> None:
    home = ServerFolder.init(tmp_path / "server", "study", "127.0.0.1:9443", insecure=True)
    client = ClientFolder.enroll(tmp_path / "client", home.path / INVITATION, "client")
    with pytest.raises(HushError, match="made with --insecure"):
        home.renew()
    assert home.trouble() is None
    assert home.renew("127.0.0.2:9443") is True
    client.take(home.path / INVITATION)
    assert Invitation.read(client.path / INVITATION).address == "127.0.0.2:9443"


def test_what_is_typed(
    home: ServerFolder, client: ClientFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(home.path)
    code, _, err = hush(capsys, "federation", "renew", place)
    assert (code, "hush federation take" in err) == (0, False)
    code, out, err = hush(capsys, "federation", "renew", place, "--address", "fl2.example.org:9443")
    assert code == 0
    assert "fl2.example.org:9443" in out
    assert f"hush federation take CLIENT {INVITATION}" in err
    code, out, _ = hush(capsys, "federation", "take", str(client.path), str(home.path / INVITATION))
    assert code == 0
    assert "fl2.example.org:9443" in out
    later(monkeypatch, 3640)
    assert "expires on" in hush(capsys, "federation", "status", place)[2]
    later(monkeypatch, 3660)
    code, _, err = hush(capsys, "server", "--federation", place, "dp-fedavg", "--noise", "1", "--delta", "1e-3")
    assert code == 2
    assert "expired on" in err
