"""A cohort's convolutions, pooling and linear layers, in any module, while it trains under vmap.

PyTorch's own functions are met on their way, so a module stays as it is. vmap then finds ours by the rules below. What they do not
know takes PyTorch's way. Convolutions and pooling have kernels on a GPU, in float32; elsewhere they are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.nn import grad as gradients
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hush.kernels import kernels_for
from hush.kernels.geometry import Geometry
from hush.local.linear import Kept, Linear, Shifted, Taken
from hush.local.rules import Many, One, as_rows, call, clients_first, parted


class CohortLayers(TorchFunctionMode):
    """Where clients train side by side, on convolutions and pooling of ours where there are `kernels`.

    `kept` takes the place of the gradients of linear layers' weights, of those in `names` (by identity); those that `taken` names
    are the received ones, less what it says. Weights that anything else uses are `elsewhere`: they must be there as they are.
    """

    def __init__(
        self,
        names: dict[int, str] | None = None,
        kept: Kept | None = None,
        taken: Mapping[str, Taken] | None = None,
        kernels: bool = True,
    ) -> None:
        super().__init__()
        self.names, self.kept, self.taken, self.kernels = names or {}, kept, taken or {}, kernels
        self.elsewhere: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        ours = _OURS.get(func) if self.kernels or func is F.linear else None
        result = NotImplemented if ours is None else ours(self, *args, **kwargs)
        if result is not NotImplemented:
            return result
        if _name(func) not in _DESCRIBE:
            self.elsewhere |= {self.names[id(one)] for one in tree_leaves((args, kwargs)) if id(one) in self.names}
        return func(*args, **kwargs)


_DESCRIBE = {"shape", "dtype", "device", "layout", "ndim", "is_leaf", "requires_grad", "is_cuda", "size", "stride", "dim", "numel"}
"""What may be asked of weights that are not there."""


def _name(func: Any) -> str:
    """Of a function, or of the attribute that is read."""
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", "") if name == "__get__" else name


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
    return call(Convolution, input, weight, bias, Geometry(_pair(stride), _pair(padding), _pair(dilation)))


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
    return call(Pool, input, window)[0]


def _linear(mode: CohortLayers, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    name = mode.names.get(id(weight))
    if mode.kept is None or name is None or input.dim() < 2:
        return NotImplemented
    rows, taken = input.flatten(0, -2), mode.taken.get(name)
    if taken is None:
        result = call(Linear, rows, weight, bias, name, mode.kept)
    else:
        result = call(Shifted, rows, weight, *taken, name, mode.kept)
        result = result if bias is None else result + bias
    return result.reshape(*input.shape[:-1], -1)


_OURS: dict[Any, Callable[..., Any]] = {torch.conv2d: _conv2d, F.max_pool2d: _max_pool2d, F.linear: _linear}


# -- one client: what vmap sees ----------------------------------------------------------------------------------------------------


class Convolution(One):
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
        of_x = call(OfImages, back, w, tuple(x.shape[2:]), ctx.how) if ctx.needs_input_grad[0] else None
        of_w = call(OfWeights, x, back, tuple(w.shape[2:]), ctx.how) if ctx.needs_input_grad[1] else None
        of_b = back.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return of_x, of_w, of_b, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, b: Tensor | None, how: Geometry) -> tuple[Tensor, int]:
        x = clients_first(x, in_dims[0], info.batch_size)
        if in_dims[1] is None and in_dims[2] is None:  # the same weights for all: one batch of more images
            return parted(call(Convolution, as_rows(x), w, b, how), x), 0
        w = clients_first(w, in_dims[1], info.batch_size)
        b = None if b is None else clients_first(b, in_dims[2], info.batch_size)
        return call(Convolutions, x, w, b, how), 0


class OfImages(One):
    """The loss's gradient in the images, of this height and width."""

    @staticmethod
    def forward(back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry) -> Tensor:
        of_x: Tensor = gradients.conv2d_input((len(back), w.shape[1], *shape), w, back, *how)  # type: ignore[no-untyped-call]
        return of_x

    @staticmethod
    def vmap(info: Any, in_dims: Any, back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry) -> tuple[Tensor, int]:
        back = clients_first(back, in_dims[0], info.batch_size)
        if in_dims[1] is None:
            return parted(call(OfImages, as_rows(back), w, shape, how), back), 0
        return call(OfManyImages, back, clients_first(w, in_dims[1], info.batch_size), shape, how), 0


class OfWeights(One):
    """The loss's gradient in the weights, of this kernel's height and width."""

    @staticmethod
    def forward(x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry) -> Tensor:
        shape = (back.shape[1], x.shape[1], *kernel)
        of_w: Tensor = gradients.conv2d_weight(x, shape, back, *how)  # type: ignore[no-untyped-call]
        return of_w

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry) -> tuple[Tensor, int]:
        both = (clients_first(values, dim, info.batch_size) for values, dim in zip((x, back), in_dims[:2], strict=True))
        return call(OfManyWeights, *both, kernel, how), 0


class Pool(One):
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
        return call(OfPooled, back, *ctx.saved_tensors, ctx.shape, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, window: tuple[int, int]) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return call(Pools, clients_first(x, in_dims[0], info.batch_size), window), (0, 0)


class OfPooled(One):
    """The loss's gradient in what was pooled, of this height and width."""

    @staticmethod
    def forward(back: Tensor, which: Tensor, shape: tuple[int, int], window: tuple[int, int]) -> Tensor:
        return OfManyPooled.forward(back[None], which[None], shape, window)[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, back: Tensor, which: Tensor, *how: Any) -> tuple[Tensor, int]:
        both = (clients_first(values, dim, info.batch_size) for values, dim in zip((back, which), in_dims[:2], strict=True))
        return call(OfManyPooled, *both, *how), 0


# -- many clients ------------------------------------------------------------------------------------------------------------------


class Convolutions(Many):
    """`x[clients, B, C, H, W]` under `w[clients, O, C, KH, KW]`, plus `b[clients, O]` where there is one."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, how: Geometry) -> Tensor:
        if (precision := _precision(x)) is None:
            return vmap(lambda x, w, b: F.conv2d(x, w, b, *how), (0, 0, None if b is None else 0))(x, w, b)
        from hush.kernels.convolution import convolve

        return convolve(x, w, b, how, precision)


class OfManyImages(Many):
    """The same as `OfImages`."""

    @staticmethod
    def forward(back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry) -> Tensor:
        if (precision := _precision(back)) is None:
            return vmap(lambda back, w: OfImages.forward(back, w, shape, how))(back, w)
        from hush.kernels.convolution import convolve_back

        return convolve_back(back, w, shape, how, precision)


class OfManyWeights(Many):
    """The same as `OfWeights`."""

    @staticmethod
    def forward(x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry) -> Tensor:
        if (precision := _precision(x)) is None:
            return vmap(lambda x, back: OfWeights.forward(x, back, kernel, how))(x, back)
        from hush.kernels.convolution import weights_back

        return weights_back(x, back, kernel, how, precision)


class Pools(Many):
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


class OfManyPooled(Many):
    """The same as `OfPooled`."""

    @staticmethod
    def forward(back: Tensor, which: Tensor, shape: tuple[int, int], window: tuple[int, int]) -> Tensor:
        if _precision(back) is None:
            parts = back.new_zeros(*back.shape, window[0] * window[1]).scatter_(-1, which[..., None].long(), back[..., None])
            whole = parts.view(*back.shape, *window).transpose(-3, -2).flatten(-4, -3).flatten(-2)
            return F.pad(whole, (0, shape[1] - whole.shape[-1], 0, shape[0] - whole.shape[-2]))
        from hush.kernels.pooling import unpool

        return unpool(back, which, shape, window)


def _precision(x: Tensor) -> str | None:
    """Of the kernels' products, as PyTorch is told for its own; None where there are no kernels."""
    if x.dtype != torch.float32 or not kernels_for(x.device):
        return None
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
