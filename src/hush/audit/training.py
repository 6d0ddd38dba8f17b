"""A canary audit of one whole training: real clients and real local steps, with canaries among them (Steinke et al. 2023)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from hush.audit.findings import Attack, found
from hush.audit.stage import on_stage
from hush.audit.statistics import one_run_epsilon
from hush.cohort import Cohort
from hush.core import LocalUpdate, Method, Public, Round, Shard, Trained
from hush.engines.round import play_round
from hush.engines.simulation import start
from hush.local.flat import FlatModel
from hush.privacy.accountant import account
from hush.privacy.attack import trade_off
from hush.privacy.vocabulary import Plan
from hush.random import keys_of, uniform
from hush.server import Average
from hush.tasks.task import Clients, Task

CANARIES = 400


@dataclass(frozen=True)
class WithCanaries(LocalUpdate):
    """Clients whose rows begin at `first` or later are canaries: members send a direction of their own, others nothing."""

    local: LocalUpdate
    first: int
    members: Tensor = field(repr=False)
    size: float

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        trained = self.local(learner, params, data, rnd, keys, public)
        which = data.start - self.first
        canary = which >= 0
        rows = directions(which.clamp_min(0), params.numel()).to(params) * self.size
        rows = rows * self.members[which.clamp_min(0).cpu()].to(params)[:, None]
        return Trained(torch.where(canary[:, None], rows, trained.updates), trained.losses)


def directions(which: Tensor, dim: int) -> Tensor:
    """`[canaries, dim]` random unit vectors, a function of the canary's number."""
    signs = uniform(keys_of(0x63616E, which), (dim,)) < 0.5
    return (signs.float() * 2 - 1) / math.sqrt(dim)


@dataclass(frozen=True)
class Watched:
    """Scores of all canaries, which of them were in, and the plan of the training."""

    plan: Plan
    delta: float
    members: np.ndarray
    scores: np.ndarray


def watch_training(method: Method, task: Task, cohort_for: Callable[[int], Cohort], rounds: int, size: float) -> Watched:
    """Train once, and project every released step on each canary's direction."""
    real = task.train
    clients = Clients(
        x=torch.cat([real.x, real.x[:1].expand(CANARIES, *real.x.shape[1:])]),
        y=torch.cat([real.y, real.y[:1].expand(CANARIES, *real.y.shape[1:])]),
        sizes=torch.cat([real.sizes, torch.ones(CANARIES, dtype=real.sizes.dtype)]),
    )
    members = fair_coins(CANARIES)
    lr = method.server.lr if isinstance(method.server, Average) else 1.0
    staged = replace(method, local=WithCanaries(method.local, len(real.x), members, size), server=Average(lr))
    run = on_stage(staged, replace(task, clients=clients), cohort_for(clients.count), rounds=rounds)
    now, _ = start(run, None)
    own = directions(torch.arange(CANARIES), run.data.learner.dim).double()
    scores = torch.zeros(CANARIES, dtype=torch.float64)
    for _ in range(rounds):
        after, _, _ = play_round(run, now)
        scores += own @ ((now.params - after.params).double() / lr)
        now = after
    assert run.privacy.plan is not None
    assert run.privacy.delta is not None
    return Watched(run.privacy.plan, run.privacy.delta, members.numpy(), scores.numpy())


def fair_coins(count: int) -> Tensor:
    """Which canaries are in: a coin for each that nobody can repeat."""
    return torch.from_numpy(np.frombuffer(os.urandom(count), dtype=np.uint8) % 2 == 0)


def guess(members: np.ndarray, scores: np.ndarray, share: float = 0.25) -> tuple[int, int]:
    """How many guesses were made and how many were right: the highest `share` as members, the lowest as not; fixed beforehand."""
    each = int(share * len(scores))
    order = np.argsort(scores)
    right = int(members[order[-each:]].sum() + (~members[order[:each]]).sum())
    return 2 * each, right


def by_guesses(seen: Watched, about: str) -> Attack:
    """What guesses about the canaries of one training prove."""
    plan, delta, arms = seen.plan, seen.delta, (seen.scores[seen.members], seen.scores[~seen.members])
    guesses, right = guess(seen.members, seen.scores)
    lower = one_run_epsilon(len(seen.members), guesses, right, delta)
    claimed, told = account(plan, delta).epsilon, f"{right} of {guesses} guesses about {len(seen.members)} {about}"
    return found("one training", claimed, lambda r: trade_off(plan, r), delta, arms, lower, told, lower <= claimed)
