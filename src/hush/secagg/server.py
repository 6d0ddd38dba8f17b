"""The server's half of a secure sum: it carries letters it cannot read, adds masked vectors up, and learns their sum.

    server = Server(identity, roster, terms)
    server.take_keys(number, message)                 # from everybody, for rounds ahead
    round = server.open(0, cohort)
    letters = round.start()
    while letters:                                    # to each number its letter; what comes back:
        round.receive(number, answer)
        letters = round.advance()                     # whoever has not answered by now has vanished
    round.total, round.included

It holds no time-outs and no sockets: whoever drives it decides how long to wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hush.errors import UsageError
from hush.secagg import shamir
from hush.secagg.errors import Aborted, BadMessage
from hush.secagg.graph import neighbours_of
from hush.secagg.identity import SIGNATURE_BYTES, Identity, Roster, is_signed
from hush.secagg.keyring import KeyRing
from hush.secagg.keys import belongs_to, commitment, pair_seed, self_seed
from hush.secagg.messages import (
    DIGEST_BYTES,
    SEALED_BYTES,
    SERVER,
    Kind,
    SignedKey,
    addressed,
    bitmap,
    open_message,
    peek,
    seal,
    vote_statement,
)
from hush.secagg.packing import Vector, add_packed, kind_of, reduced, signed
from hush.secagg.terms import ABSENT, Session, Terms
from hush.secagg.unmask import take_masks


class Stage(StrEnum):
    """What the server waits for."""

    SHARES = "shares"
    VECTORS = "masked vectors"
    VOTES = "signatures of the survivors"
    OPENING = "the opening"
    DONE = "nothing more"
    ABORTED = "nothing more: aborted"


_EXPECTED = {
    Stage.SHARES: Kind.SHARES,
    Stage.VECTORS: Kind.MASKED,
    Stage.VOTES: Kind.VOTE,
    Stage.OPENING: Kind.REVEAL,
}


class Server:
    """Keys of rounds to come, and the rounds themselves."""

    def __init__(self, identity: Identity, roster: Roster, terms: Terms, workers: int | None = None, next_round: int = 0) -> None:
        if identity.public != roster.server:
            raise UsageError("This identity is not the one that the roster names as the server's.")
        self.roster, self.terms = roster, terms
        self._identity, self._workers = identity, workers
        self._keys = KeyRing(roster, terms)
        self.next_round = next_round
        """The first round that can still be opened. One that is started again must be given it, and be sent the keys anew."""

    def take_keys(self, sender: int, message: bytes) -> tuple[int, ...]:
        """Keep a client's keys for rounds ahead; which rounds."""
        return self._keys.take(sender, message, self.next_round)

    def ready(self, round: int) -> set[int]:
        """The clients whose keys for this round are here."""
        return set(self._keys.of(round))

    def open(self, round: int, cohort: Iterable[int]) -> ServerRound:
        """A round over those of `cohort` whose keys are here. Others are listed as absent where a smaller one would be refused."""
        if round < self.next_round:
            raise UsageError(f"Round {round} is over: rounds only go forward.")
        keys = self._keys.of(round)
        asked, smallest = sorted(set(cohort)), self.terms.smallest
        there, gone = [n for n in asked if n in keys], [n for n in asked if n not in keys]
        members = tuple(sorted([*there, *gone[: max(0, smallest - len(there))]]))
        if len(members) < smallest or len(there) < self.terms.fewest(len(members)):
            needed = f"{self.terms.fewest(smallest)} of at least {smallest} are needed"
            raise Aborted(f"{len(there)} clients have keys for round {round}, and {needed}.")
        digests = tuple(keys[number].digest(number) if number in keys else ABSENT for number in members)
        session = Session(self.terms, self.roster, round, members, digests)
        try:
            _ = session.graph
        except UsageError as reason:
            raise Aborted(str(reason)) from None
        self.next_round = round + 1
        self._keys.forget(round)
        return ServerRound(self._identity, session, {number: keys[number] for number in there}, self._workers)

    def __repr__(self) -> str:
        return f"Server({self.roster!r}, next round {self.next_round})"


class ServerRound:
    """One round. A message that is not right is an error that names its sender and changes nothing."""

    def __init__(self, identity: Identity, session: Session, keys: dict[int, SignedKey], workers: int | None = None) -> None:
        self.session, self._identity, self._keys, self._workers = session, identity, keys, workers
        around = neighbours_of(session.graph_seed, len(session.cohort), session.graph.degree)
        near = {number: (session.cohort[place] for place in around[own]) for own, number in enumerate(session.cohort)}
        self._around = {number: tuple(j for j in near[number] if j in keys) for number in keys}
        self.stage = Stage.SHARES
        self.waiting: set[int] = set(keys)
        """Who has not answered in this stage."""
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._commitments: dict[int, bytes] = {}
        self._held: dict[int, tuple[int, ...]] = {}
        self._sum: Vector = np.zeros(session.terms.entries, dtype=kind_of(session.terms.bits))
        self._came: set[int] = set()
        self._told = b""
        self._complaints: dict[int, int] = {}
        self._votes: dict[int, bytes] = {}
        self._shown: dict[int, dict[int, bytes]] = {}
        self._doubted: set[int] = set()
        self.included: tuple[int, ...] = ()
        """Whose vectors the sum holds."""
        self.suspects: tuple[int, ...] = ()
        """Who showed a share that does not fit the others, sent letters that could not be opened, or may have dealt false ones;
        the word of one client is enough to be listed here, and nobody should be banned for it alone."""
        self.bytes_up: dict[int, int] = dict.fromkeys(session.cohort, 0)
        self.bytes_down: dict[int, int] = dict.fromkeys(session.cohort, 0)

    @property
    def done(self) -> bool:
        return self.stage in (Stage.DONE, Stage.ABORTED)

    @property
    def total(self) -> Vector:
        """The sum of the included clients' vectors modulo 2^bits."""
        if self.stage is not Stage.DONE:
            raise UsageError(f"There is no sum: the server waits for {self.stage}.")
        return self._sum

    @property
    def signed_total(self) -> npt.NDArray[np.int64]:
        """The same around zero, from -2^(bits-1) on."""
        return signed(self.total, self.session.terms.bits)

    def has_of(self, number: int) -> bool:
        """Whether this client sent what this stage asks for; a complaint is no vector."""
        return number in self._came if self.stage is Stage.VECTORS else number not in self.waiting

    # -- in ------------------------------------------------------------------------------------------------------------------------

    def receive(self, sender: int, message: bytes) -> None:
        """Take one client's answer of this stage, once."""
        if sender not in self.session.places:
            raise BadMessage(sender, "this client is not of the cohort")
        if self.done:
            raise BadMessage(sender, "the round is over")
        if sender not in self.waiting:
            raise BadMessage(sender, "nothing more is expected of this client in this stage")
        kind = _EXPECTED[self.stage]
        if kind is Kind.MASKED and peek(message, sender)[0] is Kind.COMPLAINT:
            kind = Kind.COMPLAINT
        body = open_message(message, self.session.roster, sender, kind, self.session.round, self.session.digest)
        take = {
            Kind.SHARES: self._take_shares,
            Kind.MASKED: self._take_vector,
            Kind.COMPLAINT: self._take_complaint,
            Kind.VOTE: self._take_vote,
            Kind.REVEAL: self._take_opening,
        }
        take[kind](sender, body)
        self.waiting.discard(sender)
        self.bytes_up[sender] += len(message)

    def _take_shares(self, sender: int, body: memoryview) -> None:
        receivers = self._around[sender]
        if len(body) != DIGEST_BYTES + len(receivers) * SEALED_BYTES:
            raise BadMessage(sender, f"it does not hold two shares for each of {len(receivers)} neighbours")
        self._commitments[sender] = bytes(body[:DIGEST_BYTES])
        letters = body[DIGEST_BYTES:]
        self._sealed[sender] = {j: bytes(letters[i * SEALED_BYTES : (i + 1) * SEALED_BYTES]) for i, j in enumerate(receivers)}

    def _take_vector(self, sender: int, body: memoryview) -> None:
        terms = self.session.terms
        if len(body) != terms.message_bytes:
            raise BadMessage(sender, f"it does not hold {terms.entries:,} entries of {terms.bits} bits")
        add_packed(self._sum, body, terms.bits)
        self._came.add(sender)

    def _take_complaint(self, sender: int, body: memoryview) -> None:
        """It could not open some letters, and has left. Who is right cannot be seen from here; who is complained of by many can."""
        blamed = {int.from_bytes(body[i : i + 4], "big") for i in range(0, len(body), 4)}
        if not blamed or len(body) % 4 or not blamed <= set(self._held[sender]):
            raise BadMessage(sender, "it complains of somebody whose letter it was not sent")
        for number in blamed:
            self._complaints[number] = self._complaints.get(number, 0) + 1

    def _take_vote(self, sender: int, body: memoryview) -> None:
        vote = bytes(body)
        told = vote_statement(self.session.digest, self._told)
        if len(vote) != SIGNATURE_BYTES or not is_signed(self.session.roster.clients[sender], vote, told):
            raise BadMessage(sender, "it does not vouch for the survivors")
        self._votes[sender] = vote

    def _take_opening(self, sender: int, body: memoryview) -> None:
        about = self._held[sender]
        if len(body) != len(about) * shamir.SHARE_BYTES:
            raise BadMessage(sender, f"it does not hold one share of each of {len(about)} neighbours")
        place = self.session.places[sender] + 1
        for i, j in enumerate(about):
            share = bytes(body[i * shamir.SHARE_BYTES : (i + 1) * shamir.SHARE_BYTES])
            self._shown.setdefault(j, {})[place] = share

    # -- out -----------------------------------------------------------------------------------------------------------------------

    def start(self) -> dict[int, bytes]:
        """The invitations."""
        cohort = self.session.cohort
        members = len(cohort).to_bytes(4, "big") + b"".join(number.to_bytes(4, "big") for number in cohort)
        common = self.session.terms.digest + members + b"".join(self.session.keys)
        about = self.session.roster.digest  # the session is what an invitation tells
        return {
            number: self._letter(
                Kind.INVITATION, number, common + b"".join(self._keys[j].to_bytes() for j in self._around[number]), about
            )
            for number in self._keys
        }

    def advance(self) -> dict[int, bytes]:
        """Close this stage: whoever has not answered has vanished. The next letters, or none where the sum is there."""
        if self.done:
            raise UsageError("The round is over.")
        try:
            if self.stage is Stage.SHARES:
                return self._deliver()
            if self.stage is Stage.VECTORS:
                return self._tell_survivors()
            if self.stage is Stage.VOTES:
                return self._tell_votes()
            self._open()
        except Aborted as reason:
            reason.opening = self.stage is Stage.OPENING
            self.stage = Stage.ABORTED
            self.suspects = tuple(sorted({*self._doubted, *self._complaints}))
            raise
        return {}

    def _deliver(self) -> dict[int, bytes]:
        """To each the letters of its neighbours. One with too few of them left is let go: it would refuse."""
        shared = set(self._sealed)
        self._need(len(shared), "sent shares")
        threshold = self.session.graph.threshold
        while alone := {i for i in shared if sum(j in shared for j in self._around[i]) < threshold}:
            shared = shared - alone  # nobody has masked with them yet, so nobody needs their keys
        self._need(len(shared), "have enough neighbours left")
        self._held = {number: tuple(j for j in self._around[number] if j in shared) for number in sorted(shared)}
        self._next_stage(Stage.VECTORS, self._held)
        out = {}
        for number, senders in self._held.items():
            own = b"".join(j.to_bytes(4, "big") + self._sealed[j][number] for j in senders)
            out[number] = self._letter(Kind.DELIVERY, number, len(senders).to_bytes(4, "big") + own)
        self._sealed = {}
        return out

    def _tell_survivors(self) -> dict[int, bytes]:
        self._need(len(self._came), "sent their vectors")
        self._told = bitmap(self._came, self.session.cohort)
        self._next_stage(Stage.VOTES if self.session.terms.threat == "malicious" else Stage.OPENING, self._came)
        return {number: self._letter(Kind.SURVIVORS, number, self._told) for number in sorted(self._came)}

    def _tell_votes(self) -> dict[int, bytes]:
        quorum, voted = self.session.quorum, sorted(self._votes)
        if len(voted) < quorum:
            raise Aborted(f"{len(voted)} clients vouch for the survivors, and {quorum} must.")
        told = {j: j.to_bytes(4, "big") + self._votes[j] for j in voted[:quorum]}
        letters = {}
        for number in voted:
            others = [vote for j, vote in told.items() if j != number]
            letters[number] = self._letter(Kind.VOTES, number, len(others).to_bytes(4, "big") + b"".join(others))
        self._next_stage(Stage.OPENING, letters)
        return letters

    def _need(self, number: int, did: str) -> None:
        if number < self.session.fewest:
            told = ", ".join(f"client {who} by {many}" for who, many in sorted(self._complaints.items())[:5])
            raise Aborted(
                f"{number} of {len(self.session.cohort)} clients {did}, and {self.session.fewest} are the fewest agreed on"
                + (f"; complained of, for letters that cannot be opened: {told}." if told else ".")
            )

    def _next_stage(self, stage: Stage, asked: Iterable[int]) -> None:
        self.stage, self.waiting = stage, set(asked)

    def _letter(self, kind: Kind, number: int, body: bytes, about: bytes | None = None) -> bytes:
        digest = addressed(self.session.digest if about is None else about, number)
        message = seal(self._identity, kind, SERVER, self.session.round, digest, body)
        self.bytes_down[number] += len(message)
        return message

    # -- the opening ---------------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Put together what must go: the own masks of those in the sum, and the pairs of those that are not with those that are."""
        digest, terms = self.session.digest, self.session.terms
        suspects = self._doubted
        # masks that are in the sum with this sign, and must leave it
        plus = [self_seed(self._put_together(number, suspects, alive=True), digest, number) for number in sorted(self._came)]
        minus: list[bytes] = []
        for number in sorted(self._held.keys() - self._came):  # they have vanished
            partners = [j for j in self._around[number] if j in self._came and number in self._held[j]]
            if not partners:
                continue
            secret = self._put_together(number, suspects, alive=False)
            for j in partners:
                seed = pair_seed(secret, digest, number, j, self._keys[j].mask)
                (plus if number > j else minus).append(seed)  # j added what it shares with one after it
        take_masks(self._sum, plus, minus, self._workers)
        self._sum = reduced(self._sum, terms.bits)
        self.included, self.suspects = tuple(sorted(self._came)), tuple(sorted({*suspects, *self._complaints}))
        self.stage = Stage.DONE
        self._shown = {}

    def _put_together(self, number: int, suspects: set[int], alive: bool) -> bytes:
        """A client's secret from its neighbours' shares, checked; a single false one is found, and its sender suspected."""
        threshold, shown = self.session.graph.threshold, self._shown.get(number, {})
        if len(shown) < threshold:
            raise Aborted(f"{len(shown)} neighbours of client {number} opened their shares, and {threshold} are needed.")
        doubted = {self.session.places[who] + 1 for who in suspects}
        places = sorted(shown, key=lambda x: (x in doubted, x))  # those that lied before come last
        chosen = places[:threshold]
        if (secret := self._fits(number, {x: shown[x] for x in chosen}, alive)) is not None:
            return secret
        if len(places) > threshold:
            for x in chosen:
                others = [*(y for y in chosen if y != x), places[threshold]]
                if (secret := self._fits(number, {y: shown[y] for y in others}, alive)) is not None:
                    suspects.add(self.session.cohort[x - 1])
                    return secret
        suspects.add(number)
        raise Aborted(f"The shares of client {number} do not fit together: a neighbour showed a false one, or it dealt false ones.")

    def _fits(self, number: int, shares: dict[int, bytes], alive: bool) -> bytes | None:
        try:
            secret = shamir.combine(shares)
        except ValueError:
            return None
        if alive:
            return secret if commitment(secret, self.session.digest, number) == self._commitments[number] else None
        return secret if belongs_to(secret, self._keys[number].mask) else None

    def __repr__(self) -> str:
        return f"ServerRound(round {self.session.round}, {len(self.session.cohort)} clients, waits for {self.stage})"
