"""Where a count sketch puts every coordinate, and with which sign: public, equal on every device, and small.

Coordinates go by tiles of 16 neighbours, and so do the counters of a row. A tile is turned by a random number of lanes, lands on
one random tile of each row, turned once more by one of four numbers of lanes, under a random sign. Two coordinates of different
tiles meet in a row with probability 1/cols, as in the sketch of Charikar, Chen and Farach-Colton (2004), and two of one tile never
do, so a row's estimate is unbiased with a variance of at most ||x||^2 / cols. What is gained: a sixteenth of the hashes, and memory
that is read in lines.

Signs and turns differ from row to row. Shared signs would cost less, and a vector along them would be overestimated in every row at
once. Shared turns would make sixteen sketches of one, each of its own coordinates: where the top k gather in one of these, more are
applied at once than it can tell apart. With error feedback either grows without bound.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from hush.errors import UsageError
from hush.random import derive, key_of, words

LANES = 16
"""Coordinates of a tile: a cache line of floats."""
TURNS = 4
"""Numbers of lanes, one of which a row turns a tile by: four sums of tiles for each tile of counters, and then one."""
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
    turn: Tensor
    """`[rows, tiles]`: which of the row's `shifts` it is turned by, there."""
    sign: Tensor
    """`[rows, tiles]`: +1 or -1."""

    @property
    def tiles(self) -> int:
        return len(self.turned)

    @property
    def homes(self) -> int:
        return self.cols // self.lanes

    @property
    def turns(self) -> int:
        return TURNS if self.lanes > 1 else 1

    def shifts(self, row: int) -> tuple[int, ...]:
        """The numbers of lanes by which a row turns its tiles: neighbours, and in every other row such that lie far apart."""
        apart = 1 if row % 2 else self.lanes // self.turns
        return tuple(step * apart for step in range(self.turns))

    @cached_property
    def landing(self) -> Tensor:
        """`[rows, tiles]`: home and turn as one number."""
        return self.turns * self.home + self.turn

    @cached_property
    def order(self) -> Tensor:
        """`[rows, tiles]`: the places by where they land and how they are turned: counters are sums over neighbours here."""
        return self.landing.argsort(dim=1, stable=True).int()

    @cached_property
    def start(self) -> Tensor:
        """`[rows, turns * homes + 1]`: where in `order` those of each home and turn begin."""
        count = self.turns * self.homes + 1
        bounds = torch.arange(count, dtype=torch.int32, device=self.home.device).expand(self.rows, -1).contiguous()
        return torch.searchsorted(self.landing.gather(1, self.order.long()), bounds).int()

    @cached_property
    def signs_in_order(self) -> Tensor:
        """`[rows, tiles]` floats."""
        return self.sign.gather(1, self.order.long()).float()

    def landed_on(self, row: int, home: int) -> Tensor:
        """The places that land on a tile of counters of a row."""
        return self.order[row, int(self.start[row, self.turns * home]) : int(self.start[row, self.turns * (home + 1)])]

    @cached_property
    def loads(self) -> Tensor:
        """`[rows, homes]`: how many coordinates share each counter of a tile, one of every tile that lands there."""
        return self.start[:, :: self.turns].diff(dim=1)

    @property
    def largest_loads(self) -> Tensor:
        """`[rows]`: the most coordinates that share one counter."""
        return self.loads.amax(dim=1)


@lru_cache(maxsize=4)
def hashes_of(seed: int, rows: int, cols: int, dim: int, device: torch.device, lanes: int | None = None) -> Hashes:
    """The hashes that `seed` stands for; `lanes=1` hashes coordinate by coordinate, as papers do."""
    lanes = lanes or lanes_of(cols)
    if cols % lanes:
        raise UsageError(f"A row of {cols} counters does not hold whole tiles: take {whole_tiles(cols)}.")
    tiles, homes = -(-dim // lanes), cols // lanes
    spins = words(key_of(derive(seed, _TURNS, dim), device), tiles)[0] & (lanes - 1)
    turned = spins.argsort(stable=True)
    counts = torch.bincount(spins, minlength=lanes).tolist()
    drawn = torch.cat([words(key_of(derive(seed, _HOMES, rows, cols, dim, row), device), tiles) for row in range(rows)])
    high = (drawn >> 32) & 0xFFFFFFFF
    return Hashes(
        rows=rows,
        cols=cols,
        dim=dim,
        lanes=lanes,
        turned=turned.int(),
        groups=tuple(itertools.accumulate(counts, initial=0)),
        home=((high * homes) >> 32).int(),
        turn=((drawn >> 1) & (TURNS - 1 if lanes > 1 else 0)).int(),
        sign=(1 - 2 * (drawn & 1)).to(torch.int8),
    )
