"""Whether examples of nobody are among those that clients train on: looked for piece by piece, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hush.random import row_marks
from hush.tasks.clients import Clients

_GLANCE = 64
"""Numbers of an example that are looked at first."""
_SAMPLE = 1 << 17
"""Rows of clients from which it is told how often one meets another client's row by chance."""


class Overlap(NamedTuple):
    """How many rows of each part are among the clients', and the share of clients' rows that another client has, too."""

    met: Mapping[str, int]
    again: float


def overlap(train: Clients, parts: Mapping[str, Tensor]) -> Overlap:
    """`train` against the inputs of examples that are nobody's."""
    own = train.here_and_there(_SAMPLE).x
    wanted, sample = {name: row_marks(x) for name, x in parts.items()}, row_marks(own)
    marks = torch.unique(torch.cat([sample, *wanted.values()]))
    glances = torch.unique(torch.cat([_glance(x) for x in (own, *parts.values())]))
    low, high = torch.full_like(marks, train.count), torch.full_like(marks, -1)
    bounds = torch.cumsum(train.sizes.cpu(), 0)
    for first, (x, _) in train.pieces():
        rows = torch.nonzero(_places(glances, _glance(x)) >= 0).flatten()
        place = _places(marks, row_marks(x[rows]))
        rows, place = rows[place >= 0], place[place >= 0]
        owner = torch.searchsorted(bounds, first + rows, right=True)
        low.scatter_reduce_(0, place, owner, "amin")
        high.scatter_reduce_(0, place, owner, "amax")
    met = {name: int((high[_places(marks, own)] >= 0).sum()) for name, own in wanted.items()}
    at = _places(marks, sample)
    return Overlap(met, float((high[at] > low[at]).sum()) / max(len(sample), 1))


def _glance(x: Tensor) -> Tensor:
    """Marks of a few numbers of each row: where these differ, so do the rows."""
    flat = x.reshape(len(x), -1)
    return row_marks(flat[:, :: -(-flat.shape[1] // _GLANCE)] if flat.shape[1] else flat)


def _places(known: Tensor, marks: Tensor) -> Tensor:
    """Where each mark is among the `known` ones, which are sorted; -1 where it is not."""
    at = torch.searchsorted(known, marks).clamp_max(len(known) - 1)
    return torch.where(known[at] == marks, at, -1)
