"""Convolutions of many clients at once, each with weights of its own: one launch for all of them.

An implicit matrix product: a program computes a tile of places x channels of one client, and gathers windows from where they lie,
so that no columns are written. It is for small batches, where cuDNN's kernels for groups run once a client. What a client's row
comes to depends on its own images and weights alone: sums are added up in an order that shapes decide.

Tiles are the fastest of those tried on an H200 with Fed-SMP's CNN and pfl-research's. For the weights' gradient images are padded
beforehand, so that no load asks whether it is inside; for the windows themselves that was six times slower.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hush.kernels.geometry import Geometry


@triton.jit
def _windows(  # type: ignore[no-untyped-def]
    source, weights, bias, result, images, high, wide, result_high, result_wide, channels_out,
    s_client, s_image, s_channel, s_row, s_column, w_client, b_client, r_client,
    depth: tl.constexpr, kernel_wide: tl.constexpr, inner: tl.constexpr, stride_high: tl.constexpr, stride_wide: tl.constexpr,
    apart_high: tl.constexpr, apart_wide: tl.constexpr, pad_high: tl.constexpr, pad_wide: tl.constexpr, turned: tl.constexpr,
    biased: tl.constexpr, precision: tl.constexpr, tile_places: tl.constexpr, tile_out: tl.constexpr, tile_inner: tl.constexpr,
):  # fmt: skip
    """result[place, out] = sum over a window's k = (kh, kw, c) of source[place + k] * weights[k, out]; `turned`: of all windows
    that a place lies in."""
    client = tl.program_id(2).to(tl.int64)
    source += client * s_client
    weights += client * w_client
    result += client * r_client
    place = tl.program_id(0) * tile_places + tl.arange(0, tile_places)
    real = place < images * result_high * result_wide
    image, inside = place // (result_high * result_wide), place % (result_high * result_wide)
    row, column = inside // result_wide, inside % result_wide
    out = tl.program_id(1) * tile_out + tl.arange(0, tile_out)
    total = tl.zeros((tile_places, tile_out), tl.float32)
    for first in range(0, inner, tile_inner):
        k = first + tl.arange(0, tile_inner)
        c, kw, kh = k % depth, (k // depth) % kernel_wide, k // (depth * kernel_wide)
        if turned:
            above, left = row[:, None] + pad_high - kh[None, :] * apart_high, column[:, None] + pad_wide - kw[None, :] * apart_wide
            seen = (above >= 0) & (left >= 0) & (above % stride_high == 0) & (left % stride_wide == 0)
            above, left = above // stride_high, left // stride_wide
        else:
            above = row[:, None] * stride_high - pad_high + kh[None, :] * apart_high
            left = column[:, None] * stride_wide - pad_wide + kw[None, :] * apart_wide
            seen = (above >= 0) & (left >= 0)
        seen = seen & real[:, None] & (k < inner)[None, :] & (above < high) & (left < wide)
        where = image[:, None] * s_image + above * s_row + left * s_column + c[None, :] * s_channel
        window = tl.load(source + where, mask=seen, other=0.0)
        weight = tl.load(
            weights + k[:, None] * channels_out + out[None, :], mask=(k < inner)[:, None] & (out < channels_out)[None, :], other=0.0
        )
        total = tl.dot(window, weight, total, input_precision=precision)
    if biased:
        total += tl.load(bias + client * b_client + out, mask=out < channels_out, other=0.0)[None, :]
    tl.store(result + place[:, None] * channels_out + out[None, :], total, mask=real[:, None] & (out < channels_out)[None, :])


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    source, back, result, places, high, wide, channels_out, s_client, s_image, s_row, s_column, b_client, parts,
    depth: tl.constexpr, kernel_wide: tl.constexpr, inner: tl.constexpr, stride_high: tl.constexpr, stride_wide: tl.constexpr,
    apart_high: tl.constexpr, apart_wide: tl.constexpr, precision: tl.constexpr,
    tile_places: tl.constexpr, tile_out: tl.constexpr, tile_inner: tl.constexpr,
):  # fmt: skip
    """result[part, out, k] = sum over a part of the places of source[place + k] * back[place, out]; k in the weights' own order."""
    client, part = (tl.program_id(2) // parts).to(tl.int64), tl.program_id(2) % parts
    source += client * s_client
    back += client * b_client
    result += tl.program_id(2).to(tl.int64) * (inner * channels_out)
    k = tl.program_id(0) * tile_inner + tl.arange(0, tile_inner)
    c, kw, kh = k % depth, (k // depth) % kernel_wide, k // (depth * kernel_wide)
    inside = tl.where(k < inner, kh * apart_high * s_row + kw * apart_wide * s_column + c, 0)
    out = tl.program_id(1) * tile_out + tl.arange(0, tile_out)
    share = tl.cdiv(places, parts * tile_places) * tile_places
    total = tl.zeros((tile_inner, tile_out), tl.float32)
    for first in range(part * share, tl.minimum(places, (part + 1) * share), tile_places):
        place = first + tl.arange(0, tile_places)
        real = place < places
        image, row, column = place // (high * wide), (place // wide) % high, place % wide
        corner = tl.where(real, image * s_image + row * stride_high * s_row + column * stride_wide * s_column, 0)
        window = tl.load(source + corner[None, :] + inside[:, None])
        came = tl.load(
            back + place[:, None] * channels_out + out[None, :], mask=real[:, None] & (out < channels_out)[None, :], other=0.0
        )
        total = tl.dot(window, came, total, input_precision=precision)
    where = (out[None, :] * depth + c[:, None]) * (inner // depth) + (k // depth)[:, None]
    tl.store(result + where, total, mask=(k < inner)[:, None] & (out < channels_out)[None, :])


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, precision: str) -> Tensor:
    """Each client's images `[clients, B, C, H, W]` under its own weights `[clients, O, C, KH, KW]`."""
    shape = how.outputs(x.shape[3], x.shape[4], (w.shape[3], w.shape[4]))
    return _slid(x, w.permute(0, 3, 4, 2, 1).contiguous(), bias, how, shape, False, precision)


def convolve_back(back: Tensor, w: Tensor, shape: tuple[int, int], how: Geometry, precision: str) -> Tensor:
    """The loss's gradient in the images, of that height and width, from its gradient in what came of them."""
    return _slid(back, w.permute(0, 3, 4, 1, 2).contiguous(), None, how, shape, True, precision)


def weights_back(x: Tensor, back: Tensor, kernel: tuple[int, int], how: Geometry, precision: str) -> Tensor:
    """The loss's gradient in each client's weights, `[clients, O, C, KH, KW]`."""
    source, back = _padded(x, how), _channels_last(back)
    clients, images, high, wide, out = back.shape
    channels = source.shape[4]
    inner = channels * kernel[0] * kernel[1]
    tiles = {"tile_places": 32, "tile_out": _tile(out), "tile_inner": 32}
    workers = {"num_warps": 2, "num_stages": 4} if inner >= 64 else {"num_warps": 4, "num_stages": 3}
    blocks = triton.cdiv(inner, tiles["tile_inner"]), triton.cdiv(out, tiles["tile_out"])
    parts = max(1, min(8, _PROGRAMS // (blocks[0] * blocks[1] * clients)))
    result = torch.empty(clients, parts, out, channels, *kernel, device=x.device, dtype=x.dtype)
    _weights[(*blocks, clients * parts)](
        source, back, result, images * high * wide, high, wide, out, *source.stride()[:4], back.stride(0), parts,
        **_constants(channels, kernel, how), precision=precision, **tiles, **workers,
    )  # fmt: skip
    return result[:, 0] if parts == 1 else result.sum(1)


def _slid(
    source: Tensor, weights: Tensor, bias: Tensor | None, how: Geometry, shape: tuple[int, int], turned: bool, precision: str
) -> Tensor:
    """Windows of `weights[clients, KH, KW, C, O]` over `source[clients, B, C, H, W]`; channels come to lie innermost."""
    clients, images, channels, high, wide = source.shape
    out, kernel = weights.shape[-1], weights.shape[1:3]
    result = torch.empty(clients, images, *shape, out, device=source.device, dtype=source.dtype)
    tiles = {"tile_places": 256, "tile_out": _tile(out), "tile_inner": 16}
    _windows[(triton.cdiv(images * shape[0] * shape[1], tiles["tile_places"]), triton.cdiv(out, tiles["tile_out"]), clients)](
        source, weights, weights if bias is None else bias, result, images, high, wide, *shape, out, *source.stride(),
        weights.stride(0), 0 if bias is None else bias.stride(0), result.stride(0), **_constants(channels, kernel, how),
        pad_high=how.padding[0], pad_wide=how.padding[1], turned=turned, biased=bias is not None, precision=precision, **tiles,
        num_warps=8, num_stages=3,
    )  # fmt: skip
    return result.permute(0, 1, 4, 2, 3)


_PROGRAMS = 528
"""As many keep a large GPU busy: four a multiprocessor. Of shapes alone, so that sums are added up in the same order everywhere."""


def _tile(channels: int) -> int:
    return 16 if channels <= 16 else 32 if channels <= 32 else 64


def _constants(channels: int, kernel: tuple[int, ...], how: Geometry) -> dict[str, int]:
    sides = dict(zip(("stride_high", "stride_wide", "apart_high", "apart_wide"), (*how.stride, *how.dilation), strict=True))
    return sides | {"depth": channels, "kernel_wide": kernel[1], "inner": channels * kernel[0] * kernel[1]}


def _channels_last(x: Tensor) -> Tensor:
    """`[clients, B, H, W, C]` of `[clients, B, C, H, W]`."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _padded(x: Tensor, how: Geometry) -> Tensor:
    """The same with zeros around."""
    high, wide = how.padding
    if not high and not wide:
        return _channels_last(x)
    clients, images, channels, rows, columns = x.shape
    padded = x.new_zeros(clients, images, rows + 2 * high, columns + 2 * wide, channels)
    padded[:, :, high : high + rows, wide : wide + columns] = x.permute(0, 1, 3, 4, 2)
    return padded
