"""Clients that affect each other, in training or on the way: what a bound per client does not cover is refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hush
from hush import NoGuarantee, UsageError, methods
from hush.cohort import FixedSize
from hush.core import Bound, LocalUpdate, Method, Trained, Transform, chain
from hush.engines.setup import set_up
from hush.local.sgd import Sgd
from hush.local.weigh import Weigh
from hush.server import Average
from hush.transforms import Clip, Gaussian
from hush.transforms.sparsify import ToldMask
from tests.conftest import make_task

SGD = Sgd(lr=0.5, batch_size=4)


def run(method: Method, task: hush.Task | None = None, **how: Any) -> hush.Result:
    return hush.simulate(method, task or make_task(), **{"rounds": 2, "cohort": FixedSize(6)} | how)


def through(*parts: Transform, local: LocalUpdate = SGD) -> Method:
    return Method("own", local, chain(*parts), Average())


@dataclass(frozen=True)
class Centred(LocalUpdate):
    """Centres inputs, by everybody's mean or by each client's own."""

    everybody: bool = True

    def __call__(self, learner: Any, params: Tensor, data: Any, rnd: Any, keys: Tensor, public: Any) -> Trained:
        x = data.x.clone()
        for a, n in zip(data.start.tolist(), data.size.tolist(), strict=True):
            x[a : a + n] -= data.x.mean(0) if self.everybody else data.x[a : a + n].mean(0)
        return SGD(learner, params, data._replace(x=x), rnd, keys, public)


@dataclass(frozen=True)
class Jittered(LocalUpdate):
    """Moves its examples by a generator that Hush knows nothing of."""

    def __call__(self, learner: Any, params: Tensor, data: Any, rnd: Any, keys: Tensor, public: Any) -> Trained:
        return SGD(learner, params, data._replace(x=data.x + torch.randn_like(data.x)), rnd, keys, public)


@pytest.mark.parametrize("wrap", [lambda local: local, lambda local: Weigh(local, 4)])
def test_local_training_that_reads_other_clients_rows_is_refused(wrap: Any) -> None:
    for mixing in (Centred(), Jittered()):
        for how in ({}, {"noise_mode": "secure"}, {"cohort": FixedSize(1)}):  # of unequal sizes: each in slots of its own
            with pytest.raises(UsageError, match="beside others than alone"):
                run(through(Clip(1.0), Gaussian(1.0), local=wrap(mixing)), **how)
    assert run(through(Clip(1.0), Gaussian(1.0), local=wrap(Centred(everybody=False)))).epsilon is not None
    assert run(through(Clip(1.0), local=wrap(Centred()))).epsilon is None  # where nothing is promised, nothing is broken


@dataclass(frozen=True)
class Placed(LocalUpdate):
    """Takes something from where a client stands, or from how many are there: both follow from who else takes part."""

    by_place: bool

    def __call__(self, learner: Any, params: Tensor, data: Any, rnd: Any, keys: Tensor, public: Any) -> Trained:
        trained, count = SGD(learner, params, data, rnd, keys, public), len(data.size)
        factor = 1 + torch.arange(count)[:, None] if self.by_place else 1 / count
        return trained._replace(updates=trained.updates * factor)


@pytest.mark.parametrize("by_place", [True, False])
def test_local_training_that_looks_at_who_else_is_there_is_refused(by_place: bool) -> None:
    with pytest.raises(UsageError, match="beside others than alone"):
        run(through(Clip(1.0), Gaussian(1.0), local=Placed(by_place)))


@dataclass(frozen=True)
class Borrowed(LocalUpdate):
    """Takes from a neighbour where that has something large, which drawn examples have not."""

    def __call__(self, learner: Any, params: Tensor, data: Any, rnd: Any, keys: Tensor, public: Any) -> Trained:
        trained = SGD(learner, params, data, rnd, keys, public)
        return trained._replace(updates=trained.updates + data.x.clamp_min(1.0).sum())


def test_what_shows_on_the_clients_own_examples_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="beside others than alone"):
        run(through(Clip(1.0), Gaussian(1.0), local=Borrowed()))


def norms(affine: bool) -> nn.Module:
    """A black image has channels of one value: normalised they are nothing but rounding, and a ReLU then goes by its sign."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 5, 3, padding=1), nn.GroupNorm(5, 5, affine=affine), nn.ReLU(), nn.Conv2d(5, 7, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 3))


@pytest.mark.parametrize("mode", ["fast", "secure"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-39])
def test_a_client_with_black_images_is_not_taken_for_one_that_affects_others(scale: float, affine: bool, mode: str) -> None:
    g = torch.Generator().manual_seed(1)
    parts = [(torch.randn(10, 1, 3, 3, generator=g), torch.randint(3, (10,), generator=g)) for _ in range(20)]
    x, y = parts[0]
    for black in (1, 20):
        some = [(scale * torch.cat([x, x]), torch.cat([y, y])) if i < black else part for i, part in enumerate(parts)]
        how: dict[str, Any] = {"rounds": 1, "cohort": hush.Rotation(20), "noise_mode": mode}
        assert (
            hush.simulate(methods.dp_fedavg(noise=1.0, local_epochs=4), hush.Task(norms(affine), some), **how).epsilon is not None
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_losses_with_weights_in_single_precision(mode: str) -> None:
    task, weight = make_task(), torch.tensor([1.0, 3.0, 2.0])

    def closed_over(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, weight=weight, reduction="none")

    losses = (nn.CrossEntropyLoss(weight=weight), nn.CrossEntropyLoss(weight=weight, reduction="none"), closed_over)
    for loss in losses:
        for method in (methods.dp_fedavg(noise=1.0), methods.dp_sgd(noise=1.0)):
            assert run(method, replace(task, loss=loss), noise_mode=mode).epsilon is not None
        with pytest.raises(UsageError, match="beside others than alone"):
            run(through(Clip(1.0), Gaussian(1.0), local=Centred()), replace(task, loss=loss), noise_mode=mode)


@dataclass(frozen=True)
class Sums(Transform):
    """Every row takes along those before it; the first has none."""

    def encode(self, x: Tensor, rnd: Any, keys: Tensor, public: Any) -> Tensor:
        return x.cumsum(0)

    def bound(self, incoming: Bound) -> Bound:
        return incoming


@dataclass(frozen=True)
class Centre(Transform):
    def encode(self, x: Tensor, rnd: Any, keys: Tensor, public: Any) -> Tensor:
        return x - x.mean(0)

    def bound(self, incoming: Bound) -> Bound:
        return incoming


@pytest.mark.parametrize("clip", [1.0, 1e-5, 1e-8])
def test_rows_that_take_from_others_are_refused_however_small(clip: float) -> None:
    for parts in ((Clip(clip), Sums()), (Centre(), Clip(clip))):
        with pytest.raises(UsageError, match="affect each other's rows"):
            run(through(*parts, Gaussian(4.0)))
    assert run(through(Clip(clip), Gaussian(4.0))).epsilon is not None


@dataclass(frozen=True)
class Opened(Transform):
    """Small on the way, large at the server."""

    def encode(self, x: Tensor, rnd: Any, keys: Tensor, public: Any) -> Tensor:
        return x / 50

    def unpack(self, x: Tensor, rnd: Any, keys: Tensor, public: Any) -> Tensor:
        return x * 50

    def bound(self, incoming: Bound) -> Bound:
        return incoming


def test_a_message_that_grows_when_it_is_opened_has_no_bound() -> None:
    with pytest.raises(NoGuarantee, match="when they arrive"):
        run(through(Opened(), Clip(1.0), Gaussian(4.0)))


@dataclass(frozen=True)
class Repeated(ToldMask):
    """One coordinate, as often as there are some."""

    def prepare(self, params: Tensor, state: Any, rnd: Any, server: Any) -> Any:
        return torch.zeros(round(self.ratio * len(params)), dtype=torch.int64)

    def decode(self, total: Tensor, state: Any, rnd: Any, public: Any, secret: Any) -> Any:
        return total.new_zeros(53).index_add_(0, public, total), state


@dataclass(frozen=True)
class Promised(Repeated):
    """And says that it does no harm."""

    def prepare(self, params: Tensor, state: Any, rnd: Any, server: Any) -> Any:
        return super().prepare(params, state, rnd, server)

    def bound(self, incoming: Bound) -> Bound:
        return incoming


def test_a_mask_that_names_a_coordinate_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="states no bound"):
        through(Clip(1.0), Repeated(0.5), Gaussian(4.0))
    with pytest.raises(UsageError, match="a coordinate twice"):
        run(through(Clip(1.0), Promised(0.5), Gaussian(4.0)))


@dataclass(frozen=True)
class Keeps(Transform):
    """Post-processing that keeps what it saw last, in a place of its own."""

    seen: list[Tensor]

    def decode(self, total: Tensor, state: Any, rnd: Any, public: Any, secret: Any) -> Any:
        self.seen[:] = [total.clone()]
        return total, state


def test_diagnostics_show_no_part_what_has_no_noise() -> None:
    parts = Keeps([]), Clip(1.0), Gaussian(50.0)
    method = through(*parts)
    run(method, diagnostics=True)
    (last,) = parts[0].seen
    assert float(last.norm()) > 50  # noise of std 50 in 53 entries, where the clean sum is of norm 6 at most


class Counting(nn.Module):
    """Keeps a running mean where no buffer is: in a number, in a list, in a frozen parameter, or in another object."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.layer = kind, nn.Linear(6, 3)
        self.centre, self.past, self.aside = 0.0, [0.0], {"mean": 0.0}
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        mean = float(x.detach().mean()) if self.kind != "frozen" else 0.0
        if self.kind == "number":
            self.centre = 0.9 * self.centre + 0.1 * mean
        elif self.kind == "list":
            self.past.append(mean)
        elif self.kind == "dict":
            self.aside["mean"] += mean
        elif self.kind == "frozen":
            self.frozen.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.layer(x - self.frozen - self.centre - self.past[-1] - self.aside["mean"])


@pytest.mark.parametrize("kind", ["number", "list", "dict", "frozen"])
def test_a_model_that_remembers_clients_is_refused(kind: str) -> None:
    task = make_task()
    with pytest.raises(UsageError, match="remembers"):
        run(methods.dp_fedavg(noise=1.0), hush.Task(Counting(kind), task.train))


class Lazy(nn.Module):
    """Makes a table when it is first called, of nobody's data: that is no memory of clients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.table, self.width = nn.Linear(6, 3), None, None

    def forward(self, x: Tensor) -> Tensor:
        if self.width is None:
            self.width = x.shape[-1]
        return self.layer(x) / self.width


def test_a_model_that_settles_at_its_first_call_is_taken() -> None:
    task = make_task()
    assert run(methods.dp_fedavg(noise=1.0), replace(task, model=Lazy())).epsilon is not None


class Settling(nn.Module):
    """Takes a number from the first examples that it sees, and keeps it: data-dependent initialisation."""

    def __init__(self, picky: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale, self.picky = nn.Linear(6, 3), None, picky

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.settle(x.detach())
        return self.layer(x / (self.scale or 1.0))

    def settle(self, x: Tensor) -> None:
        if self.picky and bool((x == 1).any()):
            raise ValueError("no ones, please")
        self.scale = float(x.abs().max())


class SettlingUntraced(Settling):
    """The same, but not while vmap hides the values: it waits until clients come one by one, or until it is judged."""

    def settle(self, x: Tensor) -> None:
        with suppress(RuntimeError):
            super().settle(x)


class SettlingLoss:
    def __init__(self) -> None:
        self.weight: float | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.weight is None:
            self.weight = float(targets.max()) + 1.0
        return nn.functional.cross_entropy(outputs, targets, reduction="none") / self.weight


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "secure"])
@pytest.mark.parametrize("kind", [Settling, SettlingUntraced])
def test_what_a_model_settles_at_its_first_call_holds_nothing_of_a_client(kind: type[Settling], mode: str) -> None:
    task, settled = make_task(), set()
    for scale in (1.0, 50.0):
        other = hush.Clients(scale * task.train.x, task.train.y, task.train.sizes)
        how: dict[str, Any] = {"rounds": 1, "cohort": FixedSize(6), "noise_mode": mode}
        run = set_up(methods.dp_fedavg(noise=1.0), hush.Task(kind(), other), **how)
        settled.add(run.data.learner.module.scale)
    assert settled == {1.0}


def test_what_a_loss_settles_holds_nothing_of_a_client() -> None:
    task, loss = make_task(), SettlingLoss()
    assert int(task.train.y.max()) == 2
    assert run(methods.dp_fedavg(noise=1.0), replace(task, loss=loss)).epsilon is not None
    assert loss.weight == 2.0  # of targets 0 and 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_a_model_that_settles_on_clients_examples_alone_is_refused(mode: str) -> None:
    with pytest.raises(UsageError, match="remembers what it was trained on"):
        run(methods.dp_fedavg(noise=1.0), hush.Task(Settling(picky=True), make_task().train), noise_mode=mode)


class Refusing(nn.Module):
    """Does not run on examples of nobody, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 1).any()):
            raise ValueError("no ones, please")
        return self.layer(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_a_model_that_does_not_run_on_examples_of_nobody_is_taken_where_it_keeps_nothing(mode: str) -> None:
    assert run(methods.dp_fedavg(noise=1.0), hush.Task(Refusing(), make_task().train), noise_mode=mode).epsilon is not None


def test_tokens_of_nobody_are_in_every_table() -> None:
    tokens = [(torch.randint(0, 9, (4, 5)), torch.randint(0, 3, (4,))) for _ in range(6)]
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))
    assert run(methods.dp_fedavg(noise=1.0), hush.Task(model, tokens), noise_mode="secure").epsilon is not None
