"""Norms and sums of a cohort's rows `[clients, d]`, as good as in float64, without a copy of them all in float64.

PyTorch reduces in another type by copying the whole tensor into it: for a hundred updates of a CNN this takes eight to twenty
times as long as the reduction itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hush.kernels import kernels_for

_COPIED = 2**21
"""Entries that are copied at once: 16 MiB."""


_BLOCK = 64
"""Squares that are added up in float32."""

ROUNDING = 2.0**-18
"""By which share a norm may be off. In whatever order, n squares added up in float32 err by n 2^-24 at most, their root by half of
that and 2^-24 of its own: for blocks of 64 less than this. (Entries under 10^-19, whose squares float32 does not hold, count as
nothing.)"""


def l2(x: Tensor) -> Tensor:
    """Each row's norm, off by `ROUNDING` at most: it is what privacy rests on. NaN or infinite where the row is.

    Blocks are added up in float32 and their sums in float64.
    """
    if _has_kernels(x):
        from hush.kernels.rows import norms

        return norms(x)
    whole = x.shape[1] // _BLOCK * _BLOCK
    if x.dtype != torch.float32 or whole == 0:
        return exact_l2(x)
    blocks = torch.linalg.vector_norm(x[:, :whole].view(len(x), whole // _BLOCK, _BLOCK), dim=2)
    found = torch.hypot(exact_l2(blocks), exact_l2(x[:, whole:]))
    if not bool(torch.isfinite(found).all()):  # not finite, or a square that float32 does not hold
        found = torch.where(torch.isfinite(found), found, exact_l2(x))
    return found


def exact_l2(x: Tensor) -> Tensor:
    """Norms along the last axis, all in float64."""
    return torch.cat([torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64) for part in _few(x)])


def total(x: Tensor, kind: torch.dtype = torch.float64) -> Tensor:
    """The sum of all rows, added up in `kind`."""
    if x.dtype == kind:
        return x.sum(0)
    if _has_kernels(x) and kind == torch.float64:
        from hush.kernels.rows import total as summed

        return summed(x)
    added = torch.zeros(x.shape[1], dtype=kind, device=x.device)
    for part in _few(x):  # a single row is added as it is, and becomes float64 on the way
        added += part[0] if len(part) == 1 else part.sum(0, dtype=kind)
    return added


def add(x: Tensor, to: Tensor) -> None:
    """All rows to a sum, in its type: a single row as it is, which becomes wider on the way."""
    to += x[0] if len(x) == 1 else total(x, to.dtype)


def _has_kernels(x: Tensor) -> bool:
    return kernels_for(x.device) and x.dtype == torch.float32 and x.dim() == 2 and x.numel() > 0 and x.stride(1) == 1


def wide(x: Tensor) -> Tensor:
    """In float32 at least: half precision is too coarse to hold a bound."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _few(x: Tensor) -> Sequence[Tensor]:
    return torch.split(x, max(1, _COPIED // max(1, x.shape[1:].numel())))


def places(start: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Where the examples lie of clients that begin at `start` and have `size` each, one after another, and whose each is."""
    owner = torch.repeat_interleave(torch.arange(len(size), device=size.device), size)
    first = torch.cumsum(size, 0) - size
    return start[owner] + torch.arange(len(owner), device=size.device) - first[owner], owner
