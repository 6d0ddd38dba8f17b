"""A stage for attacks: the real engine, cohort, pipeline and noise, with clients that send what the auditor wants.

Local training is replaced by `Planted`, and the server by plain averaging, which can be undone: both are outside of what privacy
rests on. Everything in between is the code that trains: the draw of the cohort, the chunks, encode, the sum, decode, the noise,
the division.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hush.audit.open_sketch import OpenSketch, opened
from hush.cohort import Cohort
from hush.core import LocalUpdate, Method, Public, Round, Shard, Trained, scope, within
from hush.engines.conclude import clip_of
from hush.engines.round import play_round
from hush.engines.run import Run, Snapshot
from hush.engines.simulation import set_up, start
from hush.engines.summing import clients_of
from hush.errors import NoGuarantee
from hush.local.flat import FlatModel
from hush.secret import Secret
from hush.server import Average
from hush.tasks.task import Task
from hush.transforms import MessageGaussian, Noise, Rotate
from hush.transforms.votes import Votes


@dataclass
class Script:
    """What the clients shall send: members one big entry each, of a sign that may change from round to round."""

    members: Tensor
    sign: float = 1.0
    size: float = 10.0
    published: tuple[Tensor, Tensor] | None = None
    """What the round that was just played published, as its clients were told."""


@dataclass(frozen=True)
class Planted(LocalUpdate):
    """Client i, if it is a member, sends `sign * size` at the i-th entry that this round publishes; others send zeros."""

    script: Script = field(repr=False)
    method: Method = field(repr=False)

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        self.script.published = published(self.method, params.numel(), rnd, public)
        entries = self.script.published[0]
        who = data.x[data.start].flatten().round().long()
        updates = params.new_zeros(len(who), params.numel())
        value = self.script.sign * self.script.size * self.script.members[who].to(updates.dtype)
        return Trained(updates.scatter_(1, entries[who % len(entries)][:, None], value[:, None]), updates.new_zeros(len(who)))


def published(method: Method, dim: int, rnd: Round, public: Public) -> tuple[Tensor, Tensor]:
    """The entries that a round publishes, and by how much decoding scales them: known to everybody before it begins."""
    parts = method.pipeline.parts
    total = torch.ones(method.uplink(dim).entries, dtype=torch.float64)
    state, nobody = method.pipeline.init(dim), Secret(bytes(32))
    for i, part in reversed(list(enumerate(parts))):
        if isinstance(part, OpenSketch):
            total = part.readable(int(state[f"{i}.dim"]), rnd) * total[0]  # what follows it scales all counters alike
        elif isinstance(part, Rotate):  # ones would be turned into one spike; noise and single entries are not changed in size
            total = total[: int(state[f"{i}.dim"])]
        elif not isinstance(part, Noise):
            own = within(str(i), state)
            if public is not None and isinstance(public[i], float):  # today's clip, where it adapts
                own = {**own, "clip": torch.tensor(public[i], dtype=torch.float64)}
            total, _ = part.decode(total, own, rnd, public[i] if public is not None else None, nobody)
    entries = torch.nonzero(total).flatten()
    return entries, total[entries].double()


def readable(method: Method, dim: int) -> int:
    """How many entries of a model of this size a round publishes so that they can be told apart."""
    sketches = [part for part in method.pipeline.parts if isinstance(part, OpenSketch)]
    if sketches:
        return int(min(part.readable(dim, Round(0, 0, 1.0)).sum() for part in sketches))
    return method.uplink(dim).entries


def on_stage(method: Method, task: Task, cohort: Cohort, rounds: int = 1, **more: Any) -> Run:
    """A run that is watched, with a secret of its own also where nothing is proved, and a run may repeat."""
    return set_up(method, task, rounds=rounds, cohort=cohort, device="cpu", eval_every=10**9, **more).drawing(Secret.fresh())


def opening(run: Run, index: int = 0) -> tuple[Round, Tensor, Public]:
    """A round at the weights that training starts from, and what its clients are told."""
    rnd, params = run.round(index), run.data.learner.initial()
    return rnd, params, run.method.prepare(params, run.method.init(params), rnd, run.data.server)


def messages(run: Run, ids: Tensor, rnd: Round, params: Tensor, public: Public) -> tuple[Tensor, Tensor]:
    """What clients send in a round, as the server lays it out, and their keys."""
    data, keys = clients_of(run, ids, rnd)
    sent, _ = run.method.contribute(run.data.learner, params, data, rnd, keys, public)
    return run.method.pipeline.unpack(sent, rnd, keys, public), keys


class _Vector(nn.Module):
    """A model that is nothing but `dim` parameters."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * self.weights.sum()


@dataclass(frozen=True)
class Release:
    """One round as an adversary sees it: the noisy sum at the entries it publishes, in units of what a client sends."""

    values: Tensor
    elsewhere: float
    """The largest entry outside of those: zero, or something else leaks."""


class Stage:
    """`clients` planted clients, and so large a model that a round publishes an entry for each, or `entries` in all."""

    def __init__(self, method: Method, cohort: Cohort, clients: int, entries: int = 0, diagnostics: bool = False) -> None:
        if any(isinstance(part, Votes) for part in method.pipeline.parts):
            raise NoGuarantee(
                f"{method.name} releases a model that learned from noised votes: the sums that an audit compares cannot be "
                "read back from it.",
                "Audit dp-fedavg: cohort, sum and noise are the same code.",
            )
        if any(isinstance(part, MessageGaussian) for part in method.pipeline.parts):
            raise NoGuarantee(
                f"{method.name} has noise on every message, and an audit reads sums.",
                "Audit noise_by=server: all but who draws the noise is the same code.",
            )
        method = opened(method)
        dim = wanted = max(clients, entries)
        while readable(method, dim) < wanted + 1:  # a sparsifier publishes a share of the entries; room for a bit, too
            dim = dim + max(1, dim // 8)
        clip = clip_of(method, scope("pipeline", method.pipeline.init(dim))) or 1.0
        self.script = Script(torch.zeros(clients, dtype=torch.bool), size=10.0 * clip)
        staged = replace(method, local=Planted(self.script, method), server=Average(1.0))
        index = torch.arange(clients, dtype=torch.float32)
        task = Task(
            model=_Vector(dim),
            clients=[(index[i : i + 1, None], torch.zeros(1, 1)) for i in range(clients)],
            loss=lambda out, y: (out - y).square(),
            public=(-torch.ones(1, 1), torch.ones(1, 1)),  # no client's number
            name="audit",
        )
        self.method = method
        run = on_stage(staged, task, cohort, chunk=256, diagnostics=diagnostics)
        self.run: Run = replace(run, rounds=10**9, config=replace(run.config, rounds=10**9))
        self._round = 0

    def start(self) -> Snapshot:
        """The state before a training, where the model is zero; rounds go on counting, so that no noise is asked for twice."""
        fresh, _ = start(self.run, None)
        return replace(fresh, round=self._round)

    def play(self, now: Snapshot, members: Tensor, sign: float = 1.0) -> tuple[Snapshot, Release]:
        """One round of the real engine, and what it released."""
        self.script.members, self.script.sign, self.script.published = members, sign, None
        rnd = self.run.round(now.round)
        after, _, _ = play_round(self.run, now)
        if self.script.published is None:  # an empty cohort: nobody was told
            public = self.run.method.prepare(now.params, now.state, rnd, self.run.data.server)
            self.script.published = published(self.method, self.run.data.learner.dim, rnd, public)
        entries, scale = self.script.published
        total = (now.params.double() - after.params.double()) * rnd.cohort
        self._round = after.round
        outside = torch.ones_like(total, dtype=torch.bool)
        outside[entries] = False
        stray = float(total[outside].abs().max()) if bool(outside.any()) else 0.0
        return after, Release(total[entries] / scale, stray)
