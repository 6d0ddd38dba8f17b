"""Descent layer by layer, with linear layers as factors of low rank: in float64 it is the plain descent, to the last digits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from hush.errors import UsageError
from hush.local.descent import Descent, FlatDescent, LoneDescent, Slope
from hush.local.flat import FlatModel
from hush.local.layered import Layered
from hush.local.low_rank import Factors, Shares, looked_back, pays
from hush.tasks.models import Lstm

F64 = torch.float64
INPUTS = 40


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


class Plain(nn.Module):
    """Linear layers, with and without a bias, one of them narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.next, self.last = nn.Linear(INPUTS, 64), nn.Linear(64, 48, bias=False), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.next(torch.tanh(self.wide(x)))))


class Penalty(Plain):
    """Its weights also meet the outputs as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * self.wide.weight.square().sum()


class Scaled(Plain):
    """Without a gradient in it, but a value of the weights all the same."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.wide.weight.detach().norm()


class Twice(Plain):
    """One layer that is met twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(INPUTS, INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.again(torch.tanh(self.again(x))))


class Tied(Plain):
    """One weight of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(INPUTS, 64), nn.Linear(64, INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.linear(self.into(x), self.into.weight.T) + F.linear(x, self.into.weight.T @ self.into.weight))


class Rows(Plain):
    """A vmap of its own, over rows, and rows of more axes than two."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.vmap(lambda row: self.wide.bias.sum() * row)(x).view(len(x), 1, INPUTS)).squeeze(1)


class Inside(Plain):
    """A vmap of its own, around a linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(torch.vmap(lambda row: self.next(torch.tanh(self.wide(row[None])))[0])(x)))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.lstm, self.out = nn.Linear(1, 5), Lstm(5, 7, 1), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.into(x[..., None]))[:, -1])


class Convolved(nn.Module):
    """Odd shapes, strides, dilation, groups, padding modes and no bias; then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)
        self.second = nn.Conv2d(4, 6, 2, dilation=2, groups=2, padding="same")
        self.third = nn.Conv2d(6, 5, 3, padding=1, padding_mode="circular")
        self.out, self.last = nn.Linear(40, 90), nn.Linear(90, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(torch.tanh(self.second(torch.tanh(self.first(x.view(-1, 1, 5, 8))))))
        return self.last(torch.tanh(self.out(F.max_pool2d(x, 2, ceil_mode=True, padding=1).flatten(1))))


MODULES: list[Callable[[], nn.Module]] = [Plain, Penalty, Scaled, Twice, Tied, Rows, Inside, Text, Convolved]
SLOPES = [
    Slope(0.1),
    Slope(0.1, 0.9),
    Slope(0.1, 0.5, prox=0.3),
    Slope(0.1, prox=0.3),
    Slope(0.1, 0.5, blur=0.5, limit=0.02),
]


def trained(descent: Descent, steps: int, clients: int, batch: int, waits: bool = False) -> tuple[Tensor, Tensor]:
    """Clients that end one after another, on batches of which some rows are padding."""
    drawn = torch.Generator().manual_seed(steps)
    for step in range(steps):
        count = clients if waits else max(1, clients - step // 2)
        x = torch.randn(count, batch, INPUTS, dtype=F64, generator=drawn)
        y = torch.randint(0, 3, (count, batch), generator=drawn)
        weight = (torch.rand(count, batch, generator=drawn) < 0.8).to(F64)
        done = torch.arange(count) * 2 > clients * 2 - step if waits else None
        descent.step(x, y, weight, torch.arange(count) + 100 * step, done)
    return descent.moved(), descent.losses


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("slope", SLOPES, ids=str)
@pytest.mark.parametrize("module", MODULES)
def test_it_is_the_plain_descent(module: Callable[[], nn.Module], slope: Slope) -> None:
    torch.manual_seed(0)
    learner = FlatModel(module(), losses, dtype=F64)
    steps, clients, batch = 5, 3, 2
    params = learner.initial()
    true, true_losses = trained(FlatDescent(learner, params, clients, slope), steps, clients, batch)
    for most in (0, 8):
        found, found_losses = trained(Layered(learner, 4, slope, most).begin(params, slope, clients), steps, clients, batch)
        assert far(found, true) < 1e-12
        assert far(found_losses, true_losses) < 1e-12


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("slope", SLOPES[:2], ids=str)
@pytest.mark.parametrize("module", MODULES)
def test_a_lone_client_descends_as_in_a_cohort(module: Callable[[], nn.Module], slope: Slope) -> None:
    """There without vmap and with channels innermost; the second of these two is a copy."""
    torch.manual_seed(4)
    learner = FlatModel(module(), losses, dtype=F64)
    params = learner.initial()
    alone, both = LoneDescent(learner, params, 1, slope), FlatDescent(learner, params, 2, slope)
    for step in range(4):
        x, y = torch.randn(1, 3, INPUTS, dtype=F64), torch.randint(0, 3, (1, 3))
        weight, keys, done = torch.ones(1, 3, dtype=F64), torch.arange(1) + step, torch.tensor([step == 3])
        alone.step(x, y, weight, keys, done)
        both.step(*(values.expand(2, *values.shape[1:]) for values in (x, y, weight, keys, done)))
    assert far(alone.losses[0], both.losses[0]) < 1e-12
    assert far(alone.moved()[0], both.moved()[0]) < 1e-12


def test_weights_that_nothing_uses_stay() -> None:
    class Idle(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.ones(3))

    class Deaf(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3]

    for net, moves in ((Idle(), True), (Deaf(), False)):
        learner = FlatModel(net, losses, dtype=F64)
        descent = learner.descent(learner.initial(), 1, Slope(0.1))
        named = learner.named(trained(descent, 2, 1, 2)[0][0])
        assert bool(named["wide.weight"].any()) == moves
        assert not named.get("idle", torch.zeros(1)).any()


@settings(max_examples=25, deadline=None)
@given(
    steps=st.integers(1, 12),
    clients=st.integers(1, 5),
    batch=st.integers(1, 3),
    momentum=st.sampled_from([0.0, 0.7]),
    prox=st.sampled_from([0.0, 0.2]),
    waits=st.booleans(),
)
def test_any_steps_clients_and_batches(steps: int, clients: int, batch: int, momentum: float, prox: float, waits: bool) -> None:
    torch.manual_seed(1)
    learner, slope = FlatModel(Plain(), losses, dtype=F64), Slope(0.2, momentum, prox)
    params = learner.initial()
    true, true_losses = trained(FlatDescent(learner, params, clients, slope), steps, clients, batch, waits)
    most = 1 << (steps - 1).bit_length()
    found, found_losses = trained(Layered(learner, 6, slope, most).begin(params, slope, clients), steps, clients, batch, waits)
    assert far(found, true) < 1e-12
    assert far(found_losses, true_losses) < 1e-12


def test_a_client_that_diverged_leaves_nothing_in_the_next_cohort() -> None:
    torch.manual_seed(2)
    learner, slope = FlatModel(Plain(), losses, dtype=F64), Slope(0.1, 0.5)
    params = learner.initial()
    kept = Layered(learner, 3, slope, 8)
    kept.begin(params, slope, 3)
    x, y, weight, keys = (
        torch.full((3, 2, INPUTS), float("nan"), dtype=F64),
        torch.zeros(3, 2).long(),
        torch.ones(3, 2),
        torch.arange(3),
    )
    for _ in range(8):
        kept.step(x, y, weight.to(F64), keys)
    assert bool(kept.moved().isnan().any())
    for steps in (8, 3):
        true, _ = trained(FlatDescent(learner, params, 3, slope), steps, 3, 2)
        found, _ = trained(kept.begin(params, slope, 3), steps, 3, 2)
        assert far(found, true) < 1e-12


def test_nobody_is_changed_by_who_stands_beside_it() -> None:
    torch.manual_seed(3)
    learner, slope = FlatModel(Plain(), losses, dtype=F64), Slope(0.1, 0.5)
    params, y, weight, keys = learner.initial(), torch.zeros(3, 2).long(), torch.ones(3, 2, dtype=F64), torch.arange(3)
    sent = []
    for other in (0.0, 1e3, float("nan")):
        x = torch.randn(4, 3, 2, INPUTS, dtype=F64, generator=torch.Generator().manual_seed(0))
        x[:, 1] = other
        descent = Layered(learner, 3, slope, 4).begin(params, slope, 3)
        for step in range(4):
            descent.step(x[step], y, weight, keys)
        sent.append(descent.moved()[[0, 2]])
    assert torch.equal(sent[0], sent[1])
    assert torch.equal(sent[0], sent[2])


def test_a_model_that_comes_to_use_its_weights_in_another_way_is_refused() -> None:
    class Moody(Plain):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) * (1.0 if self.calls == 1 else self.wide.weight.mean())

    learner, slope = FlatModel(Moody(), losses, dtype=F64), Slope(0.1)
    descent = Layered(learner, 3, slope, 4).begin(learner.initial(), slope, 3)
    with pytest.raises(UsageError, match=r"'wide\.weight' in another way than at its first step"):
        trained(descent, 3, 3, 2)


def test_whoever_has_no_batch_moves_nowhere() -> None:
    learner, slope = FlatModel(Plain(), losses, dtype=F64), Slope(0.1)
    descent = Layered(learner, 4, slope, 4).begin(learner.initial(), slope, 4)
    assert not descent.moved().any()
    descent.step(torch.randn(2, 2, INPUTS, dtype=F64), torch.zeros(2, 2).long(), torch.ones(2, 2, dtype=F64), torch.arange(2))
    assert descent.moved().any(1).tolist() == [True, True, False, False]


@settings(max_examples=50, deadline=None)
@given(momentum=st.sampled_from([0.0, 0.9]), prox=st.floats(0, 1), steps=st.integers(1, 8), seed=st.integers(0, 99))
def test_shares_are_what_a_number_would_lose(momentum: float, prox: float, steps: int, seed: int) -> None:
    """A model of one weight whose gradients are given numbers."""
    drawn = torch.Generator().manual_seed(seed)
    gradients = torch.randn(steps, dtype=F64, generator=drawn)
    shares, factors = Shares(1, 8, gradients), Factors(1, 8, (gradients.new_zeros(1, 1, 1),) * 2)
    away, velocity = 0.0, 0.0
    for at, gradient in enumerate(gradients):
        assert looked_back(at) >= at
        velocity = momentum * velocity + float(gradient) + prox * away
        away -= 0.3 * velocity
        factors.keep(shares.at, (gradient.view(1, 1, 1), torch.ones(1, 1, 1, dtype=F64)), None)
        shares.step(1, 0.3, momentum, prox, None)
    out = gradients.new_empty(1, 1, 1)
    factors.gone(shares.share[:, :steps], out)
    assert float(-out) == pytest.approx(away, rel=1e-9, abs=1e-12)


def test_factors_pay_where_they_are_smaller_than_the_weights() -> None:
    assert pays(10, 10, 512, 3136)
    assert not pays(0, 10, 512, 3136)  # nobody knows how many steps there will be
    assert not pays(1000, 10, 512, 3136)
    assert not pays(10, 10, 10, 512)
