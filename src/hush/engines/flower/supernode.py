"""A client's side of Flower: a socket that letters come in by, and the SuperNode that brings them, started again where it ends."""

from __future__ import annotations

import errno
import json
import os
import pwd
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from hush.engines.flower import frames, process
from hush.engines.flower.bundles import MOST, bundle, unbundle
from hush.engines.flower.reach import gave_up, is_let_in, obstacle, refusal
from hush.engines.flower.working import WorkingFolder
from hush.errors import HushError, UsageError
from hush.federation.folders import ClientFolder
from hush.federation.keys import read_secret
from hush.federation.letters import BadLetter
from hush.federation.member import Member

_LINKS = 4
"""Bundles that are worked on at once; who asks for more is hung up on."""
_IDLE = 60.0
"""Seconds that a bundle may take to come in."""
_LOOK = 30.0
"""Seconds between two looks at whether the server is still there."""
_BACKOFF = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


class Door:
    """Where letters come in: a Unix socket, one bundle a connection. What is no letter for a client here is not answered."""

    def __init__(self, path: Path, members: Sequence[Member], user: str | None = None) -> None:
        self._members, self._path = members, path
        self._free = threading.Semaphore(_LINKS)
        self._socket = socket.socket(socket.AF_UNIX)
        _remove_left(path)
        try:
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            raise UsageError(f"Letters cannot be listened for at {path}: {error.strerror or error}.") from None
        path.chmod(0o600)
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(path, entry.pw_uid, entry.pw_gid)
        self._socket.listen(2 * _LINKS)
        threading.Thread(target=self._listen, name="hush-door", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                link.close()
                continue
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        try:
            with link:
                link.settimeout(_IDLE)
                frame = frames.receive(link, sum(member.largest for member in self._members))
                if frame is not None:
                    frames.send(link, {}, bundle(self._answers(unbundle(frame[1])[:MOST])))
        except (OSError, ValueError, RecursionError, MemoryError):
            return  # whoever it was, it was no relay
        finally:
            self._free.release()

    def _answers(self, letters: list[bytes]) -> list[bytes]:
        """Of each client that lives here, to what is for it."""
        answers = []
        for letter in letters:
            for member in self._members:
                try:
                    answers.append(member.answer(letter))
                except (BadLetter, HushError, ValueError):
                    continue
        return answers

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _remove_left(path: Path) -> None:
    """A socket that a killed process left behind, where nobody listens any more."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


class SuperNode:
    """Flower's SuperNode beside `hush client`, without its data, its keys or its environment."""

    def __init__(
        self,
        folder: ClientFolder,
        members: Sequence[Member],
        logs: Path,
        user: str | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        process.check_flower()
        self._folder, self._logs, self._user, self._tell = folder, logs, user, tell
        self._invitation = folder.invitation
        self._working = WorkingFolder("client", folder.path)
        place = self._working.path
        self._home, self._socket = place / "flower", place / "letters"
        self._home.mkdir(mode=0o700)
        self._ca = place / "ca.crt"
        self._ca.write_text(self._invitation.ca)
        self._door = Door(self._socket, members, user)
        if user is not None:  # who may pass through the folder, and sees no name in it; what is there is the user's own
            entry = pwd.getpwnam(user)
            os.chown(self._home, entry.pw_uid, entry.pw_gid)
            place.chmod(0o711)
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._said = ""

    def __enter__(self) -> SuperNode:
        self._logs.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._watch, name="hush-supernode", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.set()
        process.stop(self._process)
        self._door.close()
        self._working.close()

    def _watch(self) -> None:
        """Start it, and again whenever it ends: Flower lets a node that was killed back in after about a minute."""
        tries = 0
        while not self._closing.is_set():
            began, why = time.monotonic(), obstacle(self._invitation)
            self._say(f"{why or self._run()}; trying again")
            tries = 0 if time.monotonic() - began > 120 else tries + 1
            self._closing.wait(_BACKOFF[min(tries, len(_BACKOFF) - 1)])

    def _run(self) -> str:
        """A SuperNode from its start to its end, and why it ended."""
        path = self._logs / "supernode.log"
        with path.open("ab") as log:
            begins = log.tell()
            self._process = process.start(self._command(), self._home, log, self._user, self._node_key())
        connected, look, read = False, 0.0, begins
        while self._process.poll() is None and not self._closing.wait(0.5):
            connected = connected or is_let_in(_text(path, begins)[0])
            if connected and time.monotonic() > look:  # once a SuperNode was let in, it tries for ever, without a word
                why, look = obstacle(self._invitation), time.monotonic() + _LOOK
                self._say(f"{why}; trying again" if why else f"connected to {self._invitation.address}")
                new, read = _text(path, read)
                if gave_up(new):
                    break
        process.stop(self._process)
        return refusal(self._invitation, _text(path, begins)[0])

    def _say(self, line: str) -> None:
        """Once, until it is another one."""
        if line != self._said and not self._closing.is_set():
            self._said = line
            self._tell(line)

    def _command(self) -> list[str]:
        config = f"hush-socket={json.dumps(str(self._socket))}"
        own = ["flower-supernode", "--superlink", self._invitation.address, "--host", "127.0.0.1"]
        own += ["--port", str(process.free_port()), "--node-config", config]
        if self._invitation.insecure:
            return [*own, "--insecure"]
        return [*own, "--root-certificates", str(self._ca), "--auth-supernode-private-key", "/dev/stdin"]

    def _node_key(self) -> bytes | None:
        """The node's own: it opens nothing of Hush's."""
        return None if self._invitation.insecure else read_secret(self._folder.path / "node.key")


def _text(path: Path, begins: int) -> tuple[str, int]:
    """What a log says from there on, and where it ends by now."""
    with path.open("rb") as log:
        log.seek(begins)
        return log.read().decode(errors="replace"), log.tell()
