"""DP-SGD inside local training against loops written by hand, and the secret batches that it rests on."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from hush import UsageError
from hush.core import Round, Shard
from hush.local.dp_sgd import DpSgd
from hush.local.flat import FlatModel
from hush.local.per_example import CoordinateClip, L2Clip
from hush.local.records import record_batches
from hush.own import OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.tasks.task import Clients
from hush.transforms.own_mask import OwnRandK

RND = Round(3, 5, 2.0)
SECRET = Secret(bytes(range(32)))


def task(sizes: tuple[int, ...] = (9, 4, 6), seed: int = 0) -> tuple[FlatModel, Clients]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    clients = Clients(torch.randn(sum(sizes), 5).double(), torch.randint(3, (sum(sizes),)), torch.tensor(sizes))
    return FlatModel(model, nn.CrossEntropyLoss(reduction="none"), dtype=torch.float64), clients


def shard(clients: Clients, ids: list[int]) -> Shard:
    return clients.shard(torch.tensor(ids))._replace(own=OwnSecrets.simulated(SECRET, ids))


def by_hand(local: DpSgd, learner: FlatModel, data: Shard, client: int, key: Tensor) -> Tensor:
    """One client, one record at a time, with autograd: the paper's algorithm, line by line."""
    assert data.own is not None
    assert isinstance(local.clip, L2Clip)
    own = Shard(data.x, data.y, data.start[client : client + 1], data.size[client : client + 1], data.own.pick([client]))
    theta = learner.initial()
    dim = len(theta)
    mask = torch.ones(dim, dtype=torch.float64)
    places = torch.arange(dim)[None]
    if local.mask is not None:
        places = local.mask.places(key[None], dim)
        mask = torch.zeros(dim, dtype=torch.float64)
        mask[places[0]] = 1.0
    normals = own.own.normals("gradient", RND.index, places.shape[1], theta) if own.own is not None else None
    for batch in record_batches(own, RND, local.records, local.batch_size, local.steps):
        total = torch.zeros_like(theta)
        for row in batch.rows[0][batch.real[0]]:
            weights = theta.clone().requires_grad_()
            names = learner.named(weights)
            out = torch.func.functional_call(learner.module, names, (data.x[row][None],))
            (gradient,) = torch.autograd.grad(learner.loss(out, data.y[row][None]).sum(), weights)
            gradient = gradient * mask
            total += gradient * min(1.0, local.clip.norm / float(gradient.norm()))
        if local.noise and normals is not None:
            total[places[0]] += local.noise * local.clip.norm * normals.draw()[0]
        theta = theta - local.lr / (float(mask.sum()) / dim) * total / local.batch_size
    return learner.initial() - theta


@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize("ratio", [None, 0.4])
@pytest.mark.parametrize("records", ["fixed", "poisson"])
def test_it_is_the_algorithm_that_papers_write(noise: float, ratio: float | None, records: str) -> None:
    """Mask fixed and noise off, then noise on with the very same draws, in float64."""
    learner, clients = task()
    mask = None if ratio is None else OwnRandK(ratio)
    local = DpSgd(lr=0.3, batch_size=3, steps=4, clip=L2Clip(0.2), noise=noise, records=records, mask=mask)
    data, keys = shard(clients, [0, 1, 2]), keys_of(7, torch.arange(3))
    updates = local(learner, learner.initial(), data, RND, keys, None).updates
    for client in range(3):
        expected = by_hand(local, learner, data, client, keys[client])
        assert (updates[client] - expected).norm() < 1e-9 * expected.norm(), client


def test_three_numbers_by_hand() -> None:
    """Gradients (3, 4), (0, 1) and (0, 0), clipped to 1: (0.6, 0.8) + (0, 1) + (0, 0), over B = 3."""
    learner = FlatModel(nn.Linear(2, 1, bias=False), lambda out, y: (out + 0 * y)[:, 0], dtype=torch.float64)
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    clients = Clients(x, torch.zeros(3, 1, dtype=torch.float64), torch.tensor([3]))
    for clip, expected in ((L2Clip(1.0), (0.6, 1.8)), (CoordinateClip(0.5), (0.5, 1.0))):
        local = DpSgd(lr=1.0, batch_size=3, steps=1, clip=clip, noise=0.0)
        update = local(learner, learner.initial(), shard(clients, [0]), RND, torch.tensor([1]), None).updates[0]
        assert update.tolist() == pytest.approx([v / 3 for v in expected], rel=1e-9)
    # a smaller batch than B is still divided by B: the divisor is a constant
    few = Clients(x[:2], torch.zeros(2, 1, dtype=torch.float64), torch.tensor([2]))
    update = DpSgd(lr=1.0, batch_size=3, steps=1, noise=0.0)(
        learner, learner.initial(), shard(few, [0]), RND, torch.tensor([1]), None
    ).updates[0]
    assert update.tolist() == pytest.approx([0.2, 0.6], rel=1e-9)


def test_a_client_is_the_same_alone_and_in_a_cohort() -> None:
    learner, clients = task()
    local = DpSgd(lr=0.3, batch_size=3, steps=5, noise=0.5, mask=OwnRandK(0.5), records="poisson")
    keys = keys_of(7, torch.arange(3))
    together = local(learner, learner.initial(), shard(clients, [0, 1, 2]), RND, keys, None).updates
    for client in range(3):
        alone = local(learner, learner.initial(), shard(clients, [client]), RND, keys[client : client + 1], None).updates
        assert torch.allclose(together[client], alone[0], atol=1e-12)


def test_noise_lands_on_the_mask_alone_and_is_the_clients_own() -> None:
    learner, clients = task()
    local = DpSgd(noise=1.0, mask=OwnRandK(0.3), steps=2)
    keys = keys_of(7, torch.arange(3))
    updates = local(learner, learner.initial(), shard(clients, [0, 1, 2]), RND, keys, None).updates
    places = OwnRandK(0.3).places(keys, learner.dim)
    for update, own in zip(updates, places, strict=True):
        assert set(torch.nonzero(update).flatten().tolist()) == set(own.tolist())
    other = clients.shard(torch.arange(3))._replace(own=OwnSecrets.simulated(Secret(bytes(32)), [0, 1, 2]))
    assert not torch.allclose(local(learner, learner.initial(), other, RND, keys, None).updates, updates)


def test_noise_has_the_stated_scale_and_a_wrong_one_is_noticed() -> None:
    """Records without a gradient: the update is lr / B times the sum of the steps' noise."""
    learner = FlatModel(nn.Linear(20_000, 1, bias=False), lambda out, y: (out + 0 * y)[:, 0])
    clients = Clients(torch.zeros(2, 20_000), torch.zeros(2, 1), torch.tensor([2]))
    local = DpSgd(lr=0.5, batch_size=4, steps=3, clip=L2Clip(2.0), noise=1.5)
    update = local(learner, learner.initial(), shard(clients, [0]), RND, torch.tensor([1]), None).updates[0].double()
    scale = 0.5 / 4 * math.sqrt(3) * 1.5 * 2.0
    assert stats.kstest((update / scale).numpy(), "norm").pvalue > 1e-4
    assert stats.kstest((update / scale / 1.05).numpy(), "norm").pvalue < 1e-4
    coordinate = replace(local, clip=CoordinateClip(2.0 / math.sqrt(20_000)))  # the same reach
    again = coordinate(learner, learner.initial(), shard(clients, [0]), RND, torch.tensor([1]), None).updates[0].double()
    assert torch.allclose(again, update, rtol=1e-5)


def draws(kind: str, size: int, batch: int, steps: int, index: int = 0) -> list[np.ndarray]:
    data = Shard(torch.zeros(size, 1), torch.zeros(size), torch.tensor([0]), torch.tensor([size]), OwnSecrets((SECRET,)))
    found = record_batches(data, Round(index, 0, 1.0), kind, batch, steps)
    return [b.rows[0][b.real[0]].numpy() for b in found]


def test_fixed_batches_are_uniform_subsets_drawn_anew() -> None:
    found = draws("fixed", 12, 4, 3000)
    assert all(len(set(rows)) == 4 for rows in found)
    counts = np.bincount(np.concatenate(found), minlength=12)
    assert stats.chisquare(counts).pvalue > 1e-4
    pairs = np.zeros((12, 12))
    for before, after in itertools.pairwise(found):  # no step depends on the one before
        pairs[np.ix_(before, after)] += 1
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
    assert [r.tolist() for r in draws("fixed", 12, 4, 5)] == [r.tolist() for r in found[:5]]
    assert [r.tolist() for r in draws("fixed", 12, 4, 5, index=1)] != [r.tolist() for r in found[:5]]


def test_poisson_batches_have_binomial_sizes() -> None:
    sizes = np.array([len(rows) for rows in draws("poisson", 30, 6, 4000)])
    seen = np.bincount(sizes, minlength=31)
    expected = stats.binom.pmf(np.arange(31), 30, 0.2) * 4000
    keep = expected > 5
    assert stats.chisquare(seen[keep], expected[keep] * seen[keep].sum() / expected[keep].sum()).pvalue > 1e-4
    assert abs(sizes.mean() - 6) < 0.2


@pytest.mark.parametrize("kind", ["fixed", "poisson"])
def test_small_clients_read_everything_and_empty_ones_nothing(kind: str) -> None:
    data = Shard(torch.zeros(5, 1), torch.zeros(5), torch.tensor([0, 2, 5]), torch.tensor([2, 3, 0]))
    data = data._replace(own=OwnSecrets.simulated(SECRET, [0, 1, 2]))
    for batch in record_batches(data, RND, kind, 4, 3):
        assert batch.real.sum(1).tolist() == [2, 3, 0]
        assert batch.rows[1][batch.real[1]].tolist() == [2, 3, 4]
        assert int(batch.rows.max()) < 5


def test_what_it_refuses() -> None:
    learner, clients = task()
    for settings in ({"lr": 0.0}, {"batch_size": 0}, {"steps": 0}, {"noise": -1.0}, {"records": "shuffle"}, {"momentum": 1.0}):
        with pytest.raises(UsageError):
            DpSgd(**settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="own secrets"):
        DpSgd(noise=1.0)(learner, learner.initial(), clients.shard(torch.arange(2)), RND, torch.arange(2), None)
    with pytest.raises(UsageError, match="noise is not set"):
        DpSgd()(learner, learner.initial(), shard(clients, [0]), RND, torch.arange(1), None)
