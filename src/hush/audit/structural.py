"""Structural checks: properties that a private release has whatever the claim. Each raises a false alarm once in a million.

They see what statistics on attacks cannot: a noise that is 1% too small, a coordinate without noise, noise that repeats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hush.audit.open_sketch import OpenSketch
from hush.audit.stage import Stage, opening, published
from hush.audit.statistics import scale_alarm
from hush.cohort import Bounded, Cohort, FixedSize, Rotation
from hush.core import Chain, Method, Round
from hush.privacy.plan import find_noise
from hush.random import keys_of
from hush.rows import l2
from hush.secret import Secret
from hush.transforms import CountSketch, Noise, Rotate

_SIX = 6.0
"""Standard deviations at which a normal value raises the alarm."""
_VALUES, _ROUNDS, _FEW = 400_000, 20, 16
"""Values of pure noise, in so many rounds of so few silent clients: enough to see a scale that is 1% off."""


class Check(NamedTuple):
    """One property, and what was found."""

    name: str
    passed: bool
    detail: str


def structural_checks(method: Method, cohort_of: Callable[[int, float], Cohort], clients: int) -> list[Check]:
    """All of them. `cohort_of` makes the kind of cohort that is claimed, for so many clients at such a rate."""
    silent = Stage(method, cohort_of(_FEW, 1.0), _FEW, entries=_VALUES // _ROUNDS, diagnostics=True)  # also as it is watched
    stage = Stage(method, cohort_of(clients, 1.0), clients)
    std = find_noise(method)[0].std
    quiet, stray = _play(silent, torch.zeros(_FEW, dtype=torch.bool), _ROUNDS)
    loud, stray_loud = _play(stage, torch.ones(clients, dtype=torch.bool), 8)
    return [
        *_noise_checks(quiet / std, zeros=1 / (std * math.sqrt(2 * math.pi)) if method.uplink(8).integer else 0.0),
        *_counter_checks(method, std),
        _same_noise_for_a_full_cohort(loud[:, :clients] / std, stage, std),
        _nothing_elsewhere(max(stray, stray_loud)),
        *_bound_checks(method, stage),
        _lone_client(method, stage),
        *_fresh(method, cohort_of),
        *_taking_part(cohort_of(clients, 0.3), clients),
    ]


def _play(stage: Stage, members: Tensor, rounds: int) -> tuple[Tensor, float]:
    """`[rounds, entries]` released values, and the largest value anywhere else."""
    rows, stray = [], 0.0
    for _ in range(rounds):
        _, release = stage.play(stage.start(), members)  # from zero each time: nothing is lost to the model's own rounding
        rows.append(release.values)
        stray = max(stray, release.elsewhere)
    return torch.stack(rows), stray


def _noise_checks(z: Tensor, zeros: float) -> Iterator[Check]:
    """Rounds of pure noise, in units of its claimed standard deviation; an integer is zero with probability `zeros`."""
    count = z.numel()
    yield scale_check(z, "noise scale", f"over {count:,} values")
    bare, allowed = int((z == 0).sum()), stats.poisson.ppf(1 - 1e-6, count * zeros) if zeros else 0
    yield Check(
        "every entry noised", bool(bare <= allowed), f"{bare:,} of {count:,} values are zero; noise makes up to {allowed:.0f} so"
    )
    yield from freshness_checks(z, "noise fresh in each round", f"the most alike of {len(z)} rounds")


def scale_check(z: Tensor, name: str, where: str) -> Check:
    """Values of pure noise, in units of its claimed standard deviation."""
    squares, count = float(z.square().sum()), z.numel()
    return Check(name, not scale_alarm(squares, count), f"{math.sqrt(squares / count):.4f} of what is claimed, {where}")


def freshness_checks(z: Tensor, name: str, most_alike: str) -> Iterator[Check]:
    """Rows of pure noise, in the same units: centred, no two rows alike, no entry like the one beside it."""
    mean = float(z.sum()) / math.sqrt(z.numel())
    yield Check("noise centred", abs(mean) < _SIX, f"{mean:+.1f} standard deviations off zero")
    rows = z / z.norm(dim=1, keepdim=True).clamp_min(1e-300)
    overlap = float((rows @ rows.T).fill_diagonal_(0.0).abs().max()) * math.sqrt(z.shape[1])
    limit = math.sqrt(_SIX**2 + 2 * math.log(len(z) ** 2))
    yield Check(name, overlap < limit, f"{most_alike} correlate by {overlap:.1f} standard deviations")
    beside = float((z[:, 1:] * z[:, :-1]).sum() / math.sqrt(z[:, 1:].numel()))
    yield Check("noise fresh in each entry", abs(beside) < _SIX, f"neighbours correlate by {beside:+.1f} standard deviations")


def _counter_checks(method: Method, std: float) -> Iterator[Check]:
    """Of a sketch: every counter of the table, which coordinates are read from in sums of several."""
    if not any(isinstance(part, CountSketch) for part in method.pipeline.parts):
        return
    noise, secret = find_noise(method)[0], Secret.fresh()
    kind = torch.int64 if method.uplink(8).integer else torch.float64
    rows = []
    for index in range(_ROUNDS):
        silence = torch.zeros(_VALUES // _ROUNDS, dtype=kind)
        rows.append(noise.decode(silence, {}, Round(index, 0, 1.0), None, secret)[0].double())
    for check in _noise_checks(torch.stack(rows) / std, 1 / (std * math.sqrt(2 * math.pi)) if kind is torch.int64 else 0.0):
        yield check._replace(name=f"{check.name}, in the table")


def _same_noise_for_a_full_cohort(z: Tensor, stage: Stage, std: float) -> Check:
    """With every client in, what is left after taking off what each sends must be the same noise."""
    return scale_check(z - _sent(stage) / std, "noise constant in the cohort", "with everybody in")


def _sent(stage: Stage) -> Tensor:
    """What each client's row holds at its own entry, encoded alone."""
    rnd, _, public = opening(stage.run)
    method, dim = stage.run.method, stage.run.data.learner.dim
    entries, scale = published(stage.method, dim, rnd, public)
    rows = torch.zeros(len(stage.script.members), dim, dtype=torch.float64)
    who = torch.arange(len(rows))
    rows[who, entries[who % len(entries)]] = stage.script.size
    encoded = method.pipeline.encode(rows, rnd, keys_of(1, who), public)
    if not any(isinstance(part, Rotate | OpenSketch) for part in method.pipeline.parts):
        return encoded.double()[:, : len(rows)].amax(1)
    clean = Chain(tuple(part for part in method.pipeline.parts if not isinstance(part, Noise)))  # turned back, and without noise
    told = tuple(own for part, own in zip(method.pipeline.parts, public, strict=True) if not isinstance(part, Noise))
    back = [clean.decode(row, clean.init(dim), rnd, told, Secret(bytes(32)))[0] for row in encoded]
    return torch.stack([row[entries[i % len(entries)]] / scale[i % len(entries)] for i, row in enumerate(back)])


def _nothing_elsewhere(stray: float) -> Check:
    told = "zero outside of the entries that the round publishes" if stray == 0 else f"values of up to {stray:.3g} elsewhere"
    return Check("published entries are public", stray == 0, told)


def _bound_checks(method: Method, stage: Stage) -> Iterator[Check]:
    """No row, however large or broken, may be longer than the bound that the noise was scaled to: in float64, and in float32, which
    is what clients compute in, and which rounds more."""
    rnd, _, public = opening(stage.run)
    rows, encode = _awkward_rows(stage.run.data.learner.dim), stage.run.method.pipeline.encode
    keys, bound = keys_of(2, torch.arange(len(rows))), find_noise(method)[1].l2
    norms = torch.cat([l2(encode(kind, rnd, keys, public).double()) for kind in (rows, rows.float())])
    finite = bool(torch.isfinite(norms).all())
    worst = float(norms[torch.isfinite(norms)].max()) / bound
    told = f"the longest of {len(norms)} awkward rows is {worst:.6f} of the bound" + ("" if finite else ", and some are not finite")
    yield Check("clip", finite and worst <= 1.0, told)


def _awkward_rows(dim: int) -> Tensor:
    """Huge, tiny, sparse, dense, NaN, infinite, and just at the edge."""
    g = torch.Generator().manual_seed(7)  # test vectors, not secrets
    sizes = torch.tensor([1e-12, 1e-3, 1.0, 1.0 + 1e-9, 10.0, 1e6, 1e18, 1e30, 3e36, 1e38, 1e150], dtype=torch.float64)
    dense = torch.randn(len(sizes), dim, generator=g, dtype=torch.float64)
    dense = dense / dense.norm(dim=1, keepdim=True) * sizes[:, None]
    sparse = torch.zeros(4, dim, dtype=torch.float64)
    sparse[torch.arange(4), torch.arange(4) * (dim // 4)] = torch.tensor([1e6, -1e6, math.inf, math.nan], dtype=torch.float64)
    return torch.cat([dense, sparse, torch.full((1, dim), 1e3, dtype=torch.float64)])


def _lone_client(method: Method, stage: Stage) -> Check:
    """A client alone, as in a federation, sends what it sends in a cohort."""
    rnd, _, public = opening(stage.run)
    rows, encode = _awkward_rows(stage.run.data.learner.dim), stage.run.method.pipeline.encode
    keys = keys_of(3, torch.arange(len(rows)))
    together = encode(rows, rnd, keys, public).double()
    alone = torch.cat([encode(rows[i : i + 1], rnd, keys[i : i + 1], public) for i in range(len(rows))]).double()
    least = 1e-9 if not method.uplink(8).integer else 1.0
    gap = float((together - alone).abs().max())
    told = f"its row differs by at most {gap:.1g} from the one in a cohort"
    return Check("a lone client sends the same", gap <= max(least, 1e-9 * float(together.abs().max())), told)


def _fresh(method: Method, cohort_of: Callable[[int, float], Cohort]) -> Iterator[Check]:
    """The same run twice, with every public seed alike: neither noise nor cohorts may be shared."""
    draws, cohorts = [], []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # what a careless noise would be drawn from
        stage = Stage(method, cohort_of(_FEW, 1.0), _FEW, entries=2000)
        draws.append(stage.play(stage.start(), torch.zeros(_FEW, dtype=torch.bool))[1].values)
        run = Stage(method, cohort_of(1000, 0.3), 1000).run
        cohorts.append(set(run.cohort.draw(0, 1000, run.cohort.init(1000), run.identity.secret)[0].tolist()))
    a, b = draws
    overlap = float((a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-300)) * math.sqrt(len(a))
    told = f"the noise of two runs correlates by {overlap:+.1f} standard deviations"
    yield Check("noise independent of public seeds", abs(overlap) < _SIX, told)
    yield _apart("cohorts independent of public seeds", cohorts, 1000)


def _apart(name: str, cohorts: list[set[int]], clients: int) -> Check:
    """No two cohorts have more in common than chance gives them."""
    checks = []
    for a, b in itertools.combinations(cohorts, 2):
        expected = len(a) * len(b) / clients
        spread = math.sqrt(max(expected * (1 - len(a) / clients) * (1 - len(b) / clients), 1e-12))
        off = (len(a & b) - expected) / spread
        told = f"two cohorts share {len(a & b)} clients, {off:+.1f} standard deviations off chance"
        checks.append(Check(name, abs(off) < _SIX, told))
    return max(checks, key=lambda check: not check.passed)


def _taking_part(cohort: Cohort, clients: int) -> Iterator[Check]:
    """As often as is claimed, by fresh draws, and no more often than is allowed."""
    if isinstance(cohort, Rotation):
        yield from _turns(cohort, clients)
    else:
        yield _rate(cohort, clients)
        yield _cohorts_differ(cohort, clients)
        yield _cap(cohort, clients)


def _turns(cohort: Rotation, clients: int) -> Iterator[Check]:
    """Everybody once in every turn, in an order that no other turn repeats."""
    secret, state, period = Secret.fresh(), cohort.init(clients), cohort.period(clients)
    firsts, most, least = [], 0, clients
    for turn in range(4):
        counts = torch.zeros(clients, dtype=torch.int64)
        for place in range(period):
            ids, state = cohort.draw(turn * period + place, clients, state, secret)
            counts[ids] += 1
            if place == 0:
                firsts.append(set(ids.tolist()))
        most, least = max(most, int(counts.max())), min(least, int(counts.min()))
    fair = most == least == 1
    yield Check("participation", fair, f"each client from {least} to {most} times in a turn of {period} rounds; once is claimed")
    yield _apart("turns fresh", firsts, clients)


def _cohorts_differ(cohort: Cohort, clients: int) -> Check:
    """Cohorts of different rounds are drawn anew."""
    secret, state = Secret.fresh(), cohort.init(clients)
    drawn = [set(cohort.draw(index, clients, state, secret)[0].tolist()) for index in range(8)]
    return _apart("cohorts fresh in each round", drawn, clients)


def participations(cohort: Cohort, clients: int, rounds: int) -> Tensor:
    """How many rounds each client joins."""
    secret, state, counts = Secret.fresh(), cohort.init(clients), torch.zeros(clients, dtype=torch.int64)
    for index in range(rounds):
        ids, state = cohort.draw(index, clients, state, secret)
        counts[ids] += 1
    return counts


def _cap(cohort: Cohort, clients: int) -> Check:
    """Where participation is limited, nobody exceeds it, to the last round."""
    if not isinstance(cohort, Bounded):
        return Check("participation", True, "is not limited, and no limit is claimed")
    most = int(participations(Bounded(cohort.size, 2), clients, 40).max())
    return Check("participation", most <= 2, f"at most {most} rounds for any client; 2 are allowed")


def _rate(cohort: Cohort, clients: int) -> Check:
    """Clients take part as often as is claimed, and no client more often than others."""
    rounds = 1 if isinstance(cohort, Bounded) else 400  # its coins, before any client has had its turns
    counts = participations(cohort, clients, rounds).double()
    rate = cohort.size / clients
    expected, spread = rounds * rate, math.sqrt(max(rounds * rate * (1 - rate), 1e-12))
    total = float(counts.sum() - clients * expected) / (spread * math.sqrt(clients))
    if isinstance(cohort, FixedSize):
        total = 0.0 if float(counts.sum()) == clients * expected else math.inf
    most = float((counts - expected).abs().max()) / spread
    limit = math.sqrt(_SIX**2 + 2 * math.log(clients))
    fine = abs(total) < _SIX and (most < limit or rounds == 1)
    return Check("sampling rate", fine, f"{float(counts.sum()) / clients / rounds:.4f} of clients a round; {rate:.4f} is claimed")
