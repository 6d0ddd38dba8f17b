"""What a client is told where it does not reach its server: each mistake by its own name."""

from __future__ import annotations

import datetime
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hush.engines.flower.process import free_port
from hush.engines.flower.reach import obstacle, refusal
from hush.engines.flower.supernode import SuperNode
from hush.federation import keys
from hush.federation.folders import INVITATION, ClientFolder, Invitation, ServerFolder, split_address
from tests.engines.conftest import Listening


@pytest.fixture
def home(tmp_path: Path) -> ServerFolder:
    return ServerFolder.init(tmp_path / "server", "study", f"127.0.0.1:{free_port()}")


def told(invitation: Invitation) -> str:
    """One sentence's beginning."""
    found = obstacle(invitation, 2.0)
    assert found is not None
    assert invitation.address in found
    assert "\n" not in found
    return found


def test_nothing_stands_between_a_client_and_the_server_that_invited_it(home: ServerFolder, listening: Listening) -> None:
    listening(home)
    assert obstacle(home.invitation) is None


def test_another_authoritys_certificate_is_another_server(home: ServerFolder, listening: Listening, tmp_path: Path) -> None:
    other = ServerFolder.init(tmp_path / "other", "study", home.invitation.address)
    listening(other)
    assert "is not the server that invited this client" in told(home.invitation)
    assert obstacle(other.invitation) is None


def test_a_certificate_for_another_name_is_not_taken(home: ServerFolder, listening: Listening) -> None:
    listening(home, host="127.0.0.2")
    moved = replace(home.invitation, address=home.invitation.address.replace("127.0.0.1", "127.0.0.2"))
    assert "has a certificate for another name" in told(moved)
    assert "hush federation take" in told(moved)


@pytest.mark.parametrize("days", [-3651, 2])
@pytest.mark.parametrize("whose", ["server", "authority"])
def test_a_certificate_that_does_not_hold_today_is_no_other_server(
    whose: str, days: int, home: ServerFolder, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made when a clock said another day: long ago, or a day that has not come."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days - (days < 0) * (whose == "authority") * 365 * 20)
    with monkeypatch.context() as patch:
        patch.setattr("hush.federation.keys._now", lambda: then)
        if whose == "authority":
            (home.path / "ca.key").unlink()
            home.renew()
        else:
            keys.make_server_certificate(home.path, "127.0.0.1")
    listening(home)
    found = told(home.invitation)
    assert "clock, which says" in found
    if days > 0:
        assert "not valid yet" in found
    else:
        assert ("hush federation take" if whose == "authority" else "hush federation renew") in found


def test_nobody_listens(home: ServerFolder) -> None:
    assert "hush server is not running, or runs elsewhere" in told(home.invitation)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_another_program_listens(said: bytes, home: ServerFolder, listening: Listening) -> None:
    listening(home, else_=said)
    assert "speaks no TLS" in told(home.invitation)
    assert obstacle(replace(home.invitation, insecure=True)) is None, "which nobody can tell without TLS"


@pytest.mark.parametrize("reads", [True, False])
def test_what_ends_the_connection_at_once(reads: bool, home: ServerFolder) -> None:
    """As a proxy does whose server is down."""
    host, port = split_address(home.invitation.address)
    with socket.create_server((host, port)) as door:

        def end() -> None:
            link, _ = door.accept()
            if reads:
                link.recv(65536)
            link.close()

        threading.Thread(target=end, daemon=True).start()
        assert "stands before a server that is not running (a proxy, say), or the federation was made" in told(home.invitation)


def test_what_never_answers_is_not_waited_for(home: ServerFolder, listening: Listening) -> None:
    listening(home, else_=b"")
    began = time.monotonic()
    assert "cannot be reached (" in told(home.invitation)
    assert time.monotonic() - began < 60


def test_a_name_that_nobody_knows(home: ServerFolder) -> None:
    strange = replace(home.invitation, address="no-such-host.invalid:9443")
    assert "the name no-such-host.invalid is not known here" in told(strange)


def test_a_refused_key_is_told_from_a_lost_connection(home: ServerFolder) -> None:
    said = "Exit Code: 305\nFailed to initialize the connection to the SuperLink.\n[code: 2004] Failed to activate SuperNode.\n"
    assert "refuses this client: it is not admitted" in refusal(home.invitation, said)
    assert refusal(home.invitation, "INFO : SuperNode ID: 7\n") == f"the connection to {home.invitation.address} is lost"


def test_a_client_says_once_what_is_in_its_way_and_then_what_is_next(
    home: ServerFolder, listening: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'hush-fl[federation]'")
    monkeypatch.setattr("hush.engines.flower.supernode._BACKOFF", (0.05,))
    client = ClientFolder.enroll(tmp_path / "client", home.path / INVITATION, "client-0")
    heard: list[str] = []
    with SuperNode(client, [], client.path / "logs", tell=heard.append):
        wait_for(lambda: bool(heard))
        time.sleep(0.3)
        listening(ServerFolder.init(tmp_path / "other", "study", home.invitation.address))
        wait_for(lambda: len(heard) > 1)
    assert "nobody listens" in heard[0]
    assert "is not the server that invited this client" in heard[1]
    assert len(heard) == 2


def test_a_supernode_that_gave_up_is_started_again(
    home: ServerFolder, listening: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's process stays, behind a proxy whose server was started anew, and does nothing any more."""
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'hush-fl[federation]'")
    monkeypatch.setattr("hush.engines.flower.supernode._BACKOFF", (0.05,))
    monkeypatch.setattr("hush.engines.flower.supernode._LOOK", 0.1)
    said = "SuperNode ID: 7", "Start `flwr-clientapp` process", "SSL/TLS handshake error detected."
    program = f"import time; [(print(line, flush=True), time.sleep(0.3)) for line in {said!r}]; time.sleep(600)"
    monkeypatch.setattr(SuperNode, "_command", lambda self: [sys.executable, "-c", program])
    client = ClientFolder.enroll(tmp_path / "client", home.path / INVITATION, "client-0")
    listening(home)
    heard: list[str] = []
    log = client.path / "logs" / "supernode.log"
    with SuperNode(client, [], log.parent, tell=heard.append):
        wait_for(lambda: log.exists() and log.read_text().count("SuperNode ID") >= 3)
    assert heard[:3] == [
        f"connected to {home.invitation.address}",
        f"the connection to {home.invitation.address} is lost; trying again",
        f"connected to {home.invitation.address}",
    ]


def wait_for(done) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + 30
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
    assert done()
