"""The audit of a method: structural checks, the whole claimed profile under attack, and one real training with canaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from hush.audit.findings import Attack, Audit, Scene, Scored, against_plan, rates, told_apart
from hush.audit.open_sketch import opened
from hush.audit.record_audit import RECORD_SCENES, audit_records
from hush.audit.sketches import audit_as_written, is_as_written
from hush.audit.stage import Stage, readable
from hush.audit.structural import structural_checks
from hush.audit.summed_records import audit_summed_records
from hush.audit.training import by_guesses, watch_training
from hush.cohort import Bounded, Cohort, FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import Bound, Method, scope
from hush.engines.conclude import clip_of
from hush.errors import NoGuarantee, UsageError
from hush.privacy.plan import needs_noise, plan_of, with_noise
from hush.privacy.record_plan import has_own_noise
from hush.tasks.stored import Stored
from hush.tasks.task import Task

_ENTRIES = 4_000_000
"""Clients times entries of a stage: what a round of it costs."""
_FEW = 256
"""Clients of a population on disk that a training with canaries takes."""


SCENES = (Scene(2, 1.0, 20_000), Scene(10, 0.3, 10_000))
"""The first is sharpest on noise and clip, the second sees sampling."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """A stage is thousands of small steps, at which threads wait for each other more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def audit(
    method: Method,
    cohort: Cohort | None = None,
    task: Task | None = None,
    rounds: int = 20,
    rate: float = 0.1,
    scenes: tuple[Scene, ...] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    unit: str | None = None,
) -> Audit:
    """Attack `method` as it runs; `cohort` says which kind of taking part is claimed (default Poisson).

    With a `task`, one training of `rounds` rounds with canaries follows. `tell` hears what is going on. `unit` is what a method
    that protects records takes for one, as in `simulate`.
    """
    if not isinstance(method, Method):
        raise UsageError(f"An audit takes a hush.Method, such as hush.methods.dp_fedavg(), not {method!r}.")
    if task is not None and isinstance(task.train, Stored):  # a training with canaries is one in memory
        task = replace(task, clients=task.train.some(torch.arange(min(task.train.count, _FEW))).in_memory())
    if cohort is not None and not isinstance(cohort, Cohort):
        raise UsageError(f"cohort is the kind that is claimed, such as hush.Poisson(10), not {cohort!r}.")
    if needs_noise(method):
        method = with_noise(method, getattr(method.local, "shows_at", 1.0))
    if is_as_written(method):
        return audit_as_written(method, scenes[0].victims if scenes else SCENES[0].victims)
    if has_own_noise(method):
        chosen = scenes if scenes is not None else RECORD_SCENES
        return audit_records(method, cohort or Rotation(1), task, rounds, chosen, tell, unit)
    if method.local.by_record:
        return audit_summed_records(method, cohort or FixedSize(3), task, rounds, scenes, tell)
    kind, scenes = cohort or Poisson(1), scenes if scenes is not None else SCENES
    if method.pipeline.bound(Bound()).pending:
        raise NoGuarantee(
            f"The bound of {method.name} is that of one model's sketches, and an audit's stage is another model.",
            "Audit clip_in=sketch: the same code in another order.",
        )
    plan = plan_of(method, cohort_like(kind, 100, 1.0, 1), 100, 1)  # refuses what claims nothing
    clients = _stage_size(method)
    tell("structural checks")
    checks = structural_checks(method, lambda count, rate: cohort_like(kind, count, rate, 10**9), clients)
    attacks = []
    for scene in scenes:
        tell(f"attack on {scene.rounds} rounds at rate {scene.rate:g}")
        attacks.append(_attack(method, kind, scene, clients))
    if task is not None:
        tell("training with canaries")
        attacks.append(_training(method, kind, task, rounds, rate))
    return Audit(method.name, type(kind).__name__, plan.noise_multiplier, tuple(checks), tuple(attacks))


def cohort_like(kind: Cohort, clients: int, rate: float, rounds: int) -> Cohort:
    """The same kind of taking part, in another population and at another rate."""
    size = max(1.0, float(round(rate * clients)))
    if type(kind) is Bounded:
        return Bounded(size, max(1, math.ceil(rate * rounds)))
    for known in (Poisson, FixedSize, SecretParticipation, Rotation):
        if type(kind) is known:
            return known(size)
    raise NoGuarantee(f"{type(kind).__name__} claims nothing that could be audited.", "Use a cohort that is accounted for.")


def _stage_size(method: Method) -> int:
    """As many clients as the cost of a round allows: each needs an entry that is published."""
    published = readable(opened(method), 10_000) / 10_000
    return max(100, min(2000, int(math.sqrt(_ENTRIES * min(1.0, published)))))


def _attack(method: Method, kind: Cohort, scene: Scene, clients: int) -> Attack:
    """Victims of a huge update, in or out by the auditor's coin; the sign alternates, so that noise which repeats cancels."""
    cohort = cohort_like(kind, clients, scene.rate, scene.rounds)
    plan = plan_of(method, cohort, clients, scene.rounds)
    stage = Stage(method, cohort, clients)

    def played() -> Iterator[Scored]:
        while True:
            members = torch.rand(clients) < 0.5
            now, scores = stage.start(), torch.zeros(clients, dtype=torch.float64)
            for index in range(scene.rounds):
                sign = 1.0 if index % 2 == 0 else -1.0
                now, release = stage.play(now, members, sign)
                scores += sign * release.values[torch.arange(clients) % len(release.values)]
            yield scores, members

    return against_plan(f"{scene.rounds} rounds at rate {scene.rate:g}", plan, told_apart(played(), scene.victims))


def _training(method: Method, kind: Cohort, task: Task, rounds: int, rate: float) -> Attack:
    """Guesses about canaries in one real training."""
    size = 10.0 * (clip_of(method, scope("pipeline", method.pipeline.init(8))) or 1.0)
    seen = watch_training(method, task, lambda clients: cohort_like(kind, clients, rate, rounds), rounds, size)
    return by_guesses(seen, f"canaries right, in one training of {rounds} rounds at rate {rate:g}")


__all__ = ["Attack", "Audit", "Scene", "audit", "cohort_like", "rates"]
