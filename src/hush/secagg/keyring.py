"""Everybody's keys for rounds to come, as the server keeps them."""

from __future__ import annotations

from hush.secagg.errors import BadMessage
from hush.secagg.identity import Roster
from hush.secagg.keys import is_usable
from hush.secagg.messages import MOST_AHEAD, SIGNED_KEY_BYTES, Kind, SignedKey, open_message
from hush.secagg.terms import Terms

_ENTRY = 8 + SIGNED_KEY_BYTES
"""A round's number and its keys."""


class KeyRing:
    """Keys by round and client. A client that was started again has newer ones, which replace the old: their secrets are gone."""

    def __init__(self, roster: Roster, terms: Terms) -> None:
        self._roster, self._about = roster, roster.digest + terms.digest
        self._rounds: dict[int, dict[int, SignedKey]] = {}
        self._born: dict[int, bytes] = {}

    def take(self, sender: int, message: bytes, first: int) -> tuple[int, ...]:
        """Keep what is for rounds from `first` on; which rounds. What comes late serves those that are not over."""
        body = open_message(message, self._roster, sender, Kind.KEYS, 0, self._about)
        born, body = bytes(body[:8]), body[8:]
        if len(born) < 8 or len(body) % _ENTRY:
            raise BadMessage(sender, "it holds no whole number of keys")
        if len(body) // _ENTRY > MOST_AHEAD:
            raise BadMessage(sender, f"it holds keys for more than {MOST_AHEAD:,} rounds")
        if born < self._born.get(sender, born):
            raise BadMessage(sender, "it is older than the keys that this client has sent since")
        read = self._read(sender, body, first, again=born == self._born.get(sender))
        if born != self._born.get(sender):
            for keys in self._rounds.values():
                keys.pop(sender, None)
        self._born[sender] = born
        for round, key in read.items():
            self._rounds.setdefault(round, {})[sender] = key
        return tuple(read)

    def _read(self, sender: int, body: memoryview, first: int, again: bool) -> dict[int, SignedKey]:
        read: dict[int, SignedKey] = {}
        for place in range(0, len(body), _ENTRY):
            round = int.from_bytes(body[place : place + 8], "big")
            key = SignedKey.from_bytes(bytes(body[place + 8 : place + _ENTRY]))
            if round in read or round >= first + MOST_AHEAD:
                raise BadMessage(sender, f"it has two keys for round {round}, or that is too far ahead")
            if again and self.of(round).get(sender, key) != key:
                raise BadMessage(sender, f"round {round} has another key of this client already")
            if round < first:
                continue
            if not key.holds(self._roster, self._about, sender, round):
                raise BadMessage(sender, f"its key for round {round} is not signed")
            if not (is_usable(key.cipher) and is_usable(key.mask)):
                raise BadMessage(sender, f"its key for round {round} would hide nothing")
            read[round] = key
        return read

    def of(self, round: int) -> dict[int, SignedKey]:
        """Everybody's of one round."""
        return self._rounds.get(round, {})

    def forget(self, round: int) -> None:
        """Those of this round and of all before it."""
        self._rounds = {later: own for later, own in self._rounds.items() if later > round}
