"""The audit of records under a secure sum: the real training, encoding and noise, on records whose gradients the auditor wants.

The model is one linear layer and the loss its output, so the gradient of a record is the record itself. What is attacked is what a
server sees: the noisy sum over all clients, round after round, with every other record known. Shares of noise are drawn as the one
noise that the fewest of them add up to; that the shares do add up, and who may open a sum, has tests of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hush.audit.findings import Attack, Audit, Scene, Scored, against_plan, told_apart
from hush.audit.open_sketch import opened
from hush.audit.records import as_output, one_layer
from hush.audit.stage import on_stage, opening, published, readable
from hush.audit.structural import Check, freshness_checks, scale_check
from hush.audit.training import Watched, by_guesses, fair_coins
from hush.cohort import Cohort, FixedSize
from hush.core import Method, Public, Round, within
from hush.engines.round import play_round
from hush.engines.run import Run, Snapshot
from hush.engines.simulation import start
from hush.engines.summing import clients_of
from hush.local.record_gradients import RecordGradients
from hush.privacy.plan import find_noise, plan_of
from hush.privacy.vocabulary import Enrolled, Plan
from hush.random import keys_of
from hush.server import Average
from hush.tasks.task import Clients, Task
from hush.transforms import Discretize, Modulo, Noise
from hush.transforms.gradient_step import GradientStep

SCENES = (Scene(1, 1.0, 10_000), Scene(4, 0.3, 5_000))
_CLIENTS, _EACH = 100, 8
_ROUNDS, _FEW = 30, 8
CANARY_DELTA = 1e-5


class SummedStage:
    """`clients` clients of `each` records; record v, where it is planted, points at the v-th entry that a round publishes."""

    def __init__(self, method: Method, rate: float, clients: int = _CLIENTS, each: int = _EACH) -> None:
        method = opened(method)
        assert isinstance(method.local, RecordGradients)
        dim = wanted = clients * each
        while readable(method, dim) < wanted:
            dim += max(1, dim // 8)
        parts = (replace(p, lr=1.0, batch_size=1, decay=1.0) if isinstance(p, GradientStep) else p for p in method.pipeline.parts)
        staged = replace(method, local=replace(method.local, rate=rate), server=Average(1.0)).with_pipeline(*parts)
        task = Task(
            model=one_layer(dim),
            clients=Clients(torch.zeros(wanted, dim), torch.zeros(wanted), torch.full((clients,), each)),
            loss=as_output,
            public=(torch.ones(1, dim), torch.ones(1)),
            name="audit",
        )
        self.records, self.method, self.radius = wanted, staged, float(find_noise(staged)[1].l2)
        run = on_stage(staged, task, FixedSize(clients), chunk=min(clients, 25))
        self.run = replace(run, rounds=10**9, config=replace(run.config, rounds=10**9))
        self._round = 0

    def plan(self, rounds: int) -> Plan:
        """What is claimed of so many rounds."""
        clients = self.run.data.train.count
        enrolled = Enrolled(clients, self.records // clients, self.records, self.run.data.learner.dim)
        return plan_of(self.run.method, FixedSize(clients), enrolled, rounds)

    def start(self) -> Snapshot:
        """The state before a training; rounds go on counting, so that no noise is asked for twice."""
        fresh, _ = start(self.run, None)
        return replace(fresh, round=self._round)

    def play(self, now: Snapshot, lengths: Tensor) -> tuple[Snapshot, Tensor]:
        """One round in which record v has a gradient of so many clips; what it released at v's entry, in units of R."""
        rnd, clip = self.run.round(now.round), _clip(self.run.method)
        public = self.run.method.prepare(now.params, now.state, rnd, self.run.data.server)
        entries, scale = published(self.run.method, self.run.data.learner.dim, rnd, public)
        x = self.run.data.train.x.zero_()
        there = torch.nonzero(lengths).flatten()
        x[there, entries[there]] = (lengths[there] * clip).to(x.dtype)
        after, _, _ = play_round(self.run, now)
        total = (now.params.double() - after.params.double()) * rnd.cohort
        self._round = after.round
        return after, total[entries[: self.records]] / scale[: self.records] / self.radius


def audit_summed_records(
    method: Method, cohort: Cohort, task: Task | None, rounds: int, scenes: tuple[Scene, ...] | None, tell: Callable[[str], None]
) -> Audit:
    """Attack the code that trains, as the server would."""
    tell("structural checks")
    checks = [*_noise_checks(method), *_row_checks(method), *_coin_checks(method)]
    if task is not None:
        checks.append(neighbour_check(method, task))
    attacks = []
    for scene in SCENES if scenes is None else scenes:
        tell(f"attack on {scene.rounds} rounds, a record in {scene.rate:g} of the steps")
        attacks.append(_attack(method, scene))
    if task is not None:
        tell("training with canary records")
        attacks.append(_training(method, cohort, task, rounds))
    multiplier = find_noise(method)[0].multiplier or 0.0
    return Audit(method.name, type(cohort).__name__, multiplier, tuple(checks), tuple(attacks))


def _clip(method: Method) -> float:
    grid = next(part for part in method.pipeline.parts if isinstance(part, Discretize))
    return float(grid.norm or 1.0)


# -- checks: each cries wolf once in a million times -----------------------------------------------------------------------------


def _noise_checks(method: Method) -> Iterator[Check]:
    """Where no record says anything, the sum is noise alone."""
    stage = SummedStage(method, 1.0)
    now, rounds = stage.start(), []
    for _ in range(_ROUNDS):
        now, values = stage.play(now, torch.zeros(stage.records))
        rounds.append(values)
    z = torch.stack(rounds) / (find_noise(stage.run.method)[0].std / stage.radius)
    yield scale_check(z, "noise scale", f"over {z.numel():,} values")
    yield from freshness_checks(z, "noise fresh in each round", "the most alike")
    other = SummedStage(method, 1.0)
    same = torch.equal(other.play(other.start(), torch.zeros(other.records))[1], rounds[0])
    yield Check("noise is secret", not same, "a second run with the same seed " + ("repeats it" if same else "draws other noise"))


def _row_checks(method: Method) -> Iterator[Check]:
    """What one record adds to the whole numbers that a client sends: its own row, no longer than R, and that once."""
    stage = SummedStage(method, 1.0, clients=1)
    rnd, params, public = opening(stage.run)
    entries, _ = published(stage.run.method, stage.run.data.learner.dim, rnd, public)

    def sums(lengths: list[float]) -> Tensor:
        x = stage.run.data.train.x.zero_()
        x[torch.arange(len(lengths)), entries[: len(lengths)]] = (torch.tensor(lengths) * _clip(method)).to(x.dtype)
        data, keys = clients_of(stage.run, torch.tensor([0]), rnd)
        return stage.run.method.contribute(stage.run.data.learner, params, data, rnd, keys, public)[0][0].double()

    usual = [0.7, 1e-3, 30.0, 0.2, 5.0, 1.0, 0.05, 2.0][: stage.records]
    worst, least = 0.0, math.inf
    for size in (1e-3, 0.5, 1.0, 10.0, 1e6, 1e20):
        moved = float((sums([size, *usual[1:]]) - sums([0.0, *usual[1:]])).norm()) / stage.radius
        worst, least = max(worst, moved), min(least, moved if size >= 1 else math.inf)
    told = f"a record moves a client's message by {worst:.6f} of what is claimed at most, from gradients of up to 1e20 clips"
    yield Check("clip", worst <= 1, told)
    yield Check("clip keeps what it may", least > 0.99, f"large gradients add {least:.4f} of what is allowed at least")
    for broken in (math.nan, math.inf):
        silent = torch.equal(sums([broken, *usual[1:]]), sums([0.0, *usual[1:]]))
        yield Check(f"a record of {broken}", silent, "adds nothing" if silent else "gets through")


def _coin_checks(method: Method) -> Iterator[Check]:
    """Who was drawn: read off the whole numbers that clients send before noise, in many rounds."""
    rate = 0.3
    stage = SummedStage(method, rate, clients=20)
    hits = _hits(stage, range(_ROUNDS))
    chance = float(stats.binomtest(int(hits.sum()), hits.size, rate).pvalue)
    yield Check("rate of the coins", chance > 1e-6, f"a record is in {hits.mean():.4f} of the steps, {rate:g} is claimed")
    pairs = hits.reshape(_ROUNDS, -1).astype(float)
    together = float((pairs[:, ::2] * pairs[:, 1::2]).mean())  # two records of one client
    slack = 5.5 * math.sqrt(rate**2 * (1 - rate**2) / (pairs.size / 2))
    told = f"two records of a client are drawn together in {together:.4f} of the steps, {rate**2:.4f} by coins of their own"
    yield Check("coins of their own", abs(together - rate**2) < slack, told)
    same = any(np.array_equal(a, b) for a, b in itertools.combinations(hits, 2))
    yield Check("coins drawn anew", not same, "two rounds read the same records" if same else "every round reads other records")
    again = np.array_equal(_hits(SummedStage(method, rate, clients=20), range(1)), hits[:1])
    yield Check("coins are secret", not again, "a second run with the same seed " + ("repeats them" if again else "draws others"))


def _hits(stage: SummedStage, rounds: range) -> np.ndarray:
    """`[rounds, records]`: which records were in."""
    found = []
    for index in rounds:
        rnd, params, public = opening(stage.run, index)
        entries, _ = published(stage.run.method, stage.run.data.learner.dim, rnd, public)
        x = stage.run.data.train.x.zero_()
        x[torch.arange(stage.records), entries[: stage.records]] = 10 * _clip(stage.method)
        ids = torch.arange(stage.run.data.train.count)
        data, keys = clients_of(stage.run, ids, rnd)
        sent, _ = stage.run.method.contribute(stage.run.data.learner, params, data, rnd, keys, public)
        found.append(_at(stage, sent.sum(0), rnd, public, entries))
    return np.stack(found)


def _at(stage: SummedStage, total: Tensor, rnd: Round, public: Public, entries: Tensor) -> np.ndarray:
    """Which of the records' entries are not zero in the sum of what clients sent."""
    found: np.ndarray = (_laid_out(stage.run, total, rnd, public)[entries[: stage.records]].abs() > 1e-9).numpy()
    return found


def _laid_out(run: Run, total: Tensor, rnd: Round, public: Public) -> Tensor:
    """A sum as the model is, without noise and without wrapping around."""
    state = run.method.pipeline.init(run.data.learner.dim)
    for i, part in reversed(list(enumerate(run.method.pipeline.parts))):
        if not isinstance(part, Noise | Modulo):
            total, _ = part.decode(total, within(str(i), state), rnd, public[i], run.identity.secret)
    return total


def neighbour_check(method: Method, task: Task) -> Check:
    """On the task's own model: a client's message is its records' rows, each of them once and no longer than claimed."""
    local = method.local
    assert isinstance(local, RecordGradients)
    run = on_stage(method, replace(task, test=None, validation=None), FixedSize(task.train.count), chunk=1)
    client = run.data.train.sizes.argmax()[None]
    rnd, params, public = opening(run)
    data, keys = clients_of(run, client, rnd)
    few, rows = min(8, int(data.size[0])), list[Tensor]()

    def encode(x: Tensor, own: Tensor) -> Tensor:
        rows.append(run.method.pipeline.encode(x, rnd, own, public))
        return rows[-1].clone()

    some = data._replace(size=torch.tensor([few]))
    message = replace(local, rate=1.0).messages(run.data.learner, params, some, rnd, keys, encode).updates[0]
    each = torch.cat(rows)[:few]
    exact, worst = torch.equal(message, each.sum(0)), float(each.double().norm(dim=1).max()) / float(find_noise(run.method)[1].l2)
    told = (
        f"a message is {'' if exact else 'NOT '}the sum of its records' rows; the longest is {worst:.4f} of what is claimed at most"
    )
    return Check("records of the model's own task", exact and worst <= 1, told)


# -- attacks ---------------------------------------------------------------------------------------------------------------------


def _attack(method: Method, scene: Scene) -> Attack:
    """Every record is a victim of a huge gradient, in or left out by the auditor's coin; the sign alternates, round by round."""
    stage = SummedStage(method, scene.rate)

    def played() -> Iterator[Scored]:
        while True:
            members, now = torch.rand(stage.records) < 0.5, stage.start()
            scores = torch.zeros(stage.records, dtype=torch.float64)
            for index in range(scene.rounds):
                sign = 1.0 if index % 2 == 0 else -1.0
                now, values = stage.play(now, members * sign * 10.0)
                scores += sign * values
            yield scores, members

    name = f"{scene.rounds} rounds, a record in {scene.rate:g} of the steps"
    return against_plan(name, stage.plan(scene.rounds), told_apart(played(), scene.victims))


def _training(method: Method, cohort: Cohort, task: Task, rounds: int) -> Attack:
    """One real training: every client holds a mislabelled record, or does not; the models' steps are held against its gradient."""
    seen = watch_sums(method, cohort, task, rounds)
    return by_guesses(seen, f"canary records right, in one training of {rounds} rounds")


def watch_sums(method: Method, cohort: Cohort, task: Task, rounds: int) -> Watched:
    """Score each canary by its part in every step, but for what all other records do on average."""
    real = task.train
    members = fair_coins(real.count)
    rows = torch.randint(len(real.x), (2, real.count))
    x, y = real.x[rows[0]], real.y[rows[1]]
    xs, ys = torch.split(real.x, real.sizes.tolist()), torch.split(real.y, real.sizes.tolist())
    last = [i + int(there) for i, there in enumerate(members)]  # a canary that is left out is no row at all
    held = [(torch.cat([xs[i], x[i:end]]), torch.cat([ys[i], y[i:end]])) for i, end in enumerate(last)]
    clients = Clients(torch.cat([a for a, _ in held]), torch.cat([b for _, b in held]), real.sizes + members)
    plain = replace(method, server=Average(1.0))  # what a server makes of its steps hides nothing
    run = on_stage(plain, replace(task, clients=clients, test=None, validation=None), cohort, rounds=rounds)
    learner, (now, _) = run.data.learner, start(run, None)
    scores, inputs = torch.zeros(real.count, dtype=torch.float64), x.to(learner.dtype) if x.is_floating_point() else x
    keys = keys_of(0, torch.arange(real.count))
    for _ in range(rounds):
        ids, _ = run.cohort.draw(now.counted, real.count, now.cohort_state, run.identity.secret)
        after, _, _ = play_round(run, now)
        step = (now.params - after.params).double() - _without(run, now, ids, real.sizes)
        own = (inputs[:, None], y[:, None], torch.ones(real.count, 1, dtype=learner.dtype), keys)
        gradients, _ = learner.gradients(now.params.expand(real.count, -1), *own)
        scores[ids] += _told_apart(gradients[ids].double(), step, find_noise(run.method)[0].multiplier or 0.0)
        now = after
    assert run.privacy.plan is not None
    return Watched(run.privacy.plan, CANARY_DELTA, members.numpy(), scores.numpy())


def _told_apart(gradients: Tensor, step: Tensor, multiplier: float) -> Tensor:
    """How much of each canary is in a step: the best linear estimate, where each is in by a fair coin and as long as the clip.

    Gradients of canaries resemble each other: how far the step goes along one of them tells of the others, too.
    """
    directions = gradients / torch.linalg.vector_norm(gradients, dim=1, keepdim=True).clamp_min(1e-12)
    alike = directions @ directions.T + max(4 * multiplier**2, 1e-9) * torch.eye(len(gradients), dtype=gradients.dtype)
    scores: Tensor = torch.linalg.solve(alike, directions @ step)
    return scores


def _without(run: Run, now: Snapshot, ids: Tensor, sizes: Tensor) -> Tensor:
    """The step that these clients' records make on average, canaries left out: the auditor knows them all, and not their coins."""
    rnd, local = run.round(now.round), run.method.local
    assert isinstance(local, RecordGradients)
    public = run.method.prepare(now.params, now.state, rnd, run.data.server)
    data, keys = clients_of(run, ids, rnd)
    real = data._replace(size=sizes[ids])

    def encode(x: Tensor, own: Tensor) -> Tensor:
        return run.method.pipeline.encode(x, rnd, own, public)

    total = replace(local, rate=1.0).messages(run.data.learner, now.params, real, rnd, keys, encode).updates.sum(0).double()
    return _laid_out(run, total * local.rate, rnd, public) / rnd.cohort
