"""A tiny driver: secure sums in one process, with clients that vanish when told to, and a server that may be made to lie."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from hypothesis import reject
from hypothesis import strategies as st

from hush.errors import UsageError
from hush.secagg import Aborted, BadMessage, Client, Graph, Identity, Refused, Roster, Server, ServerRound, Terms
from hush.secagg.graph import neighbours_of
from hush.secagg.keys import pair_seed, self_seed
from hush.secagg.masks import add_masks
from hush.secagg.messages import DIGEST_BYTES, SERVER, SIGNED_KEY_BYTES, Kind, addressed, bitmap, seal
from hush.secagg.packing import reduced, unpack
from hush.secagg.terms import Session

Vectors = npt.NDArray[np.integer]
HEADER = 21
SIGNATURE = 64
LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 19 - 1).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 19 + 1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
)
"""Points of X25519 that give the same secret with everybody."""


@cache
def identities(count: int) -> tuple[Identity, ...]:
    """The server's, then the clients'. Drawn once: keys of rounds are what differs between tests."""
    return tuple(Identity.generate() for _ in range(count + 1))


@dataclass
class World:
    """A roster, its server and its clients."""

    clients: int
    terms: Terms
    workers: int | None = 1
    server: Server = field(init=False)
    roster: Roster = field(init=False)
    people: list[Client] = field(init=False)

    def __post_init__(self) -> None:
        self.who = identities(self.clients)[0]
        self.own = identities(self.clients)[1:]
        self.roster = Roster.of(self.who, self.own)
        self.server = Server(self.who, self.roster, self.terms, self.workers)
        self.people = [Client(identity, self.roster, self.terms) for identity in self.own]

    def keys(self, rounds: Iterable[int], of: Iterable[int] | None = None) -> None:
        rounds = list(rounds)
        for number in range(self.clients) if of is None else of:
            self.server.take_keys(number, self.people[number].prepare(rounds))

    def open(self, round: int = 0, cohort: Iterable[int] | None = None) -> ServerRound:
        return self.server.open(round, range(self.clients) if cohort is None else cohort)

    def letter(self, kind: Kind, body: bytes, session: Session, about: bytes | None = None, to: int = 0) -> bytes:
        """What the server could say to a client, whether it should or not."""
        belongs = addressed(session.digest if about is None else about, to)
        return seal(self.who, kind, SERVER, session.round, belongs, body)

    def say(self, number: int, kind: Kind, body: bytes, session: Session) -> bytes:
        """What a client could say, whether it should or not."""
        return seal(self.own[number], kind, number, session.round, session.digest, body)

    def survivors(self, session: Session, alive: Iterable[int], to: int = 0) -> bytes:
        return self.letter(Kind.SURVIVORS, bitmap(set(alive), session.cohort), session, to=to)


def vectors_for(world: World, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**62), 2**62, (world.clients, world.terms.entries), dtype=np.int64)


def true_sum(vectors: Vectors, included: Iterable[int], bits: int) -> Vectors:
    """Modulo 2^bits, in Python's own integers: nothing wraps unseen."""
    chosen = [[int(v) for v in vectors[number]] for number in included]
    return np.array([sum(column) % 2**bits for column in zip(*chosen, strict=True)], dtype=np.uint64)


def exact(world: World, done: ServerRound, vectors: Vectors) -> bool:
    return bool((done.total.astype(np.uint64) == true_sum(vectors, done.included, world.terms.bits)).all())


def answers(world: World, current: ServerRound, letters: Mapping[int, bytes], vectors: Vectors, silent: Iterable[int] = ()) -> None:
    """Everybody answers but the silent."""
    gone = set(silent)
    for number, letter in letters.items():
        if number not in gone:
            current.receive(number, world.people[number].answer(letter, vectors[number]))


def play(
    world: World,
    vectors: Vectors,
    lost: Sequence[Iterable[int]] = (),
    round: int = 0,
    cohort: Iterable[int] | None = None,
    keys: bool = True,
) -> ServerRound | str:
    """One round. `lost[i]` vanish at stage i (shares, vectors, then signatures where there are any, opening) and stay away. The
    server's round where there is a sum, or the reason why there is none."""
    if keys:
        world.keys([round])
    try:
        current = world.open(round, cohort)
        letters, gone = current.start(), set[int]()
        for stage in range(9):
            if not letters:
                return current
            gone |= set(lost[stage]) if stage < len(lost) else set()
            answers(world, current, letters, vectors, gone)
            letters = current.advance()
    except (Aborted, Refused) as reason:
        return str(reason)
    raise AssertionError("a round does not end")


def until(world: World, stages: int, vectors: Vectors | None = None, round: int = 0) -> tuple[ServerRound, dict[int, bytes]]:
    """A round in which everybody has answered `stages` times, and the letters that nobody has read yet."""
    vectors = vectors_for(world) if vectors is None else vectors
    world.keys([round])
    current = world.open(round)
    letters = current.start()
    for _ in range(stages):
        answers(world, current, letters, vectors)
        letters = current.advance()
    return current, letters


def finish(world: World, current: ServerRound, letters: Mapping[int, bytes], vectors: Vectors) -> ServerRound:
    """The rest of a round, in which those that have no part in it any more are silent."""
    while letters:
        for number, letter in letters.items():
            try:
                current.receive(number, world.people[number].answer(letter, vectors[number]))
            except Refused as refusal:
                if refusal.complaint is not None:
                    current.receive(number, refusal.complaint)
        letters = current.advance()
    return current


def body_of(message: bytes) -> bytes:
    return message[HEADER:-SIGNATURE]


@dataclass
class Invitation:
    """An invitation taken apart, so that each piece can be changed."""

    terms: bytes
    cohort: list[int]
    digests: list[bytes]
    keys: list[bytes]

    @staticmethod
    def of(message: bytes) -> Invitation:
        body = body_of(message)
        count = int.from_bytes(body[DIGEST_BYTES : DIGEST_BYTES + 4], "big")
        place = DIGEST_BYTES + 4
        cohort = list(struct.unpack_from(f">{count}I", body, place))
        place += 4 * count
        digests = [body[place + DIGEST_BYTES * i : place + DIGEST_BYTES * (i + 1)] for i in range(count)]
        rest = body[place + DIGEST_BYTES * count :]
        return Invitation(
            body[:DIGEST_BYTES], cohort, digests, [rest[i : i + SIGNED_KEY_BYTES] for i in range(0, len(rest), SIGNED_KEY_BYTES)]
        )

    def body(self) -> bytes:
        count = len(self.cohort)
        return b"".join((self.terms, struct.pack(f">{count + 1}I", count, *self.cohort), *self.digests, *self.keys))

    def message(self, world: World, round: int = 0, about: bytes | None = None, to: int = 0) -> bytes:
        belongs = addressed(world.roster.digest if about is None else about, to)
        return seal(world.who, Kind.INVITATION, SERVER, round, belongs, self.body())


def adjacency(world: World, session: Session, invitation: bytes) -> dict[int, tuple[int, ...]]:
    """Who is whose neighbour, as anybody who was invited can compute it."""
    assert session.keys == tuple(Invitation.of(invitation).digests)
    around = neighbours_of(session.graph_seed, len(session.cohort), session.graph.degree)
    return {number: tuple(session.cohort[j] for j in around[place]) for place, number in enumerate(session.cohort)}


def ring_of(around: dict[int, tuple[int, ...]]) -> list[int]:
    """The order on the ring: who is next has the most neighbours in common."""
    ring = [min(around)]
    while len(ring) < len(around):
        left = [j for j in around[ring[-1]] if j not in ring]
        ring.append(max(left, key=lambda j: len(set(around[j]) & set(around[ring[-1]]))))
    return ring


def cuts_that_open(corrupted: Sequence[bool], graph: Graph, missing: int) -> Iterator[tuple[int, int]]:
    """Where two runs begin, and the length of the arc between them, whose sum a server that does not wait for them may open: of
    the runs only the corrupted answer, and so many of the others may be missing."""
    clients, half = len(corrupted), graph.degree // 2
    inside = np.convolve(np.tile(corrupted, 2), np.ones(half, dtype=int))[half - 1 : half - 1 + clients]
    for size in range(1, clients - graph.degree):
        other = np.roll(inside, -half - size)
        fits = (np.minimum(inside, other) >= graph.threshold - half) & (graph.degree - inside - other <= missing)
        yield from ((int(start), size) for start in np.flatnonzero(fits))


def open_sum(
    current: ServerRound, uploads: dict[int, bytes], own: dict[int, bytes | None], lost: dict[int, bytes | None]
) -> np.ndarray:
    """From what the server has: the uploads of those in the sum, without the masks that it can put together."""
    session, terms = current.session, current.session.terms
    total = np.zeros(terms.entries, dtype="<u4")
    for number, secret in own.items():
        assert secret is not None
        total += unpack(body_of(uploads[number]), terms.entries, terms.bits)
        add_masks(total, [], [self_seed(secret, session.digest, number)])
    for number, secret in lost.items():
        assert secret is not None
        for j in set(current._around[number]) & own.keys():
            seed = pair_seed(secret, session.digest, number, j, current._keys[j].mask)
            add_masks(total, *(([], [seed]) if number > j else ([seed], [])))
    return reduced(total, terms.bits)


def outcome(call: Callable[[], Any]) -> str:
    """The reason of a refusal; a failure where there is none."""
    try:
        call()
    except (Refused, BadMessage) as reason:
        return str(reason)
    raise AssertionError("nothing was refused")


@dataclass(frozen=True)
class Case:
    """A round as hypothesis draws it."""

    roster: int
    cohort: tuple[int, ...]
    terms: Terms
    vectors: tuple[tuple[int, ...], ...]
    lost: tuple[frozenset[int], ...]
    graph: Graph | None
    """Another than the terms would give: sparser, so that small cohorts meet what is rare in large ones."""


@st.composite
def cases(draw: st.DrawFn, largest: int = 60) -> Case:
    clients = draw(st.one_of(st.integers(3, min(8, largest)), st.integers(3, min(16, largest)), st.integers(3, largest)))
    roster = clients + draw(st.integers(0, 4))
    cohort = tuple(sorted(draw(st.permutations(range(roster)))[:clients]))
    entries = draw(st.integers(1, 5))
    settings = {
        "bits": draw(st.integers(1, 64)),
        "dropout": draw(st.sampled_from([0.0, 0.1, 0.2, 0.34, 0.5])),
        "corrupted": draw(st.sampled_from([0.0, 0.05, 0.1, 0.2])),
        "threat": draw(st.sampled_from(["curious", "malicious"])),
        "smallest": draw(st.sampled_from([clients, max(3, clients - 2)])),
        "context": draw(st.binary(max_size=4)),
    }
    try:
        terms = Terms(entries, **settings)
        terms.graph(clients)
    except UsageError:
        reject()
    number = st.integers(-(2**63), 2**63 - 1)
    vectors = tuple(tuple(draw(st.lists(number, min_size=entries, max_size=entries))) for _ in range(roster))
    most = draw(st.sampled_from([1, max(1, clients // 5), clients]))
    lost = tuple(frozenset(draw(st.lists(st.sampled_from(cohort), max_size=draw(st.sampled_from([0, 1, most]))))) for _ in range(4))
    graph = None
    if clients >= 7 and draw(st.booleans()):
        degree = 2 * draw(st.integers(2, (clients - 2) // 2))
        graph = Graph(degree, draw(st.integers(2, degree)), complete=False)
    return Case(roster, cohort, terms, vectors, lost, graph)


def check(case: Case) -> str:
    """The sum is exact, or there is none and a reason. What the declared dropout allows for is never an abort."""
    with patch("hush.secagg.terms.graph_for", lambda *_: case.graph) if case.graph else nullcontext():
        world = World(case.roster, case.terms)
        vectors = np.array(case.vectors, dtype=np.int64)
        done = play(world, vectors, case.lost, cohort=case.cohort)
    if isinstance(done, ServerRound):
        assert exact(world, done, vectors)
        assert set(done.included) == set(case.cohort) - case.lost[0] - case.lost[1] - _let_go(done)
        assert len(done.included) >= case.terms.fewest(len(case.cohort))
        assert done.suspects == ()
        return "sum"
    assert any(character.isdigit() for character in done), "a reason names what was missing"
    gone = set().union(*(case.lost if case.terms.threat == "malicious" else case.lost[:3]))
    if case.graph is None:
        assert len(gone) > len(case.cohort) - case.terms.fewest(len(case.cohort)), done
    return done


def _let_go(done: ServerRound) -> set[int]:
    """Those with too few neighbours left, whom the server did not ask for a vector."""
    return {number for number in done.session.cohort if number not in done._held}
