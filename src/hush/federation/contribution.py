"""What a client adds to a sum: trained, clipped, on the grid, under its share of the noise. And what it adds where it cannot train.

A clock must tell nothing of that. Whoever has no usable rows trains on as many examples of nobody, and sends its noise alone; so
does, from the step on at which it failed, a training that failed.
"""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.cohort import SecretParticipation
from hush.core import Public, Round, Shard
from hush.engines.mixing import FEW_RECORDS, of_nobody, refuse_mixed_records
from hush.engines.run import Placed
from hush.errors import UsageError
from hush.federation.data import zeros_and_ones
from hush.federation.proposal import Agreement
from hush.local.flat import FlatModel
from hush.own import OwnSecrets
from hush.random import derive, keys_of
from hush.secagg import Refused
from hush.secret import Secret


@dataclass(frozen=True)
class Contributor:
    """One client's place in a run, and its examples."""

    told: Agreement
    number: int
    data: Placed
    usable: bool = True
    """Whether the examples are this client's, and not nobody's."""
    own: Secret | None = None
    """Only where noise comes from a seed: what every client draws from, as in simulation."""

    def vector(self, index: int, values: list[Any], steps: Steps | None = None) -> np.ndarray:
        """The vector of one round. `values` are the server's: the model, and what each part of the pipeline is told."""
        method, learner = self.told.method, self.data.learner
        params, rnd, keys, public = self._sent(index, values)
        # fresh for every sum: the same noise under two of them would be none on their difference
        own = OwnSecrets((Secret.fresh(),)) if self.own is None else OwnSecrets.simulated(self.own, [self.number])
        shard = self.data.train.shard(torch.zeros(1, dtype=torch.int64))
        shard = shard._replace(own=own if method.draws_its_own else None, slots=True)
        silent = torch.tensor([not self._coin(index) or not self.usable], device=learner.device)
        watched = learner if steps is None else steps.watched(learner)
        rows, trained = method.contribute(watched, params, shard, rnd, keys, public, silent)
        if steps is not None:
            steps.finite = bool(torch.isfinite(trained.updates).all())
        vector: np.ndarray = rows[0].cpu().numpy()
        return vector

    def try_records(self, index: int, values: list[Any]) -> None:
        """What protects records holds on this machine, too. It is tried on records of nobody: what comes of it, and when, says
        nothing of this client's."""
        params, rnd, keys, public = self._sent(index, values)
        train = self.data.train
        some = zeros_and_ones(train.x.new_empty((FEW_RECORDS, *train.x.shape[1:])))
        start, size = (torch.tensor([value], device=some.device) for value in (0, FEW_RECORDS))
        drawn = of_nobody(Shard(some, train.y.new_zeros((FEW_RECORDS, *train.y.shape[1:])), start, size))
        assert drawn is not None
        try:
            refuse_mixed_records(self.told.method, self.data.learner, params, drawn, 0, keys, rnd, public)
        except UsageError as error:
            raise Refused(str(error)) from None

    def _sent(self, index: int, values: list[Any]) -> tuple[Tensor, Round, Tensor, Public]:
        """What the server says of a round, and what follows from its number: model, round, public keys, and what every part of the
        pipeline is told."""
        told, learner = self.told, self.data.learner
        params, *public = values
        if not isinstance(params, Tensor) or params.shape != (learner.dim,) or len(public) != len(told.method.pipeline.parts):
            raise Refused("The server sends a model of another size than was agreed on.")
        place = learner.device
        keys = keys_of(derive(told.run.seed, 2, index), torch.tensor([self.number], device=place))
        there = tuple(value.to(place) if isinstance(value, Tensor) else value for value in public)
        return params.to(place), Round(index, derive(told.run.seed, 1, index), told.cohort.size), keys, there

    def silenced(self) -> Contributor:
        """The same place, without a word of this client: as many examples, all of them nobody's."""
        train = self.data.train
        nobodys = replace(train, x=zeros_and_ones(train.x), y=torch.zeros_like(train.y))
        return replace(self, data=replace(self.data, train=nobodys), usable=False)

    def _coin(self, index: int) -> bool:
        """Whether this client's data are in this sum: under secret participation nobody else ever knows."""
        if not isinstance(self.told.cohort, SecretParticipation):
            return True
        clients, size = len(self.told.proposal.members.cards), self.told.cohort.size
        if self.own is not None:
            return bool(self.own.coins("cohort", index, clients)[self.number] < size / clients)
        return secrets.SystemRandom().random() < size / clients


class Steps:
    """The steps of one round's training, counted: a second training does only what a first one, which failed, left undone."""

    def __init__(self) -> None:
        self.taken = self._first = 0
        self.finite = True
        """Whether what it came to has neither NaN nor infinity in it."""

    def again(self) -> Steps:
        """For the second training: as many of its steps cost nothing as the first one took."""
        rest = Steps()
        rest._first = self.taken
        return rest

    def watched(self, learner: FlatModel) -> FlatModel:
        """The same learner, whose steps are counted here."""
        other = copy.copy(learner)

        def is_due() -> bool:
            self.taken += 1
            return self.taken > self._first

        setattr(other, "is_due", is_due)  # noqa: B010  # of this copy alone
        return other
