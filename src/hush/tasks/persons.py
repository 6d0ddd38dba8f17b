"""All rows of one person at a client, as one example: what a method that protects records then protects is the person.

What a person's example is depends on that person's rows alone: not on their order, and not on who else there is. Persons come in
the order in which a client's table names them first, so that one in another's place moves nobody from hers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hush.local.flat import FlatModel
from hush.local.person import no_row, of_persons
from hush.random import fold, row_marks
from hush.tasks.clients import Clients


@dataclass(frozen=True)
class Grouped:
    """Which rows are whose, person after person of client after client."""

    rows: Tensor
    """`[persons, most]`: a person's first row stands in for those that it does not have."""
    real: Tensor
    """`[persons, most]`: which rows are there."""
    sizes: Tensor
    """How many persons each client has rows of."""
    persons: Tensor
    """Of each example."""

    def examples(self, train: Clients, ignored: int) -> Clients:
        """The rows of these clients, as one example of each person."""
        place = train.x.device
        rows, real = self.rows.to(place), self.real.to(place)
        y = train.y[rows]
        real = real.reshape(*real.shape, *([1] * (y.dim() - 2)))
        y = torch.where(real, y, no_row(y, ignored)).movedim(1, -1)
        return Clients(train.x[rows], y, self.sizes.cpu(), numbers=self.persons.to(place))


class Placed(NamedTuple):
    """A model and what it learns from, where an example is a person."""

    learner: FlatModel
    train: Clients


def grouped(train: Clients, most: int) -> Grouped:
    """Every client's rows by the person that they are of, `most` of each at the most."""
    assert train.persons is not None
    owner, persons = train.owner.cpu().numpy(), train.persons.cpu().numpy()
    marks = fold(row_marks(train.x.cpu()), row_marks(train.y.cpu())).numpy()
    order = np.lexsort((marks, persons, owner))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(owner[order]) != 0) | (np.diff(persons[order]) != 0)
    first, group = np.flatnonzero(new), np.cumsum(new) - 1
    place = np.arange(len(order)) - first[group]
    named = (np.minimum.reduceat(order, first) if len(first) else first).argsort(kind="stable")
    starts, slot = order[first[named]], np.empty_like(named)
    slot[named] = np.arange(len(named))
    rows, real = np.repeat(starts[:, None], most, 1), np.zeros((len(starts), most), dtype=bool)
    kept = place < most
    at = (slot[group[kept]], place[kept])
    rows[at], real[at] = order[kept], True
    sizes = np.bincount(owner[starts], minlength=train.count)
    return Grouped(*map(torch.from_numpy, (rows, real, sizes, persons[starts])))


def by_person(learner: FlatModel, train: Clients, groups: Grouped) -> Placed:
    """Model and examples, where an example is a person. `train` has the rows that were grouped, whatever was made of them."""
    return Placed(of_persons(learner), groups.examples(train, learner.ignored))


def held(train: Clients) -> Tensor:
    """How many persons each client has rows of."""
    counts: Tensor = torch.bincount(_pairs(train)[:, 0], minlength=train.count)
    return counts


def most_clients(train: Clients) -> int:
    """The most clients that have rows of one person."""
    pairs = _pairs(train)
    return int(torch.unique(pairs[:, 1], return_counts=True)[1].max()) if len(pairs) else 1


def _pairs(train: Clients) -> Tensor:
    """`[n, 2]`: every client with every person that it has rows of."""
    assert train.persons is not None
    pairs: Tensor = torch.unique(torch.stack([train.owner.cpu(), train.persons.cpu()], 1), dim=0)
    return pairs
