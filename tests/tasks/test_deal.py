"""What nobody trains on is really out of the clients' data, however they are dealt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hush
from hush import UsageError
from hush.tasks.clients import Clients, Examples
from hush.tasks.deal import deal, fewer
from hush.tasks.raw import Raw


def raw(train: int = 200, test: int = 40, clients: int = 20, own_tests: bool = True) -> Raw:
    """Every example is its own number, so that each can be followed."""
    rng = np.random.default_rng(1)
    owner = torch.from_numpy(np.sort(rng.integers(0, clients, train)))
    test_owner = torch.from_numpy(rng.integers(0, clients, test))
    return Raw(
        Examples(torch.arange(train)[:, None], torch.arange(train) % 5),
        Examples(1000 + torch.arange(test)[:, None], torch.arange(test) % 5),
        owner,
        test_owner if own_tests else None,
    )


def numbers(part: Examples | Clients | None) -> list[int]:
    return [] if part is None else part.x[:, 0].tolist()


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.3", "shards:2", "iid+lognormal:1", "natural"])
@pytest.mark.parametrize("seed", [0, 1])
def test_public_and_validation_examples_belong_to_no_client(split: str, seed: int) -> None:
    source = raw()
    dealt = deal(source, split, None if split == "natural" else 10, 15, 12, seed, "central")
    clients, held, shown = numbers(dealt.clients), numbers(dealt.validation), numbers(dealt.public)
    assert (len(held), len(shown)) == (15, 12)
    assert len(set(clients + held + shown)) == len(clients) + 27
    if split == "natural":  # whole clients are out, not single examples of them
        whose = source.owner
        assert whose is not None
        trains, out = set(whose[clients].tolist()), set(whose[held + shown].tolist())
        assert not trains & out
        assert all(whose[clients].tolist().count(c) == int((whose == c).sum()) for c in trains)
    else:
        assert len(clients) == 200 - 27
        assert dealt.clients.count == 10
    again = deal(source, split, None if split == "natural" else 10, 15, 12, seed, "central")
    assert numbers(again.clients) == clients


def test_natural_clients_are_judged_on_their_own_tests_where_they_have_some() -> None:
    source = raw()
    assert source.owner is not None
    assert source.test_owner is not None
    dealt = deal(source, "natural", 6, 10, 0, 0, "central")
    assert isinstance(dealt.test, Clients)
    assert dealt.clients.count == dealt.test.count == 6
    for i in range(6):
        own = numbers(Examples(dealt.clients.x[dealt.clients.owner == i], dealt.clients.y[:0]))
        tested = [n - 1000 for n in numbers(Examples(dealt.test.x[dealt.test.owner == i], dealt.test.y[:0]))]
        who = int(source.owner[own[0]])
        assert own == torch.nonzero(source.owner == who).flatten().tolist()
        assert tested == torch.nonzero(source.test_owner == who).flatten().tolist()
    assert isinstance(deal(raw(own_tests=False), "natural", None, 0, 0, 0, "central").test, Examples)
    everybody = deal(source, "natural", None, 0, 0, 0, "central")
    assert numbers(everybody.clients) == list(range(200))


def test_a_task_keeps_its_tenth_at_each_client() -> None:
    source = raw(train=180, test=63)
    dealt = deal(source, "iid", 8, 0, 10, 0, "clients")
    assert isinstance(dealt.test, Clients)
    assert isinstance(dealt.validation, Clients)
    each = (180 + 63 - 10) // 8
    assert dealt.test.sizes.tolist() == dealt.validation.sizes.tolist() == [each // 10] * 8
    assert dealt.clients.sizes.tolist() == [each - 2 * (each // 10)] * 8
    every = [numbers(part) for part in (dealt.clients, dealt.test, dealt.validation, dealt.public)]
    joined = [n for part in every for n in part]
    assert len(set(joined)) == len(joined) == 8 * each + 10
    assert any("left over" in note for note in dealt.notes)
    assert any(n >= 1000 for n in every[0])  # both files are merged
    with pytest.raises(UsageError, match="would be theirs"):
        deal(source, "natural", None, 0, 5, 0, "clients")
    by_nature = deal(source, "natural", None, 0, 0, 0, "clients")
    assert source.owner is not None
    assert by_nature.clients.count == 20


def test_fewer_test_examples_by_seed() -> None:
    dealt = deal(raw(), "natural", None, 0, 0, 0, "central")
    test, notes = fewer(dealt.test, 12, 3)
    assert isinstance(test, Clients)
    assert isinstance(dealt.test, Clients)
    assert len(test.x) == 12
    assert test.count == dealt.test.count
    owner_of = dict(zip(numbers(dealt.test), dealt.test.owner.tolist(), strict=True))
    assert test.owner.tolist() == [owner_of[n] for n in numbers(test)]
    assert "12 of 40" in notes[0]
    assert fewer(dealt.test, 40, 3) == (dealt.test, ())
    assert fewer(dealt.test, None, 3) == (dealt.test, ())
    with pytest.raises(UsageError, match="at least 1"):
        fewer(dealt.test, 0, 3)


def test_too_many() -> None:
    for validation, public in ((200, 0), (150, 60)):
        with pytest.raises(UsageError, match="too many"):
            deal(raw(), "iid", 5, validation, public, 0, "central")
    for validation, public in ((-1, 0), (5, -2)):
        with pytest.raises(UsageError, match="0 or more, not -"):
            deal(raw(), "iid", 5, validation, public, 0, "central")
    for validation, public in ((195, 0), (100, 99)):
        with pytest.raises(UsageError, match="examples take every client there is"):
            deal(raw(), "natural", None, validation, public, 0, "central")
    with pytest.raises(UsageError, match="besides those held out"):
        deal(raw(), "natural", 20, 10, 0, 0, "central")
    with pytest.raises(UsageError, match="by nature"):
        hush.load_task("digits", split="natural")


def test_the_adult_protocol_of_cpfed(real_data: object) -> None:
    task = hush.load_task("adult")
    assert task.train.count == 16
    assert isinstance(task.test, Clients)
    assert isinstance(task.validation, Clients)
    assert (task.train.sizes + task.test.sizes + task.validation.sizes).tolist() == [3052] * 16
    assert task.test.sizes.tolist() == [305] * 16
    result = hush.simulate(hush.methods.fedavg(lr=0.5, batch_size=64, local_steps=10), task, rounds=15, cohort=16)
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.79  # three quarters earn less
    assert result.per_client is not None
    assert result.per_client["clients"] == 16
    assert result.per_client["mean"] == pytest.approx(result.test_accuracy)  # of equal sizes
    assert result.test_metrics["auc"] > 0.83  # type: ignore[operator]
    assert {"test_accuracy", "validation_accuracy", "per_client"} <= set(result.un_noised)
    central = hush.load_task("adult", evaluation="central", clients=100)
    assert len(central.train.x) == 32561
    assert not isinstance(central.test, Clients)
    with pytest.raises(UsageError, match="leave validation out"):
        hush.load_task("adult", validation=100)
