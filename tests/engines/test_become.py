"""Flower as another user: what it can reach of a client, and what it cannot."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hush.engines.flower import become, process
from hush.engines.flower.supernode import SuperNode
from hush.errors import UsageError
from hush.federation.data import files_of
from hush.federation.folders import INVITATION, ClientFolder, ServerFolder

PYTHON = "/usr/bin/python3"
"""One that everybody can read."""
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists() or "nobody" not in {entry.pw_name for entry in pwd.getpwall()},
    reason=f"only root can become another user, who is nobody and runs {PYTHON}: sudo make test",
)
LOOK = """
import json, os, socket, struct, sys
def tried(what, *given):
    try:
        return repr(what(*given))
    except OSError as error:
        return type(error).__name__
def letter(place):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(place)
        link.sendall(struct.pack(">IQ", 2, 0) + b"{}")
        return link.recv(100)
folder, place = sys.argv[1:]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(), "told": sys.stdin.read(), "home": os.environ["HOME"],
    "new privileges": status["NoNewPrivs"].strip(), "back": tried(os.setuid, 0), "names": tried(os.listdir, folder),
    "beside": tried(os.listdir, os.path.dirname(place)), "key": tried(open, folder + "/identity.key"),
    "data": tried(open, folder + "/data.csv"), "write": tried(open, "own", "w"), "letters": tried(letter, place),
    "elsewhere": tried(open, os.path.dirname(place) + "/ca.crt", "a"),
}))
"""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientFolder]:
    """A client's folder where everybody may pass: its own mode is all that protects it."""
    place = Path(tempfile.mkdtemp(prefix="hush-test-"))
    place.chmod(0o755)
    monkeypatch.setenv("HUSH_HOME", str(place / "home"))
    try:
        server = ServerFolder.init(place / "server", "study", "127.0.0.1:9443")
        made = ClientFolder.enroll(place / "client", server.path / INVITATION, "client-0")
        (made.path / "data.csv").write_text("age,readmitted\n")
        yield made
    finally:
        shutil.rmtree(place)


def seen_by(user: str, node: SuperNode, client: ClientFolder) -> dict[str, Any]:
    """What a process that a SuperNode could be finds out."""
    log = client.path / "log"
    with log.open("wb") as out:
        command = [PYTHON, "-c", LOOK, str(client.path), str(node._socket)]
        assert process.start(command, node._home, out, user, b"a key").wait(60) == 0, log.read_text()
    told: dict[str, Any] = json.loads(log.read_text())
    return told


@as_root
def test_another_user_reaches_the_letters_and_nothing_else(client: ClientFolder) -> None:
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'hush-fl[federation]'")
    node, entry = SuperNode(client, [], client.path / "logs", "nobody"), pwd.getpwnam("nobody")
    try:
        seen = seen_by("nobody", node, client)
        assert seen["uid"] == [entry.pw_uid] * 3
        assert seen["gid"] == [entry.pw_gid] * 3
        assert seen["groups"] == []
        assert seen["told"] == "a key"
        assert seen["home"] == str(node._home)
        assert seen["new privileges"] == "1"
        for closed in ("back", "names", "beside", "key", "data", "elsewhere"):
            assert seen[closed] == "PermissionError", closed
        assert "TextIOWrapper" in seen["write"], "Flower has a folder of its own"
        assert seen["letters"].startswith("b'"), "the door is open to it"
        assert seen["letters"] != "b''"
        stranger = subprocess.run(
            [sys.executable, become.__file__, "daemon", PYTHON, "-c", LOOK, str(client.path), str(node._socket)],
            input="",
            capture_output=True,
            text=True,
            env={"HOME": "/"},
            check=True,
        )
        assert json.loads(stranger.stdout)["letters"] == "PermissionError", "and to nobody besides"
    finally:
        node.__exit__(None, None, None)


@as_root
def test_it_ends_when_whoever_started_it_is_killed(client: ClientFolder, tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from hush.engines.flower import process
with open({str(tmp_path / "log")!r}, "wb") as log:
    print(process.start([{PYTHON!r}, "-c", "import time; time.sleep(600)"], Path("/"), log, "nobody").pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        child = int(parent.stdout.readline())
        nobody = pwd.getpwnam("nobody").pw_uid
        wait_for(lambda: b"sleep" in command_of(child) and Path(f"/proc/{child}").stat().st_uid == nobody)
        parent.kill()
    wait_for(lambda: not process._lives(child))


@as_root
def test_a_python_that_the_user_cannot_read_is_refused(client: ClientFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = client.path / "python3"
    hidden.symlink_to(PYTHON)
    monkeypatch.setattr(sys, "executable", str(hidden))
    with pytest.raises(UsageError, match=r"nobody cannot run Python: .*Permission denied.* Install Hush where nobody may read it"):
        process.check_user("nobody")
    with pytest.raises(UsageError, match="cannot run Python"):
        process.refuse_readable("nobody", [])


@as_root
def test_data_that_the_user_can_read_are_refused(client: ClientFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", PYTHON)
    mine, theirs = client.path / "data.csv", client.path.parent / "data.csv"
    theirs.write_text("age,readmitted\n")
    process.refuse_readable("nobody", [mine])
    with pytest.raises(UsageError, match=r"nobody can read .*/data\.csv, and runs what a server sends: chmod 600 it"):
        process.refuse_readable("nobody", [mine, theirs])
    theirs.chmod(0o600)
    process.refuse_readable("nobody", [mine, theirs])


def test_users_who_do_not_exist_or_read_everything_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="There is no user hush-nobody on this machine"):
        process.check_user("hush-nobody")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UsageError, match="root reads everything"):
        process.check_user("root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="Only root can run Flower as another user"):
        process.check_user("nobody")


def test_what_root_runs_imports_the_standard_library_alone() -> None:
    source = Path(become.__file__).read_text()
    told = {line.split()[1].partition(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert told
    assert told <= set(sys.stdlib_module_names)


def test_the_files_of_a_source_are_those_that_hold_rows(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables" / "a.csv"
    table.touch()
    (tmp_path / "visits.toml").write_text('train = "tables"\n')
    assert files_of(str(table)) == files_of(str(tmp_path / "tables")) == files_of(str(tmp_path / "visits.toml")) == [table]
    assert files_of("mine:rows") == []


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def wait_for(done: Any) -> None:
    until = time.monotonic() + 30
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
    assert done()
