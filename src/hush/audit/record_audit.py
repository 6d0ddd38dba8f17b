"""The audit of a method that protects records: structural checks, its whole claimed profile, one training with canary records.

A paper's own words are held against the paper's own claim: the audit then shows where the claim fails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from hush.audit.canary_records import watch_records
from hush.audit.findings import DELTA, Arms, Attack, Audit, Scene, Scored, against_plan, found, told_apart
from hush.audit.record_checks import neighbour_check, record_checks
from hush.audit.records import RecordStage, along, everywhere
from hush.audit.statistics import EPS, FAR, against_profile
from hush.audit.training import by_guesses
from hush.cohort import Cohort, FixedSize, Rotation
from hush.core import Method
from hush.local.as_written import AsWritten, CpfedAsWritten
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import L2Clip
from hush.privacy.attack import trade_off_of
from hush.privacy.guarantee import Unit
from hush.privacy.plan import plan_of
from hush.privacy.record_plan import record_plan, unit_within_clients
from hush.privacy.vocabulary import Enrolled, Plan
from hush.tasks.task import Task

RECORD_SCENES = (Scene(1, 1.0, 10_000), Scene(4, 0.3, 5_000))
"""The first is sharpest on noise and clip, the second sees which records a step reads."""
MOST_ROWS = 50
"""Of a victim who is a person, where the others have from one row on."""
_CLIENTS, _DIM = 1000, 40
_REPEATS = 100
"""Of an attack on a paper's claim, with two thousand victims each."""


def audit_records(
    method: Method,
    cohort: Cohort,
    task: Task | None,
    rounds: int,
    scenes: tuple[Scene, ...],
    tell: Callable[[str], None],
    unit: str | None = None,
) -> Audit:
    """Attack the code that trains; `cohort` is the kind whose participations are counted, `unit` what a record is."""
    local = method.local
    assert isinstance(local, DpSgd)
    if isinstance(local, AsWritten):
        tell("attack on the paper's claim")
        return Audit(method.name, type(cohort).__name__, local.noise or 0.0, (), (_against_claim(method, local),), claimed=True)
    by_person = unit == Unit.PERSON
    if task is not None:
        task = task.seen_by(unit_within_clients(method, unit, task.names_persons))
        by_person = task.by_person
    tell("structural checks")
    checks = record_checks(method, cohort)
    if task is not None:
        checks.append(neighbour_check(method, task))
    attacks = []
    for scene in scenes:
        tell(f"attack on {scene.rounds} rounds, a record in {scene.rate:g} of the batches")
        attacks.append(attack_records(method, scene, MOST_ROWS if by_person else 1, by_person))
    if task is not None:
        tell("training with canary records")
        attacks.append(_training(method, cohort, task, rounds))
    plan = plan_of(method, Rotation(1), Enrolled(1, local.batch_size, dim=_DIM), 1)
    return Audit(method.name, type(cohort).__name__, plan.noise_multiplier, tuple(checks), tuple(attacks))


def attack_records(method: Method, scene: Scene, rows: int = 1, by_person: bool = False) -> Attack:
    """Victims whose record points one way or the other, by the auditor's coin; each client's messages are watched.

    A victim has so many `rows`, and nobody at its client has more. What is claimed is claimed of a person or, where the column that
    names persons is left out, of a row: then more than that is found.
    """
    local = method.local
    assert isinstance(local, DpSgd)
    clients, size = _CLIENTS if rows == 1 else _CLIENTS // 4, max(local.batch_size, round(local.batch_size / scene.rate))
    stage = RecordStage(replace(method, local=replace(local, steps=1)), clients, size, _DIM, rows=rows, by_person=by_person)
    plan = plan_of(stage.run.method, stage.run.cohort, stage.run.data.task.enrolled, scene.rounds)

    def played() -> Iterator[Scored]:
        for first in itertools.count(0, scene.rounds):
            signs = torch.rand(clients) < 0.5
            stage.plant(everywhere(clients, _DIM, signs.double() * 2 - 1, 1e3 * stage.local.reach(_DIM)))
            scores = torch.zeros(clients, dtype=torch.float64)
            for index in range(first, first + scene.rounds):
                scores += along(stage.play(index))
            yield scores, signs

    what = f"a {plan.unit} in {scene.rate:g} of the batches" if by_person or rows == 1 else f"a person's {rows} rows"
    name = f"{scene.rounds} rounds, {what}" + (f", persons of 1 to {rows} rows" if by_person else "")
    return against_plan(name, plan, told_apart(played(), scene.victims))


def _training(method: Method, cohort: Cohort, task: Task, rounds: int) -> Attack:
    """Guesses about canary records in one real training."""
    seen = watch_records(method, cohort, task, rounds)
    return by_guesses(seen, f"canary records right, in one training of {rounds} rounds")


def _against_claim(method: Method, local: AsWritten) -> Attack:
    """The paper's own words against the paper's own figure, on data that keep to what it assumes or says it enforces."""
    if isinstance(local, CpfedAsWritten):
        method, arms, plan, name = _sum_of_a_sampled_cohort(method, local)
    else:
        method, arms, plan, name = _one_coordinate(method, local)
    deltas = _claimed_profile(method, plan)
    worst = against_profile(*arms, deltas, DELTA, levels=FAR)
    delta = float(np.interp(worst.at, EPS, deltas))  # where the claim fails most, or comes closest to it
    lower = against_profile(*arms, deltas, delta, levels=FAR).epsilon
    told = f"margin {worst.margin:+.3f}; above 0 falsifies the paper's claim"
    return found(name, worst.at, lambda r: trade_off_of(EPS, deltas, r), delta, arms, lower, told, worst.margin <= 0)


Staged = tuple[Method, Arms, Plan, str]
"""What was staged, the scores of both arms, the plan that the paper's words give, and the name of it."""


def _one_coordinate(method: Method, local: AsWritten) -> Staged:
    """Fed-SPA: gradients within its L2 clip, each on one coordinate that is sent: masks are public, so data may fit them."""
    clip = local.clip if isinstance(local.clip, L2Clip) else L2Clip(1.0)
    clients, each = 100, 20  # as many victims in a client as it sends coordinates
    dim = max(each, round(each / (local.mask.ratio if local.mask else 1.0)))
    local = replace(local, clip=clip, steps=1, batch_size=each)
    staged = replace(method, local=local)
    stage = RecordStage(staged, clients, each, dim)

    def played() -> Iterator[Scored]:
        for index in range(_REPEATS):
            places = stage.masks(index).double().topk(each).indices
            signs = torch.rand(clients, each) < 0.5
            records = torch.zeros(clients, each, dim, dtype=torch.float64)
            records.scatter_(2, places[:, :, None], ((signs.double() * 2 - 1) * clip.norm)[:, :, None])
            stage.plant_all(records)
            yield stage.play(index).values.gather(1, places), signs

    plan = record_plan(staged, Rotation(clients), Enrolled(clients, each, dim=dim), 1, None)
    name = "1 round, 1 step: records within the L2 clip, each on one coordinate that is sent"
    return staged, told_apart(played()), plan, name


def _sum_of_a_sampled_cohort(method: Method, local: AsWritten) -> Staged:
    """CPFed: gradients no longer than L, a secret cohort of 1 in 100, and the sum alone is seen."""
    clients, few, rounds = 2000, 20, 15 * _REPEATS
    local = replace(local, steps=1, batch_size=1)
    staged = replace(method, local=local)
    cohort = FixedSize(few)
    stage = RecordStage(staged, clients, 1, clients, cohort=cohort)

    def played() -> Iterator[Scored]:
        for index in range(rounds):
            ids, _ = cohort.draw(index, clients, {}, stage.run.identity.secret)
            signs = torch.rand(clients) < 0.5
            yield stage.total_of(index, ids, (signs.double() * 2 - 1) * local.reach(clients)), signs

    plan = record_plan(staged, cohort, Enrolled(clients, local.batch_size, dim=clients), 1, None)
    return staged, told_apart(played()), plan, "1 round, 1 step: the sum of a secret cohort of 1 in 100"


def _claimed_profile(method: Method, plan: Plan) -> np.ndarray:
    """delta(eps) as the paper's theorem has it: the least delta at which it states no more than eps."""
    assert method.claim is not None
    grid = np.logspace(-12, -1e-6, 600)
    claims = [method.claim(plan, float(delta), method) for delta in grid]
    stated = np.array([math.inf if claim is None or claim.epsilon is None else claim.epsilon for claim in claims])
    return np.array([float(grid[stated <= eps].min()) if bool((stated <= eps).any()) else 1.0 for eps in EPS])
