"""Messages: cut short, extended, changed in every field, and repeated. Each is an error that names its sender."""

from __future__ import annotations

import os
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.secagg import BadMessage, Identity, Refused, Roster, Terms
from hush.secagg.messages import (
    MAGIC,
    SERVER,
    Kind,
    Reader,
    SignedKey,
    bitmap,
    from_bitmap,
    open_message,
    peek,
    seal,
    vote_statement,
)
from hush.secagg.terms import Session
from tests.secagg.drive import HEADER, World, answers, body_of, exact, finish, identities, until, vectors_for

SIGNER = identities(3)[1]
ROSTER = Roster.of(identities(3)[0], identities(3)[1:])
ABOUT = b"session"
OPEN = Terms(4, dropout=0.25, corrupted=0, threat="malicious", smallest=4)


def message(body: bytes = b"some body", kind: Kind = Kind.MASKED, sender: int = 0, round: int = 5) -> bytes:
    return seal(SIGNER, kind, sender, round, ABOUT, body)


def read(data: bytes, sender: int | None = 0, kind: Kind = Kind.MASKED, round: int = 5, about: bytes = ABOUT) -> bytes:
    return bytes(open_message(data, ROSTER, sender, kind, round, about))


def test_what_is_sealed_is_opened() -> None:
    for body in (b"", b"x", os.urandom(1000)):
        assert read(message(body)) == body
        assert read(bytearray(message(body))) == body  # type: ignore[arg-type]
        assert peek(message(body), 0) == (Kind.MASKED, 5)


def test_a_message_cut_anywhere_is_refused() -> None:
    whole = message()
    for length in range(len(whole)):
        with pytest.raises(BadMessage) as refused:
            read(whole[:length])
        assert refused.value.sender == 0


@pytest.mark.parametrize("more", [1, 2, 64, 1000])
def test_a_message_with_more_at_its_end_is_refused(more: int) -> None:
    with pytest.raises(BadMessage, match="length"):
        read(message() + bytes(more))
    with pytest.raises(BadMessage):
        read(bytes(more) + message())


def test_every_bit_counts() -> None:
    whole = message()
    for place in range(len(whole)):
        for bit in range(8):
            changed = whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
            with pytest.raises(BadMessage) as refused:
                read(changed)
            assert refused.value.sender == 0
            assert "client 0" in str(refused.value)


@pytest.mark.parametrize("magic", [b"HSA0", b"HSA2", b"hsa1", b"\0\0\0\0", b"1ASH"])
def test_another_version_is_refused(magic: bytes) -> None:
    with pytest.raises(BadMessage, match="version"):
        read(magic + message()[4:])


def header(magic: bytes = MAGIC, kind: int = Kind.MASKED, sender: int = 0, round: int = 5, length: int = 9) -> bytes:
    return struct.pack(">4sBIQI", magic, kind, sender, round, length)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (header(kind=0), "no kind 0"),
        (header(kind=11), "no kind 11"),
        (header(kind=255), "no kind 255"),
        (header(kind=Kind.VOTE), "masked was expected"),
        (header(sender=1), "another sender"),
        (header(sender=SERVER), "another sender"),
        (header(round=4), "round 4"),
        (header(round=2**64 - 1), "round"),
        (header(length=8), "length"),
        (header(length=0), "length"),
        (header(length=2**32 - 1), "length"),
    ],
)
def test_every_field_of_a_header_is_checked_before_the_signature(changed: bytes, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        read(changed + message()[HEADER:])


def test_a_signature_is_for_one_sender_round_kind_and_session() -> None:
    for other in (
        lambda: read(message(), about=b"another session"),
        lambda: read(message(sender=1), sender=1),  # signed by 0 in the name of 1
        lambda: read(seal(SIGNER, Kind.MASKED, SERVER, 5, ABOUT, b""), sender=None),
        lambda: read(message()[:-64] + message(round=6)[-64:]),
        lambda: read(message()[:-64] + bytes(64)),
    ):
        with pytest.raises(BadMessage, match="signature"):
            other()


@pytest.mark.parametrize("what", [None, "text", 5, [1, 2], object()])
def test_what_is_not_bytes_is_refused(what: object) -> None:
    with pytest.raises(BadMessage, match="not bytes"):
        read(what)  # type: ignore[arg-type]
    world = World(3, Terms(2))
    with pytest.raises(BadMessage) as refused:
        world.people[0].answer(what)  # type: ignore[arg-type]
    assert refused.value.sender is None
    assert "the server" in str(refused.value)
    with pytest.raises(BadMessage):
        world.server.take_keys(0, what)  # type: ignore[arg-type]
    current, _ = until(world, 0)
    with pytest.raises(BadMessage):
        current.receive(0, what)  # type: ignore[arg-type]


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused(data: bytes) -> None:
    for sender in (0, None):
        with pytest.raises(BadMessage):
            read(data, sender)


def test_a_length_that_nothing_follows_allocates_nothing() -> None:
    """Signed by the server itself: a delivery of four billion shares, and a cohort as large."""
    world = World(3, Terms(2))
    vectors = vectors_for(world)
    current, _ = until(world, 1, vectors)
    huge = (2**32 - 1).to_bytes(4, "big")
    invitation = world.terms.digest + huge
    tracemalloc.start()
    try:
        with pytest.raises((BadMessage, Refused)):
            world.people[0].answer(world.letter(Kind.DELIVERY, huge, current.session), vectors[0])
        world.people[1].prepare([1])
        forged = seal(world.who, Kind.INVITATION, SERVER, 1, world.roster.digest, invitation)
        with pytest.raises((BadMessage, Refused)):
            world.people[1].answer(forged)
        with pytest.raises(BadMessage):
            read(header(length=2**32 - 1) + bytes(64 + 9))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_reader_takes_what_is_there_and_no_more() -> None:
    reader = Reader(memoryview(b"\0\0\0\2abcdef"), 7)
    assert reader.number() == 2
    assert reader.pieces(2, 2) == [b"ab", b"cd"]
    with pytest.raises(BadMessage, match="2 bytes follow"):
        reader.end()
    assert reader.take(2) == b"ef"
    reader.end()
    for more in (lambda: reader.take(1), reader.number, lambda: reader.numbers(2**32 - 1), lambda: reader.pieces(2**31, 128)):
        with pytest.raises(BadMessage, match="too early") as refused:
            more()
        assert refused.value.sender == 7


@given(st.integers(1, 70), st.data())
@settings(max_examples=60, deadline=None)
def test_a_bitmap_says_who_and_nobody_else(size: int, data: st.DataObject) -> None:
    cohort = tuple(range(3, 3 + size))
    chosen = data.draw(st.sets(st.sampled_from(cohort)))
    raw = bitmap(chosen, cohort)
    assert len(raw) == -(-size // 8)
    assert from_bitmap(raw, cohort, None) == chosen
    if size % 8:
        with pytest.raises(BadMessage, match="not of the cohort"):
            from_bitmap(bytes([raw[0] | 0x80]) + raw[1:], cohort, None)


def test_statements_of_different_kinds_cannot_be_taken_for_one_another() -> None:
    """A vote is no key, a key no message, whatever is put into them: they begin differently."""
    digest = os.urandom(32)
    key = SignedKey.statement(digest + digest, 0, 0, bytes(32), bytes(32))
    vote = vote_statement(digest, bytes(5))
    assert key[:16] != vote[:16]


def test_sessions_that_differ_in_anything_have_other_names() -> None:
    terms, other = Terms(4), Terms(4, context=b"other")
    more = Roster(ROSTER.server, (*ROSTER.clients, Identity.generate().public))
    names = {
        Session(terms, ROSTER, 0, (0, 1, 2)).digest,
        Session(other, ROSTER, 0, (0, 1, 2)).digest,
        Session(terms, more, 0, (0, 1, 2)).digest,
        Session(terms, more, 0, (0, 1, 2, 3)).digest,
        Session(terms, more, 0, (0, 1, 3)).digest,
        Session(terms, ROSTER, 1, (0, 1, 2)).digest,
    }
    assert len(names) == 6


def test_messages_out_of_order_are_refused_by_name() -> None:
    """All letters of a round, each at every other stage than its own: nothing but errors that say why."""
    world = World(4, OPEN)
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    said: list[bytes] = []
    letters = current.start()
    while letters:
        said.append(letters[0])
        for number, letter in letters.items():
            current.receive(number, world.people[number].answer(letter, vectors[number]))
        letters = current.advance()
    assert [Kind(letter[4]) for letter in said] == [Kind.INVITATION, Kind.DELIVERY, Kind.SURVIVORS, Kind.VOTES]
    for stage in range(4):
        for other in range(stage + 1, 4):
            again = World(4, OPEN)
            now, fresh = until(again, stage, vectors)
            forged = again.letter(Kind(said[other][4]), body_of(said[other]), now.session)
            with pytest.raises((BadMessage, Refused)):
                again.people[0].answer(forged, vectors[0])
            if stage:
                finish(again, now, fresh, vectors) if stage == 1 else answers(again, now, fresh, vectors, silent={0})
            if stage == 1:
                assert 0 not in now.included
                assert exact(again, now, vectors)
