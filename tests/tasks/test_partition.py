from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush import UsageError
from hush.tasks.partition import partition


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:1"]),
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


@pytest.mark.parametrize("spec", ["foo", "dirichlet", "dirichlet:x", "dirichlet:0", "dirichlet:-1", "iid:3", "dirichlet:nan", ""])
def test_bad_specs(spec: str) -> None:
    with pytest.raises(UsageError):
        partition(spec, np.zeros(10, dtype=np.int64), 2, 0)


def test_more_clients_than_examples() -> None:
    with pytest.raises(UsageError, match="cannot be split"):
        partition("iid", np.zeros(10, dtype=np.int64), 11, 0)
