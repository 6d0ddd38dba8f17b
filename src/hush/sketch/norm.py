"""How much a sketch can lengthen a vector: by more than its rows suggest, because coordinates collide.

DPSFL takes sqrt(rows) for the norm of its sketch, whose rows are not scaled: 1 for ours. A vector that is spread over the
coordinates of one counter is lengthened by the square root of their number in that row alone. What is proved is an upper bound;
what is measured, by power iteration, a lower one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.random import derive, key_of, uniform
from hush.sketch.hashes import Hashes
from hush.sketch.tables import sketch, transposed, turn_back


def largest_norm(hashes: Hashes) -> float:
    """No vector of norm 1 has a sketch longer than this: sqrt(sum over rows of the largest load / rows).

    A counter of load n is at most sqrt(n) times the norm of its own coordinates, and these are apart from other counters'. Adding
    up n floats one after the other errs by n 2^-24 of that at most, for which there is twice the room.
    """
    exact = math.sqrt(float(hashes.largest_loads.double().sum()) / hashes.rows)
    return exact * (1 + 2.0**-20) * (1 + int(hashes.largest_loads.max()) * 2.0**-23)


def worst_vector(hashes: Hashes, steps: int = 30) -> tuple[Tensor, float]:
    """A vector of norm 1 that the sketch lengthens as much as power iteration finds, and by how much: S^T S, again and again."""
    drawn = uniform(key_of(derive(hashes.dim, 7), hashes.home.device), (hashes.dim,))[0].double()
    x = fullest_counter(hashes) + (drawn - 0.5) / math.sqrt(hashes.dim)
    for _ in range(steps):
        x = transposed(sketch(x[None], hashes)[0], hashes)
        x /= x.norm()
    return x, float(sketch(x[None], hashes).norm())


def fullest_counter(hashes: Hashes) -> Tensor:
    """A vector of norm 1 on the coordinates of the fullest counter, with their signs: a client that means harm."""
    row = int(hashes.largest_loads.argmax())
    x = along_counter(hashes, row, int(hashes.loads[row].argmax()), 0)
    unit: Tensor = x / x.norm()
    return unit


def along_counter(hashes: Hashes, row: int, home: int, lane: int) -> Tensor:
    """The signs of the coordinates that share one counter, and zero elsewhere."""
    places = hashes.landed_on(row, home)
    shifts = torch.tensor(hashes.shifts(row), device=places.device)[hashes.turn[row, places]]
    tiles = torch.zeros(hashes.tiles, hashes.lanes, dtype=torch.float64, device=places.device)
    tiles[places, (lane - shifts) % hashes.lanes] = hashes.sign[row, places].double()
    return turn_back(tiles, hashes)
