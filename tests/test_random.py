from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hush.local.own_rows import kept
from hush.random import coins, derive, fold, keys_of, mix, orders, uniform, word_at, words


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


@given(st.integers(0, 2**40), st.floats(0, 1), st.integers(1, 9))
def test_coins_are_the_same_alone_and_in_a_cohort(seed: int, share: float, count: int) -> None:
    keys = keys_of(seed, torch.arange(3))
    together = coins(keys, (2, count), share)
    assert together.shape == (3, 2, count)
    assert torch.equal(torch.func.vmap(lambda key: coins(key, (2, count), share))(keys), together)
    for key, row in zip(keys, together, strict=True):
        assert torch.equal(coins(key, (2, count), share), row)


def test_coins_have_their_chance_and_do_not_hang_together() -> None:
    """Four come from one word: neither they nor neighbouring words may tell about each other."""
    for share in (0.1, 0.5, 0.75):
        drawn = coins(keys_of(4, torch.arange(50)), (4000,), share)
        heads = int(drawn.sum())
        assert stats.binomtest(heads, drawn.numel(), share).pvalue > 1e-4
        assert stats.binomtest(heads, drawn.numel(), share + 0.01).pvalue < 1e-4  # a chance that is off is seen
        for apart in (1, 2, 3, 4, 8):
            pairs = torch.stack([drawn[:, :-apart].flatten(), drawn[:, apart:].flatten()]).double()
            assert abs(torch.corrcoef(pairs)[0, 1]) < 4.5 / len(pairs[0]) ** 0.5
    assert not coins(keys_of(0, torch.arange(2)), (9,), 0.0).any()
    assert coins(keys_of(0, torch.arange(2)), (9,), 1.0).all()


@given(st.floats(0, 1))
def test_dropout_keeps_the_mean(p: float) -> None:
    """Exactly: it is scaled by the chance that its coins have, not by the one that was asked for."""
    mask = kept(keys_of(1, torch.arange(1)), (64,), p, torch.float64)
    share = round((1 - p) * 2**16) / 2**16
    assert set(mask.flatten().tolist()) <= {0.0, 1 / share if share else 0.0}


def test_uniform_takes_a_shape() -> None:
    assert uniform(keys_of(0, torch.arange(3)), (2, 4)).shape == (3, 2, 4)
    assert uniform(torch.tensor(5), (2, 4)).shape == (2, 4)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_orders_are_shuffles_by_the_words_of_each_key(sizes: list[int], seed: int) -> None:
    """However they are sorted: a word decides, and a device has no other way of sorting than this."""
    keys = keys_of(seed, torch.arange(len(sizes)))
    found = torch.split(orders(keys, torch.tensor(sizes)), sizes)
    for key, size, order in zip(keys, sizes, found, strict=True):
        place = torch.arange(size)
        assert torch.equal(order, (word_at(key, place) >> 24).argsort(stable=True))
        assert torch.equal(order.sort().values, place)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_words_are_mixed_alike_by_numpy_and_by_torch(words: list[int]) -> None:
    x = torch.tensor(words, dtype=torch.int64)
    within = torch.vmap(mix)(x) if words else x  # within vmap there is nothing that numpy could read
    assert torch.equal(mix(x), within)
    for one, mixed in zip(x, mix(x), strict=True):
        assert torch.equal(mix(one), mixed)
