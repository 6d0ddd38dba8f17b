"""What a round takes: a few steps of some clients made of zeros, and from there along the sizes of a cohort.

A chunk costs something by itself and something for each of its clients, and so does each of its steps: both are measured at two
numbers of clients, as many as a second allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.config import RunConfig
from hush.core import Method, Public, Round, Shard
from hush.engines.memory import chunks_at_once
from hush.engines.run import Placed
from hush.engines.setup import sized
from hush.engines.threads import at_once
from hush.local.flat import FlatModel
from hush.own import OwnSecrets
from hush.privacy.plan import is_private
from hush.random import keys_of
from hush.rows import total
from hush.secret import Secret
from hush.transforms import TopK
from hush.transforms.votes import Votes

PATIENCE = 1.0
"""Seconds that the larger of both trials may take, as far as the smaller one tells."""
TRIALS = 8
"""Short trainings of two clients before a private run's first sum: whether neighbours affect each other."""
FEW, MORE = 2, 4
"""Steps of a short training and of a longer one: the first step may be computed another way than those that follow."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a chunk: to begin and to end with, and for a step, each by its number of clients."""

    clients: tuple[int, int]
    fixed: tuple[float, float]
    step: tuple[float, float]

    def of(self, steps: list[int]) -> float:
        """Of clients that make so many steps, the longest first: who has finished costs nothing more."""
        active = [sum(own > step for own in steps) for step in range(max(steps, default=0))]
        return self._at(self.fixed, len(steps)) + sum(self._at(self.step, many) for many in active)

    def _at(self, known: tuple[float, float], clients: int) -> float:
        (few, many), (low, high) = self.clients, known
        if few == many:
            return high * clients / many
        return max(low + (high - low) * (clients - few) / (many - few), min(low, high) * min(1.0, clients / few))


def seconds_of_rounds(
    config: RunConfig, method: Method, records: Tensor, cohort: Cohort, data: Placed, apart: bool, rounds: int
) -> float:
    """The clients' training and encoding, the sum, and the server's half. `records`: how many each client holds."""
    data, chunk = sized(config, data, method, apart)
    learner, local = data.learner, method.local
    parts = _parts(local.steps_of(records.cpu()), cohort, min(chunk, max(1, records.numel())), apart)
    if not parts:
        return 0.0
    short, rnd = _shortened(method), Round(0, 0, cohort.size, method.pipeline.room())
    params = learner.initial()
    public = short.prepare(params, short.init(params), rnd, data.server)
    abreast = min(torch.get_num_threads(), len(parts), chunks_at_once(learner, chunk, config.memory))

    def trial(clients: int, steps: int) -> float:
        some = replace(short, local=local.shortened(steps))
        return _timed(learner, partial(_train, some, learner, data, rnd, public, clients, abreast, apart))

    costs = measured(trial, max(map(len, parts)), max(max(part) for part in parts))
    clients = sum(costs.of(part) for part in parts) / abreast
    server = _servers_half(short, learner, data, rnd, public) + _servers_training(method, data, rnd)
    return rounds * (clients + server) + (TRIALS * costs.of([FEW, FEW]) if is_private(method) else 0.0)


def measured(trial: Callable[[int, int], float], most: int, longest: int) -> Costs:
    """From timed trainings of so many clients and steps: two numbers of clients, the larger as large as patience allows."""
    short, long = (FEW, MORE) if longest > 1 else (1, 1)
    few = min(2, most)
    trial(few, short)  # pays for what is set up once
    first = trial(few, short), trial(few, long)
    many = max(few, min(most, int(few * PATIENCE / max(2 * sum(first), 1e-9))))
    if many > few:
        trial(many, 1)
    second = (trial(many, short), trial(many, long)) if many > few else first
    (step, fixed), (later_step, later_fixed) = (_split(*both, short, long) for both in (first, second))
    return Costs((few, many), (fixed, later_fixed), (step, later_step))


def _split(before: float, after: float, short: int, long: int) -> tuple[float, float]:
    """Seconds of a step, and of all else, by trainings of `short` and of `long` steps."""
    if long == short:
        return 0.0, before
    step = max(0.0, after - before) / (long - short)
    return step, max(0.0, before - short * step)


def _parts(steps: Tensor, cohort: Cohort, chunk: int, apart: bool) -> list[list[int]]:
    """The steps of each client of each chunk of a cohort as clients come; in slots everybody waits for the longest."""
    many = min(len(steps), max(1, round(cohort.size)))
    ranks = torch.linspace(0, len(steps) - 1, many).round().long()
    own = steps.sort(descending=True).values[ranks].tolist()
    if not apart:
        return [own[first : first + chunk] for first in range(0, many, chunk)]
    passes = max(torch.bincount(torch.randperm(many, generator=torch.Generator().manual_seed(0)) % chunk).tolist())
    fuller = passes + round((2 * many / chunk) ** 0.5) if chunk < len(steps) else passes  # the fullest slot decides
    return [[max(own)] * chunk] * fuller


def _shortened(method: Method) -> Method:
    """The same with a step of the server's own training where there are many."""
    own = (replace(p, training=p.training.shortened(1)) if isinstance(p, TopK | Votes) else p for p in method.pipeline.parts)
    return replace(method.with_pipeline(*own), local=method.local)


def _train(
    method: Method, learner: FlatModel, data: Placed, rnd: Round, public: Public, clients: int, abreast: int, apart: bool
) -> None:
    """So many clients of the usual size, in each of as many chunks as train at once."""
    x, y = data.train.x, data.train.y
    ids = torch.arange(clients, device=learner.device)
    own = OwnSecrets.simulated(Secret(bytes(32)), ids.tolist())  # nothing that is drawn here is kept
    shard = Shard(x, y, torch.zeros_like(ids), torch.full_like(ids, len(x)), own, slots=apart)

    def contribute(part: Tensor, twin: FlatModel) -> Tensor:
        return method.contribute(twin, twin.initial(), shard, rnd, keys_of(0, part), public)[0]

    for encoded in at_once(contribute, [ids] * abreast, learner, method, abreast):
        total(encoded, torch.int64 if method.uplink(learner.dim).integer else torch.float64)


def _servers_half(method: Method, learner: FlatModel, data: Placed, rnd: Round, public: Public) -> float:
    params, message = learner.initial(), method.uplink(learner.dim)
    kind = torch.int64 if message.integer else torch.float64
    summed = torch.zeros(message.summed, dtype=kind, device=learner.device)
    state = method.init(params)
    return _timed(learner, lambda: method.finish(params, summed, state, rnd, public, Secret(bytes(32))))


def _servers_training(method: Method, data: Placed, rnd: Round) -> float:
    """Where a part of the method has the server train on public examples: by one of its steps."""
    (learner, public), took = data.server, 0.0
    for part in method.pipeline.parts:
        if isinstance(part, TopK | Votes) and public is not None:
            key = keys_of(0, torch.zeros(1, dtype=torch.int64, device=learner.device))
            few = part.training.shortened(FEW)
            train = partial(few, learner, learner.initial(), public, rnd, key, None)
            train()  # pays for what is set up once
            made, asked = (float(one.steps_of(public.size.cpu()).sum()) for one in (few, part.training))
            took += _timed(learner, train) * asked / max(made, 1.0)
    return took


def _timed(learner: FlatModel, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if learner.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
