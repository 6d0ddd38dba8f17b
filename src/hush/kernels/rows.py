"""Norms and sums of a cohort's rows in float64, read once in float32 as they lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS, _SHARE = 256, 2048


@triton.jit
def _squares(x, result, columns, share, parts, row_stride, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    total = tl.zeros((block,), tl.float64)
    for first in range(part * share, tl.minimum(columns, (part + 1) * share), block):
        at = first + tl.arange(0, block)
        value = tl.load(x + row * row_stride + at, mask=at < columns, other=0.0).to(tl.float64)
        total += value * value
    tl.store(result + row * parts + part, tl.sum(total, 0))


@triton.jit
def _total(x, result, rows, columns, row_stride, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros((block,), tl.float64)
    for _ in range(0, rows):
        total += tl.load(x + at, mask=at < columns, other=0.0).to(tl.float64)
        x += row_stride
    tl.store(result + at, total, mask=at < columns)


def norms(x: Tensor) -> Tensor:
    """Of every row of `x[rows, columns]`."""
    rows, columns = x.shape
    share = _COLUMNS * 16 * max(1, -(-columns // (_SHARE * 16 * _COLUMNS)))
    parts = triton.cdiv(columns, share)
    squares = torch.empty(rows, parts, dtype=torch.float64, device=x.device)
    _squares[(parts, rows)](x, squares, columns, share, parts, x.stride(0), _COLUMNS)
    return squares.sum(1).sqrt()


def total(x: Tensor) -> Tensor:
    """Of all rows, added up one after another."""
    rows, columns = x.shape
    result = torch.empty(columns, dtype=torch.float64, device=x.device)
    _total[(triton.cdiv(columns, _COLUMNS),)](x, result, rows, columns, x.stride(0), _COLUMNS)
    return result
