"""What a run would cost, before anything is trained."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.core import LocalUpdate, Method, Round, Shard, Wire
from hush.engines.federation import beside_the_vector, letters_of
from hush.engines.memory import chunk_size, default_memory, parse_bytes
from hush.engines.run import pick_device
from hush.engines.simulation import fitted
from hush.errors import UsageError
from hush.own import OwnSecrets
from hush.privacy.guarantee import Budget
from hush.privacy.settle import certify, settle_privacy
from hush.random import keys_of
from hush.secagg.terms import Terms
from hush.secret import Secret
from hush.tasks.task import Examples, Task, whole
from hush.transforms import Discretize, TopK
from hush.transforms.votes import Votes


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
    dropout: float = 0.0,
    eval_every: int = 1,
    terms: Terms | None = None,
) -> dict[str, Any]:
    """Rounds, bytes, epsilon and seconds. The time is that of one chunk of clients made of zeros; no example is read.

    `terms` are those of a secure sum: its messages are counted, its time is not.
    """
    place = pick_device(device)
    train = task.train
    learner = task.learner(place)
    typical = int(train.sizes.float().mean().ceil())
    x = torch.zeros(max(typical, 1), *train.x.shape[1:], dtype=train.x.dtype, device=place)
    y = torch.zeros(max(typical, 1), *train.y.shape[1:], dtype=train.y.dtype, device=place)
    learner.probe(x, y)
    public = task.placed("public", place, torch.float32)
    zeros = None if public is None else Examples(torch.zeros_like(public.x), torch.zeros_like(public.y))
    method = fitted(method, learner, zeros)
    method, plan, delta, allowed, _ = settle_privacy(method, cohort, task.enrolled, rounds, budget, delta, dropout)
    if method.pipeline.needs_public and public is None:
        raise UsageError(f"{method.name} uses public examples and the task has none: give it some (public=N, --public N).")
    wire = Wire(learner.dim)
    for part in method.pipeline.parts:
        if isinstance(part, Discretize):
            part.check(wire.entries)
        wire = part.wire(wire)
    proof = certify(plan.first(allowed) if plan is not None else None, delta, method)
    guarantee = proof.guarantee if proof else None
    allowance = parse_bytes(memory) if memory is not None else default_memory(place)
    chunk = min(chunk_size(learner, method.local, x, y, allowance), max(1, round(cohort.size)), 16)
    ids = torch.arange(chunk, device=place)
    own = OwnSecrets.simulated(Secret(bytes(32)), ids.tolist())  # nothing that is drawn here is kept
    shard = Shard(x, y, torch.zeros_like(ids), torch.full_like(ids, len(x)), own)
    rnd = Round(0, 0, cohort.size, method.pipeline.room())

    def seconds(local: LocalUpdate, data: Shard) -> float:
        """One step of local training on `data`, timed over two; all of it where it is not made of steps."""
        short = local.shortened(2)
        keys, took = keys_of(0, torch.arange(len(data.size), device=place)), 0.0
        for _ in range(2):  # the first pass pays for set-up
            began = time.perf_counter()
            short(learner, learner.initial(), data, rnd, keys, None)
            if place.type == "cuda":
                torch.cuda.synchronize()
            took = time.perf_counter() - began
        return took / int(short.steps_of(data.size.cpu()).max())

    def steps(local: LocalUpdate, sizes: Tensor) -> float:
        """What a client trains on average, in the steps that were timed."""
        return float(local.steps_of(sizes.cpu()).double().mean())

    each_round = seconds(method.local, shard) * steps(method.local, train.sizes) * cohort.size / chunk
    for part in method.pipeline.parts:
        if isinstance(part, TopK | Votes) and zeros is not None:
            each_round += seconds(part.training, whole(zeros)) * steps(part.training, whole(zeros).size)
    few = Examples(*(torch.zeros(16, *t.shape[1:], dtype=t.dtype, device=place) for t in (x, y)))
    began = time.perf_counter()
    learner.scores(learner.initial(), few.x, few.y)
    each_example = (time.perf_counter() - began) / 16
    validated, tested = (
        0 if e is None else len(e.x) for e in (task.placed(p, "cpu", torch.float32) for p in ("validation", "test"))
    )
    judging = each_example * (validated * -(-allowed // eval_every) + 2 * tested)
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
        "epsilon_server": proof.server.epsilon if proof and proof.server else None,
        "delta": guarantee.delta if guarantee else None,
        "warnings": list(guarantee.warnings) if guarantee else [],
        "claimed_epsilon": proof.claim.epsilon if proof and proof.claim else None,
        "noise_multiplier": plan.noise_multiplier if plan else None,
        "uplink_bytes_per_client": shares * (method.uplink(learner.dim).bytes + (0 if terms is None else beside_the_vector(terms))),
        "downlink_bytes_per_client": method.downloads(learner.dim, allowed, shares)
        + (0 if terms is None else shares * letters_of(terms)),
        "estimated_seconds": each_round * allowed + judging,
        "dry_run": True,
    }
