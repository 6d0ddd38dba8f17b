"""Vectorised local training equals a plain PyTorch loop, client by client, in float64."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import hush
from hush import Round, UsageError
from hush.core import Shard
from hush.local import FlatModel, Sgd
from hush.random import keys_of
from hush.tasks.models import build_model
from tests.conftest import make_task

F64 = torch.float64


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def plain_loop(task: hush.Task, local: Sgd, rnd: Round, keys: torch.Tensor) -> torch.Tensor:
    """What any PyTorch user would write: one client after the other, torch.optim.SGD, mini-batches in the same order."""
    train = task.placed_train("cpu", F64)
    longest_first = local.steps_of(train.sizes).argsort(descending=True, stable=True)
    batches = list(local.schedule(train.shard(longest_first), keys[longest_first]))
    updates = []
    for i in longest_first.argsort().tolist():
        model = copy.deepcopy(task.model).to(F64)
        start = copy.deepcopy(model)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=local.lr * local.decay ** (rnd.index // local.every), momentum=local.momentum
        )
        for batch in batches:
            if i >= len(batch.rows):
                continue
            rows = batch.rows[i][batch.real[i]]
            loss = F.cross_entropy(model(train.x[rows]), train.y[rows])
            for p, q in zip(model.parameters(), start.parameters(), strict=True):
                loss = loss + local.prox / 2 * (p - q.detach()).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        before = torch.cat([p.detach().flatten() for p in start.parameters()])
        updates.append(before - torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(updates)


@pytest.mark.parametrize(
    "local",
    [
        Sgd(lr=0.1, batch_size=3, epochs=2),
        Sgd(lr=0.1, batch_size=3, epochs=3, momentum=0.9, decay=0.5, every=2),
        Sgd(lr=0.1, batch_size=2, epochs=None, steps=7, momentum=0.5),
        Sgd(lr=0.2, batch_size=100, epochs=2, prox=0.7),
        Sgd(lr=0.2, batch_size=3, epochs=None, steps=1, prox=0.7, momentum=0.5, decay=0.5),
    ],
    ids=["epochs", "momentum-decay", "steps", "prox", "one-gradient"],
)
def test_equals_a_plain_loop_for_clients_of_unequal_size(local: Sgd) -> None:
    task = make_task()
    rnd = Round(index=5, seed=1, cohort=6.0)
    keys = keys_of(3, torch.arange(6))
    learner = task.learner(dtype=F64)
    train = task.placed_train("cpu", F64)
    ours = local(learner, learner.initial(), train.shard(torch.arange(6)), rnd, keys, None).updates
    assert (ours - plain_loop(task, local, rnd, keys)).abs().max() < 1e-9
    assert ours.abs().max() > 1e-3


def test_convolutions_with_the_papers_model_equal_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )
    parts = [(torch.randn(n, 1, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (4, 2, 3)]
    task = hush.Task(model=model, clients=parts)
    local, rnd, keys = Sgd(lr=0.1, batch_size=2, epochs=2, momentum=0.5), Round(0, 0, 3.0), keys_of(0, torch.arange(3))
    learner = task.learner(dtype=F64)
    ours = local(learner, learner.initial(), task.placed_train("cpu", F64).shard(torch.arange(3)), rnd, keys, None).updates
    assert (ours - plain_loop(task, local, rnd, keys)).abs().max() < 1e-9


@pytest.mark.parametrize(("name", "shape"), [("char-lstm", (80,)), ("resnet9", (1, 8, 8))])
def test_lstm_and_resnet_equal_a_plain_loop(name: str, shape: tuple[int, ...]) -> None:
    """Clients of unequal size, several steps, momentum: what a cohort trains is what each would alone, in float64 to 1e-8."""
    g = torch.Generator().manual_seed(0)
    classes = 80 if name == "char-lstm" else 10

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(0, 80, (n, *shape), generator=g, dtype=torch.uint8)
        x = tokens if name == "char-lstm" else torch.randn(n, *shape, generator=g)
        return x, torch.randint(0, classes, (n,), generator=g)

    task = hush.Task(build_model(name, torch.Size(shape), classes, 0), [part(n) for n in (1, 3)])
    local, rnd, keys = Sgd(lr=0.1, batch_size=2, epochs=1, momentum=0.9), Round(0, 0, 2.0), keys_of(0, torch.arange(2))
    learner = task.learner(dtype=F64)
    train = task.placed_train("cpu", F64)
    assert learner.vectorised
    ours = local(learner, learner.initial(), train.shard(torch.arange(2)), rnd, keys, None).updates
    assert (ours - plain_loop(task, local, rnd, keys)).abs().max() < 1e-8
    assert ours.norm(dim=1).min() > 1e-3


@pytest.mark.parametrize(("name", "shape"), [("afo-cnn", (3, 8, 8)), ("resnet9", (1, 9, 9)), ("char-lstm", (80,)), ("mlp", (5,))])
def test_weights_that_all_clients_share_give_what_weights_of_their_own_give(name: str, shape: tuple[int, ...]) -> None:
    """Dropout, padding and all: only how it is computed differs."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 80, (3, 4, *shape), generator=g)
    x = x.to(torch.uint8) if name == "char-lstm" else x.to(F64) / 40
    y, weight = torch.randint(0, 10, (3, 4), generator=g), torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=F64)
    learner = FlatModel(build_model(name, torch.Size(shape), 80, 0), cross_entropy, dtype=F64)
    learner.probe(x.flatten(0, 1), y.flatten())
    params, keys = learner.initial(), keys_of(0, torch.arange(3))
    shared, losses = learner.gradients(params, x, y, weight, keys)
    own, own_losses = learner.gradients(params.expand(3, -1).clone(), x, y, weight, keys)
    torch.testing.assert_close(shared, own)
    torch.testing.assert_close(losses, own_losses)
    for i in range(3):
        alone, _ = learner.gradients(params, x[i : i + 1], y[i : i + 1], weight[i : i + 1], keys[i : i + 1])
        torch.testing.assert_close(alone[0], shared[i])
    assert (shared[0] - shared[1]).norm() > 0.1 * shared[0].norm()


def test_one_gradient_is_exact_and_who_has_no_examples_sends_zero() -> None:
    """theta - (theta - lr g) would lose in float32 what lr g has beyond theta's precision."""
    task = make_task(sizes=(4, 0, 2))
    learner, train, rnd, keys = (
        task.learner(),
        task.placed_train("cpu", torch.float32),
        Round(0, 0, 3.0),
        keys_of(3, torch.arange(3)),
    )
    shard = train.shard(torch.arange(3))
    small, usual = (Sgd(lr=lr, batch_size=4, epochs=None, steps=1) for lr in (2.0**-30, 1.0))
    updates = small(learner, learner.initial(), shard, rnd, keys, None).updates
    assert torch.equal(updates * 2.0**30, usual(learner, learner.initial(), shard, rnd, keys, None).updates)
    assert not updates[1].any()
    assert updates[0].any()
    assert updates[2].any()


def test_a_lone_client_trains_as_it_does_in_a_cohort() -> None:
    task = make_task()
    learner = task.learner(dtype=F64)
    train = task.placed_train("cpu", F64)
    local, rnd, keys = Sgd(lr=0.1, batch_size=2, epochs=2, momentum=0.3), Round(0, 0, 6.0), keys_of(3, torch.arange(6))
    together = local(learner, learner.initial(), train.shard(torch.arange(6)), rnd, keys, None).updates
    for i in range(6):
        alone = local(learner, learner.initial(), train.shard(torch.tensor([i])), rnd, keys[i : i + 1], None).updates
        assert (alone[0] - together[i]).abs().max() < 1e-12


def test_every_epoch_visits_every_example_once_in_a_fresh_order() -> None:
    task = make_task(sizes=(7, 3, 12))
    train = task.placed_train("cpu", F64)
    longest_first = torch.tensor([2, 0, 1])
    batches = list(Sgd(batch_size=2, epochs=2).schedule(train.shard(longest_first), keys_of(0, longest_first)))
    for i, (start, size) in enumerate(((10, 12), (0, 7), (7, 3))):
        per_epoch = math.ceil(size / 2)
        orders = []
        for epoch in range(2):
            own = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
            rows = torch.cat([batch.rows[i][batch.real[i]] for batch in own])
            assert sorted(rows.tolist()) == list(range(start, start + size))
            orders.append(rows.tolist())
        if size > 3:
            assert orders[0] != orders[1]
        assert not any(i < len(batch.rows) for batch in batches[2 * per_epoch :])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 7),
    st.one_of(st.none(), st.integers(1, 9)),
    st.booleans(),
    st.integers(1, 3),
)
def test_nobody_is_padded_to_the_largest(sizes: list[int], batch: int, most: int | None, by_epochs: bool, count: int) -> None:
    """A step holds exactly the clients that still train, and each of them reads its own examples alone."""
    local = Sgd(batch_size=batch, epochs=count if by_epochs else None, steps=None if by_epochs else count, most=most)
    sizes.sort(reverse=True)
    size = torch.tensor(sizes)
    start = torch.cumsum(size, 0) - size
    batches = list(local.schedule(Shard(torch.zeros(0), torch.zeros(0), start, size), keys_of(1, torch.arange(len(sizes)))))
    expected = [min((count * -(-n // batch)) if by_epochs else count * (n > 0), most or 10**9) for n in sizes]
    assert local.steps_of(size).tolist() == expected
    assert len(batches) == max(expected)
    assert sum(len(b.rows) for b in batches) == sum(expected)
    for i, (n, steps) in enumerate(zip(sizes, expected, strict=True)):
        read = torch.cat([b.rows[i][b.real[i]] for b in batches[:steps]]) - start[i] if steps else torch.zeros(0)
        assert bool(((read >= 0) & (read < n)).all())
        whole = read[: len(read) // n * n].reshape(-1, n) if n else read.reshape(0, 1)
        assert all(sorted(epoch.tolist()) == list(range(n)) for epoch in whole)
        if by_epochs and most is None:
            assert len(read) == count * n


def test_a_cap_on_local_steps_bounds_the_largest_client_and_spares_the_small() -> None:
    task = make_task(sizes=(40, 3, 9))
    learner, train = task.learner(dtype=F64), task.placed_train("cpu", F64)
    rnd, keys, data = Round(0, 0, 3.0), keys_of(3, torch.arange(3)), train.shard(torch.arange(3))
    free = Sgd(lr=0.1, batch_size=2, epochs=1)
    capped = Sgd(lr=0.1, batch_size=2, epochs=1, most=4)
    assert free.steps_of(train.sizes).tolist() == [20, 2, 5]
    assert capped.steps_of(train.sizes).tolist() == [4, 2, 4]
    ours, whole = (local(learner, learner.initial(), data, rnd, keys, None).updates for local in (capped, free))
    assert (ours - plain_loop(task, capped, rnd, keys)).abs().max() < 1e-9
    assert torch.equal(ours[1], whole[1])
    assert not torch.allclose(ours[0], whole[0])
    with pytest.raises(UsageError, match="max_local_steps"):
        Sgd(most=0)


def test_padding_never_reads_another_client() -> None:
    """Client 1's data are NaN; padded rows of its small neighbours must not see them."""
    task = make_task(sizes=(1, 9, 2))
    train = task.placed_train("cpu", F64)
    train.x[1:10] = math.nan
    learner = task.learner(dtype=F64)
    local, keys = Sgd(lr=0.1, batch_size=4, epochs=2, momentum=0.5), keys_of(0, torch.arange(3))
    updates = local(learner, learner.initial(), train.shard(torch.arange(3)), Round(0, 0, 3.0), keys, None).updates
    assert torch.isfinite(updates[[0, 2]]).all()
    assert updates[1].isnan().all()


@pytest.mark.parametrize("local", [Sgd(epochs=1), Sgd(epochs=None, steps=3)])
def test_a_client_without_examples_contributes_zero_and_reads_nobody(local: Sgd) -> None:
    task = make_task(sizes=(0, 4, 0))
    learner = task.learner()
    train = task.placed_train("cpu", torch.float32)
    trained = local(learner, learner.initial(), train.shard(torch.arange(3)), Round(0, 0, 1.0), keys_of(0, torch.arange(3)), None)
    assert trained.updates[[0, 2]].abs().max() == 0.0
    assert trained.updates[1].abs().max() > 0.0
    nobody = local(learner, learner.initial(), train.shard(torch.tensor([0])), Round(0, 0, 1.0), keys_of(0, torch.arange(1)), None)
    assert nobody.updates.abs().max() == 0.0


class Droppy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 40), nn.Linear(40, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.dropout(self.drop(torch.relu(self.a(x))), 0.2, training=self.training))


def test_dropout_is_keyed_by_client_and_step_not_by_the_global_generator() -> None:
    task = make_task(model=Droppy())
    learner, train = task.learner(dtype=F64), task.placed_train("cpu", F64)
    local, rnd, keys = Sgd(lr=0.1, batch_size=2, epochs=2), Round(0, 0, 6.0), keys_of(3, torch.arange(6))

    def train_on(ids: list[int], own: torch.Tensor) -> torch.Tensor:
        return local(learner, learner.initial(), train.shard(torch.tensor(ids)), rnd, own, None).updates

    torch.manual_seed(0)
    together = train_on([0, 1, 2, 3, 4, 5], keys)
    torch.manual_seed(99)
    for i in range(6):
        assert (train_on([i], keys[i : i + 1])[0] - together[i]).abs().max() < 1e-12
    assert (train_on([0], keys[1:2])[0] - together[0]).abs().max() > 1e-6


def test_dropout_keeps_the_stated_share_and_its_mean() -> None:
    from hush.local.own_rows import OwnRows

    x = torch.ones(500, 20, 3, 3)
    with OwnRows(torch.tensor(5)):
        y, channels = F.dropout(x, 0.3), F.dropout2d(x, 0.3)
        assert torch.equal(F.dropout(x, 0.3, training=False), x)
        assert not torch.equal(F.dropout(x, 0.3), y)  # the next layer has its own mask
    assert float((y == 0).double().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(y.mean()) == pytest.approx(1.0, abs=0.01)
    whole = channels.flatten(2)
    assert bool((whole.amax(2) == whole.amin(2)).all())
    assert float((whole[:, :, 0] == 0).double().mean()) == pytest.approx(0.3, abs=0.02)


def test_frozen_backbones_are_shared_and_do_not_move() -> None:
    backbone = nn.Linear(6, 8).requires_grad_(False)
    task = make_task(model=nn.Sequential(backbone, nn.Tanh(), nn.Linear(8, 3)))
    learner = task.learner()
    assert learner.dim == 8 * 3 + 3
    result = hush.simulate(hush.methods.fedavg(lr=0.5), task, rounds=2, cohort=6)
    assert torch.equal(result.state_dict["0.weight"], backbone.weight)
    assert result.parameters == 27
    task.model.load_state_dict(result.state_dict)  # the user's own module takes the result back


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, track_running_stats=False)])
def test_batch_norm_is_refused_with_its_replacement(norm: nn.Module) -> None:
    task = make_task(model=nn.Sequential(nn.Linear(6, 5), norm, nn.Linear(5, 3)))
    with pytest.raises(UsageError, match=r"GroupNorm\(num_groups, 5\)"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=6)


def test_a_frozen_backbone_may_hold_batch_norm_and_its_statistics_stay() -> None:
    backbone = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    with torch.no_grad():
        backbone(torch.randn(50, 6) + 3)  # statistics of some pretraining
    backbone.requires_grad_(False)
    task = make_task(model=nn.Sequential(backbone, nn.Linear(5, 3)))
    result = hush.simulate(hush.methods.fedavg(lr=0.5), task, rounds=2, cohort=6)
    assert result.parameters == 18
    for name, value in task.model.state_dict().items():
        if name.startswith("0."):
            assert torch.equal(result.state_dict[name], value), name


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.reshape(len(x), 2, 3))[0][:, -1])


class Branching(nn.Module):
    """Looks at its data to decide what to do, which no vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


@pytest.mark.parametrize(("model", "dtype"), [(Recurrent, torch.float32), (Recurrent, F64), (Branching, F64)])
def test_what_cannot_be_vectorised_trains_correctly_and_says_so(model: type[nn.Module], dtype: torch.dtype) -> None:
    """nn.LSTM vectorises in some versions of PyTorch and precisions and not in others; it is right either way."""
    task = make_task(model=model())
    learner, train = task.learner(dtype=dtype), task.placed_train("cpu", dtype)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learner.probe(train.x, train.y)
    assert learner.vectorised != any("one after another" in str(w.message) for w in said)
    assert all("hush" in w.filename or "test_sgd" in w.filename for w in said)
    if model is Branching:
        assert not learner.vectorised
    local, rnd, keys = Sgd(lr=0.1, batch_size=2, epochs=1), Round(0, 0, 6.0), keys_of(3, torch.arange(6))
    ours = local(learner, learner.initial(), train.shard(torch.arange(6)), rnd, keys, None).updates
    assert (ours - plain_loop(task, local, rnd, keys)).abs().max() < (1e-9 if dtype is F64 else 1e-6)


class Jittery(nn.Linear):
    """Draws from torch's own generator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x) if self.training else x)


def test_a_model_with_its_own_randomness_is_keyed_by_client_too() -> None:
    task = make_task(model=Jittery(6, 3))
    learner, train = task.learner(dtype=F64), task.placed_train("cpu", F64)
    with pytest.warns(UserWarning, match="one after another"):
        learner.probe(train.x, train.y)
    local, rnd, keys = Sgd(lr=0.1, batch_size=2, epochs=1), Round(0, 0, 6.0), keys_of(3, torch.arange(6))
    together = local(learner, learner.initial(), train.shard(torch.arange(6)), rnd, keys, None).updates
    before = torch.get_rng_state()
    alone = local(learner, learner.initial(), train.shard(torch.tensor([4])), rnd, keys[4:5], None).updates
    assert (alone[0] - together[4]).abs().max() < 1e-12
    assert torch.equal(before, torch.get_rng_state())


class Standardised(nn.Linear):
    """Looks at its whole batch without a buffer: padding would change it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x - x.mean(0)) / (x.std(0, correction=0) + 1.0))


class Sideways(nn.Module):
    """Dropout over a tensor whose first axis is not the batch: its mask would change with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.dropout(self.a(x).T, 0.5, self.training).T)


@pytest.mark.parametrize("model", [Standardised(6, 3), Sideways()])
def test_a_clients_row_never_depends_on_the_size_of_its_neighbours(model: nn.Module) -> None:
    """Where the examples of a batch affect each other, clients are trained one by one, without padding."""
    task = make_task(sizes=(3, 10, 2), model=model)
    learner, train = task.learner(dtype=F64), task.placed_train("cpu", F64)
    with pytest.warns(UserWarning, match="affect each other"):
        learner.probe(train.x, train.y)
    local, rnd, keys = Sgd(lr=0.1, batch_size=10, epochs=2), Round(0, 0, 3.0), keys_of(3, torch.arange(3))
    together = local(learner, learner.initial(), train.shard(torch.arange(3)), rnd, keys, None).updates
    for i in range(3):
        alone = local(learner, learner.initial(), train.shard(torch.tensor([i])), rnd, keys[i : i + 1], None).updates
        assert (alone[0] - together[i]).abs().max() < 1e-12


class InPlace(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return super().forward(x)


class Fleeting(InPlace):
    """The same in a buffer that is not even saved: it still carries one client's data to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6), persistent=False)


class Still(InPlace):
    """A write that changes nothing yet: spectral norm at weights where its iteration has converged."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.mul_(2.0)
        return nn.Linear.forward(self, x)


class Assigned(InPlace):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0).detach()
        return nn.Linear.forward(self, x)


@pytest.mark.parametrize(
    "model",
    [
        InPlace(),
        Fleeting(),
        Still(),
        Assigned(),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, 3)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
    ],
)
def test_statistics_that_training_gathers_are_refused(model: nn.Module) -> None:
    """A buffer would leave the clients un-noised, and carry one client's data into the next one's training."""
    with pytest.raises(UsageError, match="changes the buffer"):
        hush.simulate(hush.methods.dp_fedavg(noise=1.0), make_task(model=model), rounds=1, cohort=6)


def test_tied_weights_come_back_trained_under_all_their_names() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    task = make_task(model=model)
    result = hush.simulate(hush.methods.fedavg(lr=0.5), task, rounds=3, cohort=6)
    assert torch.equal(result.state_dict["0.weight"], result.state_dict["2.weight"])
    assert not torch.equal(result.state_dict["0.weight"], model[0].weight)
    assert result.parameters == 36 + 6 + 6 + 21


def test_a_model_that_is_nan_from_the_start_is_refused() -> None:
    class Nan(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * math.nan

    with pytest.raises(UsageError, match="NaN or infinity on finite examples"):
        hush.simulate(hush.methods.dp_fedavg(noise=1.0), make_task(model=Nan(6, 3)), rounds=3, cohort=6)


def test_a_model_that_does_not_fit_the_data_is_named() -> None:
    with pytest.raises(UsageError, match="does not train on one example"):
        hush.simulate(hush.methods.fedavg(), make_task(model=nn.Linear(7, 3)), rounds=1, cohort=6)


def test_losses_must_answer_per_example() -> None:
    task = make_task(loss=F.cross_entropy)
    with pytest.raises(UsageError, match="one value per example"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=6)
    hush.simulate(hush.methods.fedavg(), make_task(loss=nn.CrossEntropyLoss()), rounds=1, cohort=6)


def test_a_model_without_trainable_parameters() -> None:
    with pytest.raises(UsageError, match="no trainable parameter"):
        FlatModel(nn.Linear(2, 2).requires_grad_(False), cross_entropy)


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 0.0}, {"lr": -1.0}, {"batch_size": 0}, {"epochs": 0}, {"epochs": None}, {"epochs": 1, "steps": 1},
        {"momentum": 1.0}, {"decay": 0.0}, {"prox": -1.0}, {"every": 0}, {"lr": float("nan")},
    ],
)  # fmt: skip
def test_bad_settings(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sgd(**bad)  # type: ignore[arg-type]
