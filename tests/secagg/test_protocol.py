"""Rounds from end to end: the sum is exact, or there is none and a reason why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from hush.errors import UsageError
from hush.secagg import Client, Identity, Refused, Roster, Server, ServerRound, Stage, Terms
from tests.secagg.drive import Case, World, answers, cases, check, exact, play, until, vectors_for

THREATS = ["curious", "malicious"]


@given(cases(largest=14))
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_sum_is_exact_or_there_is_none_and_a_reason(case: Case) -> None:
    check(case)


@given(cases(largest=60))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_sum_of_larger_cohorts_is_exact_too(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("clients", [3, 4, 7, 24])
def test_a_round_without_losses_gives_the_sum_of_all(clients: int, threat: str) -> None:
    world = World(clients, Terms(9, threat=threat))
    vectors = vectors_for(world)
    done = play(world, vectors)
    assert isinstance(done, ServerRound)
    assert done.included == tuple(range(clients))
    assert exact(world, done, vectors)
    assert done.stage is Stage.DONE
    assert done.done


def test_a_sparse_graph_of_a_hundred_clients_gives_the_exact_sum() -> None:
    terms = Terms(3, dropout=0.05, corrupted=0, smallest=100, threat="malicious")
    assert not terms.graph(100).complete
    world = World(100, terms)
    vectors = vectors_for(world)
    done = play(world, vectors, lost=[{3}, {50, 51}, {99}, {0}])
    assert isinstance(done, ServerRound)
    assert set(done.included) == set(range(100)) - {3, 50, 51}
    assert exact(world, done, vectors)


@pytest.mark.parametrize("bits", range(1, 65))
def test_every_number_of_bits_sums_exactly(bits: int) -> None:
    world = World(4, Terms(5, bits=bits, dropout=0.25, corrupted=0))
    vectors = vectors_for(world, bits)
    done = play(world, vectors, lost=[(), {2}])
    assert isinstance(done, ServerRound)
    assert exact(world, done, vectors)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_vectors_of_any_integers_are_summed(dtype: type[np.integer]) -> None:
    world = World(3, Terms(4))
    vectors = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [100, 0, 0, 127]], dtype=dtype)
    done = play(world, vectors)
    assert isinstance(done, ServerRound)
    assert exact(world, done, vectors)


# -- rounds ahead ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", THREATS)
def test_a_known_cohort_costs_two_trips_a_round(threat: str) -> None:
    """The delivery of round t travels with the invitation to round t + 1, and the answers to both travel back together."""
    world = World(6, Terms(4, dropout=0.2, corrupted=0, threat=threat))
    vectors = [vectors_for(world, t) for t in range(5)]
    world.keys(range(5))
    current = world.open(0)
    answers(world, current, current.start(), vectors[0])
    delivery = current.advance()
    trips = 0
    for t in range(5):
        following = world.open(t + 1) if t < 4 else None
        invitations = following.start() if following else {}
        for number in range(6):  # first trip: two letters down, two up
            current.receive(number, world.people[number].answer(delivery[number], vectors[t][number]))
            if following:
                following.receive(number, world.people[number].answer(invitations[number]))
        trips += 1
        letters = current.advance()
        while letters:  # second trip; a third where survivors are signed
            answers(world, current, letters, vectors[t])
            trips += 1
            letters = current.advance()
        assert exact(world, current, vectors[t])
        if following:
            current, delivery = following, following.advance()
    assert trips == 5 * (2 if threat == "curious" else 3)


@pytest.mark.parametrize("stage", range(4))
def test_who_vanished_in_one_round_takes_part_in_the_next(stage: int) -> None:
    world = World(6, Terms(4, dropout=0.2, corrupted=0, threat="malicious"))
    vectors = vectors_for(world)
    lost: list[set[int]] = [set(), set(), set(), set()]
    lost[stage] = {4}
    first, second = play(world, vectors, lost), play(world, vectors, round=1)
    assert isinstance(first, ServerRound)
    assert (4 in first.included) == (stage > 1)
    assert isinstance(second, ServerRound)
    assert 4 in second.included
    assert exact(world, second, vectors)


def test_keys_for_many_rounds_ahead_serve_them_all() -> None:
    world = World(3, Terms(2))
    vectors = vectors_for(world)
    world.keys(range(20))
    assert all(world.server.ready(t) == {0, 1, 2} for t in range(20))
    for t in range(20):
        done = play(world, vectors, round=t, keys=False)
        assert isinstance(done, ServerRound)
        assert exact(world, done, vectors)
        assert world.server.ready(t) == set()


def test_rounds_may_be_left_out() -> None:
    world = World(3, Terms(2))
    vectors = vectors_for(world)
    world.keys(range(6))
    for t in (1, 5):
        done = play(world, vectors, round=t, keys=False)
        assert isinstance(done, ServerRound)
    with pytest.raises(UsageError, match="Round 3"):
        world.open(3)


def test_a_client_without_keys_is_left_out_of_the_cohort() -> None:
    world = World(5, Terms(2))
    vectors = vectors_for(world)
    world.keys([0], of=[0, 1, 3, 4])
    done = play(world, vectors, keys=False)
    assert isinstance(done, ServerRound)
    assert done.included == (0, 1, 3, 4)
    assert exact(world, done, vectors)


def test_too_few_clients_with_keys_are_no_round_and_lose_no_keys() -> None:
    world = World(5, Terms(2, smallest=4))
    world.keys([0], of=[0, 1, 2])
    assert "3 clients have keys" in str(play(world, vectors_for(world), keys=False))
    world.keys([0], of=[3])
    assert isinstance(play(world, vectors_for(world), keys=False), ServerRound)


def test_a_key_of_a_round_is_drawn_once() -> None:
    world = World(3, Terms(2))
    world.people[0].prepare([0, 1])
    for again in ([0], [1], [1, 2]):
        with pytest.raises(UsageError, match="once"):
            world.people[0].prepare(again)
    world.people[0].prepare([2])  # the refused call above has drawn nothing


def test_a_vector_of_another_shape_or_kind_is_the_callers_mistake_and_can_be_corrected() -> None:
    world = World(3, Terms(4))
    vectors = vectors_for(world)
    current, letters = until(world, 1, vectors)
    for bad in (None, np.zeros(3, dtype=int), np.zeros((4, 1), dtype=int), np.zeros(4), [1.5] * 4):
        with pytest.raises(UsageError):
            world.people[0].answer(letters[0], bad)  # type: ignore[arg-type]
    answers(world, current, letters, vectors)
    answers(world, current, current.advance(), vectors)
    assert current.advance() == {}
    assert exact(world, current, vectors)


def test_a_vector_is_fetched_only_when_it_is_needed() -> None:
    world = World(3, Terms(4))
    world.keys([0])
    current = world.open(0)

    def never() -> np.ndarray:
        raise AssertionError("an invitation needs no vector")

    for number, letter in current.start().items():
        current.receive(number, world.people[number].answer(letter, never))
    for number, letter in current.advance().items():
        current.receive(number, world.people[number].answer(letter, lambda: np.arange(4)))
    answers(world, current, current.advance(), vectors_for(world))
    current.advance()
    assert list(current.total) == [0, 3, 6, 9]


def test_strangers_are_not_let_in() -> None:
    world = World(3, Terms(2))
    with pytest.raises(UsageError, match="roster"):
        Client(Identity.generate(), world.roster, world.terms)
    with pytest.raises(UsageError, match="server"):
        Server(Identity.generate(), world.roster, world.terms)
    with pytest.raises(UsageError, match="twice"):
        Roster(world.roster.server, (*world.roster.clients, world.roster.clients[0]))
    with pytest.raises(UsageError, match="twice"):
        Roster(world.roster.server, (*world.roster.clients, world.roster.server))


def test_the_sum_is_not_there_before_it_is() -> None:
    world = World(3, Terms(2))
    current, _ = until(world, 2)
    with pytest.raises(UsageError, match="no sum"):
        _ = current.total


@pytest.mark.parametrize(
    "terms",
    [
        {"entries": 0},
        {"entries": 1.5},
        {"bits": 0},
        {"bits": 65},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"dropout": float("nan")},
        {"corrupted": 1.0},
        {"corrupted": float("nan")},
        {"smallest": 2},
        {"threat": "none"},
        {"dropout": 0.5, "corrupted": 0.5},
        {"dropout": 0.4, "corrupted": 0.3},
    ],
)
def test_terms_that_would_hide_nothing_are_refused(terms: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Terms(**({"entries": 4} | terms))  # type: ignore[arg-type]


def test_terms_that_no_message_can_carry_are_refused() -> None:
    """The length of a body has 32 bits: a larger vector would fail in the middle of a round, and with an error of `struct`."""
    with pytest.raises(UsageError):
        Terms(2**31, bits=24)


@pytest.mark.parametrize("field", ["entries", "bits", "smallest"])
def test_terms_that_are_accepted_can_be_hashed(field: str) -> None:
    """A whole number of another type is one, or is refused."""
    try:
        terms = replace(Terms(4), **{field: 24.0})
    except UsageError:
        return
    assert len(terms.digest) == 32


def test_a_client_forgets_rounds_that_the_server_never_finished() -> None:
    """A device that is seized later must not hold what an earlier round was hidden with, nor may its memory grow."""
    world = World(4, Terms(2))
    vectors = vectors_for(world)
    for t in range(8):
        until(world, 1, vectors, round=t)  # everybody has shared, and then the server fails
    kept = [t for t, own in world.people[0]._rounds.items() if not own.over]
    assert len(kept) <= 2, "two rounds at once are all that two trips a round need"


def test_a_round_that_is_over_is_refused_and_the_next_one_works() -> None:
    world = World(3, Terms(2))
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    answers(world, current, letters, vectors)
    with pytest.raises(Refused):
        world.people[0].answer(letters[0])
    assert isinstance(play(world, vectors, round=1), ServerRound)
