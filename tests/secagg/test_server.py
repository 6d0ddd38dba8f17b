"""The server: losses at every stage, messages that are late, repeated or false, and clients that cheat."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

from hush.errors import UsageError
from hush.secagg import Aborted, BadMessage, Client, Graph, Refused, Server, ServerRound, Stage, Terms, shamir
from hush.secagg.keys import RoundKeys
from hush.secagg.messages import SEALED_BYTES, Kind, SignedKey, seal
from tests.secagg.drive import (
    LOW_ORDER,
    Vectors,
    World,
    adjacency,
    answers,
    body_of,
    exact,
    finish,
    play,
    until,
    vectors_for,
)

TERMS = Terms(4, dropout=0.3, corrupted=0.1, smallest=7)
N = 7
THREATS = ["curious", "malicious"]


def terms_of(threat: str) -> Terms:
    return replace(TERMS, threat=threat)


# -- losses ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("stages", list(product(range(5), repeat=2)))
def test_two_losses_at_any_stages_are_survived(stages: tuple[int, int], threat: str) -> None:
    """Two of seven are what was declared; stage 4 is after the end."""
    world = World(N, terms_of(threat))
    vectors = vectors_for(world)
    lost: list[set[int]] = [set() for _ in range(5)]
    for who, stage in zip((1, 5), stages, strict=True):
        lost[stage].add(who)
    done = play(world, vectors, lost)
    assert isinstance(done, ServerRound), done
    assert set(done.included) == set(range(N)) - lost[0] - lost[1]
    assert exact(world, done, vectors)


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("stage", [0, 1])
def test_one_loss_more_than_declared_is_an_abort_that_says_so(stage: int, threat: str) -> None:
    world = World(N, terms_of(threat))
    lost: list[set[int]] = [set(), set()]
    lost[stage] = {0, 3, 6}
    reason = play(world, vectors_for(world), lost)
    assert isinstance(reason, str)
    assert "4 of 7 clients" in reason
    assert "5 are the fewest" in reason
    vectors = vectors_for(world)
    again = play(world, vectors, round=1)
    assert isinstance(again, ServerRound)
    assert exact(world, again, vectors)


@pytest.mark.parametrize("threat", THREATS)
def test_the_fewest_messages_suffice_at_every_stage(threat: str) -> None:
    """As many openings as the threshold asks for, and not one more."""
    world = World(N, terms_of(threat))
    vectors = vectors_for(world)
    threshold = terms_of(threat).graph(N).threshold
    last = 2 if threat == "curious" else 3
    lost: list[set[int]] = [set(), {5, 6}, set(), set()]
    lost[last] = set(range(threshold + 1, 5))  # each secret needs `threshold` besides its owner
    done = play(world, vectors, lost)
    assert isinstance(done, ServerRound), done
    assert exact(world, done, vectors)


@pytest.mark.parametrize("threat", THREATS)
def test_too_few_openings_are_an_abort_that_names_the_client(threat: str) -> None:
    world = World(N, terms_of(threat))
    threshold = terms_of(threat).graph(N).threshold
    lost: list[set[int]] = [set(), set(), set(), set()]
    lost[2 if threat == "curious" else 3] = set(range(threshold, N))
    reason = play(world, vectors_for(world), lost)
    assert isinstance(reason, str)
    assert f"{threshold - 1} neighbours of client 0 opened" in reason


def test_too_few_signatures_are_an_abort_that_says_so() -> None:
    world = World(N, terms_of("malicious"))
    reason = play(world, vectors_for(world), [set(), set(), set(range(2, N))])
    assert isinstance(reason, str)
    assert "2 clients vouch" in reason


@pytest.mark.parametrize("stage", range(4))
def test_after_an_abort_nothing_is_accepted(stage: int) -> None:
    world = World(N, terms_of("malicious"))
    vectors = vectors_for(world)
    current, letters = until(world, stage, vectors)
    late = {number: world.people[number].answer(letter, vectors[number]) for number, letter in letters.items()}
    with pytest.raises(Aborted):
        current.advance()
    assert current.stage is Stage.ABORTED
    assert current.done
    for number, message in late.items():
        with pytest.raises(BadMessage, match="over"):
            current.receive(number, message)
    with pytest.raises(UsageError, match="over"):
        current.advance()
    with pytest.raises(UsageError, match="no sum"):
        _ = current.total


def test_after_the_sum_nothing_is_accepted_and_the_sum_stays() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    opened = {number: world.people[number].answer(letter) for number, letter in letters.items()}
    for number in range(N - 1):
        current.receive(number, opened[number])
    current.advance()
    with pytest.raises(BadMessage, match="over"):
        current.receive(N - 1, opened[N - 1])
    assert exact(world, current, vectors)


def test_a_client_that_too_few_neighbours_are_left_of_does_not_take_the_round_with_it() -> None:
    """In a sparse graph, one whose neighbours vanished before sharing cannot go on. The others have masked nothing yet."""
    with patch("hush.secagg.terms.graph_for", lambda *_: Graph(8, 3, complete=False)):
        world = World(40, Terms(4, dropout=0.5, corrupted=0, smallest=40))
        vectors = vectors_for(world)
        world.keys([0])
        current = world.open(0)
        letters = current.start()
        around = adjacency(world, current.session, letters[0])
        gone = set(around[0][:6])  # two are left, and three are needed
        answers(world, current, letters, vectors, silent=gone)
        letters = current.advance()
        assert 0 not in letters
        finish(world, current, letters, vectors)
        assert exact(world, current, vectors)


# -- messages --------------------------------------------------------------------------------------------------------------------


def state(current: ServerRound) -> tuple[object, ...]:
    return (current.stage, set(current.waiting), dict(current.bytes_up), current._sum.tobytes(), len(current._sealed))


def test_messages_at_the_wrong_time_or_from_the_wrong_sender_are_refused_and_change_nothing() -> None:
    """Each client's true answer of each stage, offered in all stages and under all names: only one of them fits."""
    world = World(N, terms_of("malicious"))
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    letters = current.start()
    past: list[tuple[int, bytes]] = []
    while letters:
        now = {number: world.people[number].answer(letter, vectors[number]) for number, letter in letters.items()}
        for number, message in now.items():
            before = state(current)
            wrong = [
                *[(who, old) for who, old in past if who == number][:4],
                ((number + 1) % N, message),
                (N, message),
                (-1, message),
            ]
            for who, other in wrong:
                with pytest.raises(BadMessage) as refused:
                    current.receive(who, other)
                assert refused.value.sender == who
                assert f"client {who}" in str(refused.value)
            assert state(current) == before
            current.receive(number, message)
            before = state(current)
            with pytest.raises(BadMessage, match="nothing more"):
                current.receive(number, message)
            assert state(current) == before
        past += now.items()
        letters = current.advance()
    assert exact(world, current, vectors)


def test_a_late_vector_is_refused_and_the_sum_is_that_of_the_others() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    current, letters = until(world, 1, vectors)
    late = world.people[2].answer(letters[2], vectors[2])
    answers(world, current, letters, vectors, silent={2})
    letters = current.advance()
    with pytest.raises(BadMessage):
        current.receive(2, late)
    finish(world, current, letters, vectors)
    assert 2 not in current.included
    assert exact(world, current, vectors)


@pytest.mark.parametrize("threat", THREATS)
def test_a_body_of_another_length_is_refused_and_a_true_one_is_still_taken(threat: str) -> None:
    world = World(N, terms_of(threat))
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    letters = current.start()
    while letters:
        for number, letter in letters.items():
            true = world.people[number].answer(letter, vectors[number])
            kind = Kind(true[4])
            for body in (b"", body_of(true)[:-1], body_of(true) + b"\0", bytes(3)):
                with pytest.raises(BadMessage) as refused:
                    current.receive(number, world.say(number, kind, body, current.session))
                assert refused.value.sender == number
            current.receive(number, true)
        letters = current.advance()
    assert exact(world, current, vectors)


def test_a_vote_on_other_survivors_is_refused() -> None:
    world = World(N, terms_of("malicious"))
    current, _ = until(world, 2)
    for body in (os.urandom(64), world.own[0].sign(b"something else"), bytes(64)):
        with pytest.raises(BadMessage, match="vouch"):
            current.receive(0, world.say(0, Kind.VOTE, body, current.session))


# -- keys ------------------------------------------------------------------------------------------------------------------------


def key_message(world: World, number: int, keys: list[tuple[int, SignedKey]]) -> bytes:
    body = bytes(8) + b"".join(round.to_bytes(8, "big") + key.to_bytes() for round, key in keys)
    return seal(world.own[number], Kind.KEYS, number, 0, world.roster.digest + world.terms.digest, body)


def fresh(world: World, number: int, round: int, signer: int | None = None) -> SignedKey:
    about = world.roster.digest + world.terms.digest
    return RoundKeys(world.own[number if signer is None else signer], about, number, round).signed


def test_keys_that_are_forged_repeated_or_over_are_refused_as_a_whole() -> None:
    world = World(N, TERMS)
    good = fresh(world, 0, 0)
    assert world.server.take_keys(0, key_message(world, 0, [(0, good)])) == (0,)
    for keys, reason in (
        ([(0, fresh(world, 0, 0))], "already"),
        ([(1, fresh(world, 0, 1)), (1, fresh(world, 0, 1))], "two keys"),
        ([(1, fresh(world, 0, 2))], "not signed"),
        ([(1, fresh(world, 0, 1, signer=1))], "not signed"),
        ([(1, fresh(world, 1, 1))], "not signed"),
    ):
        with pytest.raises(BadMessage, match=reason) as refused:
            world.server.take_keys(0, key_message(world, 0, keys))
        assert refused.value.sender == 0
    assert world.server.ready(1) == set()
    for sender in (N, -1):
        with pytest.raises(BadMessage, match="enrolled"):
            world.server.take_keys(sender, key_message(world, 0, []))
    with pytest.raises(BadMessage, match="names another sender"):
        world.server.take_keys(1, key_message(world, 0, [(1, fresh(world, 0, 1))]))
    with pytest.raises(BadMessage, match="whole number"):
        world.server.take_keys(0, seal(world.own[0], Kind.KEYS, 0, 0, world.roster.digest + world.terms.digest, bytes(7)))


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_that_hide_nothing_are_refused(point: bytes, half: int) -> None:
    world = World(3, Terms(4))
    true = fresh(world, 0, 0)
    cipher, mask = (point, true.mask) if half == 0 else (true.cipher, point)
    statement = SignedKey.statement(world.roster.digest + world.terms.digest, 0, 0, cipher, mask)
    with pytest.raises(BadMessage, match="hide nothing"):
        world.server.take_keys(0, key_message(world, 0, [(0, SignedKey(cipher, mask, world.own[0].sign(statement)))]))


@pytest.mark.parametrize("round", [2**40, 2**63, 2**64 - 1])
def test_keys_for_rounds_that_no_server_will_ever_reach_are_refused(round: int) -> None:
    """One enrolled client could fill the server's memory with them, and they would never be thrown away."""
    world = World(3, Terms(4))
    with pytest.raises(BadMessage):
        world.server.take_keys(0, key_message(world, 0, [(round, fresh(world, 0, round))]))


def test_keys_that_come_late_serve_the_rounds_that_are_not_over() -> None:
    """A message with keys for ten rounds that comes after the first one has begun is all that this client can send: keys of a round
    are drawn once."""
    world = World(4, Terms(4))
    batch = world.people[3].prepare(range(10))
    world.keys([0], of=range(3))
    world.open(0)
    assert world.server.take_keys(3, batch) == tuple(range(1, 10))


def test_the_same_message_with_keys_twice_does_no_harm() -> None:
    """A transport that tries again: refused or not, the keys of before stay."""
    world = World(3, Terms(4))
    vectors = vectors_for(world)
    for number in range(3):
        message = world.people[number].prepare([0])
        world.server.take_keys(number, message)
        with suppress(BadMessage):
            world.server.take_keys(number, message)
    done = play(world, vectors, keys=False)
    assert isinstance(done, ServerRound)
    assert exact(world, done, vectors)


# -- clients that cheat ----------------------------------------------------------------------------------------------------------


def opening_with(false: dict[int, int], seed: int = 0) -> tuple[World, ServerRound, Vectors]:
    """A round in which `false[j]` clients' openings lie about client j, each in one share."""
    world = World(N, TERMS)
    vectors = vectors_for(world, seed)
    current, letters = until(world, 1, vectors)
    answers(world, current, letters, vectors, silent={6})  # one of them vanished, so that both kinds are opened
    letters = current.advance()
    for number, letter in letters.items():
        body = bytearray(body_of(world.people[number].answer(letter)))
        for about, liars in false.items():
            others = [j for j in current.session.cohort if j not in (about, 6)]
            if number in others[:liars]:
                place = current._held[number].index(about) * shamir.SHARE_BYTES
                body[place : place + shamir.SHARE_BYTES] = b"\0" + os.urandom(32)
        current.receive(number, world.say(number, Kind.REVEAL, bytes(body), current.session))
    return world, current, vectors


@pytest.mark.parametrize("about", [2, 6])
def test_a_false_share_is_found_its_sender_suspected_and_the_sum_still_right(about: int) -> None:
    world, current, vectors = opening_with({about: 1})
    current.advance()
    assert exact(world, current, vectors)
    assert current.included == tuple(range(6))
    assert current.suspects == (0,)


@pytest.mark.parametrize("about", [2, 6])
def test_two_false_shares_of_one_secret_are_a_clean_abort_or_found(about: int) -> None:
    world, current, vectors = opening_with({about: 2})
    reason = ""
    try:
        current.advance()
    except Aborted as aborted:
        reason = str(aborted)
    assert f"client {about}" in reason if reason else exact(world, current, vectors)
    assert current.done


def test_one_client_that_lies_about_everybody_is_found() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    for number, letter in letters.items():
        message = world.people[number].answer(letter)
        if number == 1:
            lies = b"".join(b"\0" + os.urandom(32) for _ in range(N - 1))
            message = world.say(1, Kind.REVEAL, lies, current.session)
        current.receive(number, message)
    current.advance()
    assert exact(world, current, vectors)
    assert current.suspects == (1,)


def test_shares_beyond_the_field_are_found_like_any_other_false_ones() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    for number, letter in letters.items():
        message = world.people[number].answer(letter)
        if number == 1:
            message = world.say(1, Kind.REVEAL, b"\xff" * 33 * (N - 1), current.session)
        current.receive(number, message)
    current.advance()
    assert exact(world, current, vectors)
    assert current.suspects == (1,)


def cheat_while_sharing(world: World, current: ServerRound, letters: dict[int, bytes], deal: str) -> dict[int, bytes]:
    """Client 0 shares something else than it should; what the others are sent then."""
    for number, letter in letters.items():
        if number != 0:
            current.receive(number, world.people[number].answer(letter))
            continue
        if deal == "false shares":
            with patch("hush.secagg.client.shamir.split", lambda _s, _t, places: [b"\0" + os.urandom(32) for _ in places]):
                current.receive(0, world.people[0].answer(letter))
        elif deal == "a false commitment":
            true = world.people[0].answer(letter)
            current.receive(0, world.say(0, Kind.SHARES, os.urandom(32) + body_of(true)[32:], current.session))
        else:
            true = world.people[0].answer(letter)
            garbage = body_of(true)[:32] + os.urandom(SEALED_BYTES * (world.clients - 1))
            current.receive(0, world.say(0, Kind.SHARES, garbage, current.session))
    return current.advance()


@pytest.mark.parametrize("deal", ["false shares", "a false commitment"])
@pytest.mark.parametrize("vanishes", [False, True])
def test_a_client_that_dealt_false_shares_is_named_in_a_clean_abort(deal: str, vanishes: bool) -> None:
    """Its mask cannot be taken off, so there is no sum; whoever runs the server learns whom to leave out."""
    world = World(N, TERMS)
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    letters = cheat_while_sharing(world, current, current.start(), deal)
    answers(world, current, letters, vectors, silent={0} if vanishes else ())
    letters = current.advance()
    answers(world, current, letters, vectors)
    if deal == "a false commitment" and vanishes:
        current.advance()  # what it lied about is not needed
        assert exact(world, current, vectors)
        return
    with pytest.raises(Aborted, match="client 0"):
        current.advance()
    done = play(world, vectors, round=1, cohort=range(N))
    assert isinstance(done, ServerRound)


def test_a_client_that_sends_letters_nobody_can_open_does_not_stop_the_others_unnamed() -> None:
    """One bad client could otherwise end every round for nothing, and nobody would know who it was."""
    world = World(N, TERMS)
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    letters = cheat_while_sharing(world, current, current.start(), "garbage")
    reason = ""
    try:
        finish(world, current, letters, vectors)
    except Aborted as aborted:
        reason = str(aborted)
    if reason:
        assert "client 0" in reason, "nobody learns who it was"
    else:
        assert exact(world, current, vectors)
        assert current.included == tuple(range(1, N))


def test_one_lying_client_costs_little_work() -> None:
    """A false share for each neighbour makes the server look for it once, and not once for each."""
    world = World(20, Terms(4))
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    for number, letter in letters.items():
        message = world.people[number].answer(letter)
        if number == 9:
            message = world.say(number, Kind.REVEAL, b"\0" * 33 * 19, current.session)
        current.receive(number, message)
    with patch("hush.secagg.server.shamir.combine", wraps=shamir.combine) as combine:
        current.advance()
    assert exact(world, current, vectors)
    assert current.suspects == (9,)
    assert combine.call_count <= 20 + 2 * current.session.graph.threshold


def test_the_server_does_not_accept_a_client_of_another_roster() -> None:
    world, other = World(N, TERMS), World(N + 1, TERMS)
    stranger = Client(other.own[0], other.roster, TERMS)
    with pytest.raises(BadMessage, match="roster"):
        world.server.take_keys(0, stranger.prepare([0]))


def test_traffic_is_counted() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    world.keys([0])
    current = world.open(0)
    down, up = dict.fromkeys(range(N), 0), dict.fromkeys(range(N), 0)
    letters = current.start()
    while letters:
        for number, letter in letters.items():
            answer = world.people[number].answer(letter, vectors[number])
            down[number] += len(letter)
            up[number] += len(answer)
            current.receive(number, answer)
        letters = current.advance()
    assert current.bytes_down == down
    assert current.bytes_up == up


def test_refusing_clients_are_to_the_server_as_vanished_ones() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    current, letters = until(world, 1, vectors)
    with pytest.raises(Refused):
        world.people[0].answer(world.survivors(current.session, range(N)))
    finish(world, current, letters, vectors)
    assert current.included == tuple(range(1, N))
    assert exact(world, current, vectors)
    assert (current.total >= np.zeros(4)).all()


def test_keys_of_before_a_restart_do_not_come_back() -> None:
    """A client that was started again sends newer ones; whoever repeats the old message must not bring dead keys back."""
    world = World(N, TERMS)
    old = world.people[0].prepare([0, 1, 2])
    world.server.take_keys(0, old)
    again = Client(world.own[0], world.roster, world.terms, next_round=1)
    world.server.take_keys(0, again.prepare([1]))
    assert [0 in world.server.ready(round) for round in range(3)] == [False, True, False]
    with pytest.raises(BadMessage, match="older"):
        world.server.take_keys(0, old)
    world.people[0] = again
    for number in range(1, N):
        world.server.take_keys(number, world.people[number].prepare([1]))
    vectors = vectors_for(world)
    done = play(world, vectors, round=1, keys=False)
    assert isinstance(done, ServerRound)
    assert done.included == tuple(range(N))


def test_a_server_that_was_started_again_goes_on() -> None:
    world = World(N, TERMS)
    vectors = vectors_for(world)
    world.keys(range(3))
    assert isinstance(play(world, vectors, round=0, keys=False), ServerRound)
    world.server = Server(world.who, world.roster, world.terms, 1, next_round=world.server.next_round)
    for number in range(N):
        assert world.server.take_keys(number, world.people[number].prepared()) == (1, 2)
    done = play(world, vectors, round=1, keys=False)
    assert isinstance(done, ServerRound)
    assert exact(world, done, vectors)
    far = Server(world.who, world.roster, world.terms, 1, next_round=10_000)
    late = Client(world.own[0], world.roster, world.terms, next_round=10_000)
    assert far.take_keys(0, late.prepare([10_001])) == (10_001,)
    with pytest.raises(UsageError, match="too far ahead"):
        late.prepare(range(10_002, 10_002 + 4097))
    rested = Client(world.own[1], world.roster, world.terms)  # whose turn comes for the first time now
    assert far.take_keys(1, rested.prepare([10_001])) == (10_001,)


@pytest.mark.parametrize("threat", ["curious", "malicious"])
@pytest.mark.parametrize("clients", [N, 70])
def test_who_has_no_keys_is_absent_where_a_cohort_would_be_too_small_without_it(clients: int, threat: str) -> None:
    terms = Terms(3, dropout=0.2, corrupted=0, threat=threat, smallest=clients)
    world = World(clients, terms)
    vectors = vectors_for(world)
    world.keys([0], of=range(1, clients))
    done = play(world, vectors, keys=False)
    assert isinstance(done, ServerRound)
    assert done.session.cohort == tuple(range(clients))
    assert done.session.absent == {0}
    assert done.included == tuple(range(1, clients))
    assert exact(world, done, vectors)
    world.keys([1], of=range(clients - terms.fewest(clients) + 1, clients))
    with pytest.raises(Aborted, match="have keys for round 1"):
        world.open(1)


def test_an_absent_client_cannot_be_said_to_be_in_the_sum() -> None:
    """It would count as one whose noise is in it."""
    world = World(N, Terms(3, dropout=0.2, corrupted=0, smallest=N))
    vectors = vectors_for(world)
    world.keys([0], of=range(1, N))
    current = world.open(0)
    letters = current.start()
    for _ in range(2):
        answers(world, current, letters, vectors)
        letters = current.advance()
    ghosts = world.survivors(current.session, range(N), to=1)
    with pytest.raises(Refused, match="Client 0 is said to be in the sum, and it has no keys"):
        world.people[1].answer(ghosts)


def test_an_abort_says_whether_anything_may_have_been_opened() -> None:
    for stages, opening in ((1, False), (2, True)):
        world = World(N, TERMS)
        current, _ = until(world, stages)
        with pytest.raises(Aborted) as reason:
            current.advance()
        assert reason.value.opening == opening


def test_a_process_that_dies_costs_time_and_not_the_sum() -> None:
    world = World(N, Terms(5000, dropout=0.2, corrupted=0), workers=3)
    vectors = vectors_for(world)
    with patch("hush.secagg.unmask._Worker.masks", lambda _: None):
        done = play(world, vectors)
    assert isinstance(done, ServerRound)
    assert exact(world, done, vectors)


def test_a_sum_around_zero() -> None:
    world = World(N, Terms(2, bits=12, dropout=0, corrupted=0))
    done = play(world, np.array([[-7, 5]] * N))
    assert isinstance(done, ServerRound)
    assert done.signed_total.tolist() == [-7 * N, 5 * N]
