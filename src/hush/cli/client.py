"""`hush client`: the process that holds a client's data and keys, and takes part in what it agreed to."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hush.cli.console import say
from hush.cli.interrupt import heard, on_terminate
from hush.errors import UsageError

if TYPE_CHECKING:
    from hush.federation.diary import Before
    from hush.federation.proposal import Agreement


def client(
    federation: Annotated[list[Path], typer.Option("--federation", help="The client's folder; several for a gateway.")],
    data: Annotated[list[str], typer.Option("--data", help="Its data: a table, a folder, a .toml, or module:function.")],
    policy: Annotated[Path | None, typer.Option("--policy", help="What to agree to unasked: policy.toml [default: ask].")] = None,
    code: Annotated[str | None, typer.Option("--code", help="A method that is not Hush's, as FILE.py:NAME.")] = None,
    relay_user: Annotated[str | None, typer.Option("--relay-user", help="Run Flower as this user, who reads nothing here.")] = None,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Answer a Flower app of your own at this Unix socket; start no SuperNode.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the first run is over.")] = False,
) -> None:
    """Take part in a federation with this machine's data. Ctrl-C leaves it; what was agreed to and counted is kept."""
    from hush.engines.flower.process import check_flower, check_relay
    from hush.engines.flower.supernode import Door, SuperNode
    from hush.federation.consent import Policy, by_policy
    from hush.federation.data import check_source
    from hush.federation.folders import ClientFolder
    from hush.federation.member import Member

    on_terminate()
    if socket is None:
        check_flower()
    if len(data) != len(federation):
        raise UsageError(f"{len(federation)} clients and {len(data)} --data: each has its own, in the same order.")
    if policy is None and not sys.stdin.isatty():
        raise UsageError("Nobody is there to say yes: give --policy FILE, or start hush client in a terminal.")
    folders = [ClientFolder.of(path) for path in federation]
    if len({folder.invitation.server for folder in folders}) > 1:
        raise UsageError("These clients belong to different federations: start a process for each.")
    for source in data:
        check_source(source)
    if relay_user is not None:
        check_relay(relay_user, federation, data)
    locks = [folder.lock() for folder in folders]
    asked = Asked()
    consent = asked if policy is None else by_policy(Policy.read(policy), _say)
    members = []
    for folder, source in zip(folders, data, strict=True):
        name = folder.card.name
        members.append(Member(folder, source, consent, code, lambda line, name=name: _say(name, line)))  # type: ignore[misc]
    first, names = folders[0], ", ".join(member.name for member in members)
    if socket is not None:
        say(f"{names}: waiting for letters of {first.invitation.name} at {socket}")
        brought: AbstractContextManager[object] = closing(Door(socket, members, relay_user))
    else:
        say(f"{names}: connecting to {first.invitation.name} at {first.invitation.address}")
        brought = SuperNode(first, members, first.path / "logs", relay_user, lambda line: say(f"{members[0].name}: {line}"))
    with brought:
        while not heard() and not (once and all(member.over.is_set() for member in members)):
            asked.ask()
            time.sleep(0.2)
    for lock in locks:
        lock.close()


def _say(name: str, line: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {name}: {line}")


class Asked:
    """A person's yes or no, who is asked in the terminal while the server waits."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[Agreement, int, Before]] = {}
        self._said: dict[bytes, tuple[bool, Before]] = {}
        """What was answered, and what had been agreed to before, as it was shown."""
        self._lock = threading.Lock()

    def __call__(self, told: Agreement, number: int, before: Before) -> bool | str | None:
        if before.agreed:  # a yes that was typed holds for the whole run
            return True
        digest = told.proposal.digest + number.to_bytes(4, "big")
        with self._lock:
            said, shown = self._said.get(digest, (None, before))
            if said is False:
                return "its owner said no"
            if said and shown == before:  # a yes that was shown less, since another run was agreed to meanwhile, is asked for anew
                return True
            self._open[digest] = told, number, before
        return None

    def ask(self) -> None:
        """In the main thread: what nobody has answered yet."""
        from hush.federation.consent import words

        with self._lock:
            waiting = list(self._open.items())
        for digest, (told, number, before) in waiting:
            say("")
            for line in words(told, number, before):
                say(line)
            answer = ""
            while answer not in ("yes", "no"):
                answer = typer.prompt("Take part? Type yes or no", err=True).strip().lower()
            with self._lock:
                self._said[digest] = answer == "yes", before
                del self._open[digest]
