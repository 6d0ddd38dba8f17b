"""What a run would cost, before anything is trained."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.config import RunConfig
from hush.core import LocalUpdate, Method, Round, Server, Shard, Wire
from hush.engines.federation import beside_the_vector, letters_of
from hush.engines.memory import allowed_bytes, chunk_size
from hush.engines.run import Placed, pick_device
from hush.engines.setup import fitted, past_frozen_layers
from hush.errors import UsageError
from hush.local import frozen
from hush.local.flat import FlatModel
from hush.own import OwnSecrets
from hush.privacy.guarantee import Budget
from hush.privacy.settle import certify, figures_of, settle_privacy
from hush.random import keys_of
from hush.secagg.terms import Terms
from hush.secret import Secret
from hush.tasks.persons import by_person, grouped
from hush.tasks.stored import Stored
from hush.tasks.task import Clients, Examples, Task, whole
from hush.transforms import Discretize, TopK
from hush.transforms.votes import Votes


def estimate(config: RunConfig, method: Method, task: Task, cohort: Cohort, terms: Terms | None = None) -> dict[str, Any]:
    """Rounds, bytes, epsilon and seconds. The time is that of one chunk of clients made of zeros; no example is read.

    `terms` are those of a secure sum: its messages are counted, its time is not.
    """
    assert config.rounds is not None
    data = _made_of_zeros(config, task)
    method = fitted(method, data)
    budget = Budget.of_config(config)
    settled = settle_privacy(method, cohort, task.enrolled, config.rounds, budget, config.delta, config.dropout)
    method, rounds, dim = settled.method, settled.rounds, data.learner.dim
    if method.pipeline.needs_public and data.server.public is None:
        raise UsageError(f"{method.name} uses public examples and the task has none: give it some (public=N, --public N).")
    _refuse_narrow_grids(method, dim)
    times = cohort.expected_participations(rounds, task.train.count)
    up, down = (0, 0) if terms is None else (beside_the_vector(terms), letters_of(terms))
    plan = settled.plan
    proof = certify(plan.first(rounds) if plan is not None else None, settled.delta, method)
    proved = {key: value for key, value in figures_of(proof).items() if key not in ("unit", "relation", "view")}
    return proved | {
        "method": method.name,
        "data": task.name,
        "model": task.model_name,
        "clients": task.train.count,
        "cohort": cohort.size,
        "rounds": rounds,
        "parameters": dim,
        "warnings": list(proof.guarantee.warnings) if proof else [],
        "noise_multiplier": plan.noise_multiplier if plan else None,
        "uplink_bytes_per_client": times * (method.uplink(dim).bytes + up),
        "downlink_bytes_per_client": method.downloads(dim, rounds, times) + times * down,
        "estimated_seconds": _looking(task, data)
        + _training(config, method, task, cohort, data) * rounds
        + _judging(config, task, data, rounds),
        "dry_run": True,
    }


def _made_of_zeros(config: RunConfig, task: Task) -> Placed:
    """The model, and clients of the usual size that hold nothing but zeros."""
    place, train = pick_device(config.device), task.train
    learner = task.learner(place)
    many = max(1, int(task.records.float().mean().ceil()))
    x = torch.zeros(many, *train.x.shape[1:], dtype=train.x.dtype, device=place)
    y = torch.zeros(many, *train.y.shape[1:], dtype=train.y.dtype, device=place)
    learner.probe(x, y)
    public = task.placed("public", place, torch.float32)
    held = {"public": None if public is None else Examples(torch.zeros_like(public.x), torch.zeros_like(public.y))}
    apart = config.secure or config.noise_mode == "secure"
    clients = Clients(x, y, torch.tensor([many]), torch.arange(many))
    if not isinstance(train, Stored):
        learner, clients, held = past_frozen_layers(learner, clients, held, apart)
    zeros = held["public"]
    server = Server(learner, None if zeros is None else whole(zeros))
    if task.by_person:
        learner, clients = by_person(learner, clients, grouped(clients, task.person_rows))
    return Placed(task, learner, clients, server, None, None)


def _looking(task: Task, data: Placed) -> float:
    """Seconds that frozen layers take to see every example, once, before the first round."""
    body = data.server.learner.whole
    parts = None if body is None else frozen.split(body.module)
    if parts is None:
        return 0.0
    few = torch.zeros(min(100, len(task.train.x)), *task.train.x.shape[1:], dtype=task.train.x.dtype, device=data.learner.device)
    began = time.perf_counter()
    frozen.seen_by(parts[0], few)
    held = (task.placed(part, "cpu", torch.float32) for part in ("public", "validation", "test"))
    many = len(task.train.x) + sum(len(examples.x) for examples in held if examples is not None)
    return (time.perf_counter() - began) / max(1, len(few)) * many


def _refuse_narrow_grids(method: Method, dim: int) -> None:
    wire = Wire(dim)
    for part in method.pipeline.parts:
        if isinstance(part, Discretize):
            part.check(wire.entries)
        wire = part.wire(wire)


def _training(config: RunConfig, method: Method, task: Task, cohort: Cohort, data: Placed) -> float:
    """Seconds a round: the clients' training, and the server's where a part of the method has it train."""
    learner, x, y = data.learner, data.train.x, data.train.y
    allowed = allowed_bytes(config.memory, learner.device)
    chunk = min(chunk_size(learner, method.local, x, y, allowed), max(1, round(cohort.size)), 16)
    ids = torch.arange(chunk, device=learner.device)
    own = OwnSecrets.simulated(Secret(bytes(32)), ids.tolist())  # nothing that is drawn here is kept
    shard = Shard(x, y, torch.zeros_like(ids), torch.full_like(ids, len(x)), own)
    rnd, public = Round(0, 0, cohort.size, method.pipeline.room()), data.server.public
    each_round = _seconds(learner, rnd, method.local, shard, task.records) * cohort.size / chunk
    for part in method.pipeline.parts:
        if isinstance(part, TopK | Votes) and public is not None:
            each_round += _seconds(learner, rnd, part.training, public, public.size)
    return each_round


def _seconds(learner: FlatModel, rnd: Round, local: LocalUpdate, data: Shard, sizes: Tensor) -> float:
    """What clients of these sizes train on average: by one step on `data`, timed over two; or all where it has no steps."""
    short, took = local.shortened(2), 0.0
    keys = keys_of(0, torch.arange(len(data.size), device=learner.device))
    for _ in range(2):  # the first pass pays for set-up
        began = time.perf_counter()
        short(learner, learner.initial(), data, rnd, keys, None)
        if learner.device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
    step = took / int(short.steps_of(data.size.cpu()).max())
    return step * float(local.steps_of(sizes.cpu()).double().mean())


def _judging(config: RunConfig, task: Task, data: Placed, rounds: int) -> float:
    """Seconds that all evaluations take."""
    x, y, many = data.train.x, data.train.y, task.by_person  # of persons, who have several rows each
    x, y = x[:, 0] if many else x, y[..., 0] if many else y
    few = Examples(*(torch.zeros(16, *t.shape[1:], dtype=t.dtype, device=t.device) for t in (x, y)))
    began = time.perf_counter()
    data.server.learner.scores(data.learner.initial(), few.x, few.y)
    each = (time.perf_counter() - began) / 16
    held = (task.placed(part, "cpu", torch.float32) for part in ("validation", "test"))
    validated, tested = (0 if examples is None else len(examples.x) for examples in held)
    return each * (validated * -(-rounds // config.eval_every) + 2 * tested)
