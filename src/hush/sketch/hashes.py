"""Where a count sketch puts every coordinate, and with which sign: public, equal on every device, and small.

Coordinates go by tiles of 16 neighbours, and so do the counters of a row. A tile is turned by a random number of lanes, once for
all rows, and then lands, under a random sign, on one random tile of each row. Two coordinates of different tiles meet in a row with
probability 1/cols, as in the sketch of Charikar, Chen and Farach-Colton (2004), and two of one tile never do, so a row's estimate
is unbiased with a variance of at most ||x||^2 / cols. What is gained: a sixteenth of the hashes, and memory that is read in lines.

Signs differ from row to row. Shared, they would cost less, and a vector along them would be overestimated in every row at once:
with error feedback such a vector grows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from hush.errors import UsageError
from hush.random import derive, keys_of, words

LANES = 16
"""Coordinates of a tile: a cache line of floats."""
_FEWEST = 1024
"""Rows of fewer counters than this are hashed coordinate by coordinate: a few dozen tiles would be coarse."""
_HOMES, _TURNS = 0x686F6D65, 0x7475726E
"""The words of the streams of hashes, apart from what else is drawn from the same seed."""


def lanes_of(cols: int) -> int:
    """How many neighbours are hashed together."""
    return LANES if cols >= _FEWEST else 1


def whole_tiles(cols: int) -> int:
    """The number of counters in a row, rounded up to whole tiles."""
    lanes = lanes_of(cols)
    return -(-cols // lanes) * lanes


@dataclass(frozen=True, eq=False)
class Hashes:
    """The hashes of a sketch of `rows` x `cols` counters over `dim` coordinates. Tiles are listed by how they are turned."""

    rows: int
    cols: int
    dim: int
    lanes: int
    turned: Tensor
    """`[tiles]`: which tile stands at each place."""
    groups: tuple[int, ...]
    """The places from `groups[g]` to `groups[g + 1]` are turned by g lanes."""
    home: Tensor
    """`[rows, tiles]`: the tile of the row's counters that a place lands on."""
    sign: Tensor
    """`[rows, tiles]`: +1 or -1."""

    @property
    def tiles(self) -> int:
        return len(self.turned)

    @property
    def homes(self) -> int:
        return self.cols // self.lanes

    @cached_property
    def order(self) -> Tensor:
        """`[rows, tiles]`: the places by where they land, those with a plus first: counters are sums over neighbours here."""
        return self._landing.argsort(dim=1, stable=True).int()

    @cached_property
    def start(self) -> Tensor:
        """`[rows, 2 * homes + 1]`: where in `order` those of each home begin, with a plus and with a minus."""
        bounds = torch.arange(2 * self.homes + 1, dtype=torch.int32, device=self.home.device).expand(self.rows, -1).contiguous()
        return torch.searchsorted(self._landing.gather(1, self.order.long()), bounds).int()

    @property
    def _landing(self) -> Tensor:
        return 2 * self.home + (self.sign < 0)

    @cached_property
    def largest_loads(self) -> Tensor:
        """`[rows]`: the most coordinates that share one counter."""
        return self.start[:, ::2].diff(dim=1).amax(dim=1)


@lru_cache(maxsize=4)
def hashes_of(seed: int, rows: int, cols: int, dim: int, device: torch.device, lanes: int | None = None) -> Hashes:
    """The hashes that `seed` stands for; `lanes=1` hashes coordinate by coordinate, as papers do."""
    lanes = lanes or lanes_of(cols)
    if cols % lanes:
        raise UsageError(f"A row of {cols} counters does not hold whole tiles: take {whole_tiles(cols)}.")
    tiles, homes = -(-dim // lanes), cols // lanes
    spins = _stream(derive(seed, _TURNS, dim), tiles, device) & (lanes - 1)
    turned = spins.argsort(stable=True)
    counts = torch.bincount(spins, minlength=lanes).tolist()
    drawn = torch.stack([_stream(derive(seed, _HOMES, rows, cols, dim, row), tiles, device) for row in range(rows)])
    high = (drawn >> 32) & 0xFFFFFFFF
    return Hashes(
        rows=rows,
        cols=cols,
        dim=dim,
        lanes=lanes,
        turned=turned.int(),
        groups=tuple(itertools.accumulate(counts, initial=0)),
        home=((high * homes) >> 32).int(),
        sign=(1 - 2 * (drawn & 1)).to(torch.int8),
    )


def _stream(seed: int, count: int, device: torch.device) -> Tensor:
    key = keys_of(seed, torch.zeros(1, dtype=torch.int64, device=device))
    return words(key, count)[0]
