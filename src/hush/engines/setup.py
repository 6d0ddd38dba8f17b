"""From a configuration and its objects to a run that is ready: the data placed, the privacy settled, the chunk chosen."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import torch

from hush.checks import check_number, check_share
from hush.cohort import Bounded, Cohort, Poisson, Rotation, sampling_name
from hush.config import NOISE_MODES, RunConfig
from hush.core import LocalUpdate, Method, Server, Transform
from hush.engines import charging
from hush.engines.evaluate import refuse_broken_metrics
from hush.engines.federation import FEDERATIONS, Remote
from hush.engines.fingerprint import arithmetic, fingerprint
from hush.engines.memory import allowed_bytes, chunk_size, slots
from hush.engines.run import Identity, Placed, Privacy, Run, pick_device
from hush.errors import UsageError
from hush.local import frozen
from hush.local.flat import FlatModel
from hush.methods.recipe import Recipe
from hush.names import pick
from hush.own import OwnSecrets
from hush.privacy.guarantee import Budget
from hush.privacy.ledger import Ledger
from hush.privacy.plan import in_a_federation, is_private, needs_noise, takes_turns
from hush.privacy.record_plan import unit_within_clients
from hush.privacy.settle import Settled, settle_privacy
from hush.privacy.shares import SecureSum, as_run, refuse_shares_without_a_secure_sum
from hush.random import derive, keys_of
from hush.secret import Secret
from hush.tasks.persons import by_person, grouped
from hush.tasks.stored import Stored
from hush.tasks.task import Clients, Examples, Task, whole


class Keywords(TypedDict, total=False):
    """What `simulate` takes besides the method and the task: the fields of `RunConfig`, some of them as objects."""

    rounds: Required[int]
    cohort: Cohort | int | float | None
    privacy: Budget | None
    delta: float | None
    seed: int
    device: str
    dtype: torch.dtype
    memory: str | None
    chunk: int | None
    dropout: float
    eval_every: int
    track_test: bool
    diagnostics: bool | None
    noise_mode: str
    noise_seed: int | None
    ledger: Ledger | Path | str | None
    population: str | None
    rollback_protection: bool
    secure_sum: SecureSum | None
    unit: str | None


def set_up(method: Method, task: Task, **keywords: Unpack[Keywords]) -> Run:
    """A run that Python describes, by objects and keywords."""
    refuse_wrong_kinds(method, task, keywords)
    turns = keywords.get("secure_sum") is not None
    cohort = as_cohort(keywords.get("cohort"), task.train.count, method, turns)
    return assemble(config_of(method, task, cohort, keywords), method, task, cohort)


def config_of(method: Method, task: Task, cohort: Cohort, keywords: Keywords) -> RunConfig:
    """The same run as data, in which the user's own objects have names alone."""
    given: dict[str, Any] = {key: value for key, value in keywords.items() if value is not None}
    budget, summed = given.pop("privacy", None), given.pop("secure_sum", None)
    given |= {} if summed is None else summed.to_config()
    if budget is not None:
        given["epsilon" if needs_noise(method) else "budget"] = budget.epsilon
        given["delta"] = budget.delta if budget.delta is not None else given.get("delta")
    if isinstance(ledger := given.get("ledger"), Ledger):
        given |= {
            "ledger": ledger.path,
            "rollback_protection": ledger.rollback_protection and given.get("rollback_protection", True),
        }
    if isinstance(cohort, Bounded):
        given["participations"] = cohort.participations
    as_text = {key: str(given[key]).removeprefix("torch.") for key in ("ledger", "device", "dtype") if key in given}
    own = {} if method.settings is None else method.settings.active()
    named = {"method": method.name, "data": task.name, "model": task.model_name, "clients": task.train.count}
    named |= {"cohort": cohort.size, "sampling": sampling_name(cohort), "noise": own.get("noise")}
    named |= {"from_python": "method, task" if method.settings is None else "task"}
    return RunConfig.read(given | as_text | named | {"set": own})


def assemble(config: RunConfig, method: Method, task: Task, cohort: Cohort, remote: Remote | None = None) -> Run:
    """Everything checked and placed; nothing trained and nothing written. The clients are `remote`, or simulated here."""
    _refuse_impossible(config)
    unit = unit_within_clients(method, config.unit, task.names_persons)
    config, task = replace(config, unit=unit), task.seen_by(unit)
    place, summed = pick_device(config.device), SecureSum.of_config(config)
    refuse_shares_without_a_secure_sum(method, summed)
    method = as_run(method, cohort, task.enrolled, config.noise_mode == "secure", summed, config.dropout)
    apart = config.noise_mode == "secure" or summed is not None or method.local.exact
    data = place_data(task, place, getattr(torch, config.dtype), apart)
    if method.pipeline.needs_public and data.server.public is None:
        raise UsageError(f"{method.name} learns from public examples and the task has none: give it some (public=N, --public N).")
    settled = _settle(config, fitted(method, data), task, cohort)
    method, config = settled.method, replace(config, population=config.population or task.name)
    if config.diagnostics and method.local.by_record:
        raise UsageError(
            "Diagnostics watch clients' updates, and here clients send sums of their records: leave --diagnostics out."
        )
    if config.diagnostics is None:  # un-noised figures would go around a guarantee
        config = replace(config, diagnostics=settled.plan is None and not method.local.by_record)
    if settled.refused is not None:
        method = replace(method, local=_initial_round(method, data, cohort, config.seed))
    privacy = _protection(config, settled, task, method, cohort, apart, summed, remote)
    data, chunk = sized(config, data, method, apart)
    return Run(
        config=config,
        method=method,
        cohort=cohort,
        data=data,
        privacy=privacy,
        identity=_identity(config, privacy, method, task, cohort, place),
        rounds=settled.rounds,
        chunk=chunk,
    )


# -- phases ----------------------------------------------------------------------------------------------------------------------


def place_data(task: Task, place: torch.device, dtype: torch.dtype, apart: bool) -> Placed:
    """Model and examples on the device, tried once; past the layers that nobody trains; by person, where the task is."""
    train = task.placed_train(place, dtype)
    task.refuse_impossible_values()
    learner, caveats = task.learner(place, dtype), task.all_caveats
    held = {part: task.placed(part, place, dtype) for part in ("public", "validation", "test")}
    learner.probe(train.x, train.y)  # the whole of it, before any layer of it sees two clients at once
    learner, train, held = past_frozen_layers(learner, train, held, apart)
    if learner.whole is not None:
        learner.probe(train.x, train.y)
    if apart:
        learner.probe_nobodys(train.x, train.y)
    refuse_broken_metrics(task, learner, held["test"] if held["test"] is not None else held["validation"])
    public = held["public"]
    server = Server(learner, None if public is None else whole(public))
    if task.by_person:
        learner, train = by_person(learner, train, grouped(task.train, task.person_rows))
        learner.probe(train.x, train.y)
        if apart:
            learner.probe_nobodys(train.x, train.y)
    return Placed(task, learner, train, server, held["validation"], held["test"], caveats)


def past_frozen_layers(
    learner: FlatModel, train: Clients, held: dict[str, Examples | None], apart: bool
) -> tuple[FlatModel, Clients, dict[str, Examples | None]]:
    """Model and examples as the first layer that is trained sees them; as they are, where no layer before it is frozen."""
    parts = frozen.split(learner.module)
    if parts is None or isinstance(train, Stored):  # features take the room that examples do not have
        return learner, train, held
    body, rest = parts
    there = {name: examples.x for name, examples in held.items() if examples is not None and len(examples.x)}
    seen = {name: frozen.seen_by(body, x, by_shape=apart) for name, x in there.items()}
    own = frozen.seen_by(body, train.x, train.sizes.tolist() if apart else (), by_shape=apart)
    if own is None or any(x is None for x in seen.values()):
        return learner, train, held
    past = {name: Examples(x, examples.y) for name, examples in held.items() if examples and (x := seen.get(name)) is not None}
    return learner.after(rest), replace(train, x=own), held | past


def fitted(method: Method, data: Placed) -> Method:
    """The method, told how many public examples and classes there are, where a part of it asks."""
    learner, public = data.server
    if public is None or all(type(part).fitted is Transform.fitted for part in method.pipeline.parts):
        return method
    outputs = learner.predictions(learner.initial()[None], public.x[:1])[0]
    return method.fitted(len(public.x), outputs.shape[1] if outputs.dim() > 1 else 1)


def _settle(config: RunConfig, method: Method, task: Task, cohort: Cohort) -> Settled:
    """The noise for a budget, or the rounds that it allows; or why nothing is proved."""
    assert config.rounds is not None
    delta = config.delta
    if delta is None and is_private(method):
        delta = charging.delta_of(config.ledger, config.population or task.name, config.rollback_protection)
    budget = Budget.of_config(config)
    settled = settle_privacy(method, cohort, task.enrolled, config.rounds, budget, delta, config.dropout)
    if isinstance(cohort, Bounded) and cohort.lasts(task.train.count) < config.rounds:
        warnings.warn(cohort.too_short(task.train.count, config.rounds), stacklevel=2)
    if settled.plan is not None:
        task.refuse_clients_examples()
        if config.noise_seed is not None:
            why = f"The noise came from a seed (noise_seed={config.noise_seed}): whoever knows it can take it off again."
            settled = settled._replace(plan=None, refused=why)
    charging.refuse_idle_ledger(settled.method, settled.plan, config)
    return settled


def _protection(
    config: RunConfig,
    settled: Settled,
    task: Task,
    method: Method,
    cohort: Cohort,
    apart: bool,
    summed: SecureSum | None,
    remote: Remote | None,
) -> Privacy:
    """What is proved of the run, and who makes the sum."""
    federation, budget, count = None, Budget.of_config(config), task.train.count
    if summed is not None:
        assert config.rounds is not None
        assert task.enrolled.dim is not None
        name = None if remote is None else remote.name
        terms = summed.terms_of(method, cohort, count, config.dropout, task.enrolled.dim, config.rounds, name)
        federation = FEDERATIONS[summed.masks](count, terms) if remote is None else remote.bind(terms)
    limit = budget.epsilon if budget is not None and settled.plan is not None else None
    plan = settled.plan if remote is None or settled.plan is None else in_a_federation(settled.plan)
    return Privacy(plan, settled.refused, task.enrolled, settled.delta, limit, apart, federation)


def _identity(config: RunConfig, privacy: Privacy, method: Method, task: Task, cohort: Cohort, place: torch.device) -> Identity:
    """A name that tells nothing, a secret for once, and what the run is known by where it goes on."""
    told = (cohort, getattr(torch, config.dtype), config.rounds, config.seed, config.noise_seed, config.dropout)
    # what has no proof may repeat
    secret = Secret.of_seed(config.seed, config.noise_seed or 0) if privacy.plan is None else Secret.fresh()
    secure = privacy.plan is not None and privacy.plan.secure
    return Identity(os.urandom(8).hex(), fingerprint(method, task, *told, *arithmetic(place)), secret, secure)


def sized(config: RunConfig, data: Placed, method: Method, apart: bool) -> tuple[Placed, int]:
    """How many clients train side by side, and what their single examples' gradients may take."""
    learner, train = data.learner, data.train
    allowed = allowed_bytes(config.memory, learner.device)
    if method.local.draws_its_own:  # half for the clients side by side, half for the gradients of their single examples
        allowed //= 2
    chunk = config.chunk if len(train.x) else 1  # where clients are elsewhere, nobody trains here
    if chunk is None:
        chunk = (slots if apart else chunk_size)(learner, method.local, train.x, train.y, allowed)
    server = data.server._replace(learner=data.server.learner.with_memory(allowed))
    return replace(data, learner=learner.with_memory(allowed), server=server), max(1, chunk)


def _initial_round(method: Method, data: Placed, cohort: Cohort, seed: int) -> LocalUpdate:
    """What a paper's initial round finds out about the first clients' data: no proof covers it."""
    learner, train = data.learner, data.train
    ids = torch.arange(min(train.count, max(1, round(cohort.size))), device=learner.device)
    some = train.shard(ids)._replace(own=OwnSecrets.simulated(Secret(bytes(32)), ids.tolist()))
    return method.local.initialised(learner, learner.initial(), some, keys_of(derive(seed, 3), ids))


# -- refusals --------------------------------------------------------------------------------------------------------------------


def refuse_wrong_kinds(method: object, task: object, keywords: Keywords) -> None:
    """What Python would otherwise complain about somewhere deep inside."""
    if isinstance(method, Recipe):
        raise UsageError(f"{method.name} is not made yet: call it, with its settings as keywords, as in dp_fedavg(lr=0.1).")
    if not isinstance(method, Method):
        raise UsageError(f"A method is a hush.Method, such as hush.methods.dp_fedavg(), not {method!r}.")
    if not isinstance(task, Task):
        raise UsageError(f"A task is a hush.Task or what hush.load_task returns, not {type(task).__name__}.")
    for key in keywords:
        if key in _INSTEAD:
            raise UsageError(f"simulate has no keyword '{key}': {_INSTEAD[key]}.")
        pick(Keywords.__annotations__, key, "keyword of simulate, named")
    if "rounds" not in keywords:
        raise UsageError("How many rounds? Write simulate(method, task, rounds=100).")
    for key, kind, example in _OBJECTS:
        value = keywords.get(key)
        if value is not None and not isinstance(value, kind):
            raise UsageError(f"{key} is a {example}, not {value!r}.")


_OBJECTS: tuple[tuple[str, Any, str], ...] = (
    ("privacy", Budget, "hush.Budget(epsilon=...)"),
    ("secure_sum", SecureSum, "hush.SecureSum()"),
    ("ledger", Ledger | Path | str, "file, or a hush.Ledger"),
)
_INSTEAD = {
    "epsilon": "write privacy=hush.Budget(epsilon=8)",
    "budget": "write privacy=hush.Budget(epsilon=8)",
    "noise": "it is the method's: hush.methods.dp_fedavg(noise=1.2)",
    "sampling": "write cohort=hush.Poisson(50), hush.FixedSize(50) or another",
    "secure": "write secure_sum=hush.SecureSum()",
    "clients": "clients are the task's: hush.load_task('digits', clients=100)",
    "lr": "settings of training are the method's: hush.methods.dp_fedavg(lr=0.1)",
}


def _refuse_impossible(config: RunConfig) -> None:
    """Numbers and words that cannot be meant."""
    if not isinstance(config.rounds, int | float) or config.rounds < 1 or config.rounds != int(config.rounds):
        raise UsageError(f"rounds must be a whole number of at least 1, not {config.rounds}.")
    check_number("eval_every", config.eval_every, least=1)
    check_share("dropout", config.dropout)
    pick(dict.fromkeys(NOISE_MODES), config.noise_mode, "noise mode")
    if config.noise_seed is not None and config.noise_mode == "secure":
        raise UsageError("Secure noise is noise that nobody can repeat: leave noise_seed out, or choose noise_mode='fast'.")
    if not isinstance(getattr(torch, config.dtype, None), torch.dtype):
        raise UsageError(f"dtype must be float32 or float64, not {config.dtype!r}.")


def as_cohort(cohort: Cohort | int | float | None, clients: int, method: Method, turns: bool = False) -> Cohort:
    """A number is an expected size under Poisson sampling, or turns of that size; the default is a tenth of the clients."""
    if not isinstance(cohort, Cohort):
        size = float(cohort) if cohort is not None else max(1.0, clients / 10)
        Poisson(size).check(clients)  # before it is rounded: a share is a slip
        cohort = Rotation(max(1.0, float(round(size)))) if turns or takes_turns(method) else Poisson(size)
    cohort.check(clients)
    return cohort
