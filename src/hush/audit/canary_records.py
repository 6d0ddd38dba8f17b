"""Canary records in one real training: each client holds one, mislabelled, or another in its place; its messages are watched."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.core import Method
from hush.engines.round import play_round
from hush.engines.simulation import set_up, start
from hush.engines.summing import clients_of
from hush.local.flat import FlatModel
from hush.privacy.vocabulary import Plan
from hush.secret import Secret
from hush.tasks.task import Clients, Task

CANARY_DELTA = 1e-5


@dataclass(frozen=True)
class WatchedRecords:
    """Scores of each client's canary, whether it was there or another one, and the plan of the training."""

    plan: Plan
    members: np.ndarray
    scores: np.ndarray


def watch_records(method: Method, cohort: Cohort, task: Task, rounds: int) -> WatchedRecords:
    """Train once; score each canary by how much its client's messages point down its own gradient, and down the other one's not."""
    real = task.train
    clients = real.count
    members = torch.from_numpy(np.frombuffer(os.urandom(clients), dtype=np.uint8) % 2 == 0)
    first, second = _canaries(real)
    ready = set_up(
        method,
        replace(task, clients=_with_canaries(real, first, second, members), test=None, validation=None),
        rounds=rounds,
        cohort=cohort,
        device="cpu",
        eval_every=10**9,
    )
    run = ready.drawing(Secret.fresh())  # also where nothing is proved, and a run may repeat
    now, _ = start(run, None)
    scores = torch.zeros(clients, dtype=torch.float64)
    for _ in range(rounds):
        rnd = run.round(now.round)
        ids, _ = run.cohort.draw(now.round, clients, now.cohort_state, run.identity.secret)
        if len(ids):
            public = run.method.prepare(now.params, now.state, rnd, run.data.server)
            data, keys = clients_of(run, ids, rnd)
            sent, _ = run.method.contribute(run.data.learner, now.params, data, rnd, keys, public)
            rows = run.method.pipeline.unpack(sent, rnd, keys, public).double()
            scores[ids] += _toward(run.data.learner, now.params, rows, first, ids, keys) - _toward(
                run.data.learner, now.params, rows, second, ids, keys
            )
        now, _, _ = play_round(run, now)
    assert run.privacy.plan is not None
    return WatchedRecords(run.privacy.plan, members.numpy(), scores.numpy())


Records = tuple[Tensor, Tensor]


def _canaries(real: Clients) -> tuple[Records, Records]:
    """Two records for each client: examples of others under labels of others still."""
    count = real.count
    rows = torch.randint(len(real.x), (4, count))
    return (real.x[rows[0]], real.y[rows[1]]), (real.x[rows[2]], real.y[rows[3]])


def _with_canaries(real: Clients, first: Records, second: Records, members: Tensor) -> Clients:
    """Each client's examples and, behind them, one of its two canaries."""
    xs, ys = torch.split(real.x, real.sizes.tolist()), torch.split(real.y, real.sizes.tolist())
    x, y = [], []
    for i, (own_x, own_y) in enumerate(zip(xs, ys, strict=True)):
        one = first if bool(members[i]) else second
        x += [own_x, one[0][i : i + 1]]
        y += [own_y, one[1][i : i + 1]]
    return Clients(torch.cat(x), torch.cat(y), real.sizes + 1)


def _toward(learner: FlatModel, params: Tensor, rows: Tensor, records: Records, ids: Tensor, keys: Tensor) -> Tensor:
    """How far each client's update, which points uphill, goes along the gradient of a record, of length one."""
    x, y = records[0][ids][:, None].to(learner.device), records[1][ids][:, None].to(learner.device)
    if x.is_floating_point():
        x = x.to(learner.dtype)
    gradient, _ = learner.gradients(params.expand(len(ids), -1), x, y, torch.ones(len(ids), 1, dtype=learner.dtype), keys)
    length: Tensor = torch.linalg.vector_norm(gradient.double(), dim=1).clamp_min(1e-12)
    return (gradient.double() * rows).sum(1) / length
