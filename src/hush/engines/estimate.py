"""What a run would cost, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hush.cohort import Cohort
from hush.core import Method, Round, Server, Shard
from hush.engines.memory import chunk_size, default_memory, parse_bytes
from hush.engines.run import pick_device
from hush.privacy.guarantee import Budget
from hush.privacy.settle import certify, settle_privacy
from hush.random import keys_of
from hush.tasks.task import Examples, Task, whole


def estimate(
    method: Method,
    task: Task,
    *,
    cohort: Cohort,
    rounds: int,
    budget: Budget | None = None,
    delta: float | None = None,
    device: str = "auto",
    memory: str | None = None,
) -> dict[str, Any]:
    """Rounds, bytes, epsilon and seconds. The time is that of one chunk of clients made of zeros; no example is read."""
    place = pick_device(device)
    train = task.train
    method, plan, delta, allowed = settle_privacy(method, cohort, train.count, rounds, budget, delta)
    guarantee, claimed = certify(plan, delta, allowed, method)
    learner = task.learner(place)
    typical = int(train.sizes.float().mean().ceil())
    x = torch.zeros(max(typical, 1), *train.x.shape[1:], dtype=train.x.dtype, device=place)
    y = torch.zeros(max(typical, 1), *train.y.shape[1:], dtype=train.y.dtype, device=place)
    learner.probe(x, y)
    allowance = parse_bytes(memory) if memory is not None else default_memory(place)
    chunk = min(chunk_size(learner, method.local, x, y, allowance), max(1, round(cohort.size)), 16)
    ids = torch.arange(chunk, device=place)
    shard = Shard(x, y, torch.zeros_like(ids), torch.full_like(ids, len(x)))
    rnd = Round(0, 0, cohort.size)

    def seconds(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def a_chunk() -> object:
        return method.local(learner, learner.initial(), shard, rnd, keys_of(0, ids), None)

    def the_preparation() -> object:
        return method.prepare(learner.initial(), method.init(learner.initial()), rnd, server)

    public = task.placed("public", place, torch.float32)
    blank = None if public is None else whole(Examples(torch.zeros_like(public.x), torch.zeros_like(public.y)))
    server = Server(learner, blank)
    seconds(a_chunk)  # the first pass pays for set-up
    each_round = seconds(a_chunk) * cohort.size / chunk + seconds(the_preparation)
    shares = cohort.expected_participations(allowed, train.count)
    return {
        "method": method.name,
        "data": task.name,
        "model": task.model_name,
        "clients": train.count,
        "cohort": cohort.size,
        "rounds": allowed,
        "parameters": learner.dim,
        "epsilon": guarantee.epsilon if guarantee else None,
        "epsilon_server": None,
        "delta": guarantee.delta if guarantee else None,
        "claimed_epsilon": claimed,
        "noise_multiplier": plan.noise_multiplier if plan else None,
        "uplink_bytes_per_client": shares * method.uplink(learner.dim).bytes,
        "downlink_bytes_per_client": shares * method.downlink_bytes(learner.dim),
        "estimated_seconds": each_round * allowed,
        "dry_run": True,
    }
