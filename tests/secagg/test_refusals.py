"""A server that lies, one lie at a time, and the client that does not fall for it. Flower's two attacks are here, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from hush.secagg import Aborted, BadMessage, Client, Graph, Refused, Roster, ServerRound, Terms, shamir
from hush.secagg.keys import RoundKeys
from hush.secagg.messages import SEALED_BYTES, Kind, SignedKey, bitmap, vote_statement
from hush.secagg.packing import reduced, unpack
from tests.secagg.drive import (
    LOW_ORDER,
    Invitation,
    Vectors,
    World,
    adjacency,
    answers,
    body_of,
    exact,
    finish,
    open_sum,
    outcome,
    play,
    ring_of,
    true_sum,
    until,
    vectors_for,
)

CURIOUS = Terms(4, dropout=0.2, corrupted=0)
MALICIOUS = replace(CURIOUS, threat="malicious")
N = 6


def still_works(world: World, round: int = 1) -> None:
    """Whatever was refused before: the next round has everybody in it."""
    vectors = vectors_for(world, 7)
    done = play(world, vectors, round=round)
    assert isinstance(done, ServerRound)
    assert done.included == tuple(range(world.clients))
    assert exact(world, done, vectors)


# -- the invitation --------------------------------------------------------------------------------------------------------------


def invited(terms: Terms = CURIOUS) -> tuple[World, ServerRound, dict[int, bytes]]:
    world = World(N, terms)
    world.keys([0])
    current = world.open(0)
    return world, current, current.start()


def refuses_invitation(world: World, forged: bytes, true: bytes, reason: str) -> None:
    """The forged one is refused, for that reason; the true one comes too late; the next round works."""
    told = outcome(lambda: world.people[0].answer(forged))
    assert reason in told, told
    assert "not repeated" in outcome(lambda: world.people[0].answer(true))
    still_works(world)


Change = Callable[[World, Invitation], None]


def _unknown(_: World, letter: Invitation) -> None:
    letter.cohort[-1] = N


def _twice(_: World, letter: Invitation) -> None:
    letter.cohort[2] = letter.cohort[1]


def _unsorted(_: World, letter: Invitation) -> None:
    letter.cohort[1], letter.cohort[2] = letter.cohort[2], letter.cohort[1]


def _too_many(_: World, letter: Invitation) -> None:
    letter.cohort.append(N)
    letter.digests.append(bytes(32))


def _too_few(_: World, letter: Invitation) -> None:
    del letter.cohort[2:], letter.digests[2:], letter.keys[1:]


def _nobody(_: World, letter: Invitation) -> None:
    letter.cohort, letter.digests, letter.keys = [], [], []


def _without_me(_: World, letter: Invitation) -> None:
    del letter.cohort[0], letter.digests[0]


def _own_key_replaced(world: World, letter: Invitation) -> None:
    other = RoundKeys(world.own[0], world.roster.digest + world.terms.digest, 0, 0)
    letter.digests[0] = other.signed.digest(0)


def _key_not_of_the_graph(world: World, letter: Invitation) -> None:
    letter.keys[0] = RoundKeys(world.own[1], world.roster.digest + world.terms.digest, 1, 0).signed.to_bytes()


def _replace_key(letter: Invitation, key: SignedKey) -> None:
    """Client 1's key, also in what the graph is drawn from: the graph is complete here, and stays."""
    letter.keys[0], letter.digests[1] = key.to_bytes(), key.digest(1)


def _key_of_the_server(world: World, letter: Invitation) -> None:
    """The man in the middle: it would read all letters to client 1, and know the masks with it."""
    _replace_key(letter, RoundKeys(world.who, world.roster.digest + world.terms.digest, 1, 0).signed)


def _key_of_another_client(world: World, letter: Invitation) -> None:
    _replace_key(letter, RoundKeys(world.own[2], world.roster.digest + world.terms.digest, 1, 0).signed)


def _key_of_another_round(world: World, letter: Invitation) -> None:
    _replace_key(letter, RoundKeys(world.own[1], world.roster.digest + world.terms.digest, 1, 9).signed)


def _key_of_other_terms(world: World, letter: Invitation) -> None:
    _replace_key(letter, RoundKeys(world.own[1], world.roster.digest + MALICIOUS.digest, 1, 0).signed)


def _bad_signature(_: World, letter: Invitation) -> None:
    letter.keys[0] = letter.keys[0][:-1] + bytes([letter.keys[0][-1] ^ 1])


def _keys_swapped(_: World, letter: Invitation) -> None:
    letter.keys[0], letter.keys[1] = letter.keys[1], letter.keys[0]


def _key_missing(_: World, letter: Invitation) -> None:
    letter.keys.pop()


def _key_too_many(_: World, letter: Invitation) -> None:
    letter.keys.append(letter.keys[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_unknown, "never enrolled"),
        (_twice, "twice, or out of order"),
        (_unsorted, "twice, or out of order"),
        (_too_many, "6 are enrolled"),
        (_too_few, "3 were agreed on"),
        (_nobody, "3 were agreed on"),
        (_without_me, "not in"),
        (_own_key_replaced, "another key for this client"),
        (_key_not_of_the_graph, "not the one that the graph was drawn from"),
        (_key_of_the_server, "not signed by it"),
        (_key_of_another_client, "not signed by it"),
        (_key_of_another_round, "not signed by it"),
        (_key_of_other_terms, "not signed by it"),
        (_bad_signature, "not signed by it"),
        (_keys_swapped, "not the one that the graph was drawn from"),
        (_key_missing, "ends too early"),
        (_key_too_many, "follow its end"),
    ],
)
def test_a_false_invitation_is_refused(change: Change, reason: str) -> None:
    world, _, letters = invited()
    letter = Invitation.of(letters[0])
    assert letter.message(world) == letters[0]  # what is forged differs from the true one by the change alone
    change(world, letter)
    refuses_invitation(world, letter.message(world), letters[0], reason)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_key_that_gives_the_same_secret_with_everybody_is_refused(point: bytes, half: int) -> None:
    """Even where its owner has signed it: a corrupted client must not be able to open others' letters to the world."""
    world, _, letters = invited()
    letter = Invitation.of(letters[0])
    true = SignedKey.from_bytes(letter.keys[0])
    cipher, mask = (point, true.mask) if half == 0 else (true.cipher, point)
    about = world.roster.digest + world.terms.digest
    signature = world.own[1].sign(SignedKey.statement(about, 1, 0, cipher, mask))
    _replace_key(letter, SignedKey(cipher, mask, signature))
    refuses_invitation(world, letter.message(world), letters[0], "hide nothing")


@pytest.mark.parametrize(
    "other",
    [
        {"entries": 5},
        {"bits": 23},
        {"dropout": 0.3},
        {"corrupted": 0.1},
        {"threat": "malicious"},
        {"smallest": 4},
        {"context": b"less noise"},
        {"participations": 9},
    ],
)
def test_terms_that_differ_in_anything_are_refused(other: dict[str, object]) -> None:
    world, _, letters = invited()
    changed = replace(CURIOUS, **other)  # type: ignore[arg-type]
    letter = Invitation.of(letters[0])
    letter.terms = changed.digest
    refuses_invitation(world, letter.message(world), letters[0], "terms are not those")
    # nor does a server of those terms take this client's keys
    with pytest.raises(BadMessage, match="terms"):
        World(N, changed).server.take_keys(1, world.people[1].prepare([5]))


def test_an_invitation_for_another_roster_changes_nothing() -> None:
    """One more stranger in the roster could be the server's own: then nothing of it is for this client."""
    world, current, letters = invited()
    other = Roster(world.roster.server, (*world.roster.clients, os.urandom(32)))
    forged = Invitation.of(letters[0]).message(world, about=other.digest)
    assert "roster" in outcome(lambda: world.people[0].answer(forged))
    vectors = vectors_for(world)
    assert exact(world, finish(world, current, letters, vectors), vectors)


def test_a_round_is_not_repeated_and_an_earlier_one_not_made_up_for() -> None:
    world = World(N, CURIOUS)
    world.keys([0, 1, 2])
    skipped = world.server.open(1, range(N)).start()
    early = Invitation.of(skipped[0]).message(world, round=0)
    world.people[0].answer(skipped[0])
    assert "not repeated" in outcome(lambda: world.people[0].answer(skipped[0]))
    assert "not repeated" in outcome(lambda: world.people[0].answer(early))
    done = play(world, vectors_for(world), round=2, keys=False)
    assert isinstance(done, ServerRound)


def test_an_invitation_to_a_round_without_keys_is_refused() -> None:
    world, _, letters = invited()
    letter = Invitation.of(letters[0]).message(world, round=3)
    assert "no keys" in outcome(lambda: world.people[0].answer(letter))


def test_an_invitation_of_one_round_does_not_do_for_another() -> None:
    """The same keys and cohort under another number: the keys are signed for theirs."""
    world = World(N, CURIOUS)
    world.keys([0, 1])
    letters = world.open(0).start()
    forged = Invitation.of(letters[0]).message(world, round=1)
    assert "another key for this client" in outcome(lambda: world.people[0].answer(forged))


def test_a_cohort_of_a_size_that_no_graph_is_safe_for_is_refused() -> None:
    """Three clients may be fine where four are not: one of four may be corrupted, and one vanish."""
    terms = _terms_that_fail_for_some_cohort()
    if terms is None:
        return  # terms are then refused from the start, which is better
    world, size = World(12, terms[0]), terms[1]
    world.keys([0])
    mine = world.people[0]._prepared[0].signed.digest(0)
    letter = Invitation(terms[0].digest, list(range(size)), [mine, *[bytes(32)] * (size - 1)], [])
    with pytest.raises((Refused, BadMessage)):
        world.people[0].answer(letter.message(world))


def _terms_that_fail_for_some_cohort() -> tuple[Terms, int] | None:
    from hush.errors import UsageError

    for dropout, corrupted in ((0.25, 0.05), (0.3, 0.3), (0.3, 0.2), (0.25, 0.25)):
        try:
            terms = Terms(4, dropout=dropout, corrupted=corrupted, threat="malicious")
        except UsageError:
            continue
        for size in range(4, 13):
            try:
                terms.graph(size)
            except UsageError:
                return terms, size
    return None


def test_a_server_that_cannot_make_a_graph_aborts_and_keeps_the_keys() -> None:
    terms = _terms_that_fail_for_some_cohort()
    if terms is None:
        return
    world = World(12, terms[0])
    world.keys([0])
    with pytest.raises(Aborted):
        world.open(0, range(terms[1]))
    assert world.server.ready(0) == set(range(12))


# -- the delivery ----------------------------------------------------------------------------------------------------------------


def delivered(terms: Terms = CURIOUS, clients: int = N) -> tuple[World, ServerRound, dict[int, bytes], Vectors]:
    world = World(clients, terms)
    vectors = vectors_for(world)
    current, letters = until(world, 1, vectors)
    return world, current, letters, vectors


def pieces(letter: bytes) -> list[bytes]:
    """(number, sealed) each."""
    body, size = body_of(letter)[4:], 4 + SEALED_BYTES
    return [body[i : i + size] for i in range(0, len(body), size)]


def delivery(world: World, current: ServerRound, those: list[bytes], count: int | None = None, to: int = 0) -> bytes:
    stated = len(those) if count is None else count
    return world.letter(Kind.DELIVERY, stated.to_bytes(4, "big") + b"".join(those), current.session, to=to)


def leaves(world: World, current: ServerRound, letters: dict[int, bytes], vectors: Vectors, forged: bytes, reason: str) -> None:
    """Refused, for that reason, and for good; the others finish without it; the next round has everybody."""
    told = outcome(lambda: world.people[0].answer(forged, vectors[0]))
    assert reason in told, told
    assert "has left round" in outcome(lambda: world.people[0].answer(letters[0], vectors[0]))
    finish(world, current, letters, vectors)
    assert exact(world, current, vectors)
    assert 0 not in current.included
    still_works(world)


def test_a_tampered_share_is_refused() -> None:
    for place in (4, 4 + SEALED_BYTES - 1, 40):
        world, current, letters, vectors = delivered()
        those = pieces(letters[0])
        those[2] = those[2][:place] + bytes([those[2][place] ^ 1]) + those[2][place + 1 :]
        leaves(world, current, letters, vectors, delivery(world, current, those), "changed on their way")


def test_shares_of_two_neighbours_are_not_interchangeable() -> None:
    world, current, letters, vectors = delivered()
    those = pieces(letters[0])
    those[0], those[1] = those[0][:4] + those[1][4:], those[1][:4] + those[0][4:]
    leaves(world, current, letters, vectors, delivery(world, current, those), "changed on their way")


def test_a_share_for_another_receiver_is_refused() -> None:
    world, current, letters, vectors = delivered()
    those = pieces(letters[0])
    for_two = {piece[:4]: piece for piece in pieces(letters[2])}
    those[0] = for_two[those[0][:4]]
    leaves(world, current, letters, vectors, delivery(world, current, those), "changed on their way")


def test_ones_own_share_sent_back_is_refused() -> None:
    """A letter from 0 to 1 is none from 1 to 0, though one secret seals both."""
    world, current, letters, vectors = delivered()
    those = pieces(letters[0])
    own = next(piece for piece in pieces(letters[1]) if piece[:4] == bytes(4))
    those[0] = (1).to_bytes(4, "big") + own[4:]
    leaves(world, current, letters, vectors, delivery(world, current, those), "changed on their way")


def test_shares_of_an_earlier_round_are_refused() -> None:
    world, current, letters, vectors = delivered()
    old = pieces(letters[0])
    finish(world, current, letters, vectors)
    later, letters = until(world, 1, vectors, round=1)
    forged = delivery(world, later, old)
    assert "changed on their way" in outcome(lambda: world.people[0].answer(forged, vectors[0]))
    finish(world, later, letters, vectors)
    assert exact(world, later, vectors)
    still_works(world, 2)


def test_the_delivery_of_an_earlier_round_changes_nothing() -> None:
    world, current, letters, vectors = delivered()
    finish(world, current, letters, vectors)
    later, new = until(world, 1, vectors, round=1)
    outcome(lambda: world.people[0].answer(letters[0], vectors[0]))
    finish(world, later, new, vectors)
    assert later.included == tuple(range(N))


def test_shares_of_nobodys_neighbour_or_of_oneself_are_refused() -> None:
    for number in (0, N, 2**32 - 1):
        world, current, letters, vectors = delivered()
        those = pieces(letters[0])
        those[0] = number.to_bytes(4, "big") + those[0][4:]
        leaves(world, current, letters, vectors, delivery(world, current, those), "no neighbour")


def test_shares_of_one_neighbour_twice_are_refused() -> None:
    world, current, letters, vectors = delivered()
    those = pieces(letters[0])
    leaves(world, current, letters, vectors, delivery(world, current, [*those, those[0]]), "twice")


def test_too_few_neighbours_to_hide_a_vector_are_refused() -> None:
    world, current, letters, vectors = delivered()
    few = pieces(letters[0])[: current.session.graph.threshold - 1]
    leaves(world, current, letters, vectors, delivery(world, current, few), "are needed to hide a vector")
    world, current, letters, vectors = delivered()
    leaves(world, current, letters, vectors, delivery(world, current, []), "are needed to hide a vector")


@pytest.mark.parametrize("count", [0, 4, 6, 2**32 - 1])
def test_a_delivery_that_states_another_number_of_shares_is_refused(count: int) -> None:
    world, current, letters, vectors = delivered()
    those = pieces(letters[0])
    outcome(lambda: world.people[0].answer(delivery(world, current, those, count), vectors[0]))
    outcome(lambda: world.people[0].answer(letters[0], vectors[0]))
    still_works(world)


def test_a_second_delivery_is_refused() -> None:
    """Two vectors under the same own mask: their difference would hold no mask but those of the pairs."""
    world, current, letters, vectors = delivered()
    current.receive(0, world.people[0].answer(letters[0], vectors[0]))
    fewer = delivery(world, current, pieces(letters[0])[:-1])
    assert "second masked vector" in outcome(lambda: world.people[0].answer(fewer, vectors[0]))
    for number in range(1, N):
        current.receive(number, world.people[number].answer(letters[number], vectors[number]))
    survivors = current.advance()
    assert "has left round" in outcome(lambda: world.people[0].answer(survivors[0]))
    answers(world, current, survivors, vectors, silent={0})
    current.advance()
    assert exact(world, current, vectors)  # its vector was in the sum before the server misbehaved
    still_works(world)


# -- the survivors ---------------------------------------------------------------------------------------------------------------


def masked(terms: Terms = CURIOUS, clients: int = N) -> tuple[World, ServerRound, dict[int, bytes], Vectors]:
    world = World(clients, terms)
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    return world, current, letters, vectors


def refuses_survivors(world: World, current: ServerRound, letters: dict[int, bytes], forged: bytes, reason: str) -> None:
    told = outcome(lambda: world.people[0].answer(forged))
    assert reason in told, told
    assert "has left round" in outcome(lambda: world.people[0].answer(letters[0]))
    vectors = vectors_for(world)
    finish(world, current, letters, vectors)
    assert exact(world, current, vectors)
    still_works(world)


@pytest.mark.parametrize("terms", [CURIOUS, MALICIOUS])
def test_survivors_without_the_client_that_is_asked_are_refused(terms: Terms) -> None:
    world, current, letters, _ = masked(terms)
    forged = world.survivors(current.session, range(1, N))
    refuses_survivors(world, current, letters, forged, "among the vanished")


@pytest.mark.parametrize("terms", [CURIOUS, MALICIOUS])
def test_a_sum_below_the_noise_floor_is_refused(terms: Terms) -> None:
    world, current, letters, _ = masked(terms)
    forged = world.survivors(current.session, range(current.session.fewest - 1))
    refuses_survivors(world, current, letters, forged, "fewest agreed on")


def test_a_sum_at_the_noise_floor_is_opened() -> None:
    world, current, _, _ = masked()
    world.people[0].answer(world.survivors(current.session, range(current.session.fewest)))


def test_too_few_living_neighbours_are_refused() -> None:
    """In a sparse graph: the sum holds enough clients, and too few of them are neighbours to hide behind."""
    terms = Terms(2, dropout=0.1, corrupted=0, smallest=80)
    world = World(80, terms)
    world.keys([0])
    current = world.open(0)
    letters = current.start()
    around = adjacency(world, current.session, letters[0])
    graph = current.session.graph
    assert not graph.complete
    room = 80 - current.session.fewest
    need = graph.degree - graph.threshold + 1
    if need > room:  # then only a delivery of few leaves so few
        shares = {number: world.people[number].answer(letter) for number, letter in letters.items()}
        for number, message in shares.items():
            current.receive(number, message)
        letter = current.advance()[0]
        some = pieces(letter)[: graph.threshold]
        world.people[0].answer(delivery(world, current, some), np.zeros(2, dtype=int))
        held = {int.from_bytes(piece[:4], "big") for piece in some}
        dead = set(around[0]) - held | {min(held)}
        told = outcome(lambda: world.people[0].answer(world.survivors(current.session, set(range(80)) - dead)))
        assert "are needed" in told or "fewest agreed on" in told
        return
    dead = set(around[0][:need])
    answers(world, current, letters, vectors_for(world))
    answers(world, current, current.advance(), vectors_for(world))
    told = outcome(lambda: world.people[0].answer(world.survivors(current.session, set(range(80)) - dead)))
    assert "neighbours are in the sum" in told


def test_a_second_request_for_survivors_is_refused() -> None:
    """Flower's first hole: asked twice, once with the victim among the living and once among the dead, a client would show both."""
    victim = 3
    world, current, _, _ = masked()
    shown: dict[str, int] = {"living": 0, "dead": 0}
    for number in set(range(N)) - {victim}:
        everybody = world.survivors(current.session, range(N), to=number)
        without = world.survivors(current.session, set(range(N)) - {victim}, to=number)
        shown["living"] += bool(world.people[number].answer(everybody))
        assert "answers nothing more" in outcome(lambda n=number, w=without: world.people[n].answer(w))  # type: ignore[misc]
    assert shown == {"living": N - 1, "dead": 0}


def test_a_second_request_before_the_signatures_is_refused() -> None:
    world, current, letters, _ = masked(MALICIOUS)
    world.people[0].answer(letters[0])
    without = world.survivors(current.session, set(range(N)) - {3})
    assert "second time" in outcome(lambda: world.people[0].answer(without))
    assert "has left round" in outcome(lambda: world.people[0].answer(letters[0]))
    still_works(world)


@pytest.mark.parametrize("threat", ["curious", "malicious"])
def test_a_client_is_in_no_more_sums_than_it_agreed_to(threat: str) -> None:
    """Who calls it too often, or says that a sum which was opened had broken off, gets nothing. A restart changes nothing."""
    world = World(N, replace(CURIOUS, threat=threat, participations=2))
    vectors = vectors_for(world)
    for round in range(2):
        assert isinstance(play(world, vectors, round=round), ServerRound)
    world.keys([2, 3])
    letters = world.open(2).start()
    assert "2 were agreed on" in outcome(lambda: world.people[0].answer(letters[0]))
    world.people[0] = Client(world.own[0], world.roster, world.terms, next_round=3, opened=world.people[0].opened)
    world.server.take_keys(0, world.people[0].prepare([3]))
    letters = world.open(3).start()
    assert "2 were agreed on" in outcome(lambda: world.people[0].answer(letters[0]))


@pytest.mark.parametrize(("dropout", "stages"), [(0.2, 1), (0.0, 2)])
def test_two_rounds_at_once_count_as_two(dropout: float, stages: int) -> None:
    """Both are joined while one sum is left to be in: the second one gets no vector, or is not opened."""
    world = World(N, replace(CURIOUS, participations=1, dropout=dropout))
    vectors = vectors_for(world)
    world.keys([0, 1])
    rounds = [world.open(round) for round in range(2)]
    letters = [current.start() for current in rounds]
    for _ in range(stages):
        for i, current in enumerate(rounds):
            answers(world, current, letters[i], vectors)
            letters[i] = current.advance()
    world.people[0].answer(letters[0][0], vectors[0])
    assert "1 were agreed on" in outcome(lambda: world.people[0].answer(letters[1][0], vectors[0]))


@pytest.mark.parametrize("threat", ["curious", "malicious"])
@pytest.mark.parametrize(("clients", "dropout"), [(3, 0.0), (4, 0.1), (5, 0.0), (5, 0.2), (9, 0.0), (9, 0.3), (70, 0.0), (70, 0.1)])
def test_nobodys_vector_is_in_a_sum_that_it_does_not_count(clients: int, dropout: float, threat: str) -> None:
    """Whoever carries letters loses the one that client 0 would open by: then there is a sum and it counted, or there is none."""
    terms = Terms(3, dropout=dropout, corrupted=0.1 if clients > 9 else 0.0, threat=threat, smallest=clients)
    world = World(clients, terms)
    last = 3 if threat == "malicious" else 2
    done = play(world, vectors_for(world), [()] * last + [(0,)])
    counted, others = world.people[0].opened, {person.opened for person in world.people[1:]}
    assert others == {1}
    assert counted == (1 if isinstance(done, ServerRound) or threat == "malicious" else 0)
    assert counted == terms.opens_without_one(clients)


def test_a_client_is_listed_once_so_that_nobody_lives_and_is_dead() -> None:
    """There is one bit for each: the overlap that Flower's clients accept cannot even be said. More bits are refused."""
    world, current, letters, _ = masked()
    body = body_of(letters[0])
    for forged in (body + body, body + bytes(1), b"", bytes([body[0] | 0b11000000])):
        world, current, letters, _ = masked()
        with pytest.raises((Refused, BadMessage)):
            world.people[0].answer(world.letter(Kind.SURVIVORS, forged, current.session))
        still_works(world)


def test_survivors_before_a_vector_was_sent_are_refused() -> None:
    world, current, letters, vectors = delivered()
    leaves(world, current, letters, vectors, world.survivors(current.session, range(N)), "before this client has sent")


def test_a_survivor_whose_shares_never_came_is_refused() -> None:
    world, current, letters, vectors = delivered()
    some = [piece for piece in pieces(letters[0]) if int.from_bytes(piece[:4], "big") != 4]
    world.people[0].answer(delivery(world, current, some), vectors[0])
    told = outcome(lambda: world.people[0].answer(world.survivors(current.session, range(N))))
    assert "Client 4 is said to be in the sum, and its shares never came" in told
    still_works(world)


def test_the_partition_attack_fails() -> None:
    """Half of the clients are told that the other half vanished before sharing. Their masks then cancel within the halves, and if
    all opened for one list of survivors, the server would have two sums instead of one. No client opens."""
    world, current, letters, vectors = delivered(Terms(4, dropout=0.5, corrupted=0, smallest=12), 12)
    halves = [set(range(6)), set(range(6, 12))]
    uploads = {}
    for half in halves:
        for number in half:
            own = [piece for piece in pieces(letters[number]) if int.from_bytes(piece[:4], "big") in half]
            uploads[number] = body_of(world.people[number].answer(delivery(world, current, own, to=number), vectors[number]))
    for number in range(12):
        everybody = world.survivors(current.session, range(12), to=number)
        assert "shares never came" in outcome(lambda n=number, e=everybody: world.people[n].answer(e))  # type: ignore[misc]
    total = sum(unpack(uploads[number], 4, 24).astype(np.int64) for number in halves[0])
    assert (reduced(total, 24).astype(np.uint64) != true_sum(vectors, halves[0], 24)).any()
    still_works(world)


def test_a_partition_beyond_the_declared_dropout_gets_no_vectors() -> None:
    world, current, letters, vectors = delivered(Terms(4, dropout=0.1, corrupted=0.1), 12)
    for number in range(6):
        own = [piece for piece in pieces(letters[number]) if int.from_bytes(piece[:4], "big") < 6]
        forged = delivery(world, current, own, to=number)
        assert "are needed" in outcome(lambda n=number, f=forged: world.people[n].answer(f, vectors[n]))  # type: ignore[misc]


def test_flowers_second_hole_one_client_lost_early_does_not_stop_the_round() -> None:
    """There, every survivor fails where a client is lost at setup or while shares are dealt."""
    for lost_before_keys in (True, False):
        world = World(N, CURIOUS)
        vectors = vectors_for(world)
        world.keys([0], of=range(1, N) if lost_before_keys else range(N))
        done = play(world, vectors, lost=[set() if lost_before_keys else {0}], keys=False)
        assert isinstance(done, ServerRound)
        assert done.included == tuple(range(1, N))
        assert exact(world, done, vectors)


@pytest.mark.parametrize("kind", [Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.VOTE, Kind.REVEAL])
def test_what_only_clients_say_is_no_question_from_a_server(kind: Kind) -> None:
    world, current, letters, vectors = delivered()
    leaves(world, current, letters, vectors, world.letter(kind, b"", current.session), "no question")


def test_signatures_that_nobody_asked_for_are_refused() -> None:
    world, current, letters, vectors = delivered()
    leaves(world, current, letters, vectors, world.letter(Kind.VOTES, bytes(4), current.session), "nobody asked for")
    world, current, letters, vectors = delivered(MALICIOUS)
    leaves(world, current, letters, vectors, world.letter(Kind.VOTES, bytes(4), current.session), "nobody asked for")


# -- signatures of the survivors -------------------------------------------------------------------------------------------------


def voted() -> tuple[World, ServerRound, dict[int, bytes], list[bytes]]:
    """Everybody has signed; the honest letter of client 0, and its pieces."""
    world = World(N, MALICIOUS)
    current, letters = until(world, 3)
    body, size = body_of(letters[0])[4:], 4 + 64
    return world, current, letters, [body[i : i + size] for i in range(0, len(body), size)]


def votes(world: World, current: ServerRound, those: list[bytes], to: int = 0) -> bytes:
    return world.letter(Kind.VOTES, len(those).to_bytes(4, "big") + b"".join(those), current.session, to=to)


def refuses_votes(world: World, current: ServerRound, letters: dict[int, bytes], those: list[bytes], reason: str) -> None:
    refuses_survivors(world, current, letters, votes(world, current, those), reason)


def test_too_few_signatures_are_refused() -> None:
    world, current, letters, those = voted()
    refuses_votes(world, current, letters, those[: current.session.quorum - 2], "must")  # with its own
    world, current, letters, _ = voted()
    refuses_votes(world, current, letters, [], "must")


def test_a_forged_signature_is_refused() -> None:
    world, current, letters, those = voted()
    those[1] = those[1][:-1] + bytes([those[1][-1] ^ 1])
    refuses_votes(world, current, letters, those, "did not sign these survivors")


def test_a_signature_by_the_server_in_a_clients_name_is_refused() -> None:
    world, current, letters, those = voted()
    told = vote_statement(current.session.digest, bitmap(set(range(N)), current.session.cohort))
    those[1] = those[1][:4] + world.who.sign(told)
    refuses_votes(world, current, letters, those, "did not sign these survivors")


def test_a_signature_on_other_survivors_is_refused() -> None:
    world, current, letters, those = voted()
    told = vote_statement(current.session.digest, bitmap(set(range(N - 1)), current.session.cohort))
    those[1] = those[1][:4] + world.own[int.from_bytes(those[1][:4], "big")].sign(told)
    refuses_votes(world, current, letters, those, "told it of others")


def test_a_signature_of_another_round_is_refused() -> None:
    world, current, letters, those = voted()
    vectors = vectors_for(world)
    finish(world, current, letters, vectors)
    later, letters = until(world, 3, vectors, round=1)
    assert "did not sign" in outcome(lambda: world.people[0].answer(votes(world, later, those)))


def test_a_signature_counted_twice_or_of_nobody_is_refused() -> None:
    world, current, letters, those = voted()
    refuses_votes(world, current, letters, [*those, those[0]], "twice")
    world, current, letters, those = voted()
    own = world.own[0].sign(vote_statement(current.session.digest, bitmap(set(range(N)), current.session.cohort)))
    refuses_votes(world, current, letters, [*those[1:], bytes(4) + own], "")
    for number in (N, 2**32 - 1):
        world, current, letters, those = voted()
        refuses_votes(world, current, letters, [number.to_bytes(4, "big") + those[0][4:], *those[1:]], "cannot vouch")


def test_a_signature_of_one_that_vanished_is_refused() -> None:
    world = World(N, MALICIOUS)
    vectors = vectors_for(world)
    current, letters = until(world, 1, vectors)
    answers(world, current, letters, vectors, silent={5})
    survivors = current.advance()
    answers(world, current, survivors, vectors)
    letters = current.advance()
    told = vote_statement(current.session.digest, bitmap(set(range(5)), current.session.cohort))
    body = body_of(letters[0])[4:]
    those = [body[i : i + 68] for i in range(0, len(body), 68)]
    those.append((5).to_bytes(4, "big") + world.own[5].sign(told))
    assert "cannot vouch" in outcome(lambda: world.people[0].answer(votes(world, current, those)))
    finish(world, current, letters, vectors)
    assert exact(world, current, vectors)


class Equivocation:
    """A server that tells two groups different survivors, with corrupted clients that tell it all they hold and sign everything."""

    def __init__(self, terms: Terms, clients: int, corrupted: int, split: float) -> None:
        self.world, self.current, _, self.vectors = masked(terms, clients)
        session = self.current.session
        self.victim = clients // 2
        bad = set(range(corrupted))
        honest = [number for number in range(clients) if number not in bad and number != self.victim]
        cut = round(split * len(honest))
        told = {"own": set(range(clients)), "mask": set(range(clients)) - {self.victim}}
        groups = {"own": honest[:cut], "mask": honest[cut:]}
        self.shown = {"own": set(bad), "mask": set(bad)}
        for kind, group in groups.items():
            for number in group:
                self.world.people[number].answer(self.world.survivors(session, told[kind], to=number))
            if terms.threat == "curious":
                self.shown[kind] |= set(group)
                continue
            statement = vote_statement(session.digest, bitmap(told[kind], session.cohort))
            signed = {number: self.world.own[number].sign(statement) for number in [*group, *bad]}
            for number in group:
                those = [j.to_bytes(4, "big") + signature for j, signature in signed.items() if j != number]
                try:
                    self.world.people[number].answer(votes(self.world, self.current, those, to=number))
                    self.shown[kind].add(number)
                except Refused:
                    pass

    @property
    def both(self) -> bool:
        """Whether the victim's own mask and its pairs' can be put together: then its vector lies open."""
        return min(len(those) for those in self.shown.values()) >= self.current.session.graph.threshold


@pytest.mark.parametrize("split", [0.5, 0.4, 0.65])
@pytest.mark.parametrize("corrupted", [0, 4])
def test_telling_two_groups_different_survivors_opens_nobody(corrupted: int, split: float) -> None:
    game = Equivocation(Terms(4, dropout=0.1, corrupted=0.1, threat="malicious"), 40, corrupted, split)
    assert not game.both
    assert min(len(those) for those in game.shown.values()) <= corrupted  # one group at most has opened anything


def test_against_curious_terms_the_same_attack_works_so_that_the_test_above_tests_something() -> None:
    """`curious` promises nothing against a server that lies; docs must not, either."""
    assert Equivocation(Terms(4, dropout=0.1, corrupted=0.1), 40, 4, 0.5).both


@pytest.mark.parametrize("voters", ["neighbours", "everybody who was told the same"])
def test_a_ring_told_different_survivors_in_different_places_opens_no_sum_below_the_floor(voters: str) -> None:
    """The ring is cut into four arcs, and each arc is told that five of its own vanished, and nobody else. Neighbours agree, for
    nearly all are of one arc; each list holds the 95 that must be in a sum. Yet 80 are in the one that is opened."""
    terms = Terms(2, dropout=0.05, corrupted=0, smallest=100, threat="malicious")
    world, current, letters, vectors = delivered(terms, 100)
    uploads = {number: world.people[number].answer(letter, vectors[number]) for number, letter in letters.items()}
    session, threshold = current.session, current.session.graph.threshold
    assert (session.graph.degree, threshold, session.fewest) == (12, 7, 95)
    around = current._around
    ring = ring_of(around)
    arcs = [ring[25 * i : 25 * (i + 1)] for i in range(4)]
    dead = [set(arc[10:15]) for arc in arcs]
    told = [set(range(100)) - those for those in dead]
    arc_of = {number: i for i, arc in enumerate(arcs) for number in arc}
    gone = set().union(*dead)
    signed, shares = {}, {}
    for number in set(range(100)) - gone:
        letter = world.survivors(session, told[arc_of[number]], to=number)
        signed[number] = body_of(world.people[number].answer(letter))
    for number in signed:
        same = [j for j in signed if arc_of[j] == arc_of[number] and j != number]
        those = [j for j in same if j in around[number]] if voters == "neighbours" else same
        letter = votes(world, current, [j.to_bytes(4, "big") + signed[j] for j in those], to=number)
        try:
            opened = body_of(world.people[number].answer(letter))
        except Refused:
            continue
        for i, j in enumerate(current._held[number]):
            kind = "own" if j in told[arc_of[number]] else "mask"
            shares.setdefault((j, kind), {})[session.places[number] + 1] = opened[33 * i : 33 * (i + 1)]

    def secret(number: int, kind: str) -> bytes | None:
        those = shares.get((number, kind), {})
        return shamir.combine(dict(sorted(those.items())[:threshold])) if len(those) >= threshold else None

    own = {number: secret(number, "own") for number in signed}
    lost = {number: secret(number, "mask") for number in gone}
    everything = all(own.values()) and all(lost.values())
    if everything:  # that is the attack; and it is no illusion: the sum of the 80 is really there
        total = open_sum(current, uploads, own, lost)
        assert (total.astype(np.uint64) == true_sum(vectors, own, terms.bits)).all()
    assert not everything, f"a sum of {len(own)} clients lies open, and {session.fewest} were the fewest agreed on"


@pytest.mark.parametrize("graph", [Graph(22, 11, complete=False), None], ids=["a threshold of half", "of now"])
def test_a_server_that_keeps_letters_back_opens_no_arc(graph: Graph | None) -> None:
    """An arc of forty is not given the letters of those outside, so that it masks with its own, and with those beside it that are
    not waited for. Its clients near the edge notice, and answer nothing; but those further in, and those outside, who were given
    all letters, show their shares of its seeds. What stops it is 2 t > degree + corrupted, of whom there are none here."""
    terms = Terms(2, dropout=0.1, corrupted=0, smallest=100, threat="malicious")
    with patch("hush.secagg.terms.graph_for", lambda *_: graph) if graph else nullcontext():
        world, current, letters, vectors = delivered(terms, 100)
        session, threshold, half = current.session, current.session.graph.threshold, current.session.graph.degree // 2
    ring, beside = ring_of(current._around), threshold - half  # with fewer beside it the arc's first client would send no vector
    arc, gone = set(ring[beside : beside + 40]), {*ring[:beside], *ring[beside + 40 : 2 * beside + 40]}
    uploads, signed, shown = {}, {}, {}
    for number, letter in letters.items():
        kept = [piece for piece in pieces(letter) if int.from_bytes(piece[:4], "big") in arc | gone]
        told = delivery(world, current, kept, to=number) if number in arc else letter
        uploads[number] = world.people[number].answer(told, vectors[number])
    for number in set(range(100)) - gone:
        with suppress(Refused):
            signed[number] = body_of(world.people[number].answer(world.survivors(session, set(range(100)) - gone, to=number)))
    assert session.quorum <= len(signed) < 100 - len(gone)
    for number in signed:
        those = [j.to_bytes(4, "big") + signature for j, signature in signed.items() if j != number]
        opened = body_of(world.people[number].answer(votes(world, current, those, to=number)))
        for i, j in enumerate(current._held[number]):
            shown.setdefault(j, {})[session.places[number] + 1] = opened[33 * i : 33 * (i + 1)]
    enough = all(len(shown[number]) >= threshold for number in arc | gone)
    if enough:
        secret = {number: shamir.combine(dict(sorted(shown[number].items())[:threshold])) for number in arc | gone}
        total = open_sum(current, uploads, {i: secret[i] for i in arc}, {i: secret[i] for i in gone})
        assert (total.astype(np.uint64) == true_sum(vectors, arc, terms.bits)).all()
    assert enough == (graph is not None), f"a sum of {len(arc)} clients, and {session.fewest} were the fewest agreed on"


# -- messages that are not the server's, or not for this client ------------------------------------------------------------------


def test_what_the_server_did_not_sign_changes_nothing() -> None:
    """Anybody can send bytes: a round must not end by them, at any stage."""
    world = World(N, MALICIOUS)
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    letters = current.start()
    while letters:
        for number, letter in letters.items():
            for forged in (
                letter[:-1] + bytes([letter[-1] ^ 1]),
                letter[:30] + bytes([letter[30] ^ 1]) + letter[31:],
                b"",
                letter[:-1],
            ):
                with pytest.raises(BadMessage) as refused:
                    world.people[number].answer(forged, vectors[number])
                assert refused.value.sender is None
            current.receive(number, world.people[number].answer(letter, vectors[number]))
        letters = current.advance()
    assert current.included == tuple(range(N))
    assert exact(world, current, vectors)


def test_a_letter_signed_by_another_client_as_the_server_changes_nothing() -> None:
    world, current, letters, vectors = delivered()
    from hush.secagg.messages import SERVER, seal

    forged = seal(world.own[1], Kind.DELIVERY, SERVER, 0, current.session.digest, bytes(4))
    assert "signature" in outcome(lambda: world.people[0].answer(forged, vectors[0]))
    finish(world, current, letters, vectors)
    assert current.included == tuple(range(N))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_letter_for_another_client_changes_nothing(stage: int) -> None:
    """Whoever can misroute or replay one true letter of the server could put everybody out of a round with it."""
    world = World(N, MALICIOUS)
    vectors = vectors_for(world)
    current, letters = until(world, stage, vectors)
    outcome(lambda: world.people[0].answer(letters[1], vectors[0]))
    finish(world, current, letters, vectors)
    assert current.included == tuple(range(N))
    assert exact(world, current, vectors)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_same_letter_twice_changes_nothing(stage: int) -> None:
    """A transport that tries again, or somebody who repeats what passes by, must not put clients out. A *different* second
    request must; the very same bytes can be answered by the same answer, or not at all."""
    world = World(N, MALICIOUS)
    vectors = vectors_for(world)
    current, letters = until(world, stage, vectors)
    for number, letter in letters.items():
        first = world.people[number].answer(letter, vectors[number])
        with suppress(Refused, BadMessage):
            assert world.people[number].answer(letter, vectors[number]) == first
        current.receive(number, first)
    letters = current.advance()
    finish(world, current, letters, vectors)
    assert exact(world, current, vectors)


def test_a_client_that_begins_anew_has_no_secrets_of_before() -> None:
    """It can take part with fresh keys, and what was sealed for its keys of before is of no use to anybody."""
    world, _, letters = invited()
    again = Client(world.own[0], world.roster, world.terms)
    world.people[0] = again
    keys = again.prepare([0, 1])
    assert "another key for this client" in outcome(lambda: again.answer(letters[0]))
    world.server.take_keys(0, keys)
    for number in range(1, N):
        world.server.take_keys(number, world.people[number].prepare([1]))
    done = play(world, vectors_for(world), round=1, keys=False)
    assert isinstance(done, ServerRound)
    assert done.included == tuple(range(N))


# -- what was said before --------------------------------------------------------------------------------------------------------


def test_what_a_client_said_in_an_earlier_run_of_the_same_round_is_not_taken_for_what_it_says_now() -> None:
    """Both runs have the same roster, terms, cohort and number, as when an experiment is run again. Somebody on the way recorded
    the first, and is faster than client 1 in the second: the sum would be garbage, and nobody would notice."""
    before = World(N, CURIOUS)
    _, letters = until(before, 1)
    old = before.people[1].answer(letters[1], np.zeros(4, dtype=int))
    world, current, letters, vectors = delivered()
    with suppress(BadMessage):
        current.receive(1, old)
    for number, letter in letters.items():
        with suppress(BadMessage):
            current.receive(number, world.people[number].answer(letter, vectors[number]))
    finish(world, current, current.advance(), vectors)
    assert exact(world, current, vectors)


def test_signatures_of_an_earlier_run_of_the_same_round_do_not_vouch_for_this_one() -> None:
    """The server kept them, and now needs nobody's consent to its list of survivors but the client's that it asks."""
    _, _, _, old = voted()
    world, current, letters, _ = masked(MALICIOUS)
    world.people[0].answer(letters[0])
    with pytest.raises(Refused):
        world.people[0].answer(votes(world, current, old))


def test_a_letter_of_the_server_from_an_earlier_run_changes_nothing() -> None:
    before = World(N, CURIOUS)
    _, old = until(before, 1)
    world, current, letters, vectors = delivered()
    outcome(lambda: world.people[0].answer(old[0], vectors[0]))
    finish(world, current, letters, vectors)
    assert current.included == tuple(range(N))
    assert exact(world, current, vectors)
