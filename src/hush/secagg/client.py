"""A client's half of a secure sum: bytes in, bytes out, and no trust in the server.

    client = Client(identity, roster, terms)
    keys = client.prepare(range(10))                  # ahead, for rounds 0 to 9
    answer = client.answer(message, lambda: vector)   # to whatever the server sends

What a server asks for is refused, for good in that round, where answering would let it learn more than one sum over enough clients.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hush.errors import UsageError
from hush.secagg import shamir
from hush.secagg.errors import BadMessage, Refused
from hush.secagg.graph import neighbours_of
from hush.secagg.identity import SIGNATURE_BYTES, Identity, Roster, is_signed
from hush.secagg.keys import Pair, RoundKeys, commitment, self_seed
from hush.secagg.masks import add_masks
from hush.secagg.messages import (
    DIGEST_BYTES,
    MOST_AHEAD,
    SEALED_BYTES,
    SIGNED_KEY_BYTES,
    Kind,
    Piece,
    Reader,
    SignedKey,
    addressed,
    from_bitmap,
    open_message,
    peek,
    seal,
    vote_statement,
)
from hush.secagg.packing import pack
from hush.secagg.terms import ABSENT, Session, Terms

GetVector = Callable[[], npt.NDArray[np.integer]]


class Client:
    """One enrolled client, over many rounds."""

    def __init__(self, identity: Identity, roster: Roster, terms: Terms, next_round: int = 0, opened: int = 0) -> None:
        if identity.public not in roster.numbers:
            raise UsageError("This identity is not in the roster: enrol it first.")
        self.roster, self.terms = roster, terms
        self.number = roster.numbers[identity.public]
        self._identity = identity
        self._prepared: dict[int, RoundKeys] = {}
        self._rounds: dict[int, ClientRound] = {}
        self.next_round = next_round
        """The first round that this client may still join. One that is started again must be given it: rounds are not repeated."""
        self._tally = Tally(self.number, terms.participations, opened)
        self._born = time.time_ns().to_bytes(8, "big")  # of two sets of keys the server takes the newer

    @property
    def opened(self) -> int:
        """Sums that this client sent a vector to, whatever the server says came of them: others may open them. Where none can be
        opened without it (`Terms.opens_without_one`), those that it helped to open. To be kept like `next_round`."""
        return self._tally.opened

    @property
    def prepared_rounds(self) -> frozenset[int]:
        """The rounds whose keys were drawn and not used."""
        return frozenset(self._prepared)

    @property
    def _about(self) -> bytes:
        return self.roster.digest + self.terms.digest

    def prepare(self, rounds: Iterable[int]) -> bytes:
        """Fresh keys for some rounds ahead, as a message to the server. A round's keys are drawn once.

        They live in this process: a client that is started again draws new ones, and the server takes the newer.
        """
        wanted = sorted(set(rounds))
        for round in wanted:
            if round < self.next_round or round in self._prepared:
                raise UsageError(f"Round {round} has keys already, or is over: a key serves one round, once.")
            if round >= wanted[0] + MOST_AHEAD:  # counted from where the server is, which may be far from this client's last round
                raise UsageError(f"Round {round} is too far ahead: keys are kept for {MOST_AHEAD:,} rounds.")
        for round in wanted:
            self._prepared[round] = RoundKeys(self._identity, self._about, self.number, round)
        for round in list(self._prepared)[:-MOST_AHEAD]:  # drawn first: whoever asks for ever more would fill this client's memory
            del self._prepared[round]
        return self.prepared(wanted)

    def prepared(self, rounds: Iterable[int] | None = None) -> bytes:
        """The keys that were drawn and not used, once more: for a server that was started again."""
        wanted = sorted(self._prepared) if rounds is None else rounds
        keys = (round.to_bytes(8, "big") + self._prepared[round].signed.to_bytes() for round in wanted)
        return seal(self._identity, Kind.KEYS, self.number, 0, self._about, self._born + b"".join(keys))

    def answer(self, message: bytes, vector: GetVector | npt.NDArray[np.integer] | None = None) -> bytes:
        """The answer to whatever the server sent; a delivery needs the `vector` to sum, or how to get it."""
        kind, round = peek(message, None)
        if kind is Kind.INVITATION:
            return self.join(message).shares
        if round not in self._rounds:
            raise Refused(f"Client {self.number} is not in round {round}, or left it.")
        return self._rounds[round].answer(message, vector)

    def join(self, invitation: bytes) -> ClientRound:
        """Enter a round: its keys are used up, whatever comes of it. Rounds only go forward."""
        _, round = peek(invitation, None)
        if round < self.next_round:
            raise Refused(f"Round {round} is not after round {self.next_round - 1}: a round is not repeated.")
        if round not in self._prepared:
            raise Refused(f"Client {self.number} has no keys for round {round}.")
        self._tally.refuse_one_more()
        about = addressed(self.roster.digest, self.number)
        body = open_message(invitation, self.roster, None, Kind.INVITATION, round, about)
        keys = self._prepared[round]
        self.next_round = round + 1
        self._prepared = {later: own for later, own in self._prepared.items() if later > round}
        for earlier in sorted(self._rounds)[:-1]:  # the last one may still be under way
            self._rounds.pop(earlier).leave()
        joined = ClientRound(self, self._identity, self._tally, round, keys, body)
        self._rounds[round] = joined
        return joined

    def __repr__(self) -> str:
        return f"Client({self.number} of {len(self.roster.clients)}, next round {self.next_round})"


@dataclass
class Tally:
    """How many sums a client has let be opened, and the most that it may."""

    client: int
    most: int | None
    opened: int

    def refuse_one_more(self) -> None:
        if self.most is not None and self.opened >= self.most:
            raise Refused(f"Client {self.client} has been in {self.opened} sums, and no more than {self.most} were agreed on.")

    def count(self) -> None:
        """One sum more, or none where that were too many."""
        self.refuse_one_more()
        self.opened += 1


@dataclass(frozen=True)
class _Shares:
    """What a neighbour entrusted to this client; one of the two is shown at most."""

    own: bytes = field(repr=False)
    mask: bytes = field(repr=False)


class ClientRound:
    """One client in one round: shares, masked vector, and one opening. Whatever it refuses ends it."""

    def __init__(self, client: Client, identity: Identity, tally: Tally, round: int, keys: RoundKeys, body: memoryview) -> None:
        self._identity, self._tally, self._keys = identity, tally, keys
        self._roster, self._me = client.roster, client.number
        self.over = False
        self._held: dict[int, _Shares] = {}
        self._survivors: set[int] | None = None
        self._told: bytes | None = None
        self._masked = False
        self._answered: set[bytes] = set()
        self._pairs: dict[int, Pair] = {}
        self.session = self._read(body, client.terms, round)
        self._own = os.urandom(shamir.SECRET_BYTES)
        self.shares = self._share()
        """The answer to the invitation."""

    @property
    def _digest(self) -> bytes:
        return self.session.digest

    @property
    def neighbours(self) -> tuple[int, ...]:
        return tuple(self._pairs)

    # -- the invitation ------------------------------------------------------------------------------------------------------------

    def _read(self, body: memoryview, terms: Terms, round: int) -> Session:
        reader = Reader(body, None)
        if reader.take(DIGEST_BYTES) != terms.digest:
            raise Refused("The server's terms are not those that were agreed on: entries, bits, dropout, threat or context differ.")
        count = reader.number()
        if count > len(self._roster.clients):
            raise Refused(f"The cohort has {count:,} clients, and {len(self._roster.clients):,} are enrolled.")
        cohort, digests = reader.numbers(count), reader.pieces(count, DIGEST_BYTES)
        try:
            session = Session(terms, self._roster, round, cohort, tuple(digests))
            degree = session.graph.degree
        except UsageError as error:
            raise Refused(str(error)) from None
        if self._me not in session.places:
            raise Refused("The server invites this client to a cohort that it is not in.")
        if digests[session.places[self._me]] != self._keys.signed.digest(self._me):
            raise Refused("The server shows others another key for this client than its own, or one of before it was started anew.")
        own = session.places[self._me]
        around = [j for j in neighbours_of(session.graph_seed, count, degree, own)[own] if digests[j] != ABSENT]
        if len(around) < session.graph.threshold:
            raise Refused(f"{len(around)} neighbours have keys, and {session.graph.threshold} are needed.")
        for place, raw in zip(around, reader.pieces(len(around), SIGNED_KEY_BYTES), strict=True):
            number, key = cohort[place], SignedKey.from_bytes(raw)
            if key.digest(number) != digests[place]:
                raise Refused(f"The key of client {number} is not the one that the graph was drawn from.")
            if not key.holds(self._roster, self._roster.digest + terms.digest, number, round):
                raise Refused(f"The key of client {number} is not signed by it for this round and these terms.")
            try:
                self._pairs[number] = self._keys.meet(key)
            except ValueError:
                raise Refused(f"The key of client {number} is one that would hide nothing.") from None
        reader.end()
        return session

    def _share(self) -> bytes:
        threshold, places = self.session.graph.threshold, [self.session.places[j] + 1 for j in self._pairs]
        own = shamir.split(self._own, threshold, places)
        mask = shamir.split(self._keys.mask_secret(), threshold, places)
        sealed = (
            pair.seal(self._digest, self._me, j, a, b) for (j, pair), a, b in zip(self._pairs.items(), own, mask, strict=True)
        )
        return self._seal(Kind.SHARES, commitment(self._own, self._digest, self._me) + b"".join(sealed))

    # -- everything after it -------------------------------------------------------------------------------------------------------

    def answer(self, message: bytes, vector: GetVector | npt.NDArray[np.integer] | None = None) -> bytes:
        """The answer to the next message of this round. A message that is not the server's own, or not for this client, or was
        answered before, changes nothing; one that asks for what a client must not give ends the round for it."""
        if self.over:
            raise Refused(f"Client {self._me} has left round {self.session.round}: it answers nothing more in it.")
        kind, _ = peek(message, None)
        body = open_message(message, self._roster, None, kind, self.session.round, addressed(self._digest, self._me))
        name = hashlib.sha256(message).digest()
        if name in self._answered:
            raise BadMessage(None, "this very message was answered before")
        try:
            if kind is Kind.DELIVERY:
                answer = self._mask(Reader(body, None), vector)
            elif kind is Kind.SURVIVORS:
                answer = self._hear(Reader(body, None))
            elif kind is Kind.VOTES:
                answer = self._count(Reader(body, None))
            else:
                raise Refused(f"The server sends {kind.name.lower()}, which is no question to a client.")
        except (Refused, BadMessage):
            self.leave()
            raise
        self._answered.add(name)
        return answer

    def _mask(self, reader: Reader, vector: GetVector | npt.NDArray[np.integer] | None) -> bytes:
        """The vector under its own mask and those of all pairs that can still be put together again."""
        if self._masked:
            raise Refused("The server asks for a second masked vector: their difference would tell what it must not.")
        held: dict[int, _Shares] = {}
        spoilt: list[int] = []
        for _ in range(reader.number()):
            number, sealed = reader.number(), reader.take(SEALED_BYTES)
            if number not in self._pairs or number in held or number in spoilt:
                raise Refused(f"The server delivers shares of client {number}, who is no neighbour, or does so twice.")
            opened = self._pairs[number].open(self._digest, number, self._me, sealed)
            if opened is None:
                spoilt.append(number)
            else:
                held[number] = _Shares(*opened)
        reader.end()
        if spoilt:
            refusal = Refused(f"The shares of client {spoilt[0]} were changed on their way, or never could be opened.")
            refusal.complaint = self._seal(Kind.COMPLAINT, b"".join(number.to_bytes(4, "big") for number in spoilt))
            raise refusal
        if len(held) < self.session.graph.threshold:
            raise Refused(
                f"{len(held)} of {len(self._pairs)} neighbours are left, and {self.session.graph.threshold} are needed to "
                "hide a vector and to open the sum."
            )
        terms = self.session.terms
        given = vector() if callable(vector) else vector
        if given is None:
            raise UsageError("The sum needs this client's vector.")
        own = terms.own_copy(given)
        if self.session.opens_without_one:
            self._tally.count()
        self._masked = True
        seeds = {j: self._pairs[j].seed(self._digest, self._me, j) for j in held}
        plus = [self_seed(self._own, self._digest, self._me), *(seed for j, seed in seeds.items() if j > self._me)]
        add_masks(own, plus, [seed for j, seed in seeds.items() if j < self._me])
        self._held = held
        return self._seal(Kind.MASKED, *pack(own, terms.bits))

    def _hear(self, reader: Reader) -> bytes:
        """Who is in the sum, said once. A client opens only what holds enough others, and all whom it saw take part."""
        if self._survivors is not None:
            raise Refused("The server asks a second time who shall be opened: two answers could open a single client.")
        if not self._masked or not self._held:
            raise Refused("The server asks to open a sum before this client has sent its part.")
        cohort = self.session.cohort
        told = reader.take(-(-len(cohort) // 8))
        reader.end()
        survivors = from_bitmap(told, cohort, None)
        if self._me not in survivors:
            raise Refused("The server counts this client among the vanished, whose masks are opened, and yet asks it.")
        if ghosts := survivors & self.session.absent:
            raise Refused(f"Client {min(ghosts)} is said to be in the sum, and it has no keys in this round.")
        if len(survivors) < self.session.fewest:
            raise Refused(
                f"The sum holds {len(survivors)} of {len(cohort)} clients, and {self.session.fewest} are the fewest agreed on: "
                "it would not hold enough noise."
            )
        if unseen := (survivors & self._pairs.keys()) - self._held.keys():
            raise Refused(f"Client {min(unseen)} is said to be in the sum, and its shares never came.")
        living = len(survivors & self._held.keys())
        if living < self.session.graph.threshold:
            raise Refused(f"{living} neighbours are in the sum, and {self.session.graph.threshold} are needed.")
        if not self.session.opens_without_one:
            self._tally.count()
        self._survivors, self._told = survivors, told
        if self.session.terms.threat == "malicious":
            return self._seal(Kind.VOTE, self._identity.sign(vote_statement(self._digest, told)))
        return self._reveal()

    def _count(self, reader: Reader) -> bytes:
        """Enough of the whole cohort signed that they were told of the same survivors: then nobody opens another sum."""
        if self.session.terms.threat != "malicious" or self._survivors is None or self._told is None:
            raise Refused("The server sends signatures that nobody asked for.")
        voters = {self._me}
        for _ in range(reader.number()):
            number, signature = reader.number(), reader.take(SIGNATURE_BYTES)
            if number not in self._survivors or number in voters:
                raise Refused(f"Client {number} cannot vouch for the survivors, or does so twice.")
            if not is_signed(self._roster.clients[number], signature, vote_statement(self._digest, self._told)):
                raise Refused(f"Client {number} did not sign these survivors: the server may have told it of others.")
            voters.add(number)
        reader.end()
        if len(voters) < self.session.quorum:
            raise Refused(f"{len(voters)} clients vouch for the survivors, and {self.session.quorum} must.")
        return self._reveal()

    def _reveal(self) -> bytes:
        """For each neighbour one share: of its own mask where it lives, of its mask key where it vanished. Never both."""
        assert self._survivors is not None
        shown = [shares.own if j in self._survivors else shares.mask for j, shares in self._held.items()]
        message = self._seal(Kind.REVEAL, b"".join(shown))
        self.leave()
        return message

    def leave(self) -> None:
        """Have no part in this round any more, and forget what it was hidden with."""
        if not self.over:
            self.over = True
            self._held, self._pairs, self._own = {}, {}, b""
            del self._keys

    def _seal(self, kind: Kind, *body: Piece) -> bytes:
        return seal(self._identity, kind, self._me, self.session.round, self._digest, *body)

    def __repr__(self) -> str:
        return f"ClientRound(client {self._me}, round {self.session.round}{', over' if self.over else ''})"
