"""CPFed's masks (Hu, Guo, Gong, algorithm 2): pairs agree on a seed once, and every round's mask is PRF(seed, round).

A round is a single trip, and costs nothing but masks. The price: there is nothing to put together where a client vanishes, so a
round counts with everybody in it or not at all; and whoever learns a pair's seed learns its masks of all rounds. Where clients may
leave, use `hush.secagg.Client` and `Server`.
"""

from __future__ import annotations

import hmac

import numpy as np
import numpy.typing as npt

from hush.errors import UsageError
from hush.secagg.errors import Aborted, BadMessage, Refused
from hush.secagg.identity import Identity, Roster
from hush.secagg.keys import RoundKeys, is_usable
from hush.secagg.masks import add_masks
from hush.secagg.messages import SERVER, SIGNED_KEY_BYTES, Kind, Reader, SignedKey, open_message, seal
from hush.secagg.packing import Vector, add_packed, kind_of, pack, reduced
from hush.secagg.terms import Session, Terms

_SETUP = 0
"""The round of the keys, which are not of any round."""


def _whole(roster: Roster, terms: Terms) -> Session:
    """Everybody, always."""
    if terms.dropout:
        raise UsageError("Amortised masks cannot do without anybody: set dropout=0, or use hush.secagg.Client and Server.")
    if terms.threat != "curious":
        raise UsageError("Amortised masks have no proof against a malicious server: use hush.secagg.Client and Server.")
    everybody = tuple(range(len(roster.clients)))
    return Session(terms, roster, _SETUP, everybody, (b"amortised",))  # a name that no round of the other protocol has


class AmortisedClient:
    """One client: keys once, then one message a round."""

    def __init__(self, identity: Identity, roster: Roster, terms: Terms, next_round: int = 0, opened: int = 0) -> None:
        if identity.public not in roster.numbers:
            raise UsageError("This identity is not in the roster: enrol it first.")
        self.roster, self.terms, self._identity = roster, terms, identity
        self.number = roster.numbers[identity.public]
        self._about = _whole(roster, terms).digest
        self._keys = RoundKeys(identity, self._about, self.number, _SETUP)
        self._seeds: dict[int, bytes] = {}
        self._next, self.opened = next_round, opened

    def keys(self) -> bytes:
        """To the server, once."""
        return seal(self._identity, Kind.KEYS, self.number, _SETUP, self._about, self._keys.signed.to_bytes())

    def meet(self, directory: bytes) -> None:
        """Everybody's keys, from the server: agree with each on a seed."""
        if self._seeds:
            raise Refused("The server sends a second directory: masks of two would not cancel.")
        body = open_message(directory, self.roster, None, Kind.INVITATION, _SETUP, self._about)
        reader = Reader(body, None)
        seeds = {}
        for number in range(len(self.roster.clients)):
            key = SignedKey.from_bytes(reader.take(SIGNED_KEY_BYTES))
            if number == self.number:
                if key != self._keys.signed:
                    raise Refused("The server shows others another key for this client than its own.")
                continue
            if not key.holds(self.roster, self._about, number, _SETUP):
                raise Refused(f"The key of client {number} is not signed by it for this roster and these terms.")
            try:
                seeds[number] = self._keys.meet(key).seed(self._about, self.number, number)
            except ValueError:
                raise Refused(f"The key of client {number} is one that would hide nothing.") from None
        reader.end()
        self._seeds = seeds

    def mask(self, round: int, vector: npt.NDArray[np.integer]) -> bytes:
        """The vector of one round. Rounds only go forward: two vectors under one mask would tell their difference."""
        if round < self._next:
            raise Refused(f"Round {round} is not after round {self._next - 1}: a mask serves once.")
        if not self._seeds:
            raise Refused("This client has not met the others.")
        if self.terms.participations is not None and self.opened >= self.terms.participations:
            raise Refused(f"Client {self.number} has been in {self.opened} sums: no more were agreed on.")
        own = self.terms.own_copy(vector)
        self._next, self.opened = round + 1, self.opened + 1
        seeds = {j: hmac.digest(seed, b"hush secagg round" + round.to_bytes(8, "big"), "sha256") for j, seed in self._seeds.items()}
        later = [seed for j, seed in seeds.items() if j > self.number]
        add_masks(own, later, [seed for j, seed in seeds.items() if j < self.number])
        return seal(self._identity, Kind.MASKED, self.number, round, self._about, *pack(own, self.terms.bits))

    def __repr__(self) -> str:
        return f"AmortisedClient({self.number} of {len(self.roster.clients)}, next round {self._next})"


class AmortisedServer:
    """Carries the keys once; adds up a round's vectors."""

    def __init__(self, identity: Identity, roster: Roster, terms: Terms) -> None:
        if identity.public != roster.server:
            raise UsageError("This identity is not the one that the roster names as the server's.")
        self.roster, self.terms, self._identity = roster, terms, identity
        self._about = _whole(roster, terms).digest
        self._keys: dict[int, SignedKey] = {}
        self._sum, self._came, self._round = self._nothing(), set[int](), 0

    def _nothing(self) -> Vector:
        return np.zeros(self.terms.entries, dtype=kind_of(self.terms.bits))

    def take_keys(self, sender: int, message: bytes) -> None:
        """A client's key."""
        key = SignedKey.from_bytes(bytes(open_message(message, self.roster, sender, Kind.KEYS, _SETUP, self._about)))
        usable = len(key.to_bytes()) == SIGNED_KEY_BYTES and is_usable(key.cipher) and is_usable(key.mask)
        if not usable or not key.holds(self.roster, self._about, sender, _SETUP):
            raise BadMessage(sender, "it does not hold a signed key")
        if self._keys.setdefault(sender, key) != key:
            raise BadMessage(sender, "it has sent another key before")

    def directory(self) -> bytes:
        """Everybody's keys, for everybody."""
        if missing := set(range(len(self.roster.clients))) - self._keys.keys():
            raise Aborted(f"The keys of {len(missing)} clients are missing, the first of them client {min(missing)}.")
        body = b"".join(self._keys[number].to_bytes() for number in range(len(self.roster.clients)))
        return seal(self._identity, Kind.INVITATION, SERVER, _SETUP, self._about, body)

    def open(self, round: int) -> None:
        """Begin a round; what came for another one is gone. Rounds only go forward."""
        if round < self._round:
            raise UsageError(f"Round {round} is over: rounds only go forward.")
        self._sum, self._came, self._round = self._nothing(), set(), round

    def receive(self, sender: int, message: bytes) -> None:
        """A client's vector of this round, once."""
        if sender in self._came:
            raise BadMessage(sender, "its vector of this round is here already")
        body = open_message(message, self.roster, sender, Kind.MASKED, self._round, self._about)
        if len(body) != self.terms.message_bytes:
            raise BadMessage(sender, f"it does not hold {self.terms.entries:,} entries of {self.terms.bits} bits")
        add_packed(self._sum, body, self.terms.bits)
        self._came.add(sender)

    def close(self) -> Vector:
        """The sum, if everybody is in it."""
        if missing := set(range(len(self.roster.clients))) - self._came:
            raise Aborted(f"{len(missing)} clients are missing, the first of them client {min(missing)}: their masks stay.")
        return reduced(self._sum, self.terms.bits)
