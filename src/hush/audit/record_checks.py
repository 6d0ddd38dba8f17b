"""Structural checks on noise inside local training: scale, freshness, clip, batches. Each cries wolf once in a million times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hush.audit.records import RecordStage, along, everywhere
from hush.audit.structural import Check, freshness_checks, participations, scale_check
from hush.cohort import Cohort
from hush.core import Method
from hush.engines.setup import place_data
from hush.local.dp_sgd import DpSgd, Read
from hush.local.per_example import places_at_once
from hush.local.records import in_places, side_by_side
from hush.privacy.record_plan import record_plan
from hush.privacy.vocabulary import BinomialNoise, Enrolled
from hush.random import keys_of
from hush.tasks.task import Task

_CLIENTS, _ENTRIES, _ROUNDS, _FEW_STEPS = 10, 1000, 20, 8
"""A silent stage: 10 clients send 1000 entries each, in 20 rounds of up to 8 steps."""
_MANY, _STEPS = 400, 20
"""Clients and steps from which the batches are judged."""


def record_checks(method: Method, cohort: Cohort) -> list[Check]:
    """All of them."""
    local = method.local
    assert isinstance(local, DpSgd)
    binomial = not local.noise
    checks = [*_noise_checks(method, local, binomial)]
    if not binomial:  # its clip and its batches are judged without noise; cpSGD's rounding would be in the way
        checks += [*_clip_checks(method, local), *_batch_checks(method, local)]
    return [*checks, _cap(cohort)]


def _noise_checks(method: Method, local: DpSgd, binomial: bool) -> Iterator[Check]:
    """Clients whose records are all zero send noise alone, of so many coordinates that enough of them are sent."""
    dim = max(_ENTRIES, math.ceil(_ENTRIES / (local.mask.ratio if local.mask else 1.0)))
    few = replace(method, local=replace(local, steps=min(local.steps, _FEW_STEPS)))
    stage = RecordStage(few, _CLIENTS, max(1, local.batch_size), dim)
    std = math.sqrt(stage.local.steps) * (stage.local.noise or 0.0)
    if binomial:
        release = record_plan(stage.run.method, stage.run.cohort, Enrolled(_CLIENTS, local.batch_size, dim=dim), 1, None)
        noise = release.phases[0].releases[0].noise
        assert isinstance(noise, BinomialNoise)
        std = noise.std * local.batch_size / local.reach(dim)
    rounds = [stage.play(index) for index in range(_ROUNDS)]
    z = torch.stack([row[sent] for r in rounds for row, sent in zip(r.values, r.active, strict=True)]) / std
    count = z.numel()
    yield scale_check(z, "noise scale", f"over {count:,} values")
    if not binomial:
        bare, allowed = int((z == 0).sum()), _zeros_allowed(stage.local, dim, count)
        told = f"{bare:,} of {count:,} values are zero; noise makes up to {allowed:.0f} so"
        yield Check("every entry noised", bare <= allowed, told)
    outside = max(float(r.values[~r.active].abs().max()) if bool((~r.active).any()) else 0.0 for r in rounds)
    yield Check("nothing elsewhere", outside == 0, f"outside of the masks the largest value is {outside:.3g}")
    yield from freshness_checks(z, "noise fresh for each client and round", "the most alike")
    again = RecordStage(few, _CLIENTS, max(1, local.batch_size), dim).play(0)
    same = bool(torch.equal(again.values, rounds[0].values))
    yield Check("noise is secret", not same, "a second run with the same seed " + ("repeats it" if same else "draws other noise"))


def _zeros_allowed(local: DpSgd, dim: int, count: int) -> float:
    """Whole numbers are zero now and then; the sum of several steps' noise is as often as noise of its own scale."""
    if not local.exact:
        return 0
    std = math.sqrt(local.steps) * (local.noise or 0.0) * local.grid(dim).radius
    return float(stats.poisson.ppf(1 - 1e-6, count / (std * math.sqrt(2 * math.pi))))


def _clip_checks(method: Method, local: DpSgd) -> Iterator[Check]:
    """Without noise, what the victim alone adds in one step of which it is surely part."""
    silent = replace(method, local=replace(local, noise=0.0, steps=1))
    sizes, dim = (1e-3, 0.5, 1.0, 10.0, 1e6, 1e20), 64
    stage = RecordStage(silent, len(sizes), local.batch_size, dim)
    reach = stage.local.reach(dim)
    active = stage.masks(0).double()
    stage.plant(active / active.sum(1, keepdim=True).sqrt() * torch.tensor(sizes)[:, None] * reach)
    norms = stage.play(0).values.norm(dim=1)
    worst = float(norms.max())
    yield Check(
        "clip", worst <= 1 + 1e-6, f"a record adds {worst:.6f} of what is claimed at most, from gradients of up to 1e20 times it"
    )
    kept = bool((norms[2:] > 0.999).all())
    yield Check("clip keeps what it may", kept, f"large gradients add {float(norms[2:].min()):.4f} of what is allowed at least")
    for broken in (torch.nan, torch.inf):
        stage.plant(torch.full((len(sizes), dim), broken))
        silent_too = bool((stage.play(0).values == 0).all())
        yield Check(f"a record of {broken}", silent_too, "adds nothing" if silent_too else "gets through")


def _batch_checks(method: Method, local: DpSgd) -> Iterator[Check]:
    """Without noise, how often the victim was in: binomial over the steps, at the claimed rate, whatever else was drawn."""
    size, dim = 3 * local.batch_size, 16
    silent = replace(method, local=replace(local, noise=0.0, steps=_STEPS))
    stage = RecordStage(silent, _MANY, size, dim)
    stage.plant(everywhere(_MANY, dim, torch.ones(_MANY), 1e3 * stage.local.reach(dim)))
    counts = along(stage.play(0)).numpy()
    whole = np.rint(counts)
    yield Check("divisor constant", bool(np.abs(counts - whole).max() < 1e-3), "each step that reads a record adds the same")
    rate, seen = local.batch_size / size, np.bincount(whole.astype(int).clip(0, _STEPS), minlength=_STEPS + 1)
    expected = stats.binom.pmf(np.arange(_STEPS + 1), _STEPS, rate) * _MANY
    chance = _chi_square(seen, expected)
    told = f"a record is in {whole.mean() / _STEPS:.4f} of the steps, {rate:.4f} is claimed; so uneven by chance {chance:.2g}"
    yield Check("batches drawn anew", chance > 1e-6, told)
    rounds = [whole, *(np.rint(along(stage.play(index)).numpy()) for index in range(1, 6))]
    same = any(np.array_equal(a, b) for a, b in itertools.combinations(rounds, 2))
    yield Check("batches differ", not same, "every round reads other records" if not same else "two rounds read the same records")


def neighbour_check(method: Method, task: Task) -> Check:
    """On the task's own model: one record less in a batch moves the step by no more than that record may.

    Where noise is exact it moves it by that record's row of whole numbers, and by nothing else.
    """
    local = method.local
    assert isinstance(local, DpSgd)
    placed = place_data(task, torch.device("cpu"), torch.float32, apart=False)
    learner, train = placed.learner, placed.train
    client = int(train.sizes.argmax())
    data = train.shard(torch.tensor([client]))
    count = min(8, int(data.size[0]))
    keys, worst, added = keys_of(0, torch.tensor([client])), 0.0, True
    active, unit = local.active(keys, learner.dim), local.grid(learner.dim).step if local.exact else 1.0

    def sums(rows: list[int]) -> Tensor:
        chosen = [np.array(rows)]
        batch = in_places(data, chosen, places_at_once(learner, 1)) if local.exact else side_by_side(data, chosen)
        return local.sums(learner, learner.initial()[None], Read.of(data, batch, keys, active)).sums[0]

    whole = sums(list(range(count)))
    for left in range(count if count > 1 else 0):
        gone = whole - sums([i for i in range(count) if i != left])
        worst = max(worst, float(gone.double().norm()) * unit / local.reach(learner.dim))
        added &= not local.exact or (not gone.is_floating_point() and bool(torch.equal(gone, sums([left]))))
    moved = f"moves a step by {worst:.4f} of what is claimed at most"
    told = f"{moved}, and by its own row alone" if local.exact and added else moved if added else f"{moved}, and other rows with it"
    name, most = f"one {task.enrolled.record} of the model's own task", 1 + (1e-12 if local.exact else 1e-4)
    return Check(name, worst <= most and added, told)


def _chi_square(seen: np.ndarray, expected: np.ndarray) -> float:
    """The chance of such counts, rare ones taken together."""
    keep = expected >= 5
    a = np.append(seen[keep], seen[~keep].sum())
    b = np.append(expected[keep], expected[~keep].sum())
    a, b = (a[:-1], b[:-1]) if b[-1] == 0 else (a, b)
    return float(stats.chi2.sf(((a - b) ** 2 / b).sum(), len(a) - 1))


def _cap(cohort: Cohort) -> Check:
    """No client joins more rounds than are accounted."""
    clients, rounds = max(40, 4 * math.ceil(cohort.size)), 60
    most, allowed = int(participations(cohort, clients, rounds).max()), cohort.most_participations(rounds, clients)
    return Check("participations", most <= allowed, f"nobody joins more than {most} of {rounds} rounds; {allowed} are accounted")
