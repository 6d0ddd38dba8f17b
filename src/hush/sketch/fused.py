"""The sketch of a whole cohort on a GPU: one kernel, which reads every update once a row and adds up counters in registers.

Nothing is scattered: each program owns some tiles of counters, follows the list of what lands there, and writes its sums once.
So no atomics, no second copy of the updates, and the same sums every time. Programs of one client run side by side, so that after
the first row its update comes from the cache.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from hush.sketch.hashes import LANES, Hashes

_BLOCK = 64
"""Tiles of counters that one program adds up."""


def fits(x: Tensor, hashes: Hashes) -> bool:
    """Whether the kernel covers this case: floats on a GPU, whole tiles, and Triton, which comes with PyTorch for CUDA."""
    return x.is_cuda and x.dtype == torch.float32 and hashes.lanes == LANES and _kernel() is not None


def sketch(x: Tensor, hashes: Hashes) -> Tensor:
    """See `hush.sketch.tables.sketch`."""
    x = x.contiguous()
    table = x.new_empty(len(x), hashes.rows * hashes.cols)
    if len(x) == 0:
        return table
    launch(_kernel(), x, table, hashes)
    return table


def launch(kernel: Any, x: Tensor, table: Tensor, hashes: Hashes) -> None:
    """One program for each block of a row's counters, of each row, of each client."""
    grid = (-(-hashes.homes // _BLOCK), hashes.rows, len(x))
    kernel[grid](
        x,
        table,
        _sources(hashes),
        hashes.start,
        hashes.dim,
        hashes.tiles,
        hashes.homes,
        hashes.rows,
        1.0 / math.sqrt(hashes.rows),
        LANES=hashes.lanes,
        TURNS=hashes.turns,
        BLOCK=_BLOCK,
    )


@lru_cache(maxsize=4)
def _sources(hashes: Hashes) -> Tensor:
    """`[rows, tiles]` words in the order of homes: a tile's number, by how much it is turned, and its sign in the highest bit."""
    places = torch.arange(hashes.tiles, device=hashes.home.device)
    spin = torch.searchsorted(torch.tensor(hashes.groups[1:-1], device=places.device), places, right=True)
    shifts = torch.tensor([hashes.shifts(row) for row in range(hashes.rows)], device=places.device)
    whole = (spin + shifts.gather(1, hashes.turn.long())) & (LANES - 1)
    word = (hashes.turned.long() * LANES + whole).gather(1, hashes.order.long())
    return torch.where(hashes.sign.gather(1, hashes.order.long()) < 0, word - (1 << 31), word).int()


@cache
def _kernel() -> Any:
    try:
        import triton  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    from hush.sketch.kernel import add_up

    return triton.jit(add_up)
