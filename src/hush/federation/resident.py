"""A client's process: it stays, and holds data, keys, consent and what a round hides, whoever brings it letters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hush.errors import UsageError
from hush.federation.consent import Policy, by_policy
from hush.federation.data import check_source
from hush.federation.folders import ClientFolder
from hush.federation.letters import BadLetter
from hush.federation.member import Decide, Member


class Resident:
    """One client of a federation, as long as this object is open: `client` makes it."""

    def __init__(self, folder: ClientFolder, data: str, decide: Decide, code: str | None, say: Callable[[str], None]) -> None:
        check_source(data)
        self._folder, self._data, self._say = folder, data, say
        self._lock = folder.lock()
        self._member = Member(folder, data, decide, code, say)

    @property
    def name(self) -> str:
        """What others call it."""
        return self._member.name

    @property
    def key(self) -> bytes:
        """What carriers know it by."""
        return self._member.key

    @property
    def over(self) -> threading.Event:
        """Set when the server says that a run is over."""
        return self._member.over

    def answer(self, letter: bytes) -> bytes | None:
        """The answer to a letter, for a carrier of one's own; None where it deserves none."""
        try:
            return self._member.answer(letter)
        except BadLetter:
            return None

    def serve(self, socket: Path | str | None = None, relay_user: str | None = None, once: bool = False) -> None:
        """Answer letters for ever, or `once`: until the first run is over.

        They are brought to a Unix `socket`, by `hush.federation.relay` in a Flower app of one's own; without one, by a SuperNode
        that is started here, as `hush client` does. `relay_user` (as root) is who Flower runs as, and may read nothing here.
        """
        from hush.engines.flower.process import check_relay
        from hush.engines.flower.supernode import Door, SuperNode

        if relay_user is not None:
            check_relay(relay_user, [self._folder.path], [self._data])
        logs = self._folder.path / "logs"
        with (
            SuperNode(self._folder, [self._member], logs, relay_user, self._say)
            if socket is None
            else closing(Door(Path(socket), [self._member], relay_user))
        ):
            while not (self.over.wait(1.0) and once):
                pass

    def close(self) -> None:
        """From here on another process may answer for this client."""
        self._lock.close()

    def __enter__(self) -> Resident:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def client(
    folder: Path | str,
    data: Path | str,
    policy: Path | str | Policy | Decide,
    code: str | None = None,
    say: Callable[[str], None] = print,
) -> Resident:
    """A client of a federation, in the process that holds its data and its keys.

    Args:
        folder: as `hush federation enroll` made it.
        data: a table, a folder of tables, a .toml, or `module:function`.
        policy: what it agrees to unasked: policy.toml, a `Policy`, or a function of the agreement, the client's number and what was
            agreed to before, which returns True, or why not; None where nobody has said yet.
        code: a method that is not Hush's, as FILE.py:NAME.
        say: told what happens, line by line.
    """
    if isinstance(policy, str | Path):
        policy = Policy.read(Path(policy))
    decide = by_policy(policy, lambda name, line: say(line)) if isinstance(policy, Policy) else policy
    if not callable(decide):
        raise UsageError(f"A policy is a policy.toml, a hush.federation.Policy or a function, not {policy!r}.")
    return Resident(ClientFolder.of(Path(folder)), str(data), decide, code, say)
