"""Canary records in one real training: each client holds one, mislabelled, or another in its place; its messages are watched."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hush.audit.stage import messages, on_stage
from hush.audit.training import Watched, fair_coins
from hush.cohort import Cohort
from hush.core import Method
from hush.engines.round import play_round
from hush.engines.simulation import start
from hush.local.flat import FlatModel
from hush.tasks.task import Clients, Task

CANARY_DELTA = 1e-5


def watch_records(method: Method, cohort: Cohort, task: Task, rounds: int, rows: int = 1) -> Watched:
    """Train once; score each canary by how much its client's messages point down its own gradient, and down the other one's not.

    A canary has so many `rows`, all alike: where the task is seen by person they are one person's, and otherwise so many records.
    """
    real = task.train
    clients = real.count
    members = fair_coins(clients)
    first, second = _canaries(real)
    watched = replace(task, clients=_with_canaries(real, first, second, members, rows), test=None, validation=None)
    run = on_stage(method, watched, cohort, rounds=rounds, unit=str(task.enrolled.record))
    now, _ = start(run, None)
    scores = torch.zeros(clients, dtype=torch.float64)
    for _ in range(rounds):
        rnd = run.round(now.round)
        ids, _ = run.cohort.draw(now.round, clients, now.cohort_state, run.identity.secret)
        if len(ids):
            public = run.method.prepare(now.params, now.state, rnd, run.data.server)
            sent, keys = messages(run, ids, rnd, now.params, public)
            learner = run.data.server.learner  # of rows: the mean of a canary's is the gradient of one
            one, other = (_toward(learner, now.params, sent.double(), own, ids, keys) for own in (first, second))
            scores[ids] += one - other
        now, _, _ = play_round(run, now)
    assert run.privacy.plan is not None
    return Watched(run.privacy.plan, CANARY_DELTA, members.numpy(), scores.numpy())


Records = tuple[Tensor, Tensor]


def _canaries(real: Clients) -> tuple[Records, Records]:
    """Two records for each client: examples of others under labels of others still."""
    count = real.count
    rows = torch.randint(len(real.x), (4, count))
    return (real.x[rows[0]], real.y[rows[1]]), (real.x[rows[2]], real.y[rows[3]])


def _with_canaries(real: Clients, first: Records, second: Records, members: Tensor, rows: int) -> Clients:
    """Each client's examples and, behind them, one of its two canaries."""
    sizes = real.sizes.tolist()
    nobodys = torch.arange(len(real.x)) if real.persons is None else real.persons
    x, y, persons = [], [], []
    parts = zip(torch.split(real.x, sizes), torch.split(real.y, sizes), torch.split(nobodys, sizes), strict=True)
    for i, (own_x, own_y, own_persons) in enumerate(parts):
        one = first if bool(members[i]) else second
        x += [own_x, *([one[0][i : i + 1]] * rows)]
        y += [own_y, *([one[1][i : i + 1]] * rows)]
        persons += [own_persons, torch.full((rows,), -1 - i)]  # somebody whom no other client has
    return Clients(torch.cat(x), torch.cat(y), real.sizes + rows, torch.cat(persons))


def _toward(learner: FlatModel, params: Tensor, rows: Tensor, records: Records, ids: Tensor, keys: Tensor) -> Tensor:
    """How far each client's update, which points uphill, goes along the gradient of a record, of length one."""
    x, y = records[0][ids][:, None].to(learner.device), records[1][ids][:, None].to(learner.device)
    if x.is_floating_point():
        x = x.to(learner.dtype)
    gradient, _ = learner.gradients(params.expand(len(ids), -1), x, y, torch.ones(len(ids), 1, dtype=learner.dtype), keys)
    length: Tensor = torch.linalg.vector_norm(gradient.double(), dim=1).clamp_min(1e-12)
    return (gradient.double() * rows).sum(1) / length
