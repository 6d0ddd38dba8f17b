"""What there are kernels for: a cohort's convolutions, pooling and linear layers, in any module, while it trains under vmap.

PyTorch's own functions are met on their way, so a module stays as it is. vmap then finds the kernels by the rules below. What they
do not know takes PyTorch's way, and so does everything in other precisions than float32 and on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import vmap
from torch.nn import functional as F
from torch.nn import grad as gradients
from torch.overrides import TorchFunctionMode

from hush.kernels import kernels_for
from hush.kernels.geometry import Geometry


class Kept:
    """What went into linear layers and what came back, by the name of the weights, whose gradient then nobody writes."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}


class CohortLayers(TorchFunctionMode):
    """Where clients train side by side. `kept` takes the place of the gradients of linear layers' weights, of those in `names`."""

    def __init__(self, names: dict[int, str] | None = None, kept: Kept | None = None) -> None:
        super().__init__()
        self.names, self.kept = names or {}, kept

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ours = _OURS.get(func)
        result = NotImplemented if ours is None else ours(self, *args, **kwargs or {})
        return func(*args, **kwargs or {}) if result is NotImplemented else result


def _call(function: type[Function], *given: Any) -> Any:
    """PyTorch's own `apply` has no types."""
    return function.apply(*given)  # type: ignore[no-untyped-call]


def _pair(value: Any) -> tuple[int, int]:
    one, *others = value if isinstance(value, tuple | list) else (value,)
    return int(one), int(others[0] if others else one)


# -- met on the way ----------------------------------------------------------------------------------------------------------------


def _conv2d(
    mode: CohortLayers,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if input.dim() != 4 or groups != 1 or isinstance(padding, str):
        return NotImplemented
    return _call(Convolution, input, weight, bias, Geometry(_pair(stride), _pair(padding), _pair(dilation)))


def _max_pool2d(
    mode: CohortLayers,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    window = _pair(kernel_size)
    apart = window if stride is None or stride == [] else _pair(stride)
    if input.dim() != 4 or apart != window or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1) or ceil_mode or return_indices:
        return NotImplemented
    return _call(Pool, input, window)[0]


def _linear(mode: CohortLayers, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    name = mode.names.get(id(weight))
    if mode.kept is None or name is None or input.dim() < 2:
        return NotImplemented
    result = _call(Linear, input.flatten(0, -2), weight, bias, name, mode.kept)
    return result.reshape(*input.shape[:-1], -1)


_OURS: dict[Any, Callable[..., Any]] = {torch.conv2d: _conv2d, F.max_pool2d: _max_pool2d, F.linear: _linear}


# -- one client: what vmap sees ----------------------------------------------------------------------------------------------------


class _One(Function):
    """Of one client; vmap's rule for many is in a function of its own, which a vmap around this one finds as well."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: there are no second derivatives."""


class Convolution(_One):
    """`x[B, C, H, W]` under `w[O, C, KH, KW]`, plus `b[O]` where there is one."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, how: Geometry) -> Tensor:
        return F.conv2d(x, w, b, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.how = inputs[3]

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        of_x = _call(OfImages, back, w, tuple(x.shape[2:]), ctx.how) if ctx.needs_input_grad[0] else None
        of_w = _call(OfWeights, x, back, tuple(w.shape[2:]), ctx.how) if ctx.needs_input_grad[1] else None
        of_b = back.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return of_x, of_w, of_b, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, b: Tensor | None, how: Geometry) -> tuple[Tensor, int]:
        x = _clients(x, in_dims[0], info.batch_size)
        if in_dims[1] is None and in_dims[2] is None:  # the same weights for all: one batch of more images
            return _parted(_call(Convolution, x.flatten(0, 1), w, b, how), x), 0
        own = (None if one is None else _clients(one, dim, info.batch_size) for one, dim in zip((w, b), in_dims[1:3], strict=True))
        return _call(Convolutions, x, *own, how), 0


class OfImages(_One):
    """The loss's gradient in the images, of this height and width."""

    @staticmethod
    def forward(back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry) -> Tensor:
        of_x: Tensor = gradients.conv2d_input((len(back), w.shape[1], *shape), w, back, *how)  # type: ignore[no-untyped-call]
        return of_x

    @staticmethod
    def vmap(info: Any, in_dims: Any, back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry) -> tuple[Tensor, int]:
        back = _clients(back, in_dims[0], info.batch_size)
        if in_dims[1] is None:
            return _parted(_call(OfImages, back.flatten(0, 1), w, shape, how), back), 0
        return _call(OfManyImages, back, _clients(w, in_dims[1], info.batch_size), shape, how), 0


class OfWeights(_One):
    """The loss's gradient in the weights, of this kernel's height and width."""

    @staticmethod
    def forward(x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry) -> Tensor:
        shape = (back.shape[1], x.shape[1], *kernel)
        of_w: Tensor = gradients.conv2d_weight(x, shape, back, *how)  # type: ignore[no-untyped-call]
        return of_w

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry) -> tuple[Tensor, int]:
        both = (_clients(values, dim, info.batch_size) for values, dim in zip((x, back), in_dims[:2], strict=True))
        return _call(OfManyWeights, *both, kernel, how), 0


class Pool(_One):
    """The largest of every window of `x[B, C, H, W]`, which do not overlap, and which of them it is."""

    @staticmethod
    def forward(x: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
        many, which = Pools.forward(x[None], window)
        return many[0], which[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.window, ctx.shape = inputs[1], tuple(inputs[0].shape[2:])

    @staticmethod
    def backward(ctx: Any, back: Tensor, _: Any) -> tuple[Tensor, None]:
        return _call(OfPooled, back, *ctx.saved_tensors, ctx.shape, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, window: tuple[int, int]) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _call(Pools, _clients(x, in_dims[0], info.batch_size), window), (0, 0)


class OfPooled(_One):
    """The loss's gradient in what was pooled, of this height and width."""

    @staticmethod
    def forward(back: Tensor, which: Tensor, shape: tuple[int, int], window: tuple[int, int]) -> Tensor:
        return OfManyPooled.forward(back[None], which[None], shape, window)[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, back: Tensor, which: Tensor, *how: Any) -> tuple[Tensor, int]:
        both = (_clients(values, dim, info.batch_size) for values, dim in zip((back, which), in_dims[:2], strict=True))
        return _call(OfManyPooled, *both, *how), 0


class Linear(_One):
    """`x[B, I] w[O, I]^T`, plus `b[O]` where there is one. The gradient in `w` is left to whoever has `kept`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, name: str, kept: Kept) -> Tensor:
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.name, ctx.kept = inputs[3:]

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        of_w = _call(LeftOut, x, back, ctx.name, ctx.kept) if ctx.needs_input_grad[1] else None
        of_b = back.sum(0) if ctx.needs_input_grad[2] else None
        return back @ w if ctx.needs_input_grad[0] else None, of_w, of_b, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, b: Tensor | None, *more: Any) -> tuple[Tensor, int]:
        x = _clients(x, in_dims[0], info.batch_size)
        if in_dims[1] is None and in_dims[2] is None:
            return _parted(F.linear(x.flatten(0, 1), w, b), x), 0
        w = _clients(w, in_dims[1], info.batch_size)
        if b is None:
            return x @ w.mT, 0
        return torch.baddbmm(_clients(b, in_dims[2], info.batch_size)[:, None], x, w.mT), 0


class LeftOut(_One):
    """Zeros in the place of `back^T x`, without memory; the two are kept."""

    @staticmethod
    def forward(x: Tensor, back: Tensor, name: str, kept: Kept) -> Tensor:
        kept.pairs.setdefault(name, []).append((x[None], back[None]))
        return x.new_zeros(()).expand(back.shape[-1], x.shape[-1])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, back: Tensor, name: str, kept: Kept) -> tuple[Tensor, int]:
        both = tuple(_clients(values, dim, info.batch_size) for values, dim in zip((x, back), in_dims[:2], strict=True))
        kept.pairs.setdefault(name, []).append((both[0], both[1]))
        return x.new_zeros(()).expand(info.batch_size, back.shape[-1], x.shape[-1]), 0


# -- many clients ------------------------------------------------------------------------------------------------------------------


class _Many(Function):
    """With an axis of clients in front of every tensor; a vmap around it only makes more of them."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: gradients are taken inside of vmap, client by client."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        first = _clients(given[0], in_dims[0], info.batch_size)
        flat = (
            _clients(x, dim, info.batch_size).flatten(0, 1) if isinstance(x, Tensor) else x
            for x, dim in zip(given, in_dims, strict=True)
        )
        result = _call(cls, *flat)
        if isinstance(result, tuple):
            return tuple(_parted(one, first) for one in result), (0,) * len(result)
        return _parted(result, first), 0


class Convolutions(_Many):
    """`x[clients, B, C, H, W]` under `w[clients, O, C, KH, KW]`, plus `b[clients, O]` where there is one."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, how: Geometry) -> Tensor:
        if (precision := _precision(x)) is None:
            return vmap(lambda x, w, b: F.conv2d(x, w, b, *how), (0, 0, None if b is None else 0))(x, w, b)
        from hush.kernels.convolution import convolve

        return convolve(x, w, b, how, precision)


class OfManyImages(_Many):
    """The same as `OfImages`."""

    @staticmethod
    def forward(back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry) -> Tensor:
        if (precision := _precision(back)) is None:
            return vmap(lambda back, w: OfImages.forward(back, w, shape, how))(back, w)
        from hush.kernels.convolution import convolve_back

        return convolve_back(back, w, shape, how, precision)


class OfManyWeights(_Many):
    """The same as `OfWeights`."""

    @staticmethod
    def forward(x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry) -> Tensor:
        if (precision := _precision(x)) is None:
            return vmap(lambda x, back: OfWeights.forward(x, back, kernel, how))(x, back)
        from hush.kernels.convolution import weights_back

        return weights_back(x, back, kernel, how, precision)


class Pools(_Many):
    """The same as `Pool`, of `x[clients, B, C, H, W]`."""

    @staticmethod
    def forward(x: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
        if _precision(x) is None:
            high, wide = (side // size for side, size in zip(x.shape[3:], window, strict=True))
            shape = (*x.shape[:3], high, window[0], wide, window[1])
            parts = x[..., : high * window[0], : wide * window[1]].reshape(shape).transpose(-3, -2).flatten(-2)
            largest, which = parts.max(-1)
            return largest, which.to(torch.uint8)
        from hush.kernels.pooling import pool

        return pool(x, window)


class OfManyPooled(_Many):
    """The same as `OfPooled`."""

    @staticmethod
    def forward(back: Tensor, which: Tensor, shape: tuple[int, int], window: tuple[int, int]) -> Tensor:
        if _precision(back) is None:
            parts = back.new_zeros(*back.shape, window[0] * window[1]).scatter_(-1, which[..., None].long(), back[..., None])
            whole = parts.view(*back.shape, *window).transpose(-3, -2).flatten(-4, -3).flatten(-2)
            return F.pad(whole, (0, shape[1] - whole.shape[-1], 0, shape[0] - whole.shape[-2]))
        from hush.kernels.pooling import unpool

        return unpool(back, which, shape, window)


def _clients(values: Tensor, dim: int | None, clients: int) -> Tensor:
    return values.expand(clients, *values.shape) if dim is None else values.movedim(dim, 0)


def _parted(values: Tensor, like: Tensor) -> Tensor:
    """With the first two axes that these others have."""
    return values.reshape(*like.shape[:2], *values.shape[1:])


def _precision(x: Tensor) -> str | None:
    """Of the kernels' products, as PyTorch is told for its own; None where there are no kernels."""
    if x.dtype != torch.float32 or not kernels_for(x.device):
        return None
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
