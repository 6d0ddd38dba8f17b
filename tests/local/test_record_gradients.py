"""Records that are encoded one by one: what a client sends is the sum of its drawn records' rows, and of nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from hush import UsageError
from hush.core import Chain, Round, Shard, chain
from hush.local.flat import FlatModel
from hush.local.record_gradients import RecordGradients
from hush.own import OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.tasks.clients import Clients
from hush.transforms import Clip, Discretize

RND = Round(3, 5, 2.0)
BITS = 16


def pipeline(clip: float) -> Chain:
    return chain(Clip(clip), Discretize(BITS, nearest=True))


def learner(features: int = 4) -> FlatModel:
    """Half the square of the output: the gradient of a record is its output times itself."""
    model = nn.Linear(features, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    return FlatModel(model, lambda out, y: 0.5 * ((out - y) ** 2)[:, 0], dtype=torch.float64)


def shard(x: Tensor, sizes: tuple[int, ...], y: Tensor | None = None, index: int = 0) -> Shard:
    clients = Clients(x, torch.zeros(len(x), 1, dtype=x.dtype) if y is None else y, torch.tensor(sizes))
    ids = list(range(len(sizes)))
    return clients.shard(torch.tensor(ids))._replace(own=OwnSecrets.simulated(Secret(index.to_bytes(32, "big")), ids))


def messages(x: Tensor, sizes: tuple[int, ...], rate: float, clip: float = 1.0, memory: int = 2**29, index: int = 0) -> Tensor:
    own, told = learner(x.shape[1]).with_memory(memory), pipeline(clip)
    public = (None,) * len(told.parts)
    local, keys = RecordGradients(rate), keys_of(1, torch.arange(len(sizes)))
    data = shard(x, sizes, index=index)
    return local.messages(own, own.initial(), data, RND, keys, lambda rows, each: told.encode(rows, RND, each, public)).updates


def by_hand(record: Tensor, clip: float) -> Tensor:
    """One record's row: its gradient, clipped, scaled to the ball of radius 2^16 and rounded."""
    gradient = float(record.sum() * 0.5) * record
    shorter = gradient * min(1.0, clip / max(float(gradient.norm()), 1e-300))
    return (shorter * (2**BITS - math.sqrt(len(record)) / 2 - 1) / clip).round()


def test_a_message_is_the_sum_of_its_records_rows() -> None:
    x = torch.tensor([[1.0, 2, 0, 0], [0, 0, 3, 4], [0.1, 0, 0, 0], [5, 0, 5, 0], [0, 1, 0, -1]], dtype=torch.float64)
    found = messages(x, (3, 2), rate=1.0)
    assert found.dtype == torch.int64
    for client, rows in enumerate((x[:3], x[3:])):
        expected = torch.stack([by_hand(row, 1.0) for row in rows]).sum(0)
        assert int((found[client] - expected.long()).abs().max()) <= len(rows)  # the clip keeps a hair's breadth for rounding
    assert torch.equal(found[1], messages(x[3:], (2,), 1.0)[0])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e25, 1e25), min_size=4, max_size=4), st.sampled_from([1e-6, 1.0, 1e4]), st.integers(0, 4))
def test_a_record_moves_the_message_by_its_own_row_which_is_no_longer_than_the_clip(
    values: list[float], clip: float, place: int
) -> None:
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)
    x[place] = torch.tensor(values, dtype=torch.float64)
    without = x.clone()
    without[place] = 0.0  # a record of nothing adds nothing
    moved = messages(x, (5,), 1.0, clip)[0] - messages(without, (5,), 1.0, clip)[0]
    assert int((moved * moved).sum()) <= 2 ** (2 * BITS)
    assert torch.equal(moved, messages(x[place : place + 1], (1,), 1.0, clip)[0])


def test_one_that_is_not_finite_adds_nothing() -> None:
    x = torch.ones(3, 4, dtype=torch.float64)
    x[1, 0] = torch.nan
    assert torch.equal(messages(x, (3,), 1.0)[0], 2 * messages(x[:1], (1,), 1.0)[0])


@pytest.mark.parametrize("sizes", [(2000, 500, 1, 0), (700,)])
def test_pieces_do_not_change_the_sum(sizes: tuple[int, ...]) -> None:
    x = torch.randn(sum(sizes), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = messages(x, sizes, 0.1)
    assert torch.equal(whole, messages(x, sizes, 0.1, memory=80 * 4 * len(sizes) * 7))
    if 0 in sizes:
        assert not whole[-1].any()


def drawn(size: int, rate: float, rounds: int) -> np.ndarray:
    """Which records were in: record i is a step along the first axis for every bit of i, so that a sum tells who they were."""
    hits = np.zeros((rounds, size), dtype=bool)
    for index in range(rounds):
        x = torch.eye(size, dtype=torch.float64) * 2
        hits[index] = messages(x, (size,), rate, index=index)[0].numpy() != 0
    return hits


def test_every_record_has_its_own_coin_of_one_chance() -> None:
    hits = drawn(40, 0.3, 200)
    assert stats.binomtest(int(hits.sum()), hits.size, 0.3).pvalue > 1e-6
    assert stats.binomtest(int(hits.sum()), hits.size, 0.27).pvalue < 1e-6, "a tenth less would show"
    counts = np.bincount(hits.sum(1), minlength=41)
    assert (
        stats.chisquare([counts[:12].sum(), counts[12:].sum()], 200 * np.diff([0, *stats.binom.cdf([11, 40], 40, 0.3)])).pvalue
        > 1e-6
    )
    assert np.abs(np.corrcoef(hits.T) - np.eye(40)).max() < 6 / math.sqrt(200)


def test_the_chance_is_the_same_at_a_small_client() -> None:
    """And not batch_size over its own records: a server could not count on one that differs unnoticed."""
    hits = drawn(4, 0.3, 400)
    assert stats.binomtest(int(hits.sum()), hits.size, 0.3).pvalue > 1e-6


def test_as_much_is_worked_on_however_many_were_drawn() -> None:
    """Time must not tell: the shapes of all blocks follow from size and rate alone."""
    seen = set()
    for index in range(30):
        own, told = learner(), pipeline(1.0)
        shapes: list[tuple[int, ...]] = []

        def encode(rows: Tensor, each: Tensor, shapes: list[tuple[int, ...]] = shapes, told: Chain = told) -> Tensor:
            shapes.append(tuple(rows.shape))
            return told.encode(rows, RND, each, (None, None))

        data = shard(torch.ones(100, 4, dtype=torch.float64), (100,), index=index)
        RecordGradients(0.05).messages(own, own.initial(), data, RND, keys_of(1, torch.arange(1)), encode)
        seen.add(tuple(shapes))
    assert len(seen) == 1
    assert seen.pop()[0][0] < 100


def test_what_cannot_be_is_refused() -> None:
    for rate in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(UsageError, match="rate"):
            RecordGradients(rate)
    x = torch.ones(2, 4, dtype=torch.float64)
    own, data = learner(), shard(x, (2,))._replace(own=None)
    with pytest.raises(UsageError, match="secrets"):
        RecordGradients(0.5).messages(own, own.initial(), data, RND, keys_of(1, torch.arange(1)), lambda rows, each: rows)
