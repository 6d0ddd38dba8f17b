"""Clipped sums of per-example gradients: both paths equal a loop over examples, and no example adds more than the clip."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hush import UsageError
from hush.local import per_example
from hush.local.flat import FlatModel
from hush.local.ghost import Product
from hush.local.own_rows import OwnRows
from hush.local.per_example import ClippedSums, CoordinateClip, L2Clip, clipped_sums
from hush.random import fold, keys_of
from hush.tasks.models import build_model
from hush.tasks.models.residual import _block, _rectified

F64 = torch.float64


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square()


class Words(nn.Module):
    """Codes to classes: the mean of an embedding, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(7, 5, padding_idx=3), nn.LayerNorm(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.table(x)).mean(1))


class EveryWord(nn.Module):
    """Codes to a class at every position, through linear layers on sequences: one of them on a flattened one."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.table, self.hidden, self.out = nn.Embedding(7, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        states = self.drop(torch.tanh(self.hidden(self.table(x))))
        return self.out(states.flatten(0, 1)).reshape(*x.shape, -1).transpose(1, 2)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(torch.tanh(self.one(x)))


class Mixing(nn.Module):
    """Its examples affect each other."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.one(x)
        return out - out.mean(0)


class Drawing(nn.Module):
    """Draws from torch's own generator, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x * torch.rand(x.shape, dtype=x.dtype))


def strided_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.3),
        nn.Conv2d(4, 40, 3, padding=1, bias=False),
        nn.Tanh(),
        nn.Conv2d(40, 40, 3, stride=3),
        nn.Flatten(),
        nn.Linear(80, 4),
    )


def small_resnet() -> nn.Module:
    return nn.Sequential(
        *_rectified(1, 4), _block(4, 4, 1), _block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


BUILT = {
    "resnet": small_resnet,
    "words": Words,
    "every-word": EveryWord,
    "strided": strided_net,
    "tied": Tied,
    "mixing": Mixing,
    "drawing": Drawing,
}
SHAPES: dict[str, tuple[int, ...]] = {
    "logistic": (5, 3),
    "mlp": (10,),
    "cpfed-mlp": (10,),
    "fed-spa-mnist-cnn": (1, 28, 28),
    "fed-spa-cifar-cnn": (3, 32, 32),
    "fed-smp-cnn": (1, 28, 28),
    "afo-cnn": (1, 8, 8),
    "resnet": (1, 6, 6),
    "char-lstm": (80,),
    "strided": (2, 6, 6),
    "words": (6,),
    "every-word": (6,),
}
SUPPORTED = [name for name in SHAPES if name != "char-lstm"]


class Case:
    """A model, three clients with their own weights, and ragged batches."""

    def __init__(self, name: str, dtype: torch.dtype = F64, clients: int = 3, batch: int = 4) -> None:
        shape, g = SHAPES.get(name, (6,)), torch.Generator().manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = BUILT[name]() if name in BUILT else build_model(name, torch.Size(shape), 4 if name != "char-lstm" else 80, 0)
        self.learner = FlatModel(model, cross_entropy, dtype=dtype)
        codes = torch.randint(0, 7, (clients, batch, *shape), generator=g)
        wordy = name in ("words", "every-word", "char-lstm")
        self.x = codes if wordy else torch.randn(clients, batch, *shape, generator=g, dtype=F64).to(dtype)
        self.y = torch.randint(0, 4, (clients, batch, *((6,) if name == "every-word" else ())), generator=g)
        if name == "every-word":
            self.y[:, :, 4:] = -100
            self.y[0, 0] = -100  # nothing of this text counts
        self.real = torch.arange(batch) < torch.tensor([batch, batch - 1, 1] * clients)[:clients, None]
        self.keys = keys_of(5, torch.arange(clients))
        d = self.learner.dim
        self.params = self.learner.initial() + (0.03 * torch.randn(clients, d, generator=g, dtype=F64)).to(dtype)
        self.mask = torch.rand(clients, d, generator=g) < 0.4

    def sums(self, clip: L2Clip | CoordinateClip, masked: bool = False, path: str = "auto", memory: int = 2**29) -> ClippedSums:
        mask = self.mask if masked else None
        return clipped_sums(self.learner, self.params, self.x, self.y, self.real, self.keys, clip, mask, memory, path)

    def alone(self, c: int, path: str) -> ClippedSums:
        one = slice(c, c + 1)
        given = (v[one] for v in (self.params, self.x, self.y, self.real, self.keys))
        return clipped_sums(self.learner, *given, L2Clip(0.3), self.mask[one], path=path)  # type: ignore[misc]


def by_loop(case: Case, clip: L2Clip | CoordinateClip, masked: bool) -> ClippedSums:
    """What anybody would write: one example after another."""
    learner, sums, losses = case.learner, torch.zeros_like(case.params), torch.zeros(len(case.params), dtype=F64)
    learner.module.train()
    for c in range(len(case.params)):
        seen = []
        for j in range(case.real.shape[1]):
            x, y = case.x[c, j : j + 1], case.y[c, j : j + 1]
            if not case.real[c, j] or bool((y == -100).all()):
                continue
            row = case.params[c].clone().requires_grad_()
            with OwnRows(fold(case.keys[c], j)):
                loss = cross_entropy(functional_call(learner.module, learner.named(row), (x,)), y).mean()
            (g,) = torch.autograd.grad(loss, row)
            g = g * case.mask[c] if masked else g
            sums[c] += g * min(1.0, clip.norm / float(g.norm())) if isinstance(clip, L2Clip) else g.clamp(-clip.most, clip.most)
            seen.append(loss.detach())
        losses[c] = sum(seen) / max(1, len(seen))
    return ClippedSums(sums, losses)


def apart(a: Tensor, b: Tensor) -> float:
    """The largest distance of a client's sums, in units of their norm."""
    return float(((a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-300)).max())


def test_three_numbers_by_hand() -> None:
    """Loss 0.5 (w.x - y)^2 at w = (1, 2, 0): gradients (w.x - y) x = (3, 0, 4) * 1 and (0, 2, 0) * 1, then one padded row."""
    learner = FlatModel(nn.Sequential(nn.Linear(3, 1, bias=False), nn.Flatten(0)), squares, dtype=F64)
    x = torch.tensor([[[3.0, 0.0, 4.0], [0.0, 2.0, 0.0], [9.0, 9.0, 9.0]]], dtype=F64)
    y = torch.tensor([[2.0, 3.0, 0.0]], dtype=F64)
    given = (learner, torch.tensor([[1.0, 2.0, 0.0]], dtype=F64), x, y, torch.tensor([[True, True, False]]), torch.tensor([7]))
    mask = torch.tensor([[True, True, False]])
    for path in ("plain", "ghost"):
        sums, losses = clipped_sums(*given, L2Clip(2.5), path=path)
        assert torch.allclose(sums, torch.tensor([[1.5, 2.0, 2.0]], dtype=F64), rtol=1e-12)
        assert losses.tolist() == [0.5]
        # with the mask first, the gradients are (3, 0, 0) and (0, 2, 0)
        assert torch.allclose(clipped_sums(*given, L2Clip(2.5), mask, path=path).sums, torch.tensor([[2.5, 2.0, 0.0]], dtype=F64))
    assert clipped_sums(*given, CoordinateClip(2.25)).sums.tolist() == [[2.25, 2.0, 2.25]]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", ["logistic", "mlp", "fed-spa-mnist-cnn", "afo-cnn", "strided", "words", "every-word"])
def test_plain_equals_a_loop_over_examples(name: str, masked: bool) -> None:
    case = Case(name)
    for clip in (L2Clip(0.3), CoordinateClip(0.01)):
        ours, loop = case.sums(clip, masked, "plain"), by_loop(case, clip, masked)
        assert apart(ours.sums, loop.sums) < 1e-12
        assert torch.allclose(ours.losses, loop.losses, rtol=1e-12)


@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_ghost_equals_plain(name: str, dtype: torch.dtype) -> None:
    """To 1e-9 of the sum's norm in float64, and to 1e-5 in float32."""
    small = name in ("fed-smp-cnn", "fed-spa-cifar-cnn")
    case = Case(name, dtype, *((2, 2) if small else (3, 4)))
    close = 1e-9 if dtype == F64 else 1e-5
    for norm, masked in ((0.3, False), (0.3, True), (1e6, False)):
        ghost, plain = (case.sums(L2Clip(norm), masked, path) for path in ("ghost", "plain"))
        assert apart(ghost.sums, plain.sums) < close
        assert torch.allclose(ghost.losses, plain.losses, rtol=close)
        assert not masked or not ghost.sums[~case.mask].any()
        assert not masked or not plain.sums[~case.mask].any()


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", ["mlp", "strided", "every-word"])
def test_every_way_to_a_norm_gives_the_same(name: str, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer's gradients held as they are, which a GPU has small ones do, or none that need not be."""
    case = Case(name)
    monkeypatch.setattr(Product, "is_held", lambda self, masked: held or (masked and self.sizes()[2] > 1))
    for masked in (False, True):
        assert apart(case.sums(L2Clip(0.3), masked, "ghost").sums, case.sums(L2Clip(0.3), masked, "plain").sums) < 1e-9


@pytest.mark.parametrize(("name", "why"), [("char-lstm", "addmm|used by"), ("tied", "twice"), ("mixing", "something else")])
def test_what_ghost_cannot_follow_falls_back_to_plain(name: str, why: str) -> None:
    case = Case(name, clients=2, batch=2)
    assert torch.equal(case.sums(L2Clip(0.3)).sums, case.sums(L2Clip(0.3), path="plain").sums)
    if name != "mixing":  # which vmap sees one example at a time, and a loop too
        assert apart(case.sums(L2Clip(0.3)).sums, by_loop(case, L2Clip(0.3), False).sums) < 1e-9
    with pytest.raises(UsageError, match=why):
        case.sums(L2Clip(0.3), path="ghost")


def test_groups_frozen_parts_and_coordinates_fall_back() -> None:
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 3))
    partly = nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.Linear(5, 3))
    partly[1].weight.requires_grad_(False)
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.Linear(5, 3))
    frozen[1].requires_grad_(False)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 2, 6, 6, generator=g, dtype=F64), torch.randint(0, 3, (2, 3), generator=g)
    for model, why in ((grouped, "groups"), (partly, "in part"), (frozen, "")):
        learner = FlatModel(model, cross_entropy, dtype=F64)
        given = (learner, learner.initial().repeat(2, 1), x, y, torch.ones(2, 3, dtype=torch.bool), torch.arange(2))
        auto, plain = clipped_sums(*given, L2Clip(0.3)).sums, clipped_sums(*given, L2Clip(0.3), path="plain").sums
        assert apart(auto, plain) < 1e-9
        if why:
            with pytest.raises(UsageError, match=why):
                clipped_sums(*given, L2Clip(0.3), path="ghost")
        else:
            clipped_sums(*given, L2Clip(0.3), path="ghost")
        with pytest.raises(UsageError, match="l2 norms alone"):
            clipped_sums(*given, CoordinateClip(0.3), path="ghost")


def test_a_model_that_vmap_refuses_is_looped_over_and_its_draws_are_its_own() -> None:
    case = Case("drawing")
    case.learner.vectorised = False
    sums = case.sums(L2Clip(0.3), masked=True).sums
    for c in range(3):
        assert torch.equal(sums[c : c + 1], case.alone(c, "auto").sums)
    assert sums.abs().max() > 0.01
    plain = Case("mlp")
    together = plain.sums(L2Clip(0.3), path="plain").sums
    plain.learner.vectorised = False
    assert apart(plain.sums(L2Clip(0.3)).sums, together) < 1e-12


@pytest.mark.parametrize("path", ["plain", "ghost"])
@pytest.mark.parametrize("name", ["mlp", "fed-spa-mnist-cnn", "strided"])
def test_an_example_that_is_not_finite_contributes_nothing_and_changes_nobody(name: str, path: str) -> None:
    case = Case(name)
    clean = case.sums(L2Clip(0.3), path=path)
    left_out = case.real.clone()
    left_out[0, 2] = False
    case.real, all_real = left_out, case.real
    without = {masked: case.sums(L2Clip(0.3), masked, path).sums for masked in (False, True)}
    assert not torch.equal(without[False], clean.sums)
    case.real = all_real
    for bad in (math.nan, math.inf):
        case.x[0, 2].view(-1)[1] = bad
        for masked, expected in without.items():
            assert torch.equal(case.sums(L2Clip(0.3), masked, path).sums, expected)
    assert torch.isfinite(case.sums(CoordinateClip(0.1)).sums).all()


@pytest.mark.parametrize("path", ["plain", "ghost"])
def test_a_gradient_beyond_single_precision_counts_as_infinite(path: str) -> None:
    """Both factors of its outer product are finite, so that the ghost path never sees an infinity."""
    learner, x = LEARNERS["linear"], torch.ones(1, 2, 5)
    x[0, 1] = torch.arange(1.0, 6.0)
    given = (torch.ones(1, 2, dtype=torch.bool), torch.arange(1), L2Clip(1e20))
    clipped_sums(learner, learner.initial()[None], x, torch.zeros(1, 2), *given, path=path)
    x[0, 0] = 1e25
    sums = clipped_sums(learner, learner.initial()[None], x, torch.zeros(1, 2), *given, path=path).sums
    x[0, 0] = 1.0
    alone = clipped_sums(
        learner, learner.initial()[None], x, torch.zeros(1, 2), torch.tensor([[False, True]]), *given[1:], path=path
    )
    assert torch.equal(sums, alone.sums)


@pytest.mark.parametrize(("clients", "batch"), [(0, 3), (2, 0)])
def test_nobody_and_nothing_sum_to_zero(clients: int, batch: int) -> None:
    case = Case("mlp", clients=clients, batch=batch)
    ours = case.sums(L2Clip(0.3))
    assert ours.sums.shape == (clients, case.learner.dim)
    assert not ours.sums.any()
    assert ours.losses.tolist() == [0.0] * clients


@pytest.mark.parametrize("path", ["plain", "ghost"])
def test_a_code_beyond_the_table_contributes_nothing(path: str) -> None:
    case = Case("words")
    case.sums(L2Clip(0.3), path=path)
    case.x[0, 1, 2] = 7
    case.x[1, 0, 0] = -1
    spoilt = case.sums(L2Clip(0.3), path=path).sums
    case.real[0, 1] = case.real[1, 0] = False
    assert torch.equal(spoilt, case.sums(L2Clip(0.3), path=path).sums)


@pytest.mark.parametrize("path", ["plain", "ghost"])
@pytest.mark.parametrize("name", ["mlp", "strided", "every-word"])
def test_padding_pieces_and_neighbours_change_nothing(name: str, path: str) -> None:
    case = Case(name)
    whole = case.sums(L2Clip(0.3), masked=True, path=path)
    for memory in (1, 10**5, 10**6):
        pieces = case.sums(L2Clip(0.3), masked=True, path=path, memory=memory)
        assert apart(pieces.sums, whole.sums) < 1e-12
        assert torch.allclose(pieces.losses, whole.losses, rtol=1e-12)
    for c in range(3):
        assert apart(case.alone(c, path).sums, whole.sums[c : c + 1]) < 1e-12
    case.x[~case.real] = 0
    assert torch.equal(case.sums(L2Clip(0.3), masked=True, path=path).sums, whole.sums)
    case.real[2] = False
    empty = case.sums(L2Clip(0.3), path=path)
    assert not empty.sums[2].any()
    assert empty.losses[2] == 0


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["linear", "conv", "sequence"]),
    st.sampled_from(["plain", "ghost"]),
    st.booleans(),
    st.floats(-12, 20),
    st.floats(-3, 3),
    st.integers(0, 2**20),
)
def test_no_contribution_exceeds_the_clip(kind: str, path: str, masked: bool, scale: float, log_clip: float, seed: int) -> None:
    """One example for each client in float32, its sum's norm in float64: at or below the clip, whatever the scale."""
    learner, g = LEARNERS[kind], torch.Generator().manual_seed(seed)
    x = torch.randn(6, 1, *INPUTS[kind], generator=g) * 10 ** torch.linspace(-1, 1, 6).view(6, 1, *[1] * len(INPUTS[kind]))
    x = x * 10.0 ** (scale / (1 if kind == "linear" else 2))
    y, clip = torch.randn(6, 1, generator=g), 10.0**log_clip
    params = learner.initial() + 0.1 * torch.randn(6, learner.dim, generator=g)
    given = (learner, params, x, y, torch.ones(6, 1, dtype=torch.bool), torch.arange(6))
    mask = torch.rand(6, learner.dim, generator=g) < 0.5 if masked else None
    sums = clipped_sums(*given, L2Clip(clip), mask, path=path).sums.double()
    norms = sums.norm(dim=1)
    assert bool((norms <= clip).all())
    if scale > 8 and 10.0**scale < 1e15 and mask is None:  # a mask may happen to leave nothing of an example
        assert bool((norms > 0.999 * clip).all())  # nor is it clipped to nothing
    bounded = clipped_sums(*given, CoordinateClip(clip), mask).sums.double()
    assert float(bounded.abs().max()) <= clip


INPUTS = {"linear": (5,), "conv": (2, 6, 6), "sequence": (3, 30)}
LEARNERS = {
    "linear": FlatModel(nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), squares),
    "conv": FlatModel(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0)), squares),
    "sequence": FlatModel(nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Flatten(), nn.Linear(90, 1), nn.Flatten(0)), squares),
}


def test_positions_that_cancel_do_not_slip_past_the_clip() -> None:
    """Gradients of two positions that are opposite but for a millionth: the norm of their sum is rounding, and bounded."""
    learner = FlatModel(nn.Sequential(nn.Linear(30, 30, bias=False), nn.Flatten()), lambda o, t: (o * t).sum(1))
    g = torch.Generator().manual_seed(0)
    token, back = torch.randn(30, generator=g), torch.randn(30, generator=g)
    x = torch.stack([token, token + 1e-6 * torch.randn(30, generator=g)])[None, None].repeat(1, 2, 1, 1)
    x[0, 1] += 1.0
    y = torch.cat([back, -back])[None, None].repeat(1, 2, 1)
    for clip in (1e-7, 1e-5, 1e-3):
        real = torch.tensor([[True, False]])
        sums = clipped_sums(learner, learner.initial()[None], x, y, real, torch.arange(1), L2Clip(clip), path="ghost").sums
        assert 0 < float(sums.double().norm()) <= clip


@pytest.mark.parametrize("path", ["plain", "ghost"])
def test_clipping_the_mean_instead_would_be_noticed(path: str) -> None:
    case = Case("mlp")
    right = case.sums(L2Clip(0.3), path=path).sums
    count = case.real.sum(1, keepdim=True)
    mean = case.sums(L2Clip(1e9), path=path).sums / count
    wrong = count * mean * (0.3 / mean.norm(dim=1, keepdim=True)).clamp_max(1.0)
    assert apart(wrong[:2], right[:2]) > 0.01
    assert apart(wrong[2:], right[2:]) < 1e-9  # but for the client of one example
    unclipped = case.learner.gradients(case.params, case.x, case.y, case.real.to(F64), case.keys)[0]
    assert apart(mean, unclipped) < 1e-9


def test_a_text_without_a_target_that_counts_contributes_nothing() -> None:
    case = Case("every-word")
    for path in ("plain", "ghost"):
        with_it = case.sums(L2Clip(0.3), path=path)
        case.real[0, 0] = False
        without = case.sums(L2Clip(0.3), path=path)
        case.real[0, 0] = True
        assert torch.equal(with_it.sums, without.sums)
        assert torch.equal(with_it.losses, without.losses)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_precision_is_as_it_was_afterwards(precision: str) -> None:
    case = Case("fed-spa-mnist-cnn", torch.float32, 2, 2)
    torch.set_float32_matmul_precision(precision)
    try:
        assert bool((case.sums(L2Clip(0.3)).sums.double().norm(dim=1) <= 0.3 * case.real.sum(1)).all())
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def huge_inputs(kind: str, clip: float) -> Iterator[tuple[FlatModel, Tensor, Tensor]]:
    """Models, examples and targets: something tiny comes back, something huge went in, and the gradient is their product."""
    for power in torch.linspace(-45, 0, 40).tolist():
        for huge in (1e18, 1e20, 1e22, 1e24, 1e26, 1e30, 1e34, 1e37, 3e38):
            if kind == "outer":
                learner = FlatModel(nn.Sequential(nn.Linear(64, 1), nn.Flatten(0)), lambda o, t: o * t)
                yield learner, torch.full((1, 1, 64), huge), torch.full((1, 1), 10.0**power)
            else:  # two positions: an ordinary one, and one that is huge where next to nothing comes back
                learner = FlatModel(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Flatten()), lambda o, t: (o * t).sum(1))
                x = torch.ones(1, 1, 2, 64)
                x[..., 1, :] = huge
                yield learner, x, torch.cat([torch.full((1, 1, 64), 1e-4 * clip), torch.full((1, 1, 64), 10.0**power)], 2)


@pytest.mark.parametrize("clip", [1e-9, 1e-4, 1.0])
@pytest.mark.parametrize("kind", ["outer", "positions"])
def test_what_single_precision_rounds_coarsely_does_not_slip_past_the_clip(
    kind: str, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(per_example, "_tried", lambda *given: per_example._Trial("", (1, 1)))  # on two ordinary ones it serves
    real, keys, some = torch.tensor([[True]]), torch.arange(1), 0
    for learner, x, y in huge_inputs(kind, clip):
        for mask in (None, torch.arange(learner.dim)[None] % 3 > 0):
            given = (learner, learner.initial()[None], x, y, real, keys, L2Clip(clip), mask)
            norm = float(clipped_sums(*given, path="ghost").sums.double().norm())
            assert norm <= clip
            some += norm > 0.99 * clip
    assert some > 10  # most of these are clipped, and not dropped


@pytest.mark.parametrize("clip", [1e-9, 1.0, 1e5])
def test_a_gradient_of_1e20_clips_is_clipped_and_not_dropped(clip: float) -> None:
    learner = FlatModel(nn.Sequential(nn.Linear(64, 1), nn.Flatten(0)), lambda o, t: o * t)
    x, real = torch.rand(1, 2, 64, generator=torch.Generator().manual_seed(0)) + 0.5, torch.tensor([[True, False]])
    x[0, 0] *= 1e20 * clip
    for mask in (None, torch.arange(learner.dim)[None] % 3 > 0):
        given = (learner, learner.initial()[None], x, torch.ones(1, 2), real, torch.arange(1), L2Clip(clip), mask)
        assert 0.999 * clip < float(clipped_sums(*given, path="ghost").sums.double().norm()) <= clip


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in (0.0, -1.0, 1e-10, 1e31, math.inf, math.nan):  # 1e-10: beside it, what single precision rounds away would show
        with pytest.raises(UsageError, match="positive"):
            L2Clip(wrong)
        with pytest.raises(UsageError, match="positive"):
            CoordinateClip(wrong)
    with pytest.raises(UsageError, match="path"):
        Case("mlp").sums(L2Clip(1.0), path="fast")


def test_what_an_example_draws_does_not_depend_on_who_else_is_in_the_batch() -> None:
    """Dropout by the record's own number: without one record, the others contribute what they did."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    learner = FlatModel(model, nn.CrossEntropyLoss(reduction="none"), dtype=F64)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(1, 5, 6, generator=g, dtype=F64), torch.randint(0, 3, (1, 5), generator=g)
    keys, clip = torch.tensor([7]), L2Clip(0.3)

    def sums(rows: list[int], path: str) -> Tensor:
        chosen = torch.tensor(rows)
        real = torch.ones(1, len(rows), dtype=torch.bool)
        now = learner.initial()[None]
        return clipped_sums(learner, now, x[:, chosen], y[:, chosen], real, keys, clip, path=path, numbers=chosen[None]).sums

    for path in ("plain", "ghost"):
        whole = sums([0, 1, 2, 3, 4], path)
        for left in range(5):
            others = [i for i in range(5) if i != left]
            assert float((whole - sums(others, path)).norm()) <= 0.3
            assert apart(whole - sums(others, path), sums([left], path)) < 1e-9


def test_mixing_that_the_first_examples_hide_is_found() -> None:
    """Divided by the largest entry of the batch, which is 1 in all the data: scaled copies show it."""

    class ByTheLargest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x / x.abs().max())
            return out

    learner = FlatModel(ByTheLargest(), nn.CrossEntropyLoss(reduction="none"), dtype=F64)
    x = torch.rand(1, 4, 4, dtype=F64)
    x[..., 0] = 1.0
    y, real = torch.tensor([[0, 1, 2, 0]]), torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(UsageError, match="something else than plain"):
        clipped_sums(learner, learner.initial()[None], x, y, real, torch.tensor([1]), L2Clip(1.0), path="ghost")
