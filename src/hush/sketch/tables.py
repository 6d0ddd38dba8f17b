"""Vectors into tables of counters, and tables back into estimates of vectors."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from hush.sketch.hashes import Hashes

_AT_ONCE = 1 << 24
"""Entries that are rearranged together: 64 MiB of floats, so that no second copy of a cohort's updates is ever made."""


def sketch(x: Tensor, hashes: Hashes) -> Tensor:
    """`[clients, dim]` to `[clients, rows * cols]`, linear in x. Rows are scaled by 1/sqrt(rows), so that a table has about the
    norm of its vector: E ||table||^2 = ||x||^2. Sums are taken in a fixed order, hence the same every time."""
    from hush.sketch import fused

    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    if fused.fits(x, hashes):
        return fused.sketch(x, hashes)
    table = x.new_empty(len(x), hashes.rows, hashes.homes, hashes.lanes)
    if hashes.lanes == 1:  # all clients' values of a coordinate are one line
        together = max(1, _AT_ONCE // hashes.dim)
        for part, into in zip(torch.split(x, together), torch.split(table, together), strict=True):
            lines = part.t().contiguous()
            for row in range(hashes.rows):
                into[:, row, :, 0] = _landed(lines, hashes, row).t()
    else:
        room = _room(x, hashes)
        for client, into in zip(x, table, strict=True):
            tiles = turn(client, hashes, room)
            for row in range(hashes.rows):
                into[row] = _landed(tiles, hashes, row)
    return table.reshape(len(x), hashes.rows * hashes.cols).mul_(1 / math.sqrt(hashes.rows))


def unsketch(table: Tensor, hashes: Hashes) -> Tensor:
    """`[rows * cols]` to an estimate of `[dim]`: the median over rows of each coordinate's counters, under its sign."""
    counters = table.reshape(hashes.rows, hashes.homes, hashes.lanes)
    found = table.new_empty(hashes.tiles, hashes.lanes)
    doors = [_doors(counters[r], hashes, r) for r in range(hashes.rows)]
    for first in range(0, hashes.tiles, _AT_ONCE // (hashes.lanes * hashes.rows)):
        places = slice(first, first + _AT_ONCE // (hashes.lanes * hashes.rows))
        rows = [doors[r][hashes.landing[r, places]] * hashes.sign[r, places, None] for r in range(hashes.rows)]
        found[places] = middle(torch.stack(rows))
    return turn_back(found, hashes) * math.sqrt(hashes.rows)


def transposed(table: Tensor, hashes: Hashes) -> Tensor:
    """S^T: every coordinate gets the sum of its counters, under its sign."""
    counters = table.reshape(hashes.rows, hashes.homes, hashes.lanes)
    found = table.new_zeros(hashes.tiles, hashes.lanes)
    for row in range(hashes.rows):
        found += _doors(counters[row], hashes, row)[hashes.landing[row]] * hashes.sign[row, :, None]
    return turn_back(found, hashes) / math.sqrt(hashes.rows)


def middle(values: Tensor) -> Tensor:
    """The median over the first dimension; of an even number, the mean of the two in the middle."""
    rows, count = list(values), len(values)
    for turn_number in range(count):  # odd-even sorting of neighbours: a few passes over long rows, where a sort would be slow
        for i in range(turn_number % 2, count - 1, 2):
            rows[i], rows[i + 1] = torch.minimum(rows[i], rows[i + 1]), torch.maximum(rows[i], rows[i + 1])
    found: Tensor = rows[count // 2] if count % 2 else (rows[count // 2 - 1] + rows[count // 2]) / 2
    return found


def _room(x: Tensor, hashes: Hashes) -> list[Tensor]:
    """Memory that `turn` uses again for every client: fresh pages cost more than what is done with them."""
    return [x.new_zeros(hashes.tiles, hashes.lanes) for _ in range(3)]


def turn(x: Tensor, hashes: Hashes, room: list[Tensor] | None = None) -> Tensor:
    """`[dim]` to `[tiles, lanes]`, in the order of places, every tile turned as its hash says."""
    padded, picked, turned = room or _room(x, hashes)
    lanes = hashes.lanes
    if hashes.dim % lanes:
        padded.view(-1)[: hashes.dim] = x
        x = padded
    torch.index_select(x.view(hashes.tiles, lanes), 0, hashes.turned, out=picked)
    for spin, (first, last) in enumerate(itertools.pairwise(hashes.groups)):
        turned[first:last, spin:] = picked[first:last, : lanes - spin]
        turned[first:last, :spin] = picked[first:last, lanes - spin :]
    return turned


def turn_back(tiles: Tensor, hashes: Hashes) -> Tensor:
    """The inverse of `turn`; `tiles` is used up."""
    lanes, straight = hashes.lanes, torch.empty_like(tiles)
    for spin, (first, last) in enumerate(itertools.pairwise(hashes.groups)):
        straight[first:last, : lanes - spin] = tiles[first:last, spin:]
        straight[first:last, lanes - spin :] = tiles[first:last, :spin]
    tiles[hashes.turned] = straight
    return tiles.view(-1)[: hashes.dim]


def _landed(tiles: Tensor, hashes: Hashes, row: int) -> Tensor:
    """`[tiles, width]` to `[homes, width]`: the signed sum of what lands on each home, turned as it is there."""
    order, signs = hashes.order[row], hashes.signs_in_order[row].to(tiles.dtype)
    landed = functional.embedding_bag(order, tiles, hashes.start[row, :-1], mode="sum", per_sample_weights=signs)
    if hashes.turns == 1:
        return landed
    total, *others = landed.view(hashes.homes, hashes.turns, hashes.lanes).unbind(1)
    for shift, part in zip(hashes.shifts(row)[1:], others, strict=True):
        total[:, shift:] += part[:, :-shift]
        total[:, :shift] += part[:, -shift:]
    return total


def _doors(counters: Tensor, hashes: Hashes, row: int) -> Tensor:
    """`[homes * turns, lanes]`: a row's counters as they look to a tile that is turned, in the order of `landing`."""
    return torch.stack([counters.roll(-shift, 1) for shift in hashes.shifts(row)], 1).flatten(0, 1)
