"""Max-pooling by windows that do not overlap, of many clients at once: one pass there, one back, and no zeros written before."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _pool(  # type: ignore[no-untyped-def]
    x, result, which, count, high, wide, channels, x_image, x_channel, x_row, x_column,
    window_high: tl.constexpr, window_wide: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = at < count
    channel, place = at % channels, at // channels
    column, row, image = place % wide, (place // wide) % high, place // (wide * high)
    corner = x + image * x_image + channel * x_channel + row * window_high * x_row + column * window_wide * x_column
    largest = tl.load(corner, mask=real, other=0.0)
    where = tl.zeros((block,), tl.int32)
    for i in tl.static_range(1, window_high * window_wide):
        value = tl.load(corner + (i // window_wide) * x_row + (i % window_wide) * x_column, mask=real, other=0.0)
        more = (value > largest) | (value != value)  # noqa: PLR0124  # NaN stays, as in PyTorch
        largest, where = tl.where(more, value, largest), tl.where(more, i, where)
    tl.store(result + at, largest, mask=real)
    tl.store(which + at, where.to(tl.uint8), mask=real)


@triton.jit
def _unpool(  # type: ignore[no-untyped-def]
    back, which, result, count, high, wide, channels, back_high, back_wide,
    b_image, b_channel, b_row, b_column, w_image, w_channel, w_row, w_column,
    window_high: tl.constexpr, window_wide: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = at < count
    channel, place = at % channels, at // channels
    column, row, image = place % wide, (place // wide) % high, place // (wide * high)
    above, left = row // window_high, column // window_wide
    inside = (row % window_high) * window_wide + column % window_wide
    seen = real & (above < back_high) & (left < back_wide)
    chosen = tl.load(which + image * w_image + channel * w_channel + above * w_row + left * w_column, mask=seen, other=255)
    value = tl.load(back + image * b_image + channel * b_channel + above * b_row + left * b_column, mask=seen, other=0.0)
    tl.store(result + at, tl.where(seen & (chosen.to(tl.int32) == inside), value, 0.0), mask=real)


def pool(x: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The largest of each window of `x[clients, B, C, H, W]`, and which of the window it is; channels lie innermost."""
    flat = x.flatten(0, 1)
    images, channels, high, wide = flat.shape
    shape = (images, high // window[0], wide // window[1], channels)
    result = torch.empty(shape, device=x.device, dtype=x.dtype)
    which = torch.empty(shape, device=x.device, dtype=torch.uint8)
    _pool[(triton.cdiv(result.numel(), _BLOCK),)](
        flat, result, which, result.numel(), shape[1], shape[2], channels, *flat.stride(), *window, _BLOCK
    )
    return _per_client(result, x), _per_client(which, x)


def unpool(back: Tensor, which: Tensor, shape: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """The loss's gradient in what was pooled, of that height and width."""
    flat, places = back.flatten(0, 1), which.flatten(0, 1)
    images, channels, high, wide = flat.shape
    result = torch.empty((images, *shape, channels), device=back.device, dtype=back.dtype)
    _unpool[(triton.cdiv(result.numel(), _BLOCK),)](
        flat, places, result, result.numel(), *shape, channels, high, wide, *flat.stride(), *places.stride(), *window, _BLOCK
    )
    return _per_client(result, back)


def _per_client(images: Tensor, like: Tensor) -> Tensor:
    """`[clients, B, C, H, W]` of `[clients B, H, W, C]`."""
    clients, each = like.shape[:2]
    return images.view(clients, each, *images.shape[1:]).permute(0, 1, 4, 2, 3)
