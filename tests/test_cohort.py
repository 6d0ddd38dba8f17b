from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush import Bounded, FixedSize, Poisson, Rotation, UsageError
from hush.secret import Secret

from .conftest import make_task

SECRET = Secret(b"s" * 32)


def test_poisson_takes_each_client_with_the_stated_probability() -> None:
    rounds, n, size = 400, 500, 50
    counts = torch.zeros(n)
    sizes = []
    for t in range(rounds):
        ids, _ = Poisson(size).draw(t, n, {}, SECRET)
        counts[ids] += 1
        sizes.append(len(ids))
    rate = size / n
    assert abs(counts.mean() / rounds - rate) < 5 * math.sqrt(rate * (1 - rate) / (n * rounds))
    assert counts.std() == pytest.approx(math.sqrt(rounds * rate * (1 - rate)), rel=0.15)
    # the size itself is binomial, not fixed
    assert torch.tensor(sizes, dtype=torch.float).std() == pytest.approx(math.sqrt(n * rate * (1 - rate)), rel=0.2)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 100))
def test_fixed_size_takes_exactly_so_many(size: int, extra: int, index: int) -> None:
    ids, _ = FixedSize(size).draw(index, size + extra, {}, SECRET)
    assert len(ids) == size == len(set(ids.tolist()))
    assert ids.tolist() == sorted(ids.tolist())


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(5, 40))
def test_bounded_never_exceeds_its_cap_and_one_client_moves_no_other(cap: int, n: int) -> None:
    cohort = Bounded(n / 2, participations=cap)
    state, taken, fewer_state = cohort.init(n), torch.zeros(n), cohort.init(n - 1)
    for t in range(20):
        ids, state = cohort.draw(t, n, state, SECRET)
        taken[ids] += 1
        # the last client gone: the others' schedule is the same as long as their probability is
        same = Bounded(cohort.size * (n - 1) / n, participations=cap)
        others, fewer_state = same.draw(t, n - 1, fewer_state, SECRET)
        assert others.tolist() == [i for i in ids.tolist() if i != n - 1]
    assert taken.max() <= cap


def test_draws_depend_on_the_secret_and_the_round_alone() -> None:
    first, _ = Poisson(20).draw(4, 100, {}, SECRET)
    torch.manual_seed(0)
    again, _ = Poisson(20).draw(4, 100, {}, SECRET)
    other, _ = Poisson(20).draw(4, 100, {}, Secret(b"t" * 32))
    later, _ = Poisson(20).draw(5, 100, {}, SECRET)
    assert torch.equal(first, again)
    assert first.tolist() != other.tolist()
    assert first.tolist() != later.tolist()


@pytest.mark.parametrize("cohort", [Poisson(11), Poisson(0), FixedSize(11), FixedSize(2.5), Bounded(2, 0)])
def test_impossible_cohorts_are_refused(cohort: Poisson) -> None:
    with pytest.raises(UsageError):
        cohort.check(10)


def test_a_rotation_gives_everybody_one_turn_and_then_another() -> None:
    cohort, taken = Rotation(3), torch.zeros(10, dtype=torch.int64)
    orders, state = [], cohort.init(10)
    for index in range(9):
        ids, state = cohort.draw(index, 10, state, Secret.fresh())  # another secret, as after an interruption: the turn goes on
        assert len(ids) in (2, 3)
        taken[ids] += 1
        orders.append(ids.tolist())
        assert int(taken.max()) <= cohort.most_participations(index + 1, 10)
        assert int(taken.max()) - int(taken.min()) <= 1
    assert cohort.period(10) == 4
    assert sorted(i for order in orders[:4] for i in order) == list(range(10))
    assert orders[:4] != orders[4:8]
    assert cohort.most_participations(45, 10) == 12
    assert Rotation(10).most_participations(45, 100) == 5
    assert Rotation(10).expected_participations(45, 100) == 4.5
    with pytest.raises(UsageError, match="whole number"):
        Rotation(2.5).check(10)


def test_how_often_a_client_joins_at_most() -> None:
    kinds = (Poisson(10), FixedSize(10), Bounded(10, 7), Bounded(10, 99))
    assert [kind.most_participations(45, 100) for kind in kinds] == [45, 45, 7, 45]


def test_a_share_is_no_cohort() -> None:
    with pytest.raises(UsageError, match=r"write 30 for 0.3 of 100 clients"):
        Poisson(0.3).check(100)
    for method in (hush.methods.fedavg(), hush.methods.dp_sgd(noise=1.0)):
        with pytest.raises(UsageError, match=r"write 1.8 for 0.3 of 6 clients"):
            hush.simulate(method, make_task(), rounds=1, cohort=0.3)
