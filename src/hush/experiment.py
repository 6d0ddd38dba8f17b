"""From a run as it was asked for to the objects that run: every default is filled in here, once."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hush import methods
from hush.cohort import Cohort, make_cohort
from hush.config import DEFAULT_EPSILON, SECURE_KEYS, RunConfig
from hush.core import Method
from hush.engines.run import Run
from hush.engines.setup import assemble
from hush.errors import DataError, NoGuarantee, UsageError
from hush.names import pick
from hush.plugins import code_of
from hush.privacy.guarantee import Budget
from hush.privacy.plan import is_private, needs_noise, takes_turns
from hush.privacy.record_plan import is_record_level, unit_within_clients
from hush.privacy.shares import SecureSum, as_run
from hush.privacy.vocabulary import Enrolled
from hush.settings import Settings
from hush.tasks.build import load_task
from hush.tasks.catalogue import dataset
from hush.tasks.dataset import DataSet
from hush.tasks.partition import parse
from hush.tasks.start import read_start
from hush.tasks.task import Task


@dataclass(frozen=True)
class Experiment:
    """A resolved configuration, and the method that it describes."""

    config: RunConfig
    method: Method
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the data set suggests and the user gave; the rest is the method's own."""

    @staticmethod
    def of(config: RunConfig) -> Experiment:
        """A run as `config.json` keeps it: everything is filled in already."""
        if missing := [key for key in ("sampling", "cohort", "rounds") if getattr(config, key) is None]:
            raise DataError(f"This run's config.json was changed: it says nothing of {missing[0]}.")
        if (code := _code(config)) != config.code:
            told = f"it was {config.code}, and is {code}"
            raise DataError(f"This run's own code has changed since it began ({told}): bring the file back, or start a new run.")
        method = methods.build(config.method, **config.set)
        return Experiment(config, _fitted(method, config))

    @property
    def cohort(self) -> Cohort:
        config = self.config
        assert config.sampling is not None
        assert config.cohort is not None
        return make_cohort(config.sampling, config.cohort, config.participations or 1)

    @property
    def rounds(self) -> int:
        assert self.config.rounds is not None
        return self.config.rounds

    @property
    def budget(self) -> Budget | None:
        """The epsilon to find the noise for, or to stop before."""
        return Budget.of_config(self.config)

    @property
    def population(self) -> int:
        """How many clients there are, before the data were read."""
        return _population(self.config, dataset(self.config.data))

    @property
    def secure_sum(self) -> SecureSum | None:
        """How the sum is made secure, where it shall be."""
        return SecureSum.of_config(self.config)

    def as_run(self, clients: int | Enrolled | None = None) -> Method:
        """The method with the kind of noise and of sum that it runs with."""
        config, many = self.config, clients or self.population
        return as_run(self.method, self.cohort, many, config.noise_mode == "secure", self.secure_sum, config.dropout)

    def task(self, folder: Path | None = None) -> Task:
        config = self.config
        task = load_task(
            config.data,
            config.model,
            clients=config.clients,
            split=config.partition,
            validation=config.validation,
            public=config.public or 0,
            evaluation=config.evaluation,
            test_examples=config.test_examples,
            start=config.start,
            seed=config.seed,
            folder=folder,
        )
        return task.seen_by(config.unit)

    def set_up(self, task: Task) -> Run:
        """Everything checked and placed; nothing trained and nothing written."""
        if self.config.federation is not None:
            raise UsageError("This is a run of real clients: go on with it by hush server --federation DIR --resume RUN.")
        return assemble(self.config, self.method, task, self.cohort)


# -- defaults --------------------------------------------------------------------------------------------------------------------


def resolve(asked: RunConfig, lenient: bool = False) -> Experiment:
    """Fill in what was not said: by the method, and by the data set.

    `lenient` is for comparisons: privacy flags then pass over methods that have no noise instead of being refused.
    """
    entry = dataset(asked.data)
    _refuse_contradictions(asked)
    kind = methods.recipe_of(asked.method).settings
    chosen = _chosen(asked, entry, kind)
    method = methods.build(asked.method, **chosen)
    if protects_records(asked.method):
        asked = _for_records(asked, entry)
    if lenient and asked.secure and not is_private(method):  # a baseline beside methods whose sum is secure, in the same turns
        plain: dict[str, Any] = dict.fromkeys(SECURE_KEYS)
        asked = replace(asked, **plain, secure=False, sampling=asked.sampling or "rotation")
    assert method.settings is not None
    config = replace(_with_clients(asked, method, entry), unit=_unit(asked, method, entry, lenient))
    config = replace(config, **_limits(asked, method, lenient), set=method.settings.active())
    if config.public is None:
        needed = method.pipeline.needs_public or read_start(config.start)[0] == "public"
        config = replace(config, public=entry.public if needed else 0)
    config = replace(config, code=_code(config))
    experiment = Experiment(config, _fitted(method, config), chosen)
    experiment.cohort.check(experiment.population)
    return experiment


def _unit(asked: RunConfig, method: Method, entry: DataSet, lenient: bool) -> str | None:
    """What is one record, where records are protected."""
    wanted = None if lenient and not is_record_level(method) else asked.unit
    return unit_within_clients(method, wanted, entry.person is not None)


def _code(config: RunConfig) -> str | None:
    """What names the code that is the user's own."""
    own = (("hush.methods", methods.parts.split(config.method)[0]), ("hush.models", config.model), ("hush.data", config.data))
    return "; ".join(code for group, name in own if (code := code_of(group, name)) is not None) or None


def _fitted(method: Method, config: RunConfig) -> Method:
    return method.fitted(config.public, dataset(config.data).classes) if config.public else method


def _refuse_contradictions(asked: RunConfig) -> None:
    """Flags that do not go together."""
    if asked.epsilon is not None and (asked.noise is not None or asked.set.get("noise") is not None):
        raise UsageError("Give --noise or --epsilon, not both: one determines the other.")
    if not asked.secure and (idle := next((key for key in SECURE_KEYS if getattr(asked, key) is not None), None)):
        raise UsageError(f"--{idle.replace('_', '-')} goes with --secure.")
    if asked.participations is not None and asked.sampling != "bounded":
        raise UsageError("--participations goes with --sampling bounded.")
    if asked.federation is not None:
        raise UsageError("federation names the roster of real clients, which hush server writes down: leave it out.")
    if asked.begins_with is not None:
        raise UsageError("begins_with names weights that hush server writes down: leave it out, and give it the run (--init RUN).")
    if asked.clients is not None and asked.clients < 1:
        raise UsageError(f"clients must be at least 1, not {asked.clients}.")


def _chosen(asked: RunConfig, entry: DataSet, kind: type[Settings]) -> dict[str, Any]:
    """The settings that the data set suggests to this method, and then the user's."""
    given = dict(asked.set)
    if asked.noise is not None and "noise" in kind.known():
        given["noise"] = asked.noise
    suggested = _suggested(asked, entry, kind, given.keys()) if kind.follows_data else {}
    taken = methods.taken(asked.method, suggested | given)
    return {key: value for key, value in taken.items() if key in suggested} | given


def _suggested(asked: RunConfig, entry: DataSet, kind: type[Settings], given: Set[str]) -> dict[str, Any]:
    """What the data set suggests, where neither the user nor the method itself says otherwise."""
    suggested = dict(entry.record_settings if protects_records(asked.method) else entry.settings)
    every = {name: None for recipe in methods.every_method().values() for name in recipe.settings.known()}
    for key in suggested:  # what this method does not take is for others; what none takes is a slip
        pick(every, key, f"setting of {asked.data}")
    said = given | {key for key, known in kind.known().items() if known.own}
    instead = {"local_steps": "local_epochs", "local_epochs": "local_steps"}
    return {key: value for key, value in suggested.items() if key not in said and instead.get(key) not in said}


def protects_records(method: str) -> bool:
    """Whether a method, by its name, protects single records."""
    return "batches" in methods.settings_of(method)


def on_the_same_clients(asked: list[RunConfig]) -> list[RunConfig]:
    """For comparisons: where one method protects records, all share the data among as few clients as it does."""
    if not any(protects_records(one.method) for one in asked):
        return asked
    return [_for_records(one, dataset(one.data)) for one in asked]


def _for_records(asked: RunConfig, entry: DataSet) -> RunConfig:
    """What is unsaid, as the data set has it for records: clients, cohort, rounds and model."""
    usual = {key: getattr(entry, f"record_{key}") for key in ("clients", "cohort", "rounds", "model")}
    if usual["cohort"] is not None:
        usual["cohort"] = float(usual["cohort"])  # as config.json gives it back: a run that goes on is the same run
    return replace(asked, **{key: value for key, value in usual.items() if value is not None and getattr(asked, key) is None})


def _with_clients(asked: RunConfig, method: Method, entry: DataSet) -> RunConfig:
    """Who holds the data, who takes part, and how often."""
    recipe = methods.recipe_of(asked.method)
    split, *_ = parse(asked.partition or entry.partition)
    many = asked.clients if asked.clients is not None or split == "natural" else entry.clients
    config = replace(asked, clients=many, partition=asked.partition or entry.partition, model=asked.model or entry.model)
    most = _population(config, entry)
    if config.cohort is None:
        config = replace(config, cohort=float(most if recipe.everybody else min(entry.cohort, most)))
    if config.rounds is None:
        config = replace(config, rounds=recipe.rounds or entry.rounds)
    # coins where sampling amplifies; where it cannot, nobody should come more often than others
    usual = "rotation" if asked.secure or takes_turns(method) else "poisson"
    return replace(config, sampling=asked.sampling or usual)


def _population(config: RunConfig, entry: DataSet) -> int:
    return config.clients or entry.natural or entry.clients


def _limits(asked: RunConfig, method: Method, lenient: bool) -> dict[str, Any]:
    """The epsilon that the noise is found for, or that a run with a given noise stops before."""
    if not is_private(method):
        idle = next((flag for flag in ("noise", "epsilon", "budget") if getattr(asked, flag) is not None), None)
        if idle and not lenient:
            raise NoGuarantee(
                f"{method.name} adds no noise, so it has no privacy guarantee and --{idle} means nothing to it.",
                "Choose a private method, such as dp-fedavg or fed-smp-rand-k, or leave the flag out.",
            )
        return {"noise": None, "epsilon": None, "budget": None}
    if asked.noise is not None and "noise" not in methods.settings_of(asked.method) and not lenient:
        raise UsageError(f"{method.name} has no noise multiplier: give --epsilon, or a setting of its own (--set).")
    if needs_noise(method):
        if asked.budget is not None:
            raise UsageError(
                "--budget stops a run of a given --noise before it is exceeded; with --epsilon the noise is found for you."
            )
        return {"epsilon": asked.epsilon if asked.epsilon is not None else DEFAULT_EPSILON}
    return {"noise": getattr(method.settings, "noise", None), "epsilon": None}
