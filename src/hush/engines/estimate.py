"""What a run would cost, before anything is trained."""

from __future__ import annotations

import time
from typing import Any

import torch

from hush.cohort import Cohort
from hush.config import RunConfig
from hush.core import Method, Server, Wire
from hush.engines.diagnostics import WATCHED
from hush.engines.federation import beside_the_vector, letters_of
from hush.engines.run import Placed, pick_device
from hush.engines.setup import fitted, past_frozen_layers
from hush.engines.timing import PATIENCE, seconds_of_rounds
from hush.errors import UsageError
from hush.local import frozen
from hush.privacy.accountant import spent
from hush.privacy.guarantee import Budget
from hush.privacy.settle import Settled, certify, figures_of, settle_privacy
from hush.secagg.terms import Terms
from hush.tasks.persons import by_person, grouped
from hush.tasks.stored import Stored
from hush.tasks.task import Clients, Examples, Task, whole
from hush.transforms import Discretize


def estimate(config: RunConfig, method: Method, task: Task, cohort: Cohort, terms: Terms | None = None) -> dict[str, Any]:
    """Rounds, bytes, epsilon and seconds. The time is that of some clients made of zeros; no example is read.

    `terms` are those of a secure sum: its messages are counted, its time is not.
    """
    assert config.rounds is not None
    data = _made_of_zeros(config, task)
    method = fitted(method, data)
    budget = Budget.of_config(config)
    settled = settle_privacy(method, cohort, task.enrolled, config.rounds, budget, config.delta, config.dropout)
    apart = config.secure or config.noise_mode == "secure" or settled.method.local.exact
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
        + seconds_of_rounds(config, method, task.records, cohort, data, apart, rounds)
        + _judging(config, task, data, rounds, settled),
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


def _judging(config: RunConfig, task: Task, data: Placed, rounds: int, settled: Settled) -> float:
    """Seconds that all evaluations take, and the figure of what was spent beside each."""
    times, asked = -(-rounds // config.eval_every), dict[str, int]()
    for part in ("validation", "test"):
        examples = task.placed(part, "cpu", torch.float32)
        asked[part] = 0 if examples is None else len(examples.x)
    seen = asked["validation"] * times + asked["test"] * (2 + config.track_test * times)
    watched = config.diagnostics if config.diagnostics is not None else settled.plan is None
    if watched:  # clients' own examples, some of them
        seen += times * int(min(WATCHED, float(task.records.double().mean()) * (config.cohort or 1)))
    took = _scoring(data, max(asked.values())) * seen
    if settled.plan is not None and settled.delta is not None:
        began = time.perf_counter()
        spent(settled.plan, settled.delta, max(1, rounds - 1))  # not what was computed above and is remembered
        took += times * (time.perf_counter() - began)
    return took


def _scoring(data: Placed, most: int) -> float:
    """Seconds an example: of few, and of as many as that allows."""
    x, y, many = data.train.x, data.train.y, data.task.by_person  # of persons, who have several rows each
    x, y = x[:, 0] if many else x, y[..., 0] if many else y
    each = 0.0
    for count in (1, 16, 256, 2048):
        if count > 1 and (count > max(16, most) or each * count > PATIENCE):
            break
        few = Examples(*(torch.zeros(count, *t.shape[1:], dtype=t.dtype, device=t.device) for t in (x, y)))
        began = time.perf_counter()
        data.server.learner.scores(data.learner.initial(), few.x, few.y)
        each = (time.perf_counter() - began) / count
    return each
