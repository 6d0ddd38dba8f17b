"""The catalogue's models: published sizes, equality with plain PyTorch, and gradients of a cohort at once."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import hush
from hush import UsageError
from hush.local import FlatModel
from hush.random import keys_of
from hush.tasks.models import MODELS, Pixels, build_model, on_pixels
from hush.tasks.models.lstm import Lstm
from hush.tasks.models.recurrence import recur
from hush.tasks.models.recurrent import CharLstm

F64 = torch.float64
GREY, COLOUR, TEXT, TABLE = (1, 28, 28), (3, 32, 32), (80,), (102,)
SIZES = [
    ("logistic", GREY, 10, 7_850),
    ("logistic", TABLE, 2, 206),
    ("mlp", GREY, 10, 50_890),
    ("mlp", TABLE, 2, 6_722),
    ("cpfed-mlp", TABLE, 2, 10_882),
    ("fed-smp-cnn", GREY, 10, 1_663_370),
    ("fed-smp-svhn-cnn", COLOUR, 10, 3_431_754),
    ("fed-spa-mnist-cnn", GREY, 10, 21_840),
    ("fed-spa-cifar-cnn", COLOUR, 10, 537_610),
    ("afo-cnn", GREY, 62, 1_206_590),
    ("afo-cnn", COLOUR, 10, 1_626_442),
    ("ddgauss-cnn", GREY, 62, 1_018_174),
    ("ddgauss-cnn", COLOUR, 10, 1_405_258),
    ("resnet9", GREY, 10, 6_571_968),
    ("resnet9", COLOUR, 10, 6_573_120),
    ("resnet9", COLOUR, 100, 6_619_200),
    ("resnet18", GREY, 62, 11_199_486),
    ("resnet18", COLOUR, 10, 11_173_962),
    ("char-lstm", TEXT, 80, 819_920),
    ("char-lstm-every", TEXT, 90, 822_570),
]
SMALLER = {"resnet9": (3, 12, 12), "resnet18": (1, 9, 9), "afo-cnn": (3, 11, 12), "ddgauss-cnn": (1, 12, 10)}
"""Images on which double precision is quick, for the models that take any size."""
EACH = [(name, SMALLER.get(name, shape), classes) for name, (shape, classes) in {n: (s, c) for n, s, c, _ in SIZES}.items()]
DROPOUT = ("afo-cnn", "ddgauss-cnn")


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def examples(name: str, shape: tuple[int, ...], classes: int, *lead: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    if not name.startswith("char"):
        return torch.randn(*lead, *shape, generator=g), torch.randint(0, classes, lead, generator=g)
    x = torch.randint(0, classes, (*lead, *shape), generator=g, dtype=torch.uint8)
    return x, torch.randint(0, classes, (*lead, *shape) if name.endswith("every") else lead, generator=g)


def test_the_list_is_complete() -> None:
    assert {name for name, *_ in SIZES} == set(MODELS)
    for build in MODELS.values():
        assert (inspect.getdoc(build) or "").split("\n")[0].endswith(".")


@pytest.mark.parametrize(("name", "shape", "classes", "parameters"), SIZES)
def test_sizes_are_the_published_ones(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    with torch.device("meta"):
        model = MODELS[name](torch.Size(shape), classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(("name", "shape", "classes"), [size[:3] for size in SIZES])
def test_every_model_trains_vectorised_and_without_a_warning(name: str, shape: tuple[int, ...], classes: int) -> None:
    model = build_model(name, torch.Size(shape), classes, seed=1)
    x, y = examples(name, shape, classes, 2)
    flat = FlatModel(model, cross_entropy)
    flat.probe(x, y)  # warnings are errors here
    assert flat.vectorised
    assert not flat._slow_layers
    outputs = model.eval()(x)
    assert outputs.shape == ((2, classes, 80) if name.endswith("every") else (2, classes))
    assert F.cross_entropy(outputs, y).isfinite()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fed-smp-cnn", COLOUR), ("fed-smp-cnn", TABLE), ("fed-smp-svhn-cnn", GREY), ("fed-spa-mnist-cnn", (1, 8, 8)),
        ("fed-spa-cifar-cnn", GREY), ("afo-cnn", TABLE), ("afo-cnn", (1, 5, 9)), ("ddgauss-cnn", (1, 8, 7)),
        ("resnet9", (3, 7, 32)), ("resnet18", TEXT), ("char-lstm", GREY), ("char-lstm-every", TABLE),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_is_refused_with_what_to_choose(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=rf"^{name} .*not {' x '.join(map(str, shape))}: choose .*\.$"):
        build_model(name, torch.Size(shape), 10, seed=0)


@pytest.mark.parametrize(("name", "shape"), [("afo-cnn", (1, 6, 6)), ("ddgauss-cnn", (1, 8, 8)), ("resnet9", (1, 8, 8))])
def test_the_smallest_images_that_are_taken_work(name: str, shape: tuple[int, ...]) -> None:
    assert build_model(name, torch.Size(shape), 10, seed=0)(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_from_the_seed_alone(name: str) -> None:
    shape, classes = next((torch.Size(s), c) for n, s, c in EACH if n == name)
    before = torch.get_rng_state()
    one, same, other = (build_model(name, shape, classes, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, same[key]) for key, value in one.items())
    assert any(not torch.equal(value, other[key]) for key, value in one.items())


def plain_gradient(flat: FlatModel, params: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """What any PyTorch user would write, for one client."""
    model = copy.deepcopy(flat.module).train()
    model.load_state_dict(flat.state_dict(params))
    ((cross_entropy(model(x), y).reshape(len(x), -1).mean(1) * weight).sum() / weight.sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(("name", "shape", "classes"), EACH)
def test_gradients_of_a_cohort_are_those_of_its_clients(name: str, shape: tuple[int, ...], classes: int) -> None:
    flat = FlatModel(build_model(name, torch.Size(shape), classes, seed=3), cross_entropy, dtype=F64)
    x, y = examples(name, shape, classes, 3, 2)
    x = x.to(F64) if x.is_floating_point() else x
    start = flat.initial()
    params = torch.stack([start, 1.01 * start, 0.98 * start])
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=F64)
    keys = keys_of(7, torch.arange(3))
    together, _ = flat.gradients(params, x, y, weight, keys)
    for k in range(3):
        if name in DROPOUT:
            alone = flat.gradients(params[k : k + 1], x[k : k + 1], y[k : k + 1], weight[k : k + 1], keys[k : k + 1])[0][0]
        else:
            alone = plain_gradient(flat, params[k], x[k], y[k], weight[k])
        assert (alone - together[k]).abs().max() < 1e-8
        assert alone.abs().max() > 1e-6


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_is_drawn_by_the_clients_key(name: str) -> None:
    shape = SMALLER[name]
    flat = FlatModel(build_model(name, torch.Size(shape), 5, seed=3), cross_entropy, dtype=F64)
    x, y = examples(name, shape, 5, 1, 2)
    x, params, weight = x.to(F64).expand(2, -1, -1, -1, -1), flat.initial().expand(2, -1), torch.ones(2, 2, dtype=F64)
    alike, _ = flat.gradients(params, x, y.expand(2, -1), weight, torch.tensor([4, 4]))
    unlike, _ = flat.gradients(params, x, y.expand(2, -1), weight, torch.tensor([4, 5]))
    assert torch.equal(alike[0], alike[1])
    assert (unlike[0] - unlike[1]).abs().max() > 1e-4
    assert (unlike[0] - alike[0]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [
        ("cpfed-mlp", TABLE, "Flatten Linear ReLU Linear ReLU Linear"),
        ("fed-smp-cnn", GREY, "Conv2d MaxPool2d ReLU Conv2d MaxPool2d ReLU Flatten Linear ReLU Linear"),
        ("fed-smp-svhn-cnn", COLOUR, "Conv2d MaxPool2d ReLU Conv2d MaxPool2d ReLU Flatten Linear ReLU Linear ReLU Linear"),
        ("fed-spa-mnist-cnn", GREY, "Conv2d MaxPool2d ReLU Conv2d MaxPool2d ReLU Flatten Linear ReLU Linear"),
        (
            "fed-spa-cifar-cnn",
            COLOUR,
            "Conv2d MaxPool2d ReLU Conv2d MaxPool2d ReLU Conv2d MaxPool2d ReLU Flatten Linear ReLU Linear ReLU Linear",
        ),
        ("afo-cnn", GREY, "Conv2d ReLU Conv2d ReLU MaxPool2d Dropout Flatten Linear ReLU Dropout Linear"),
        ("ddgauss-cnn", GREY, "Conv2d ReLU MaxPool2d Conv2d ReLU Dropout Flatten Linear ReLU Dropout Linear"),
    ],
)
def test_layers_are_in_the_papers_order(name: str, shape: tuple[int, ...], layers: str) -> None:
    model = build_model(name, torch.Size(shape), 10, seed=0)
    assert " ".join(type(layer).__name__ for layer in model.children()) == layers
    assert [layer.p for layer in model.children() if isinstance(layer, nn.Dropout)] == ([0.25, 0.5] if name in DROPOUT else [])


class ByHand:
    """The weights of a residual network in their order, used one after the other."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = iter(model.parameters())

    def normed(self, x: Tensor, stride: int = 1) -> Tensor:
        weight = next(self.weights)
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return F.group_norm(x, 2, next(self.weights), next(self.weights))

    def rectified(self, x: Tensor, stride: int = 1) -> Tensor:
        return self.normed(x, stride).relu()


def test_resnet18_is_he_et_als() -> None:
    model = build_model("resnet18", torch.Size((3, 13, 12)), 10, seed=0)
    x = torch.randn(2, 3, 13, 12)
    net = ByHand(model)
    h = net.rectified(x)
    for stride in (1, 2, 2, 2):
        path = net.normed(net.rectified(h, stride))
        h = (path + (h if stride == 1 else net.normed(h, stride))).relu()
        h = (net.normed(net.rectified(h)) + h).relu()
    assert_near([model(x)], [F.linear(h.mean((2, 3)), next(net.weights), next(net.weights))], 1e-5)
    assert not list(net.weights)


def test_resnet9_is_dawnbenchs() -> None:
    model = build_model("resnet9", torch.Size((3, 16, 17)), 10, seed=0)
    x = torch.randn(2, 3, 16, 17)
    net = ByHand(model)
    h = F.max_pool2d(net.rectified(net.rectified(x)), 2)
    h = h + net.rectified(net.rectified(h))
    h = F.max_pool2d(net.rectified(h), 2)
    h = F.max_pool2d(net.rectified(h), 2)
    h = h + net.rectified(net.rectified(h))
    assert_near([model(x)], [0.125 * F.linear(h.amax((2, 3)), next(net.weights))], 1e-5)
    assert not list(net.weights)


def assert_near(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert float((a - b).detach().abs().max()) <= tolerance * max(1.0, float(b.detach().abs().max()))


# the LSTM


def pair(features: int, hidden: int, layers: int, dtype: torch.dtype = F64) -> tuple[Lstm, nn.LSTM]:
    ours, theirs = Lstm(features, hidden, layers).to(dtype), nn.LSTM(features, hidden, layers, batch_first=True).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def states_and_gradients(model: nn.Module, x: Tensor, direction: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    return [out, *torch.autograd.grad((out * direction).sum(), [x, *model.parameters()])]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-12)])
def test_lstm_equals_pytorchs_at_the_papers_size(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(8, 256, 2, dtype)
    x, direction = torch.randn(3, 80, 8, dtype=dtype), torch.randn(3, 80, 256, dtype=dtype) / 80
    assert_near(states_and_gradients(ours, x, direction), states_and_gradients(theirs, x, direction), tolerance)
    with torch.no_grad():
        assert_near([ours(x)], [theirs(x)[0]], tolerance)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
def test_lstm_equals_pytorchs_at_any_size(features: int, hidden: int, layers: int, n: int, steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    ours, theirs = pair(features, hidden, layers)
    x, direction = torch.randn(n, steps, features, dtype=F64), torch.randn(n, steps, hidden, dtype=F64)
    assert_near(states_and_gradients(ours, x, direction), states_and_gradients(theirs, x, direction), 1e-12)
    with torch.no_grad():
        assert_near([ours(x)], [theirs(x)[0]], 1e-12)


def test_lstm_starts_as_pytorchs_and_exchanges_weights_with_it() -> None:
    torch.manual_seed(3)
    ours = Lstm(4, 9, 2).state_dict()
    torch.manual_seed(3)
    theirs = nn.LSTM(4, 9, 2)
    assert list(ours) == list(theirs.state_dict())
    assert all(torch.equal(value, ours[name]) for name, value in theirs.state_dict().items())
    theirs.load_state_dict(ours)


def test_the_recurrence_has_the_right_gradient() -> None:
    torch.manual_seed(0)
    alone = torch.randn(3, 2, 8, dtype=F64, requires_grad=True), torch.randn(8, 2, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(recur, alone)
    cohort = torch.randn(2, 3, 2, 8, dtype=F64, requires_grad=True), torch.randn(2, 8, 2, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(vmap(recur), cohort)
    shared = torch.randn(3, 2, 2, 8, dtype=F64, requires_grad=True), alone[1]
    assert torch.autograd.gradcheck(vmap(recur, in_dims=(1, None)), shared)


def test_the_recurrence_over_clients_is_that_of_each() -> None:
    torch.manual_seed(0)
    given, weight = torch.randn(4, 3, 2, 8, dtype=F64), torch.randn(4, 8, 2, dtype=F64)
    each = torch.stack([recur(x, w) for x, w in zip(given, weight, strict=True)])
    assert_near([vmap(recur)(given, weight)], [each], 1e-12)
    assert_near([vmap(recur, in_dims=(2, 1))(given.movedim(0, 2), weight.movedim(0, 1))], [each], 1e-12)
    same_weights = torch.stack([recur(x, weight[0]) for x in given])
    assert_near([vmap(recur, in_dims=(0, None))(given, weight[0])], [same_weights], 1e-12)
    same_inputs = torch.stack([recur(given[0], w) for w in weight])
    assert_near([vmap(recur, in_dims=(None, 0))(given[0], weight)], [same_inputs], 1e-12)


@pytest.mark.parametrize("every", [False, True])
def test_gradients_of_each_example_of_each_client(every: bool) -> None:
    """vmap over clients of vmap over examples of grad: what clips single records."""
    torch.manual_seed(0)
    model = CharLstm(tokens=7, every=every, hidden=5).to(F64)
    params = {name: torch.stack([p.detach(), 0.5 * p.detach()]) for name, p in model.named_parameters()}
    x = torch.randint(0, 7, (2, 3, 6))
    y = torch.randint(0, 7, (2, 3, 6) if every else (2, 3))

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    nested = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(params, x, y)
    seeds = vmap(vmap(grad(loss)))({n: p[:, None].expand(2, 3, *p.shape[1:]) for n, p in params.items()}, x, y)
    for k in range(2):
        own = {name: p[k].clone().requires_grad_() for name, p in params.items()}
        for e in range(3):
            plain = torch.autograd.grad(loss(own, x[k, e], y[k, e]), list(own.values()))
            assert_near([nested[name][k, e] for name in own], list(plain), 1e-12)
            assert_near([seeds[name][k, e] for name in own], list(plain), 1e-12)


def test_evaluation_of_many_models_at_once() -> None:
    model = CharLstm(tokens=7, every=False, hidden=5).to(F64)
    params = {name: torch.stack([p.detach(), 0.5 * p.detach()]) for name, p in model.named_parameters()}
    x = torch.randint(0, 7, (4, 6))
    with torch.no_grad():
        both = vmap(lambda p: functional_call(model, p, (x,)))(params)
    assert_near([both[0]], [model(x)], 1e-12)


def test_second_derivatives_of_the_lstm_are_refused() -> None:
    given, weight = torch.randn(3, 2, 8), torch.randn(8, 2)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        grad(lambda w: grad(lambda v: recur(given, v).sum())(w).sum())(weight)


def test_the_two_heads_agree_on_the_last_character_and_take_bytes() -> None:
    last, every = CharLstm(9, every=False, hidden=5), CharLstm(9, every=True, hidden=5)
    every.load_state_dict(last.state_dict())
    x = torch.randint(0, 9, (4, 6))
    assert_near([every(x)[:, :, -1]], [last(x)], 1e-6)
    assert torch.equal(last(x), last(x.to(torch.uint8)))


def test_a_code_beyond_the_table_is_refused_before_it_reads_another_clients_weights() -> None:
    codes = torch.tensor([[0, 1, 2], [1, 2, 3], [4, 5, 1]])
    task = hush.Task(CharLstm(5, every=False, hidden=4), hush.Clients(codes, torch.zeros(3, dtype=torch.int64), [2, 1]))
    with pytest.raises(UsageError, match="Example 0 of client 1 holds a value"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=2)


# pixels


@pytest.mark.parametrize(("mean", "std"), [(0.2860, 0.3530), (0.1307, 0.3081)])
def test_bytes_are_standardised_to_the_last_bit(mean: float, std: float) -> None:
    x = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8)
    assert torch.equal(Pixels((mean,), (std,))(x), x.float().div_(255.0).sub_(mean).div_(std))


def test_pixels_of_colours_in_double_precision_and_vectorised() -> None:
    mean, std = (0.5, 0.25, 0.125), (0.25, 0.5, 2.0)
    pixels = Pixels(mean, std).to(F64)
    x = torch.randint(0, 256, (3, 2, 3, 4, 5), dtype=torch.uint8)
    expected = torch.stack([(x[:, :, c].double() / 255 - mean[c]) / std[c] for c in range(3)], 2)
    assert pixels(x[0]).dtype is F64
    assert torch.equal(vmap(pixels)(x), expected)
    assert pixels.state_dict() == {}


def test_a_network_on_bytes_trains_as_one_on_floats() -> None:
    network = build_model("fed-spa-mnist-cnn", torch.Size(GREY), 10, seed=0)
    x, y = torch.randint(0, 256, (2, 3, *GREY), dtype=torch.uint8), torch.randint(0, 10, (2, 3))
    model = on_pixels(network, (0.2860,), (0.3530,))
    on_bytes, on_floats = FlatModel(model, cross_entropy), FlatModel(network, cross_entropy)
    on_bytes.probe(x[0], y[0])
    assert on_bytes.vectorised
    assert list(on_bytes.state_dict(on_bytes.initial())) == [f"network.{name}" for name in network.state_dict()]
    floats = x.float().div_(255.0).sub_(0.2860).div_(0.3530)
    rest = (y, torch.ones(2, 3), torch.arange(2))
    params = on_bytes.initial().expand(2, -1)
    assert torch.equal(on_bytes.gradients(params, x, *rest)[0], on_floats.gradients(params, floats, *rest)[0])
