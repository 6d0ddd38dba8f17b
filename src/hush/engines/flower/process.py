"""Flower's own processes: started with nothing of ours in their environment, ended with us, whatever becomes of us."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from hush.errors import UsageError

_STOPPING = 10.0


def check_flower() -> None:
    """Flower is an extra."""
    try:
        from importlib import metadata

        metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise UsageError("A federation is carried by Flower, which is not installed: pip install 'hush-fl[federation]'.") from None


def free_port() -> int:
    """One that nobody listens on, on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(home: Path) -> dict[str, str]:
    """What Flower's processes may know: where programs are, and where they may write."""
    own = {key: os.environ[key] for key in ("LANG", "LC_ALL", "TZ") if key in os.environ}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return own | {
        "PATH": path,
        "HOME": str(home),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }


def start(
    command: list[str], home: Path, log: IO[bytes], user: str | None = None, told: bytes | None = None
) -> subprocess.Popen[bytes]:
    """A process of Flower's in a folder of its own; as another `user`, where one is given. What it is `told` it reads once, from
    its standard input, and nothing of that lies on a disk."""
    given: IO[bytes] | int = subprocess.DEVNULL if told is None else _pipe(told, user)
    try:
        return subprocess.Popen(
            _as(user, command), cwd=home, env=environment(home), stdin=given, stdout=log, stderr=log, start_new_session=True
        )
    finally:
        if not isinstance(given, int):
            given.close()


def _as(user: str | None, command: list[str]) -> list[str]:
    return [sys.executable, "-I", str(Path(__file__).with_name("become.py")), user or "", *command]


def _pipe(told: bytes, user: str | None) -> IO[bytes]:
    """Where a few bytes can be read, by this user or by that one."""
    out, into = os.pipe()
    if user is not None:
        entry = pwd.getpwnam(user)
        os.fchown(out, entry.pw_uid, entry.pw_gid)
    with os.fdopen(into, "wb") as end:
        end.write(told)
    return os.fdopen(out, "rb")


def check_user(user: str) -> None:
    """That Flower can be run as this user, and that this hides anything."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"There is no user {user} on this machine: adduser --system {user} makes one.") from None
    if os.geteuid() != 0:
        raise UsageError("Only root can run Flower as another user: start hush client as root, or leave --relay-user out.")
    if entry.pw_uid == 0:
        raise UsageError(f"{user} reads everything: --relay-user is a user who may read nothing here.")
    _tried(user, "import flwr.supernode")


def check_relay(user: str, folders: Iterable[Path], sources: Iterable[str]) -> None:
    """That Flower can run as this user, who reads neither the clients' keys nor their rows."""
    from hush.federation.data import files_of

    check_user(user)
    secret = [folder / name for folder in folders for name in ("identity.key", "node.key", "diary.json", "ledger.sqlite")]
    refuse_readable(user, [*secret, *(file for source in sources for file in files_of(source))])


def refuse_readable(user: str, files: Iterable[Path]) -> None:
    """That this user can read none of these, tried as this user."""
    asked = "import os, sys; print(*[name for name in sys.argv[1:] if os.access(name, os.R_OK)][:1], end='')"
    if readable := _tried(user, asked, *(str(file.resolve()) for file in files)):
        raise UsageError(
            f"{user} can read {readable}, and runs what a server sends: chmod 600 it, or 700 the folder that it lies in."
        )


def _tried(user: str, program: str, *arguments: str) -> str:
    """What a line of Python prints, as this user."""
    own = _as(user, [sys.executable, "-c", program, *arguments])
    around = environment(Path("/"))
    done = subprocess.run(own, cwd="/", env=around, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"it ends with {done.returncode}"]
        raise UsageError(
            f"{user} cannot run Python: {why[0]}. Install Hush where {user} may read it, such as /opt/hush, with a Python that "
            "does not lie in anybody's home."
        )
    return done.stdout


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """End it and all that it started."""
    if process is None:
        return
    family = _descendants(process.pid)  # Flower's apps are sessions of their own
    for how in (signal.SIGTERM, signal.SIGKILL):
        family |= _descendants(process.pid)
        for pid in (process.pid, *family):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, how)
        until = time.monotonic() + _STOPPING
        while time.monotonic() < until:
            if process.poll() is not None and not any(map(_lives, family)):
                return
            time.sleep(0.05)


def _descendants(pid: int) -> set[int]:
    """Everybody whom this process started, and whom they did. (By /proc: elsewhere than on Linux none are known.)"""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def naming(text: str) -> list[int]:
    """The processes whose command or environment has `text` in it: who was left behind."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            told = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if text.encode() in told and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
