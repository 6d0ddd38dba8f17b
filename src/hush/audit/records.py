"""A stage for attacks on records: the real local training and the real messages, on records whose gradients the auditor wants.

The model is one linear layer and the loss its output, so the gradient of a record is the record itself, whatever the weights.
Batches, masks, clips, noise and messages are those of the code that trains; learning rate, momentum and server, which only process
what was noised, are replaced by what can be undone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hush.audit.stage import messages, on_stage, opening
from hush.cohort import Cohort, Rotation
from hush.core import Method
from hush.engines.summing import clients_of
from hush.errors import UsageError
from hush.local.dp_sgd import DpSgd
from hush.privacy.guarantee import Unit
from hush.server import Average
from hush.tasks.persons import grouped
from hush.tasks.task import Clients, Task


@dataclass(frozen=True)
class Messages:
    """What the clients sent in one round, as the server lays it out: in units of what a record can add to one batch's sum."""

    values: Tensor
    active: Tensor
    """`[clients, dim]`: the coordinates that each client sends."""


class RecordStage:
    """`clients` clients of `size` persons each, who have 1 to `rows` rows; the first, who has most, is the victim, all others' are
    zero. A record is a row, or, `by_person`, all rows of a person."""

    def __init__(
        self,
        method: Method,
        clients: int,
        size: int,
        dim: int,
        cohort: Cohort | None = None,
        rows: int = 1,
        by_person: bool = False,
    ) -> None:
        local = method.local
        if not isinstance(local, DpSgd):
            raise UsageError(f"{method.name} has no noise inside local training: audit it as it is.")
        self.local = replace(local, lr=1.0, momentum=0.0, prox=0.0, decay=1.0)
        each = torch.tensor([rows, *(1 + j % rows for j in range(1, size))])
        self.size, self.dim, self.rows = int(each.sum()), dim, rows
        method = replace(method, local=self.local, server=Average(1.0))
        count, persons = clients * self.size, torch.arange(clients * size).repeat_interleave(each.repeat(clients))
        self.table = Clients(torch.zeros(count, dim), torch.zeros(count), torch.full((clients,), self.size), persons)
        task = Task(model=one_layer(dim), clients=self.table, loss=as_output, name="audit")
        unit = Unit.PERSON if by_person else Unit.RECORD
        self.run = on_stage(method, task, cohort or Rotation(clients), chunk=clients, unit=str(unit))
        self.ids = torch.arange(clients)

    @property
    def victims(self) -> Tensor:
        """The first rows of the victims."""
        return self.ids * self.size

    def plant(self, records: Tensor) -> None:
        """Give each client's victim this record, in every row that the victim has."""
        task, data = self.run.data.task, self.run.data
        table = self.table if task.by_person else data.train
        table.x[self.victims[:, None] + torch.arange(self.rows)] = records[:, None].to(table.x.dtype)
        if task.by_person:
            train = grouped(table, task.person_rows).examples(table, data.learner.ignored)
            self.run = replace(self.run, data=replace(data, train=train))

    def plant_all(self, records: Tensor) -> None:
        """Give every client these records, `[clients, size, dim]`."""
        self.run.data.train.x[:] = records.reshape(-1, self.dim).to(self.run.data.train.x.dtype)

    def masks(self, index: int) -> Tensor:
        """The coordinates that each client sends in a round: public, and known beforehand."""
        keys = clients_of(self.run, self.ids, self.run.round(index))[1]
        active = torch.ones(len(self.ids), self.dim, dtype=torch.bool)
        if self.local.mask is not None:
            active = torch.zeros_like(active).scatter_(1, self.local.mask.places(keys, self.dim), True)
        return active

    def play(self, index: int) -> Messages:
        """What every client sends in round `index`, undone up to the sums of its batches: sum over steps, in units of reach."""
        run = self.run
        rnd, params, public = opening(run, index)
        rows = messages(run, self.ids, rnd, params, public)[0].double()
        for part in reversed(run.method.pipeline.parts):  # what the server does with integers: linear, so row by row
            if run.method.uplink(self.dim).integer:
                state = part.init(self.dim)
                rows = torch.stack([part.decode(row, state, rnd, None, run.identity.secret)[0] for row in rows])
        unit = self.dim / self.local.entries(self.dim) / self.local.batch_size * self.local.reach(self.dim)
        return Messages(rows / unit, self.masks(index))

    def total_of(self, index: int, ids: Tensor, lengths: Tensor) -> Tensor:
        """The sum over the clients `ids` alone, client i with a record of `lengths[i]` on coordinate i; in units of reach."""
        records = torch.zeros(len(ids), self.dim, dtype=self.run.data.train.x.dtype)
        records[torch.arange(len(ids)), ids] = lengths[ids].to(records.dtype)
        self.run.data.train.x[self.victims[ids]] = records
        sent, _ = messages(self.run, ids, *opening(self.run, index))
        return sent.sum(0, dtype=torch.float64) * self.local.batch_size / self.local.reach(self.dim)


class _Weights(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out[:, 0]


def one_layer(dim: int) -> nn.Module:
    """A model whose output, as a loss, has the record for its gradient."""
    return _Weights(dim)


def as_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """That loss."""
    return outputs + 0 * targets


def along(messages: Messages) -> Tensor:
    """Each client's message along the direction of a record that is the same everywhere: what its mask leaves of it."""
    active = messages.active.double()
    return (messages.values * active).sum(1) / active.sum(1).sqrt()


def everywhere(clients: int, dim: int, signs: Tensor, size: float) -> Tensor:
    """Records that are the same everywhere, far beyond any clip."""
    return (signs.double() * size)[:, None].expand(clients, dim) / math.sqrt(dim)
