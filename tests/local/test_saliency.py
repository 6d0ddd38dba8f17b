"""LUS: which coordinates of an update stay, by hand and against what dropping one does to the loss; weights by size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hush
from hush import NoGuarantee, Round, UsageError, methods
from hush.core import LocalUpdate, Public, Shard, Trained
from hush.local import FlatModel, Sgd
from hush.local.saliency import Saliency, gradient_over_all, most_salient
from hush.local.weigh import Weigh
from hush.random import keys_of
from tests.conftest import make_task

F64 = torch.float64


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum(1) / 2


class Fixed(LocalUpdate):
    """Sends the same update whatever the data."""

    def __init__(self, update: list[float]) -> None:
        self.update = torch.tensor(update, dtype=F64)

    def __call__(
        self, learner: FlatModel, params: torch.Tensor, data: Shard, rnd: Round, keys: torch.Tensor, public: Public
    ) -> Trained:
        return Trained(self.update.expand(len(keys), -1).clone(), torch.zeros(len(keys)))


def test_by_hand() -> None:
    """One linear layer y = w.x, two examples; w = w_0 - update, dL/dw = mean of (w.x - y) x."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, 1.0]]))
    learner = FlatModel(model, squared, dtype=F64)
    x, y = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], dtype=F64), torch.tensor([[0.0], [1.0]], dtype=F64)
    shard = Shard(x, y, torch.tensor([0]), torch.tensor([2]))
    update = [0.5, -1.0, 0.25]
    # w = (0.5, 2, 0.75): residuals 2 and 1.75; dL/dw = (1, 0.875, 2.875); T = (0.5, 0.875, 0.71875)
    gradient = gradient_over_all(
        learner, learner.initial()[None] - torch.tensor([update], dtype=F64), shard, keys_of(0, torch.arange(1)), 1
    )
    assert gradient.tolist() == [[1.0, 0.875, 2.875]]
    for sparsity, expected in ((2 / 3, [0.0, -1.0, 0.0]), (1 / 3, [0.0, -1.0, 0.25]), (0.0, update)):
        local = Saliency(Fixed(update), sparsity)
        got = local(learner, learner.initial(), shard, Round(0, 0, 1.0), keys_of(0, torch.arange(1)), None).updates
        assert got.tolist() == [expected]


def test_saliency_is_what_dropping_a_coordinate_does_to_the_loss() -> None:
    """To first order: L(w with coordinate i put back) - L(w) = dL/dw_i (w_0 - w)_i."""
    task = make_task(sizes=(12,))
    learner, train = task.learner("cpu", F64), task.placed_train("cpu", F64)
    shard, keys = train.shard(torch.arange(1)), keys_of(0, torch.arange(1))
    update = 1e-4 * torch.randn(1, learner.dim, generator=torch.Generator().manual_seed(0), dtype=F64)
    weights = learner.initial()[None] - update
    scores = (gradient_over_all(learner, weights, shard, keys, 5) * update)[0]

    def loss(w: torch.Tensor) -> float:
        return float(learner.scores(w, shard.x, shard.y).losses.mean())

    for i in range(learner.dim):
        restored = weights[0].clone()
        restored[i] += update[0, i]
        assert loss(restored) - loss(weights[0]) == pytest.approx(float(scores[i]), abs=1e-8)


def test_clients_of_unequal_size_each_alone() -> None:
    """A padded row, a neighbour, the size of a batch: none of them matters."""
    task = make_task(sizes=(5, 0, 8, 1))
    learner, train = task.learner("cpu", F64), task.placed_train("cpu", F64)
    ids = torch.arange(4)
    weights = learner.initial() + 0.1 * torch.randn(4, learner.dim, generator=torch.Generator().manual_seed(1), dtype=F64)
    together = gradient_over_all(learner, weights, train.shard(ids), keys_of(0, ids), 3)
    assert torch.allclose(together, gradient_over_all(learner, weights, train.shard(ids), keys_of(0, ids), 100), atol=1e-12)
    for i in range(4):
        alone = gradient_over_all(learner, weights[i : i + 1], train.shard(ids[i : i + 1]), keys_of(0, ids[i : i + 1]), 3)
        assert torch.allclose(together[i : i + 1], alone, atol=1e-12)
    assert not together[1].any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.0, 0.99), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans())
def test_so_many_of_every_layer_and_the_largest(seed: int, sparsity: float, sizes: list[int], ties: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, sum(sizes), generator=g)
    scores = scores.round() if ties else scores
    layers, first = [], 0
    for size in sizes:
        layers.append(slice(first, first + size))
        first += size
    kept = most_salient(scores, layers, sparsity)
    for layer, size in zip(layers, sizes, strict=True):
        most = max(1, round((1 - sparsity) * size))
        assert kept[:, layer].sum(1).tolist() == [most] * 3
        for row, chosen in zip(scores[:, layer].abs(), kept[:, layer], strict=True):
            assert most == size or row[chosen].min() >= row[~chosen].max()


def test_layers_are_modules() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.Linear(3, 2, bias=False))
    layers = FlatModel(model, squared).layers
    assert [layer.stop - layer.start for layer in layers] == [20, 27, 6]
    assert [layer.start for layer in layers] == [0, 20, 47]


def test_updates_get_smaller_and_training_still_works() -> None:
    sizes = (10,) * 40
    common = {"rounds": 25, "cohort": 39, "seed": 1, "eval_every": 25}  # nearly everybody, so that who comes hardly matters
    dense = hush.simulate(methods.dp_fedavg(noise=0.4, lr=0.5), make_task(sizes=sizes), **common)
    sparse = hush.simulate(methods.build("dp-fedavg+lus", noise=0.4, lr=0.5), make_task(sizes=sizes), **common)
    assert sparse.epsilon == dense.epsilon
    assert sparse.uplink_bytes_per_client == dense.uplink_bytes_per_client  # noise covers all, so all are sent
    assert (sparse.test_accuracy or 0) > 0.55


def test_noise_on_the_support_is_refused() -> None:
    with pytest.raises(NoGuarantee, match="infinite"):
        methods.build("dp-fedavg+lus", noise_on="support")


def test_records_have_no_part_in_it() -> None:
    """The gradient at the end has no noise, so what a record did to the mask would show: nothing is proved for DP-SGD under it."""
    from hush.core import Method, chain
    from hush.local import DpSgd, L2Clip
    from hush.privacy.plan import plan_of
    from hush.privacy.vocabulary import Enrolled
    from hush.server import Average

    local = Saliency(DpSgd(clip=L2Clip(1.0), noise=1.0), 0.5)
    with pytest.raises(NoGuarantee):
        plan_of(Method("m", local, chain(), Average()), hush.Rotation(2), Enrolled(6, 10, 60, 30), 5)


def test_weights_by_size_are_bounded() -> None:
    """min(n, cap)/cap of an update that was clipped: the clip that follows changes nothing, whoever holds how much."""
    task = make_task(sizes=(2, 4, 8, 100))
    learner, train = task.learner("cpu", F64), task.placed_train("cpu", F64)
    ids = torch.arange(4)
    plain = Sgd(lr=1.0, steps=3, epochs=None)
    rnd = Round(0, 0, 4.0, room=0.1)
    updates = plain(learner, learner.initial(), train.shard(ids), rnd, keys_of(0, ids), None).updates
    weighed = Weigh(plain, 8)(learner, learner.initial(), train.shard(ids), rnd, keys_of(0, ids), None).updates
    assert bool((updates.norm(dim=1) > 0.1).all())
    assert torch.allclose(weighed.norm(dim=1), 0.1 * torch.tensor([0.25, 0.5, 1.0, 1.0], dtype=F64))
    result = hush.simulate(methods.dp_fedavg(noise=1.0, weight_cap=4), make_task(), rounds=2, cohort=3)
    assert result.epsilon == hush.simulate(methods.dp_fedavg(noise=1.0), make_task(), rounds=2, cohort=3).epsilon
    with pytest.raises(UsageError, match="fixed clip"):
        methods.dp_fedavg(weight_cap=4, clip_quantile=0.5)
    with pytest.raises(UsageError, match="weight_cap"):
        methods.dp_fedavg(weight_cap=0)
