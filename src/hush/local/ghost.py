"""What single layers know of the gradients of single examples, of every client of a cohort at once: the ghost path's layers.

The model runs once on all clients' rows, each client's weights put in where a layer is called. A layer keeps what went in and what
came back; from these it gives per-example norms and clipped sums without ever holding all per-example gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.grad import conv2d_input
from torch.overrides import TorchFunctionMode

from hush.local.flat import FlatModel
from hush.local.own_rows import DROPOUT_KINDS, guarded_embedding, kept
from hush.random import fold


class Unsupported(Exception):
    """Why the ghost path cannot follow a model."""


class Step(NamedTuple):
    """The rows of all clients that are worked on at a time; `keys[clients, batch]` are the rows' own."""

    x: Tensor
    y: Tensor
    keys: Tensor
    counts: Tensor


class _Window(NamedTuple):
    """How a convolution looks at an image: each pair is (height, width)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def columns(self, x: Tensor, h: int, w: int) -> Tensor:
        """Images `[..., channels, height, width]` as `[..., channels, *size, h, w]`: what each of h x w outputs looks at."""
        if any(self.padding):
            x = F.pad(x, (self.padding[1],) * 2 + (self.padding[0],) * 2)
        *outer, down, across = x.stride()
        within = (down * self.dilation[0], across * self.dilation[1])
        steps = (down * self.stride[0], across * self.stride[1])
        return x.as_strided((*x.shape[:-2], *self.size, h, w), (*outer, *within, *steps), x.storage_offset())

    def how(self) -> dict[str, Any]:
        """As PyTorch's convolutions are told."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


@dataclass
class _Call:
    """One use of a layer's parameters: what went in (`a`), what came back (`b`), and where its parameters lie.

    Rows come as `[batch, clients, ...]`: of a convolution's inputs, the channels of all clients then lie side by side.
    """

    weight: slice
    bias: slice | None
    window: _Window | None = None
    a: Tensor = field(default_factory=lambda: torch.empty(0))
    b: Tensor = field(default_factory=lambda: torch.empty(0))

    def held(self, masked: bool) -> list[tuple[slice, Tensor]]:
        """The gradients of single examples `[clients, batch, p]` that are held as they are."""
        return []

    def square(self, mask: Tensor | None, clip: float) -> Tensor | None:
        """The squared norms `[clients, batch]` of all that is not held, if anything is; infinite where `clip` would not hold."""
        return None

    def total(self, factors: Tensor, alive: Tensor) -> Tensor | None:
        """The weighted sums `[clients, p]` of all that is not held, if there is anything: gradients of the weight."""
        return None

    def floats(self, masked: bool) -> int:
        """About how many numbers this takes for an example."""
        window = math.prod(self.window.size) if self.window else 1
        held = sum(g.numel() for _, g in self.held(masked))
        return (2 * window * self.a.numel() + 3 * self.b.numel() + 4 * held) // max(1, len(self.b) * self.b.shape[1])


class Product(_Call):
    """Matrix times columns: a linear layer or convolution. `a[batch, clients, in, t]` or images, `b[batch, clients, out, ...]`."""

    def sizes(self) -> tuple[int, int, int]:
        """What goes in, what comes out, and at how many positions."""
        into = self.a.shape[2] * (math.prod(self.window.size) if self.window else 1)
        return into, self.b.shape[2], math.prod(self.b.shape[3:])

    def columns(self, a: Tensor) -> Tensor:
        """What went in as `[batch, clients, in..., t...]`."""
        return self.window.columns(a, *self.b.shape[3:]) if self.window else a

    def is_held(self, masked: bool) -> bool:
        into, out, t = self.sizes()
        if t == 1:  # an outer product, whose norm is that of its factors; a GPU has small ones done in fewer launches
            return self.b.is_cuda and into * self.b.numel() <= 2**24
        return masked or 2 * t * (into + out) >= into * out  # the fewer multiplications, one of float64 counting as two

    def held(self, masked: bool) -> list[tuple[slice, Tensor]]:
        into, out, t = self.sizes()
        b = self.b.flatten(3)
        biases = [(self.bias, b.sum(3).transpose(0, 1))] if self.bias is not None else []
        if not self.is_held(masked):
            return biases
        each = torch.bmm(b.reshape(-1, out, t), self.columns(self.a).reshape(-1, into, t).mT)
        return [(self.weight, each.view(*b.shape[:2], -1).transpose(0, 1)), *biases]

    def square(self, mask: Tensor | None, clip: float) -> Tensor | None:
        if self.is_held(mask is not None):
            return None
        into, out, t = self.sizes()
        a, b = self.columns(self.a).reshape(-1, into, t).double(), self.b.reshape(-1, out, t).double()
        if t > 1:  # the sum over positions t, s of <b_t, b_s> <a_t, a_s>
            of_a, of_b = (torch.bmm(v.mT, v) for v in (a, b))
            went_in = of_a.diagonal(0, 1, 2)
            spread = (went_in.sqrt() * of_b.diagonal(0, 1, 2).sqrt()).sum(1)
            most = went_in.amax(1).view(self.b.shape[:2]).T
            return _weighable(_guarded((of_a * of_b).sum((1, 2)), spread, self.b), most, clip, self.b)
        a, b = (v.square().view(*self.b.shape[:2], -1).transpose(0, 1) for v in (a, b))
        most = a.sum(2)
        if mask is None:
            return _weighable(most * b.sum(2), most, clip, self.b)
        squares = (torch.bmm(b, mask[:, self.weight].reshape(-1, out, into).double()) * a).sum(2)
        return _weighable(squares, most, clip, self.b)

    def total(self, factors: Tensor, alive: Tensor) -> Tensor:
        own = alive.T[:, :, None, None]
        a = self.columns(torch.where(own, self.a.flatten(3), 0.0).view(self.a.shape))
        b = torch.where(own, self.b.flatten(3), 0.0) * factors.T[:, :, None, None]
        a = a.movedim(0, 4 if self.window else 2).reshape(a.shape[1], self.sizes()[0], -1)  # [clients, in, batch * t]
        return torch.bmm(b.movedim(0, 2).flatten(2), a.mT).flatten(1)


class _Affine(_Call):
    """What stretches and shifts a normalised layer: `a` and `b` are the gradients of weight and bias, `[batch, clients, p]`."""

    def held(self, masked: bool) -> list[tuple[slice, Tensor]]:
        both = [(self.weight, self.a.transpose(0, 1))]
        return both if self.bias is None else [*both, (self.bias, self.b.transpose(0, 1))]


class _Table(_Call):
    """Rows of an embedding: `a[batch, clients, t]` are their numbers, `b[batch, clients, t, width]`."""

    def square(self, mask: Tensor | None, clip: float) -> Tensor:
        b = self.b.double()
        if mask is not None:  # a product, so that NaN outside of the mask stays NaN
            owner = torch.arange(len(mask), device=b.device)[:, None]
            b = b * mask[:, self.weight].reshape(len(mask), -1, b.shape[3])[owner, self.a]
        same, b = (self.a[..., None] == self.a[..., None, :]).flatten(0, 1), b.flatten(0, 1)
        return _guarded((torch.bmm(b, b.mT) * same).sum((1, 2)), b.norm(dim=2).sum(1), self.b)

    def total(self, factors: Tensor, alive: Tensor) -> Tensor:
        b = torch.where(alive.T[..., None, None], self.b, 0.0) * factors.T[..., None, None]
        clients, width = b.shape[1], b.shape[3]
        rows = (self.weight.stop - self.weight.start) // width
        place = self.a + torch.arange(clients, device=b.device)[:, None] * rows
        return b.new_zeros(clients * rows, width).index_add_(0, place.flatten(), b.reshape(-1, width)).view(clients, -1)


_LARGEST = 2.0**110
"""The most that goes into a layer, in clips, in single precision: `total` weighs what came back, and a small product is off by up
to 2^-150. With more than this going in, that would show beside the clip. Such a record counts as one that is not finite."""


def _weighable(squares: Tensor, most: Tensor, clip: float, like: Tensor) -> Tensor:
    """Squared norms, infinite where what went in, `most` when squared, is too large for `like`'s precision."""
    return squares if like.dtype is torch.float64 else torch.where(most <= (_LARGEST * clip) ** 2, squares, torch.inf)


def _guarded(square: Tensor, spread: Tensor, like: Tensor) -> Tensor:
    """Squared norms `[clients, batch]` of sums whose terms may cancel: in `like`'s precision they err by what the terms add to."""
    norms = square.clamp_min(0.0).sqrt() + 8 * torch.finfo(like.dtype).eps * spread
    return norms.square().view(like.shape[:2]).T


# ---- The ghost path: the model, with each client's own weights


_LOOKS = ("__get__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "is_contiguous", "__len__")
"""What may be asked of a parameter without using its values."""


class Recorder(TorchFunctionMode):
    """Runs the module on `[batch * clients, ...]` rows, each layer with the weights of the row's own client, and takes notes.

    The parameters in the module are placeholders: a layer is known by the objects that it hands over. What has no parameters
    sees one large batch, without vmap.
    """

    def __init__(self, learner: FlatModel, params: Tensor, step: Step) -> None:
        super().__init__()
        self.learner, self.params = learner, params
        self.x, self.y, self.keys = (v.transpose(0, 1).flatten(0, 1) for v in step[:3])
        self.rows = (step.counts.shape[1], len(params))
        self.drops, self.calls = 0, list[_Call]()
        self.probe = torch.zeros((), device=params.device, requires_grad=True)
        """All layers depend on it, so that something comes back to every one, the first too."""
        own, ends = dict(learner.module.named_parameters()), itertools.accumulate(learner._sizes)
        self.free = {id(own[n]): slice(e - s, e) for n, s, e in zip(learner._names, learner._sizes, ends, strict=True)}
        self.names = {id(own[n]): n for n in learner._names}

    def run(self) -> tuple[list[_Call], Tensor]:
        """The calls with all that they know, and the losses `[clients, batch]`."""
        with torch.enable_grad(), self:
            losses = self.learner.per_example(self.learner.module(self.x), self.y)
        if self.free:
            raise Unsupported(f"'{self.names[next(iter(self.free))]}' is used by no layer that it knows")
        torch.autograd.grad(losses, self.probe, torch.ones_like(losses), allow_unused=True)
        return [call for call in self.calls if call.b.numel()], losses.detach().view(self.rows).T

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUT_KINDS:
            self.drops += 1
            return self.dropout(DROPOUT_KINDS[func], *args, **kwargs)
        touched = any(id(v) in self.names for v in _flat((args, kwargs)))
        if func is F.embedding and not touched:
            return guarded_embedding(*args, **kwargs)
        if touched and func in _LAYERS:
            return _LAYERS[func](self, *args, **kwargs)
        result = func(*args, **kwargs)
        if touched and (func.__name__ not in _LOOKS or isinstance(result, Tensor)):
            raise Unsupported(f"parameters are used by '{func.__name__}', which it does not know")
        return result

    def dropout(self, spatial: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """As `flat._dropout`, with a key for each row."""
        if not training or p == 0.0:
            return input
        each = input.view(len(self.keys), -1, *input.shape[1:])
        shape = (*each.shape[1 : each.dim() - spatial], *([1] * spatial))
        return input * kept(fold(self.keys, self.drops), shape, p, input.dtype).flatten(0, 1)

    def noted(self, kind: Any, x: Tensor, weight: Any, bias: Any, window: _Window | None = None) -> tuple[Any, ...]:
        """A note of a layer's call, the weight and the bias of all clients. Each parameter is taken once."""
        if x.shape[0] % len(self.keys) or (x.is_floating_point() and x.dtype != self.params.dtype):
            raise Unsupported("a layer's rows are not the examples of the batch, in the precision of the model")
        places, values = [], []
        for p in (weight, bias):
            if p is not None and id(p) not in self.free:
                raise Unsupported(f"'{self.names[id(p)]}' is used twice" if id(p) in self.names else "a layer is frozen in part")
            places.append(None if p is None else self.free.pop(id(p)))
            values.append(None if p is None else self.params[:, places[-1]].view(-1, *p.shape))
        self.calls.append(kind(*places, window))
        return self.calls[-1], *values

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = input.reshape(*self.rows, -1, input.shape[-1])
        out = _apply(_Times, rows, self.probe, *self.noted(Product, input, weight, bias))
        return out.view(*input.shape[:-1], -1)

    def conv2d(  # its arguments are PyTorch's
        self, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Tensor:
        if groups != 1 or isinstance(padding, str) or input.dim() != 4:
            raise Unsupported("a convolution has groups, names its padding, or is without a batch")
        if len(input) != len(self.keys):
            raise Unsupported("a convolution sees several images of an example")
        window = _Window(*(_pair(v) for v in (tuple(weight.shape[2:]), stride, padding, dilation)))
        return _apply(_Convolve, input, self.probe, *self.noted(Product, input, weight, bias, window), self.rows)

    def group_norm(self, input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        plain = F.group_norm(input, num_groups, None, None, eps)
        return self.affine(plain, (-1, input.shape[1], math.prod(input.shape[2:])), weight, bias)

    def layer_norm(self, input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        plain = F.layer_norm(input, normalized_shape, None, None, eps)
        return self.affine(plain, (-1, math.prod(normalized_shape), 1), weight, bias)

    def affine(self, normed: Tensor, middle: tuple[int, ...], weight: Any, bias: Any) -> Tensor:
        noted = self.noted(_Affine, normed, weight, bias)
        return _apply(_Stretch, normed.reshape(*self.rows, *middle), self.probe, *noted).view(normed.shape)

    def embedding(self, input: Tensor, weight: Tensor, padding_idx: int | None = None, *unusual: Any, **more: Any) -> Tensor:
        if any(value for value in unusual if value != 2.0) or any(more.get(name) for name in _UNUSUAL):
            raise Unsupported("an embedding renormalises its rows, weighs them, or has sparse gradients")
        call, table, _ = self.noted(_Table, input, weight, None)
        numbers = input.long().reshape(*self.rows, -1)
        return _apply(_LookUp, self.probe, numbers, call, table, padding_idx).view(*input.shape, -1)


_UNUSUAL = ("max_norm", "scale_grad_by_freq", "sparse")
_LAYERS: dict[Any, Any] = {
    F.linear: Recorder.linear,
    F.conv2d: Recorder.conv2d,
    F.group_norm: Recorder.group_norm,
    F.layer_norm: Recorder.layer_norm,
    F.embedding: Recorder.embedding,
}


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, (list, tuple, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _flat(value)
    else:
        yield values


def _pair(value: Any) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return (pair[0], pair[-1])


def _apply(function: Any, *inputs: Any) -> Tensor:
    """PyTorch's own `apply` has no types."""
    return function.apply(*inputs)  # type: ignore[no-any-return]


class _Times(Function):
    """Rows `x[batch, clients, t, in]` times each client's `weight[clients, out, in]`, plus its bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Tensor, call: _Call, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(x, weight)
        rows = x.transpose(0, 1).reshape(len(weight), -1, x.shape[3])
        out = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return out.view(len(weight), len(x), -1, out.shape[2]).transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.call.a, ctx.call.b = x.mT, grad.mT
        if not ctx.needs_input_grad[0]:
            return (None,) * 5
        back = torch.bmm(grad.transpose(0, 1).reshape(len(weight), -1, grad.shape[3]), weight)
        return back.view(len(weight), *x.shape[::2], -1).transpose(0, 1), None, None, None, None


class _Convolve(Function):
    """Images `x[batch * clients, channels, ...]`, each client's with its own filters: one convolution of a group per client."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, probe: Tensor, call: _Call, weight: Tensor, bias: Tensor | None, rows: tuple[int, int]
    ) -> Tensor:
        weight, clients = weight.flatten(0, 1), len(weight)
        ctx.call, ctx.rows = call, rows
        ctx.save_for_backward(x, weight)
        beside = x.reshape(rows[0], -1, *x.shape[2:])
        out = F.conv2d(beside, weight, None if bias is None else bias.flatten(), **ctx.call.window.how(), groups=clients)
        return out.view(len(x), -1, *out.shape[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.call.a, ctx.call.b = (v.reshape(*ctx.rows, *v.shape[1:]) for v in (x, grad))
        if not ctx.needs_input_grad[0]:
            return (None,) * 6
        beside = (v.reshape(ctx.rows[0], -1, *v.shape[2:]) for v in (x, grad))
        back: Tensor = conv2d_input(next(beside).shape, weight, next(beside), **ctx.call.window.how(), groups=ctx.rows[1])  # type: ignore[no-untyped-call]
        return back.view(x.shape), None, None, None, None, None


class _Stretch(Function):
    """`x[batch, clients, before, p, after]` times each client's weight, plus its bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Tensor, call: _Call, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.call = call
        weight = weight.reshape(1, len(weight), 1, -1, 1)
        ctx.save_for_backward(x, weight)
        return x * weight if bias is None else torch.addcmul(bias.reshape(weight.shape), x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.call.a, ctx.call.b = (grad * x).sum((2, 4)), grad.sum((2, 4))
        return grad * weight, None, None, None, None


class _LookUp(Function):
    """Rows of each client's `table[clients, rows, width]`; one that there is not is NaN, and the padding's learns nothing."""

    @staticmethod
    def forward(ctx: Any, probe: Tensor, numbers: Tensor, call: _Call, table: Tensor, padding: int | None) -> Tensor:
        known = (numbers >= 0) & (numbers < table.shape[1])
        ctx.call, call.a = call, torch.where(known, numbers, 0)
        ctx.learns = known if padding is None else known & (numbers != padding % table.shape[1])
        rows = table[torch.arange(len(table), device=table.device)[:, None], call.a]
        return torch.where(known[..., None], rows, torch.nan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.call.b = torch.where(ctx.learns[..., None], grad, 0.0)
        return (None,) * 5
