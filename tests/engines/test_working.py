"""What a killed process leaves behind: no key, and nothing that its next start does not remove."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hush.engines.flower import process
from hush.engines.flower.working import WorkingFolder
from hush.errors import UsageError
from hush.federation.folders import INVITATION, ClientFolder, ServerFolder
from tests.engines.conftest import Listening


def test_a_folder_is_for_one_process_at_a_time_and_its_owner_alone(tmp_path: Path) -> None:
    first = WorkingFolder("client", tmp_path)
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    assert len(str(first.path / "letters").encode()) < 108
    with pytest.raises(UsageError, match="Another hush client runs"):
        WorkingFolder("client", tmp_path)
    assert first.path.exists(), "whose it is keeps it"
    other = WorkingFolder("server", tmp_path)
    first.close()
    other.close()
    assert not first.path.exists()
    assert not list(tmp_path.iterdir())


def test_only_folders_of_its_own_are_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / "client.tmp").write_text(f"{mine}\n")
    WorkingFolder("client", tmp_path).close()
    assert mine.exists()
    link = tmp_path / "hush-client-0"
    link.symlink_to(mine)
    (mine / "file").touch()
    (tmp_path / "client.tmp").write_text(f"{link}\n")
    WorkingFolder("client", tmp_path).close()
    assert (mine / "file").exists(), "another user may have put a link in its place"


def test_a_killed_client_leaves_no_key_and_its_next_start_no_folder(tmp_path: Path, listening: Listening) -> None:
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'hush-fl[federation]'")
    server = ServerFolder.init(tmp_path / "server", "study", f"127.0.0.1:{process.free_port()}")
    listening(server)
    client = ClientFolder.enroll(tmp_path / "client", server.path / INVITATION, "client-0")
    save_file({"x": torch.zeros(2, 3), "y": torch.zeros(2)}, tmp_path / "data.safetensors")
    (tmp_path / "policy.toml").write_text('roster = "AAAAA-AAAAA-AAAAA-AAAAA-AAAAA"\n')
    key, note = (client.path / "node.key").read_bytes(), client.path / "client.tmp"

    def start() -> subprocess.Popen[bytes]:
        own = [sys.executable, "-m", "hush", "client", "--federation", str(client.path), "--policy", str(tmp_path / "policy.toml")]
        return subprocess.Popen(
            [*own, "--data", str(tmp_path / "data.safetensors")],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HUSH_HOME": str(tmp_path / "home")},
        )

    first = start()
    try:
        wait_for(lambda: note.exists() and bool(note.read_text().strip()))
        left = Path(note.read_text().strip())
        wait_for(lambda: "Starting Flower SuperNode" in log_of(client))
        first.kill()
    finally:
        first.kill()
        assert first.wait() == -signal.SIGKILL
    wait_for(lambda: not process.naming(str(left)))
    assert left.exists(), "nobody was there to remove it"
    held = b"".join(path.read_bytes() for path in left.rglob("*") if path.is_file())
    assert key not in held
    assert b"PRIVATE KEY" not in held
    again = start()
    try:
        wait_for(lambda: not left.exists())
        wait_for(lambda: log_of(client).count("Starting Flower SuperNode") == 2)
        here = Path(note.read_text().strip())
    finally:
        again.terminate()
        again.wait(30)
    assert here != left
    assert not here.exists()
    assert not note.exists()
    assert "Unable to parse the private key" not in log_of(client), "it got the key, by a pipe"


def log_of(client: ClientFolder) -> str:
    log = client.path / "logs" / "supernode.log"
    return log.read_text() if log.exists() else ""


def wait_for(done: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.1)
    assert done()
