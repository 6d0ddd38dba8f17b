"""Every model begins with features of nobody's images, on images of every kind, whatever is protected; features are seen once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hush
from hush import methods
from hush.core import Method
from hush.errors import UsageError
from hush.local import frozen
from hush.methods import every_method
from hush.tasks.models import MODELS, build_model
from hush.tasks.models.pixels import on_pixels
from hush.tasks.start import features, pretraining, start_from

DIGITS, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)
SHAPES = {"digits": DIGITS, "mnist": MNIST, "cifar10": CIFAR}
NO_STEPS = {"logistic", "mlp"}
"""Nothing of these comes before the layers that the directions and the clients make."""
ONE_SHAPE = {
    "fed-smp-cnn": MNIST,
    "fed-spa-mnist-cnn": MNIST,
    "fed-smp-svhn-cnn": CIFAR,
    "fed-spa-cifar-cnn": CIFAR,
}
TRAINED = {"mlp": 64, "cpfed-mlp": 64, "fed-smp-svhn-cnn": 192, "fed-spa-mnist-cnn": 50, "fed-spa-cifar-cnn": 128}
"""How many directions there are; 128 where the paper's network goes from 128 numbers to 256."""


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, values in ((features, (10, 40, 20)), (pretraining, (10, None, 8))):
        for name, value in zip(("_KINDS", "_IMAGES", "_BATCH"), values, strict=True):
            if value is not None:
                monkeypatch.setattr(where, name, value)


@pytest.fixture(autouse=True)
def _nothing_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path))


def begun(model: str, data: str, how: str) -> nn.Module:
    """As `load_task` makes it: the digits are fractions, other images bytes."""
    shape = SHAPES[data]
    network = build_model(model, torch.Size(shape), 10, seed=1)
    if data == "digits":
        return start_from(how, network, shape, None, in_bytes=False)
    return start_from(how, on_pixels(network, (0.5,) * shape[0], (0.25,) * shape[0]), shape, None, in_bytes=True)


def images(data: str, count: int) -> Tensor:
    x = torch.rand(count, *SHAPES[data], generator=torch.Generator().manual_seed(count))
    return x if data == "digits" else (x * 255).to(torch.uint8)


@pytest.mark.parametrize("data", SHAPES)
@pytest.mark.parametrize("model", [name for name in MODELS if not name.startswith("char-")])
def test_a_model_begins_or_says_what_to_do(model: str, data: str) -> None:
    if ONE_SHAPE.get(model, SHAPES[data]) != SHAPES[data]:
        with pytest.raises(UsageError, match="choose afo-cnn, logistic or mlp"):
            begun(model, data, "processes")
        return
    if model in NO_STEPS:
        with pytest.raises(UsageError, match="leave the steps out"):
            begun(model, data, "processes:1")
    network = begun(model, data, "processes" if model in NO_STEPS else "processes:1")
    trained = {name: tuple(p.shape) for name, p in network.named_parameters() if p.requires_grad}
    assert list(trained) == ["head.weight", "head.bias"]
    assert trained["head.weight"][1] == TRAINED.get(model, trained["head.weight"][1]) <= 512
    x, y = images(data, 6), torch.arange(6)
    parts = frozen.split(network)
    assert parts is not None
    assert [type(layer) for layer in parts[1]] == [nn.Linear]
    assert frozen.seen_by(parts[0], x, [4, 0, 2], by_shape=True) is not None  # few enough, whoever may not decide for others
    with torch.no_grad():
        assert torch.equal(parts[0].train()(x), parts[0].train()(x))  # no dropout is left
        assert 0.05 < float(network[:2](x).norm(dim=1).mean()) < 50
    clients = [(x[:2], y[:2]), (x[2:4], y[2:4]), (x[4:], y[4:])]
    task = hush.Task(model=network, clients=clients, test=(images(data, 5), torch.arange(5)))
    result = hush.simulate(methods.dp_fedavg(clip=1.0, noise=1.0), task, rounds=1, cohort=2)
    assert result.epsilon is not None
    network.load_state_dict(result.state_dict)


def test_images_alone_can_be_begun_with() -> None:
    with pytest.raises(UsageError, match="start random"):
        start_from("processes", build_model("logistic", torch.Size((14,)), 2, 1), (14,), None, in_bytes=False)
    with pytest.raises(UsageError, match="start random"):
        start_from("processes", build_model("char-lstm", torch.Size((80,)), 90, 1), (80,), None, in_bytes=False)


# -- seen once -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through a convolution, call by call."""
    counts: list[int] = []
    forward: Callable[[nn.Conv2d, Tensor], Tensor] = nn.Conv2d.forward

    def counted(layer: nn.Conv2d, x: Tensor) -> Tensor:
        counts.append(len(x))
        return forward(layer, x)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    return counts


RECORDS = {"lr": 0.1, "clip": 1.0, "noise": 1.0}
PROTECTED: dict[str, Callable[[], Method]] = {
    "dp-fedavg": lambda: methods.dp_fedavg(clip=1.0, noise=1.0, local_epochs=2, batch_size=4),
    "fed-spa": lambda: methods.fed_spa(local_steps=2, batch_size=4, **RECORDS),
    "dp-fed": lambda: methods.dp_fed(local_steps=2, batch_size=4, **RECORDS),
    "cpfed": lambda: methods.cpfed(local_steps=2, batch_size=4, **RECORDS),
    "dp-sgd": lambda: methods.dp_sgd(batch_size=4, **RECORDS),
    "cpsgd": lambda: methods.cpsgd(batch_size=4, trials=1000),
}
SECURE = ("dp-fedavg", "cpsgd")
"""Those whose noise can be exact; the others' is inside local training."""


@pytest.mark.parametrize(("method", "mode"), [*((name, "fast") for name in PROTECTED), *((name, "secure") for name in SECURE)])
def test_frozen_layers_see_every_example_once(method: str, mode: str, seen: list[int]) -> None:
    assert set(PROTECTED) <= set(every_method())
    network = begun("fed-spa-mnist-cnn", "mnist", "processes")
    g = torch.Generator().manual_seed(3)
    x, y = images("mnist", 435), torch.randint(0, 10, (435,), generator=g)
    clients = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 360, 20)]
    task = hush.Task(model=network, clients=clients, test=(x[360:400], y[360:400]), validation=(x[400:], y[400:]))
    layers, examples = 2, len(x)
    counts = []
    for rounds in (1, 4):
        seen.clear()
        result = hush.simulate(PROTECTED[method](), task, rounds=rounds, cohort=6, delta=1e-2, noise_mode=mode)
        assert result.rounds == rounds
        assert result.parameters == 510
        counts.append(sum(seen))
    assert counts[0] == counts[1]
    trials = 100  # is it vectorised, does it remember, which values are extreme: a few examples each
    assert layers * examples <= counts[0] <= layers * (examples + trials)


def test_a_records_features_depend_on_it_alone() -> None:
    """To the last bit, where another record of the same client, or another client, is a different one."""
    parts = frozen.split(begun("fed-spa-cifar-cnn", "cifar10", "processes"))
    assert parts is not None
    x = images("cifar10", 12)
    other = x.clone()
    other[5] = 255 - other[5]
    before, after = (frozen.seen_by(parts[0], values, [4, 8], by_shape=True) for values in (x, other))
    assert before is not None
    assert after is not None
    same = (before == after).all(1)
    assert same.tolist() == [i != 5 for i in range(12)]
