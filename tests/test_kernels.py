"""A GPU's kernels, by Triton's interpreter where there is no GPU, against PyTorch in float64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton comes with PyTorch for GPUs: pip install triton (600 MB) tries its interpreter")

from hush.kernels import convolution, pooling, rows
from hush.kernels.geometry import Geometry
from hush.local import flat, graphed, layers
from hush.local.descent import Descent, FlatDescent, Slope

PLACE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GEOMETRIES = [
    ((3, 2, 1, 9, 8, 5), (5, 5), Geometry((1, 1), (2, 2), (1, 1))),
    ((2, 3, 4, 7, 9, 20), (3, 2), Geometry((2, 1), (1, 0), (1, 2))),
    ((2, 2, 3, 6, 6, 33), (3, 3), Geometry((3, 3), (0, 0), (1, 1))),
    ((2, 2, 3, 6, 6, 5), (1, 1), Geometry((2, 2), (1, 1), (1, 1))),
    ((2, 2, 3, 6, 6, 5), (2, 2), Geometry((1, 1), (3, 3), (1, 1))),
    ((2, 1, 2, 9, 9, 3), (3, 3), Geometry((2, 3), (4, 1), (1, 2))),
]


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels where there is no GPU, too; and products as exact as they can be."""
    for room in (layers, flat):
        monkeypatch.setattr(room, "kernels_for", lambda device: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if PLACE.type == "cpu":  # launch by launch: there is nothing to capture
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        monkeypatch.setattr(graphed, "_MOST", 0)
    torch.manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=PLACE)


def far(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())


@pytest.mark.parametrize("inner", [False, True], ids=["rows innermost", "channels innermost"])
@pytest.mark.parametrize(("sizes", "kernel", "how"), GEOMETRIES)
def test_a_convolution_and_its_gradients(sizes: tuple[int, ...], kernel: tuple[int, int], how: Geometry, inner: bool) -> None:
    clients, images, channels, high, wide, out = sizes
    x, w, b = drawn(clients, images, channels, high, wide), drawn(clients, out, channels, *kernel), drawn(clients, out)
    if inner:
        x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    y = convolution.convolve(x, w, b, how, "ieee")
    back = drawn(*y.shape)
    of_x = convolution.convolve_back(back, w, (high, wide), how, "ieee")
    of_w = convolution.weights_back(x, back, kernel, how, "ieee")
    for i in range(clients):
        own = [one[i].double().requires_grad_() for one in (x, w, b)]
        true = F.conv2d(*own, *how)
        of = torch.autograd.grad(true, own[:2], back[i].double())
        assert far(y[i], true.detach()) < 1e-5
        assert far(of_x[i], of[0]) < 1e-5
        assert far(of_w[i], of[1]) < 1e-5


@pytest.mark.parametrize("window", [(2, 2), (3, 2)])
def test_pooling_takes_the_first_of_the_largest_and_keeps_nan(window: tuple[int, int]) -> None:
    x = torch.randint(0, 3, (2, 2, 3, 7, 9), device=PLACE).float()
    x[0, 0, 0, 1, 1] = torch.nan
    found, which = pooling.pool(x, window)
    true = x.flatten(0, 1).requires_grad_()
    same = F.max_pool2d(true, window)
    assert torch.equal(found.flatten(0, 1).nan_to_num(7.0), same.nan_to_num(7.0))
    back = drawn(*found.shape)
    (of_x,) = torch.autograd.grad(same, true, back.flatten(0, 1))
    assert torch.equal(pooling.unpool(back, which, (7, 9), window).flatten(0, 1), of_x)


def test_norms_and_sums_are_those_of_float64() -> None:
    x = drawn(3, 70_001)
    torch.testing.assert_close(rows.norms(x), x.double().norm(dim=1), rtol=1e-12, atol=0)
    assert torch.equal(rows.total(x), x[0].double() + x[1] + x[2])
    x[1, 5] = torch.nan
    assert rows.norms(x).isnan().tolist() == [False, True, False]


class Net(nn.Module):
    """All that there are kernels for, as modules and as functions, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 9, 3, bias=False)
        self.pool = nn.MaxPool2d((2, 2))
        self.dense, self.twice, self.last = nn.Linear(81, 60), nn.Linear(60, 60), nn.Linear(60, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.first(x), 2))
        x = F.dropout(F.relu(self.pool(self.second(x))), 0.2, self.training)
        x = F.relu(self.dense(x.flatten(1)))
        return self.last(F.relu(self.twice(self.twice(x))))


def learners() -> tuple[flat.FlatModel, flat.FlatModel]:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="none")

    net = Net()
    return flat.FlatModel(net, loss, PLACE), flat.FlatModel(net, loss, PLACE, torch.float64)


def batches(steps: int) -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.ones(steps, 3, 5, device=PLACE)
    weight[:, 1, 3:] = 0  # padded rows
    return drawn(steps, 3, 5, 1, 17, 17), torch.randint(0, 10, (steps, 3, 5), device=PLACE), weight


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize(
    "slope",
    [
        Slope(0.1),
        Slope(0.1, 0.5),
        Slope(0.1, 0.9, prox=0.1),
        Slope(0.1, 0.5, blur=0.5, limit=0.3),
        Slope(0.1, 0.5, blur=0.5, limit=1e-3),
    ],
)
def test_a_descent_is_that_of_float64(slope: Slope, steps: int) -> None:
    """Also of clients who end earlier, and twice: nothing of the first is left in the second."""
    ours, exact = learners()
    params = ours.initial()
    x, y, weight = batches(4)
    true, begun = FlatDescent(exact, params.double(), 3, slope), graphed.Graphed(ours, 3, slope, steps)

    def train(descent: Descent, kind: torch.dtype) -> Tensor:
        for step in range(4):
            count = 3 if step < 2 else 2
            own = x[step, :count].to(kind), y[step, :count], weight[step, :count].to(kind)
            descent.step(*own, torch.arange(count, device=PLACE) + 10 * step)
        return descent.moved()

    moved = train(true, torch.float64)
    for _ in range(2):
        assert far(train(begun.begin(params, slope, 3), torch.float32), moved) < 1e-5
        torch.testing.assert_close(begun.losses.double(), true.losses, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_who_is_done_waits() -> None:
    ours, exact = learners()
    slope, params = Slope(0.1, 0.5), ours.initial()
    x, y, weight = batches(3)
    descent, true = graphed.Graphed(ours, 3, slope, 4).begin(params, slope, 3), FlatDescent(exact, params.double(), 3, slope)
    for step in range(3):
        done = torch.tensor([False, step > 0, step > 1], device=PLACE)
        keys = torch.arange(3, device=PLACE)
        descent.step(x[step], y[step], weight[step], keys, done)
        true.step(x[step].double(), y[step], weight[step].double(), keys, done)
    assert far(descent.moved(), true.moved()) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernels", [True, False])
def test_vmap_finds_the_rules_within_another_vmap_and_at_shared_weights(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no kernels, PyTorch's own arithmetic goes the same ways."""
    monkeypatch.setattr(layers, "kernels_for", lambda device: kernels)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)).to(PLACE)
    own = {name: torch.stack([p.detach() + 0.1 * torch.randn_like(p) for _ in range(3)]) for name, p in net.named_parameters()}
    shared = {name: p.detach() for name, p in net.named_parameters()}
    x, y = drawn(3, 4, 1, 14, 14), torch.randint(0, 10, (3, 4), device=PLACE)

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, p, (x,)), y)

    def each(p: dict[str, Tensor], xs: Tensor, ys: Tensor) -> Any:
        return vmap(lambda x, y: grad(loss)(p, x[None], y[None]))(xs, ys)

    ways = {"own": (vmap(grad(loss)), own), "shared": (vmap(grad(loss), (None, 0, 0)), shared), "each": (vmap(each), own)}
    for way, params in ways.values():
        true = way(params, x, y)
        with layers.CohortLayers():
            found = way(params, x, y)
        for name in own:
            torch.testing.assert_close(found[name], true[name], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(PLACE.type != "cuda", reason="launches are captured on a GPU alone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [0, 4])
def test_launches_that_are_captured_give_the_bits_of_those_that_are_not(steps: int) -> None:
    """So a run that is resumed, in which other steps are captured, ends where it would have."""
    ours, _ = learners()
    slope, params, (x, y, weight) = Slope(0.1, 0.5), ours.initial(), batches(4)

    def train(descent: Descent) -> Tensor:
        for step in range(4):
            count = 3 if step < 2 else 2
            descent.step(x[step, :count], y[step, :count], weight[step, :count], torch.arange(count, device=PLACE) + 10 * step)
        return descent.moved()

    kept, fresh = (graphed.Graphed(ours, 3, slope, steps) for _ in range(2))
    first = train(kept.begin(params, slope, 3))
    for _ in range(5):
        assert torch.equal(train(kept.begin(params, slope, 3)), first)
    assert torch.equal(train(fresh.begin(params, slope, 3)), first)
