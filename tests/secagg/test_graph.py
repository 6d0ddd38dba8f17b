"""The graph: symmetric, of the degree that was asked for, drawn from the seed alone."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.secagg import Roster, Session, Terms
from hush.secagg.graph import neighbours_of


@given(st.integers(3, 80), st.integers(1, 50), st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_neighbours_are_mutual_distinct_and_as_many_as_asked_for(clients: int, half: int, seed: bytes) -> None:
    degree = min(2 * half, clients - 1)
    if degree < clients - 1 and degree % 2:
        degree -= 1
    around = neighbours_of(seed, clients, degree)
    assert len(around) == clients
    for who, those in around.items():
        assert len(those) == len(set(those)) == degree
        assert who not in those
        assert list(those) == sorted(those)
        assert all(who in around[j] for j in those)


@given(st.integers(5, 60), st.binary(max_size=32))
@settings(max_examples=30, deadline=None)
def test_a_graph_hangs_together(clients: int, seed: bytes) -> None:
    around = neighbours_of(seed, clients, 2)
    seen, stack = {0}, [0]
    while stack:
        for j in around[stack.pop()]:
            if j not in seen:
                seen.add(j)
                stack.append(j)
    assert len(seen) == clients


def test_everybody_knows_everybody_in_a_complete_graph() -> None:
    for degree in (6, 7, 100):
        assert neighbours_of(b"any", 7, degree) == {i: tuple(j for j in range(7) if j != i) for i in range(7)}


def test_one_seed_gives_one_graph_and_another_another() -> None:
    assert neighbours_of(b"a", 50, 6) == neighbours_of(b"a", 50, 6)
    assert neighbours_of(b"a", 50, 6) != neighbours_of(b"b", 50, 6)


@pytest.mark.parametrize("degree", [0, 1, 3, 5])
def test_a_degree_that_no_circle_has_is_refused(degree: int) -> None:
    with pytest.raises(ValueError, match="degree"):
        neighbours_of(b"a", 20, degree)


def test_each_pair_is_as_likely_as_any_other_to_be_neighbours() -> None:
    """800 graphs of 10 clients, degree 2: each of the 45 pairs meets in 2/9 of them."""
    met: Counter[tuple[int, int]] = Counter()
    for i in range(800):
        for who, those in neighbours_of(i.to_bytes(4, "big"), 10, 2).items():
            met.update((who, j) for j in those if j > who)
    mean = 800 * 2 / 9
    chi = sum((met[a, b] - mean) ** 2 / (mean * 7 / 9) for a in range(10) for b in range(a + 1, 10))
    assert chi < 95  # about 44 degrees of freedom: fixed seeds, so that this holds always


def test_the_seed_hangs_on_the_session_and_on_every_key() -> None:
    digests = tuple(os.urandom(32) for _ in range(4))
    session = Session(Terms(4), Roster(os.urandom(32), tuple(os.urandom(32) for _ in range(5))), 7, (0, 1, 2, 4), digests)
    others = [replace(session, round=8), replace(session, cohort=(0, 1, 2, 3)), replace(session, keys=digests[::-1])]
    others += [replace(session, keys=(*digests[:i], os.urandom(32), *digests[i + 1 :])) for i in range(4)]
    assert len({one.graph_seed for one in [session, *others]}) == 8


@pytest.mark.parametrize(("clients", "degree"), [(7, 6), (50, 8), (100, 12)])
def test_one_client_draws_its_own_neighbours_as_everybody_does(clients: int, degree: int) -> None:
    whole = neighbours_of(b"seed", clients, degree)
    for who in range(clients):
        assert neighbours_of(b"seed", clients, degree, who) == {who: whole[who]}
