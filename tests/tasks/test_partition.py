from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush import UsageError
from hush.tasks.partition import partition


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:1", "shards:1"]),
    st.integers(1, 30),
    st.integers(0, 5),
    st.lists(st.integers(0, 4), min_size=30, max_size=80),
)
def test_every_example_has_one_owner_and_sizes_differ_by_one(spec: str, clients: int, seed: int, labels: list[int]) -> None:
    parts = partition(spec, np.array(labels), clients, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    sizes = [len(p) for p in parts]
    assert max(sizes) - min(sizes) <= 1
    again = partition(spec, np.array(labels), clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_dirichlet_concentrates_labels_as_alpha_falls() -> None:
    labels = np.repeat(np.arange(10), 200)

    def top_share(spec: str) -> float:
        parts = partition(spec, labels, 40, 0)
        return float(np.mean([np.bincount(labels[p], minlength=10).max() / len(p) for p in parts]))

    even, mild, strong = top_share("iid"), top_share("dirichlet:1"), top_share("dirichlet:0.1")
    assert even < mild < strong
    assert strong > 0.6


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["lognormal:1", "iid+zipf:1.2", "dirichlet:0.2+lognormal:2", "dirichlet:5+zipf:0.5", "shards:2"]),
    st.integers(1, 20),
    st.integers(0, 5),
    st.lists(st.integers(0, 4), min_size=40, max_size=90),
)
def test_unequal_sizes_still_use_every_example_once(spec: str, clients: int, seed: int, labels: list[int]) -> None:
    parts = partition(spec, np.array(labels), clients, seed)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1
    again = partition(spec, np.array(labels), clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_sizes_follow_their_distribution() -> None:
    labels = np.zeros(100_000, dtype=np.int64)
    zipf = np.sort([len(p) for p in partition("zipf:1", labels, 100, 0)])[::-1]
    assert zipf[0] / zipf[9] == pytest.approx(10, rel=0.02)  # the r-th holds 1/r of the first
    sizes = np.array([len(p) for p in partition("lognormal:0.8", labels, 500, 0)], dtype=float)
    assert np.log(sizes).std() == pytest.approx(0.8, rel=0.1)
    assert np.median(sizes) < 0.85 * sizes.mean()


def test_shards_give_each_client_few_labels() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    parts = partition("shards:2", labels, 50, 0)
    assert {len(p) for p in parts} == {20}
    assert max(len(np.unique(labels[p])) for p in parts) <= 2
    assert len({tuple(np.unique(labels[p])) for p in parts}) > 10  # dealt at random, not neighbours
    with pytest.raises(UsageError, match="cannot be cut"):
        partition("shards:30", labels, 50, 0)


def test_nature_decides_and_a_seed_picks_among_its_clients() -> None:
    owner = np.array([3, 1, 1, 7, 3, 1])
    parts = partition("natural", np.zeros(6, dtype=np.int64), 3, 0, owner)
    assert [p.tolist() for p in parts] == [[1, 2, 5], [0, 4], [3]]
    some = [tuple(tuple(p) for p in partition("natural", np.zeros(6, dtype=np.int64), 2, seed, owner)) for seed in range(20)]
    assert len(set(some)) == 3
    for bad in (0, 4):
        with pytest.raises(UsageError, match="3 clients by nature"):
            partition("natural", np.zeros(6, dtype=np.int64), bad, 0, owner)
    with pytest.raises(UsageError, match="no clients by nature"):
        partition("natural", np.zeros(6, dtype=np.int64), 2, 0)


def test_partitions_by_label_need_labels() -> None:
    with pytest.raises(UsageError, match="not one whole number each"):
        partition("dirichlet:1", np.zeros(10), 2, 0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not one whole number each"):
        partition("shards:2", np.zeros((10, 3), dtype=np.int64), 2, 0)
    assert len(partition("iid", np.zeros((10, 3), dtype=np.int64), 2, 0)) == 2


@pytest.mark.parametrize(
    "spec",
    [
        "iid+",
        "iid+foo:1",
        "iid+zipf",
        "iid+zipf:-1",
        "natural:3",
        "natural+zipf:1",
        "shards:2+zipf:1",
        "shards:1.5",
        "dirichlet:1+lognormal:nan",
        "+zipf:1",
    ],
)
def test_bad_combinations(spec: str) -> None:
    with pytest.raises(UsageError):
        partition(spec, np.zeros(10, dtype=np.int64), 2, 0, np.zeros(10, dtype=np.int64))


@pytest.mark.parametrize("spec", ["foo", "dirichlet", "dirichlet:x", "dirichlet:0", "dirichlet:-1", "iid:3", "dirichlet:nan", ""])
def test_bad_specs(spec: str) -> None:
    with pytest.raises(UsageError):
        partition(spec, np.zeros(10, dtype=np.int64), 2, 0)


def test_more_clients_than_examples() -> None:
    with pytest.raises(UsageError, match="cannot be split"):
        partition("iid", np.zeros(10, dtype=np.int64), 11, 0)
