"""`hush server` and `hush client` as they are typed, without Flower: letters go over Unix sockets, so that a start takes moments.

Every process is forked from one that has everything loaded, and can be killed like any other. The server writes down which sum it
opened before it makes anything of it, in a file that nothing of Hush's reads.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import socket
import sys
import threading
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from hush.engines.flower import frames, superlink, supernode
from hush.engines.flower.bundles import bundle, unbundle
from hush.federation import trial
from hush.federation.folders import ClientFolder, ServerFolder
from hush.federation.letters import name_of
from hush.federation.members import Members
from hush.federation.server import RemoteFederation
from hush.secagg import ServerRound

fork = multiprocessing.get_context("forkserver")
fork.set_forkserver_preload(["soak.sockets", "hush.cli.server", "hush.cli.client", "hush.federation.consent", "hush.report.page"])
PLACE = "HUSH_SOAK_SOCKETS"


def _there(place: Path) -> bool:
    """Whether somebody listens: datagrams find out without troubling them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(str(place.with_suffix(".here"))) == 0


class Sockets:
    """In the place of `SuperLink`."""

    def __init__(self, folder: ServerFolder, members: Members, *_: Any) -> None:
        self._places = {card.key: Path(os.environ[PLACE]) / card.name for card in members.cards}
        self._came: queue.Queue[bytes] = queue.Queue()
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def reachable(self) -> set[bytes]:
        return {key for key, place in self._places.items() if _there(place)}

    def send(self, letters: Mapping[bytes, bytes], ttl: float) -> None:
        for key, letter in letters.items():
            threading.Thread(target=self._carry, args=(self._places[key], letter, ttl), daemon=True).start()

    def _carry(self, place: Path, letter: bytes, ttl: float) -> None:
        answers: list[bytes] = []
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(ttl)
                link.connect(str(place))
                frames.send(link, {}, bundle([letter]))
                frame = frames.receive(link)
            answers = [] if frame is None else unbundle(frame[1])
        except OSError:
            pass
        for answer in answers:
            self._came.put(answer)
        if not answers:
            self._lost.put(name_of(letter))

    def receive(self, timeout: float) -> list[bytes]:
        found: list[bytes] = []
        try:
            found.append(self._came.get(timeout=min(timeout, 0.05)))  # who is lost is known at once
            while True:
                found.append(self._came.get_nowait())
        except queue.Empty:
            return found

    def lost(self) -> set[str]:
        return {self._lost.get() for _ in range(self._lost.qsize())}


class Listening:
    """In the place of `SuperNode`."""

    def __init__(self, folder: ClientFolder, members: list[Any], *_: Any) -> None:
        place = Path(os.environ[PLACE]) / folder.card.name
        for left in (place, place.with_suffix(".here")):
            left.unlink(missing_ok=True)
        self._door = supernode.Door(place, members)
        self._here = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._here.bind(str(place.with_suffix(".here")))

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: Any) -> None:
        self._here.close()
        self._door.close()


def _begin(log: Path, around: dict[str, str]) -> None:
    """What every process does first."""
    torch.set_num_threads(1)
    os.environ |= around
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    superlink.SuperLink, supernode.SuperNode = Sockets, Listening  # type: ignore[misc,assignment]


def _write_down_what_is_opened(log: Path) -> None:
    """Before anything is made of it: number of the sum, round of the training, and whose vectors it holds."""
    index = -1
    attempt, right = RemoteFederation._attempt, ServerRound._open

    def attempted(self: RemoteFederation, of: int, *rest: Any) -> Any:
        nonlocal index
        index = of
        return attempt(self, of, *rest)

    def opened(self: ServerRound) -> None:
        right(self)
        line = json.dumps({"sum": self.session.round, "index": index, "members": sorted(self._came)}) + "\n"
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)

    RemoteFederation._attempt, ServerRound._open = attempted, opened  # type: ignore[method-assign]


def _ended(command: Any) -> None:
    from hush.errors import HushError

    try:
        command()
    except HushError as error:  # as the command line says it
        print(f"hush: {error}", flush=True)
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve(place: Path, around: dict[str, str], asked: Any, limits: dict[str, float]) -> None:
    """`hush server`, or `hush server --resume` where the run has begun."""
    from hush.cli.server import serve as command

    _begin(place / "server.log", around)
    _write_down_what_is_opened(place / "opened")
    begun = (place / "run" / "proposal.json").is_file()
    _ended(lambda: command(place / "server", None if begun else asked, place / "run", None, False, **limits))


def answer(place: Path, around: dict[str, str], number: int) -> None:
    """`hush client --once`."""
    from hush.cli.client import client as command

    folder = trial.folder_of(place, number)
    _begin(folder / "client.log", around)
    _ended(lambda: command([folder], [str(folder / "data.safetensors")], place / "policy.toml", once=True))


def start(target: Any, *given: Any) -> BaseProcess:
    process = fork.Process(target=target, args=given, daemon=True)
    process.start()
    return process
