"""A person's rows give one gradient, the mean of theirs, clipped once, on every path."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hush
from hush import UsageError
from hush.core import Round
from hush.local import DpSgd, FlatModel
from hush.local.per_example import CoordinateClip, L2Clip, clipped_sums
from hush.local.person import of_persons
from hush.own import OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.tasks.clients import Clients
from hush.tasks.persons import by_person, grouped

F64 = torch.float64
RND = Round(0, 0, 1.0)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square()


def line(dim: int) -> FlatModel:
    layer = nn.Linear(dim, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return FlatModel(nn.Sequential(layer, nn.Flatten(0)), squares, dtype=F64)


def trained(learner: FlatModel, train: Clients, clip: float, persons: bool, most: int = 10) -> Tensor:
    """What one step on everything a lone client holds sends, without noise, in units of a batch's sum."""
    if persons:
        learner, train = by_person(learner, train, grouped(train, most))
    size = int(train.sizes[0])
    local = DpSgd(lr=1.0, batch_size=size, clip=L2Clip(clip), noise=0.0)
    data = train.shard(torch.tensor([0]))._replace(own=OwnSecrets.simulated(Secret(bytes(32)), [0]))
    return local(learner, learner.initial(), data, RND, keys_of(0, torch.tensor([0])), None).updates[0] * size


def test_two_rows_of_one_person_by_hand() -> None:
    """At weights of zero the gradient of (x - y)^2 / 2 is -y x: (-2, 0) and (0, -6), of which the mean is (-1, -3)."""
    train = Clients(torch.eye(2, dtype=F64), torch.tensor([2.0, 6.0], dtype=F64), torch.tensor([2]), torch.tensor([7, 7]))
    loose = trained(line(2), train, 100.0, persons=True)
    assert torch.allclose(loose, torch.tensor([-1.0, -3.0], dtype=F64), rtol=1e-9)
    clipped = trained(line(2), train, 1.0, persons=True)
    assert torch.allclose(clipped, torch.tensor([-1.0, -3.0], dtype=F64) / 10**0.5, rtol=1e-9)
    rows = trained(line(2), train, 1.0, persons=False)
    assert torch.allclose(rows, torch.tensor([-1.0, -1.0], dtype=F64), rtol=1e-9)  # each clipped by itself
    two = Clients(train.x, train.y, train.sizes, torch.tensor([7, 8]))
    assert torch.allclose(trained(line(2), two, 1.0, persons=True), rows, rtol=1e-9)


@pytest.mark.parametrize("most", [1, 10, 50])
def test_fifty_rows_move_the_sum_by_one_clip_and_by_fifty_where_nobody_says_whose_they_are(most: int) -> None:
    g = torch.Generator().manual_seed(0)
    others = torch.randn(30, 5, generator=g, dtype=F64)
    hers = torch.tensor([1.0, 0, 0, 0, 0], dtype=F64) + 1e-3 * torch.randn(50, 5, generator=g, dtype=F64)
    ids = torch.cat([torch.arange(30), torch.full((50,), 99)])
    with_her = Clients(torch.cat([others, hers]), torch.full((80,), 1e3, dtype=F64), torch.tensor([80]), ids)
    without = Clients(others, torch.full((30,), 1e3, dtype=F64), torch.tensor([30]), ids[:30])

    def moved(persons: bool) -> float:
        sums = [trained(line(5), train, 0.5, persons, most) for train in (with_her, without)]
        return float((sums[0] - sums[1]).norm())

    assert 0.999 * 0.5 < moved(persons=True) <= 0.5
    assert 49.9 * 0.5 < moved(persons=False) <= 50 * 0.5


MODELS: dict[str, tuple[Any, str]] = {
    "linear": (lambda: nn.Linear(6, 3), ""),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 3)), ""),
    "groups": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)), ""),
    "images": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)),
        "several images",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_path_gives_the_mean_of_a_persons_rows(name: str) -> None:
    make, why = MODELS[name]
    torch.manual_seed(0)
    learner = FlatModel(make(), lambda out, y: F.cross_entropy(out, y, reduction="none"), dtype=F64)
    x, y = torch.randn(14, 6, dtype=F64), torch.randint(0, 3, (14,))
    ids = torch.tensor([5, 5, 5, 1, 2, 2, 2, 2, 2, 2, 9, 9, 9, 4])
    train = Clients(x, y, torch.tensor([10, 4]), ids)
    persons, people = by_person(learner, train, grouped(train, 4))
    assert people.sizes.tolist() == [3, 2]
    rows = torch.tensor([[0, 1, 2], [3, 4, 3]])
    real = torch.tensor([[True, True, True], [True, True, False]])
    numbers = people.numbers[rows]  # type: ignore[index]
    params = learner.initial() + 0.1 * torch.randn(2, learner.dim, dtype=F64)
    keys = keys_of(3, torch.arange(2))

    def sums(path: str, clip: Any = L2Clip(0.05)) -> Tensor:  # noqa: B008
        return clipped_sums(persons, params, people.x[rows], people.y[rows], real, keys, clip, path=path, numbers=numbers).sums

    plain = sums("plain")
    if why:
        with pytest.raises(UsageError, match=why):
            sums("ghost")
    else:
        assert torch.allclose(sums("ghost"), plain, rtol=1e-9, atol=1e-15)
    assert torch.allclose(sums("auto"), plain, rtol=1e-9, atol=1e-15)
    if name != "mlp":  # without dropout: the mean of the rows' own gradients, clipped
        for c in range(2):
            total = torch.zeros(learner.dim, dtype=F64)
            for person, there in zip(rows[c].tolist(), real[c].tolist(), strict=True):
                own = (people.y[person] != learner.ignored).nonzero().flatten() if there else []
                each = [
                    learner.gradients(params[c : c + 1], people.x[person, j][None, None], people.y[person, j][None, None],
                                      torch.ones(1, 1, dtype=F64), keys[:1])[0][0]
                    for j in own
                ]  # fmt: skip
                if each:
                    mean = torch.stack(each).mean(0)
                    total += mean * min(1.0, 0.05 / float(mean.norm()))
            assert torch.allclose(total, plain[c], rtol=1e-8, atol=1e-14)
    boxed = sums("auto", CoordinateClip(1e-3))
    assert float(boxed.abs().max()) <= 3e-3


def test_a_row_that_is_not_there_says_nothing_whatever_the_loss() -> None:
    """A loss of the user's own knows no target for nothing; a number to come close to has none either."""
    seen: list[Tensor] = []

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets.detach())
        return (outputs - targets).abs()

    learner = FlatModel(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), own, dtype=F64)
    for y in (torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0, 3.0], dtype=F64)):
        train = Clients(torch.randn(3, 3, dtype=F64), y, torch.tensor([3]), torch.tensor([1, 1, 2]))
        persons, people = by_person(learner, train, grouped(train, 5))
        gradient, loss = persons.gradients(
            persons.initial()[None], people.x[None], people.y[None], torch.ones(1, 2, dtype=F64), torch.zeros(1, dtype=torch.int64)
        )
        expected = torch.stack([
            learner.scores(learner.initial(), train.x[:2], train.y[:2]).losses.mean(),
            learner.scores(learner.initial(), train.x[2:], train.y[2:]).losses.mean(),
        ])  # fmt: skip
        assert torch.allclose(loss[0], expected.mean())
        assert bool(torch.isfinite(gradient).all())
    assert not any(bool((t == -100).any()) for t in seen if not t.is_floating_point())
    with pytest.raises(UsageError, match="truth values"):
        grouped(train, 2).examples(Clients(train.x, torch.tensor([True, False, True]), train.sizes, train.persons), -100)


def test_what_persons_train_is_a_state_dict_of_the_model_of_rows() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    learner = FlatModel(model, lambda out, y: F.cross_entropy(out, y, reduction="none"))
    persons = of_persons(learner)
    model.load_state_dict(persons.state_dict(persons.initial() + 1))
    assert torch.allclose(torch.cat([p.flatten() for p in model.parameters()]), learner.initial() + 1)
    assert persons.layers == learner.layers


class Counting:
    """A loss with a memory, behind a `partial`."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs, targets, reduction="none")
        self.last = losses.detach().sum() if losses.requires_grad else self.last
        return losses


def test_a_loss_that_remembers_persons_is_refused_as_one_that_remembers_rows() -> None:
    train = Clients(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([6]), torch.tensor([1, 1, 2, 2, 3, 3]))
    learner = FlatModel(nn.Linear(3, 2), Counting())
    persons, people = by_person(learner, train, grouped(train, 2))
    with warnings.catch_warnings(action="ignore"), pytest.raises(UsageError, match="remembers"):
        persons.probe(people.x, people.y)


def test_dropout_goes_by_the_person_and_not_by_its_place() -> None:
    """A person in the place of another, whose name sorts elsewhere, moves nobody else's masks."""
    torch.manual_seed(1)
    learner = FlatModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1, bias=False), nn.Flatten(0)), squares, dtype=F64)
    x, y = torch.randn(6, 4, dtype=F64), torch.ones(6, dtype=F64)
    ids = torch.tensor([10, 10, 20, 20, 30, 30])
    x[:2] = 0  # says nothing itself
    moved = [
        trained(learner, Clients(x, y, torch.tensor([6]), torch.where(ids == 10, other, ids)), 1e-3, persons=True)
        for other in (10, 15, 25, 99)
    ]
    assert float(moved[0].norm()) > 1e-4
    assert all(torch.allclose(one, moved[0], rtol=1e-9) for one in moved)


def test_a_task_of_persons_is_judged_on_rows() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=g)
    y = (x[:, 0] > 0).long()
    clients = Clients(x, y, torch.tensor([40, 40]), torch.arange(80) // 4)
    task = hush.Task(nn.Linear(4, 2), clients, test=(x + 0.01, y), metrics=("auc",))
    result = hush.simulate(hush.methods.dp_sgd(noise=0.01, lr=1.0, batch_size=10), task, rounds=20, cohort=2, diagnostics=True)
    assert result.unit == "person"
    assert result.test_accuracy is not None and result.test_accuracy > 0.8  # noqa: PT018
    assert result.test_metrics["auc"] > 0.9  # type: ignore[operator]
    assert result.state_dict["weight"].shape == (2, 4)
