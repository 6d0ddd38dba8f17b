"""Exact noise inside local training: whole numbers record by record, summed exactly, under noise that is the client's own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from hush import UsageError
from hush.audit.statistics import scale_alarm
from hush.core import Round
from hush.exact_noise import RoundedGaussian
from hush.local.dp_sgd import DpSgd, Read
from hush.local.flat import FlatModel
from hush.local.grid import grid_of
from hush.local.per_example import ClipRule, CoordinateClip, L2Clip, places_at_once
from hush.local.record_gradients import RecordGradients
from hush.local.records import drawn_records, in_places
from hush.own import OwnIntegers, OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.tasks.task import Clients
from hush.transforms.own_mask import OwnRandK
from tests.local.test_dp_sgd import RND, SECRET, shard, task

CLIPS: list[ClipRule] = [L2Clip(0.3), CoordinateClip(0.02)]


def norm_in_integers(row: Tensor) -> int:
    return sum(v * v for v in row.tolist())  # Python's integers cannot round


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 600),
    st.booleans(),
    st.floats(1e-9, 1e9),
    st.floats(0, 7000),
    st.floats(-30, 30),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_no_row_is_longer_than_the_radius(
    entries: int, l2: bool, clip: float, noise: float, size: float, dtype: torch.dtype, seed: int
) -> None:
    grid = grid_of(L2Clip(clip) if l2 else CoordinateClip(clip), entries, noise)
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(6, entries, generator=g, dtype=dtype) * 10.0**size
    rows[1] = 0
    rows[1, 0] = 3e38
    rows[2] = rows[2].sign() * clip  # every rounding to the same side
    rows[3, 0], rows[4, -1] = math.nan, math.inf
    whole = grid.encode(rows)
    assert whole.dtype == torch.int64
    assert all(norm_in_integers(row) <= grid.radius**2 for row in whole)
    assert not bool(whole[3:5].any())
    if not l2:
        assert float(whole.abs().max()) * grid.step <= clip * (1 + 1e-12)
    usual = clip if l2 else clip * math.sqrt(entries)
    assert usual * (1 - 1e-12) <= grid.radius * grid.step <= usual * 1.01  # little is given away


@pytest.mark.parametrize("clip", CLIPS)
def test_a_row_is_the_clipped_gradient_to_half_a_step(clip: ClipRule) -> None:
    grid, rows = grid_of(clip, 50, 1.0), torch.randn(8, 50, dtype=torch.float64)
    if isinstance(clip, L2Clip):
        wanted = rows * (clip.norm / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)
    else:
        wanted = rows.clamp(-clip.most, clip.most)
    assert float((grid.encode(rows) * grid.step - wanted).abs().max()) < 0.51 * grid.step + 1e-5 * float(wanted.abs().max())


def image_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Unflatten(1, (1, 5, 5)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3))


LEARNER = FlatModel(image_model(), nn.CrossEntropyLoss(reduction="none"))


def sum_of(local: DpSgd, clients: Clients, chosen: list[list[int]]) -> Tensor:
    """Of these records of each client, in single precision, where last bits are large."""
    data, keys = shard(clients, list(range(len(chosen)))), keys_of(7, torch.arange(len(chosen)))
    batch = in_places(data, [np.array(own, dtype=np.int64) for own in chosen], places_at_once(LEARNER, len(chosen)))
    params = LEARNER.initial().expand(len(chosen), -1).clone()
    return local.sums(LEARNER, params, Read.of(data, batch, keys, local.active(keys, LEARNER.dim))).sums


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(CLIPS), st.sampled_from([None, 0.05, 0.5]), st.floats(-3, 3), st.data(), st.integers(0, 2**31))
def test_one_record_less_changes_the_sum_by_its_own_row(
    clip: ClipRule, ratio: float | None, size: float, data: Any, seed: int
) -> None:
    """To the last whole number, whichever other records and clients are there, and whatever they hold."""
    local = DpSgd(clip=clip, exact=True, mask=None if ratio is None else OwnRandK(ratio))
    g, sizes = torch.Generator().manual_seed(seed), (40, 9)
    x = torch.randn(sum(sizes), 25, generator=g) * 10.0**size
    clients = Clients(x, torch.randint(3, (sum(sizes),), generator=g), torch.tensor(sizes))
    drawn = sorted(data.draw(st.sets(st.integers(0, 39), min_size=2, max_size=20)))
    victim = data.draw(st.sampled_from(drawn))
    others = [i for i in drawn if i != victim]
    whole, less, row = (sum_of(local, clients, [own, [0, 5]]) for own in (drawn, others, [victim]))
    assert whole.dtype == torch.int64
    assert torch.equal(whole[0] - less[0], row[0])
    assert torch.equal(whole[1], less[1])
    assert norm_in_integers(row[0]) <= local.grid(LEARNER.dim).radius ** 2
    assert int((row[0] != 0).sum()) <= local.entries(LEARNER.dim)
    if size < 2:  # a record does something
        assert bool(row[0].any())


def test_so_it_is_under_a_secure_sum() -> None:
    """Records' gradients add up in the same way there."""
    local, grid = RecordGradients(0.2), grid_of(L2Clip(1.0), LEARNER.dim, 1.0)
    clients = Clients(torch.randn(30, 25), torch.randint(3, (30,)), torch.tensor([30]))
    data, keys = shard(clients, [0]), keys_of(7, torch.arange(1))

    def total(numbers: list[int]) -> Tensor:
        batch = in_places(data, [np.array(numbers)], places_at_once(LEARNER, 1))
        return local.of_records(LEARNER, LEARNER.initial(), data, batch, keys, lambda rows, own: grid.encode(rows)).updates

    for left in range(30):
        assert torch.equal(total(list(range(30))), total([i for i in range(30) if i != left]) + total([left]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 99), max_size=30), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 4))
def test_every_record_has_a_place_of_its_own(chosen: list[set[int]], width: int, blocks: int) -> None:
    data, _ = shard(Clients(torch.zeros(400, 1), torch.zeros(400), torch.tensor([100] * 4)), list(range(len(chosen)))), None
    batch = in_places(data, [np.array(sorted(own), dtype=np.int64) for own in chosen], width, blocks)
    assert batch.rows.shape[1] % width == 0
    assert batch.rows.shape[1] >= blocks * width
    for client, own in enumerate(chosen):
        real = batch.real[client].nonzero()[:, 0]
        numbers = (batch.rows[client] - data.start[client])[real]
        assert sorted(numbers.tolist()) == sorted(own)
        assert torch.equal(numbers % width, real % width)


def test_the_draws_are_those_of_floating_point() -> None:
    data = shard(Clients(torch.zeros(60, 1), torch.zeros(60), torch.tensor([40, 20])), [0, 1])
    first, second = (list(drawn_records(data, RND, "poisson", 5, 7)) for _ in range(2))
    assert all(np.array_equal(a, b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("noise", [0.0, 1e-7])
@pytest.mark.parametrize("ratio", [None, 0.4])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("records", ["fixed", "poisson"])
def test_training_ends_where_floating_point_does(noise: float, ratio: float | None, clip: ClipRule, records: str) -> None:
    learner, clients = task()
    mask = None if ratio is None else OwnRandK(ratio)
    fast = DpSgd(lr=0.3, batch_size=3, steps=4, clip=clip, noise=noise, records=records, mask=mask, momentum=0.5)
    data, keys = shard(clients, [0, 1, 2]), keys_of(7, torch.arange(3))
    one, two = (local(learner, learner.initial(), data, RND, keys, None) for local in (fast, replace(fast, exact=True)))
    assert (one.updates - two.updates).norm() < 2e-5 * one.updates.norm()
    assert torch.allclose(one.losses, two.losses)


def bare(dim: int, clients: int = 1) -> tuple[FlatModel, Clients]:
    """Records without a gradient: what is left is noise."""
    learner = FlatModel(nn.Linear(dim, 1, bias=False), lambda out, y: (out + 0 * y)[:, 0], dtype=torch.float64)
    x = torch.zeros(2 * clients, dim, dtype=torch.float64)
    return learner, Clients(x, torch.zeros(2 * clients, 1, dtype=torch.float64), torch.full((clients,), 2))


@pytest.mark.parametrize("clip", [L2Clip(2.0), CoordinateClip(0.01)])
def test_noise_is_whole_numbers_of_the_stated_scale_and_a_wrong_one_is_noticed(clip: ClipRule) -> None:
    learner, clients = bare(20_000)
    local = DpSgd(lr=0.5, batch_size=4, steps=3, clip=clip, noise=1.5, exact=True)
    grid = local.grid(20_000)
    update = local(learner, learner.initial(), shard(clients, [0]), RND, torch.tensor([1]), None).updates[0]
    whole = (update / (0.5 / 4 * grid.step)).numpy()
    assert np.abs(whole - np.rint(whole)).max() < 1e-4
    z = whole / (math.sqrt(3) * 1.5 * grid.radius)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert not scale_alarm(float((z**2).sum()), len(z))
    assert scale_alarm(float(((1.05 * z) ** 2).sum()), len(z))
    assert local.std(20_000) == pytest.approx(1.5 * grid.radius * grid.step)  # what the plan is told


def test_noise_is_fresh_for_every_step_client_and_round() -> None:
    law = RoundedGaussian(1000.0)
    own = OwnSecrets.simulated(SECRET, [4, 9])
    steps = [own.integers("gradient", index, law, 500) for index in (0, 1)]
    rows = torch.cat([draws.draw() for draws in steps for _ in range(3)]).double()
    overlap = (rows @ rows.T / (500 * 1000.0**2)).fill_diagonal_(0).abs().max()
    assert float(overlap) < 6 / math.sqrt(500)
    assert float((rows / 1000).square().mean()) == pytest.approx(1.0, abs=0.1)
    again = OwnSecrets.simulated(SECRET, [9]).integers("gradient", 0, law, 500)
    assert [torch.equal(again.draw()[0], rows[2 * step + 1].long()) for step in range(3)] == [True] * 3  # whoever is beside it
    others: list[OwnIntegers] = [
        OwnSecrets.simulated(Secret(bytes(32)), [9]).integers("gradient", 0, law, 500),
        OwnSecrets.simulated(SECRET, [9]).integers("another", 0, law, 500),
        OwnSecrets.simulated(SECRET, [9]).integers("gradient", 0, RoundedGaussian(1000.1), 500),
    ]
    assert not any(torch.equal(other.draw()[0], rows[1].long()) for other in others)


@pytest.mark.parametrize("memory", [1, 2**29])
def test_a_client_is_the_same_alone_in_a_cohort_and_with_little_memory(memory: int) -> None:
    learner, clients = task((9, 40, 6))
    local = DpSgd(lr=0.3, batch_size=3, steps=5, noise=0.5, mask=OwnRandK(0.5), records="poisson", exact=True)
    keys = keys_of(7, torch.arange(3))
    together = local(learner, learner.initial(), shard(clients, [0, 1, 2]), RND, keys, None).updates
    little = learner.with_memory(memory)
    for client in range(3):
        alone = local(little, learner.initial(), shard(clients, [client]), RND, keys[client : client + 1], None).updates
        assert torch.equal(together[client], alone[0])


def test_a_model_that_cannot_be_vectorised_goes_record_by_record() -> None:
    learner, clients = task()
    local = DpSgd(lr=0.3, batch_size=3, steps=2, exact=True, noise=0.0)
    data, keys = shard(clients, [0, 1, 2]), keys_of(7, torch.arange(3))
    updates = local(learner, learner.initial(), data, RND, keys, None).updates
    slow = local(learner.one_by_one(), learner.initial(), data, RND, keys, None).updates
    assert torch.allclose(updates, slow, atol=1e-5)


def test_noise_beyond_every_grid_is_refused_with_a_fix() -> None:
    with pytest.raises(UsageError, match="--noise-mode fast"):
        grid_of(L2Clip(1.0), 10, 1e6)
    assert grid_of(L2Clip(1.0), 10, 5000.0).radius < grid_of(L2Clip(1.0), 10, 1.0).radius
    assert grid_of(L2Clip(1.0), 2**23, 1.0).radius == 2**19  # 64 bits hold the squares of no more


def test_an_empty_client_sends_noise_alone() -> None:
    learner, clients = bare(3000)
    clients = replace(clients, sizes=torch.tensor([0, 2]))
    local = DpSgd(noise=1.0, exact=True, batch_size=4)
    data = shard(clients, [0, 1])
    updates = local(learner, learner.initial(), data, Round(0, 0, 1.0), keys_of(7, torch.arange(2)), None).updates
    assert stats.kstest((updates / updates.std()).flatten().numpy(), "norm").pvalue > 1e-4
    assert float(updates[0].std()) == pytest.approx(float(updates[1].std()), rel=0.1)
