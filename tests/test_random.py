from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hush.random import derive, fold, keys_of, uniform, words


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=8, unique=True))
def test_a_lone_client_draws_what_it_draws_in_a_cohort(seed: int, ids: list[int]) -> None:
    together = words(fold(keys_of(seed, torch.tensor(ids)), 3), 5)
    for row, client in zip(together, ids, strict=True):
        assert torch.equal(words(fold(keys_of(seed, torch.tensor([client])), 3), 5)[0], row)


def test_numbers_are_fixed_for_good() -> None:
    """A change here would change every mask on every client: both sides must agree across versions."""
    assert words(keys_of(7, torch.tensor([0, 1])), 2).tolist() == [
        [-6153282833771507825, -2092927546676318641],
        [3419706939306805076, 7016891196601615138],
    ]
    assert derive(5, 6, 7) == 5615314204506566082
    assert fold(torch.tensor(3), 4).item() == -6511062780213637814


def test_no_two_names_share_a_stream() -> None:
    """Seed and word play different roles: derive(1, 2) is not derive(2, 1), and keys neither."""
    assert len({derive(a, b) for a in range(60) for b in range(60)}) == 3600
    assert len({derive(1, a, b) for a in range(60) for b in range(60)}) == 3600
    keys = torch.cat([keys_of(seed, torch.arange(60)) for seed in range(60)])
    assert len(set(keys.tolist())) == 3600
    assert fold(torch.tensor(9), 4).item() == fold(torch.tensor(9), torch.tensor(4)).item()


def test_uniforms_are_uniform_and_streams_independent() -> None:
    keys = keys_of(1, torch.arange(200))
    a, b = uniform(fold(keys, 0), (100,)), uniform(fold(keys, 1), (100,))
    assert stats.kstest(a.flatten().numpy(), "uniform").pvalue > 1e-4
    assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.03
    along_clients = torch.corrcoef(torch.stack([a[:-1].flatten(), a[1:].flatten()]))[0, 1]
    assert abs(along_clients) < 0.03


def test_uniform_takes_a_shape() -> None:
    assert uniform(keys_of(0, torch.arange(3)), (2, 4)).shape == (3, 2, 4)
    assert uniform(torch.tensor(5), (2, 4)).shape == (2, 4)
