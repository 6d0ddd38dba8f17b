"""`hush client`: the process that holds a client's data and keys, and takes part in what it agreed to."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hush.cli.console import say
from hush.cli.interrupt import heard, on_terminate
from hush.errors import UsageError

if TYPE_CHECKING:
    from hush.federation.diary import Before
    from hush.federation.folders import ClientFolder
    from hush.federation.proposal import Agreement


def client(
    federation: Annotated[list[Path], typer.Option("--federation", help="The client's folder; several for a gateway.")],
    data: Annotated[list[str], typer.Option("--data", help="Its data: a table, a folder, a .toml, or module:function.")],
    policy: Annotated[Path | None, typer.Option("--policy", help="What to agree to unasked: policy.toml [default: ask].")] = None,
    code: Annotated[str | None, typer.Option("--code", help="A method that is not Hush's, as FILE.py:NAME.")] = None,
    relay_user: Annotated[str | None, typer.Option("--relay-user", help="Run Flower as this user, who reads nothing here.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the first run is over.")] = False,
) -> None:
    """Take part in a federation with this machine's data. Ctrl-C leaves it; what was agreed to and counted is kept."""
    from hush.engines.flower.supernode import SuperNode
    from hush.federation.consent import Policy
    from hush.federation.data import check_source
    from hush.federation.folders import ClientFolder
    from hush.federation.member import Member

    on_terminate()
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
        _check_relay(relay_user, folders, data)
    locks = [folder.lock() for folder in folders]
    consent = Consent(Policy.read(policy) if policy is not None else None)
    members = []
    for folder, source in zip(folders, data, strict=True):
        name = folder.card.name
        members.append(Member(folder, source, consent, code, lambda line, name=name: _say(name, line)))  # type: ignore[misc]
    say(f"{', '.join(m.name for m in members)}: connecting to {folders[0].invitation.name} at {folders[0].invitation.address}")
    with SuperNode(folders[0], members, folders[0].path / "logs", relay_user, lambda line: say(f"{members[0].name}: {line}")):
        while not heard() and not (once and all(member.over.is_set() for member in members)):
            consent.ask()
            time.sleep(0.2)
    for lock in locks:
        lock.close()


def _check_relay(user: str, folders: list[ClientFolder], data: list[str]) -> None:
    """That Flower runs as this user, who reads neither keys nor rows."""
    from hush.engines.flower.process import check_user, refuse_readable
    from hush.federation.data import files_of

    check_user(user)
    secret = [folder.path / name for folder in folders for name in ("identity.key", "node.key", "diary.json", "ledger.sqlite")]
    refuse_readable(user, [*secret, *(file for source in data for file in files_of(source))])


def _say(name: str, line: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {name}: {line}")


class Consent:
    """A policy's yes or no; or a person's, who is asked in the terminal while the server waits."""

    def __init__(self, policy: object | None) -> None:
        self._policy = policy
        self._open: dict[bytes, tuple[Agreement, int, Before]] = {}
        self._said: dict[bytes, tuple[bool, Before]] = {}
        """What was answered, and what had been agreed to before, as it was shown."""
        self._lock = threading.Lock()

    def __call__(self, told: Agreement, number: int, before: Before) -> bool | str | None:
        from hush.federation.consent import Policy, words

        name = told.proposal.members.names[number]
        if isinstance(self._policy, Policy):
            objection = self._policy.objection(told, before)
            for line in words(told, number, before):
                _say(name, line)
            _say(name, f"the policy says no: {objection}" if objection else "the policy says yes")
            return objection or True
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
