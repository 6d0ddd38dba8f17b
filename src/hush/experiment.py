"""An experiment as data: what `hush run` reads from flags and TOML, with every default written out.

`Spec` is what was asked for; `resolve` turns it into the objects that run.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hush import methods
from hush.cohort import Bounded, Cohort, FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import Method
from hush.engines.run import Run
from hush.engines.simulation import set_up
from hush.errors import DataError, NoGuarantee, UsageError
from hush.names import pick
from hush.privacy.guarantee import Budget
from hush.privacy.plan import is_private, needs_noise, takes_turns
from hush.privacy.shares import SecureSum, as_run
from hush.tasks.build import load_task
from hush.tasks.catalogue import dataset
from hush.tasks.partition import parse
from hush.tasks.start import read_start
from hush.tasks.task import Task

DEFAULT_METHOD = "fed-smp-top-k"
DEFAULT_EPSILON = 8.0
SECURE_KEYS = ("sum_bits", "tolerate", "corrupted", "threat", "masks")
"""What says how a sum is made secure."""
SAMPLINGS = ("poisson", "fixed", "bounded", "secret", "rotation")


class Spec(BaseModel):
    """One run, as asked for. `None` means: the data set's or the method's default."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    method: str = DEFAULT_METHOD
    data: str = "digits"
    model: str | None = None
    clients: int | None = None
    cohort: float | None = None
    rounds: int | None = None
    noise: float | None = None
    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = None
    sampling: str | None = None
    participations: int | None = None
    partition: str | None = None
    evaluation: str | None = None
    validation: int | None = None
    public: int | None = None
    test_examples: int | None = None
    start: str = "random"
    seed: int = 0
    device: str = "auto"
    memory: str | None = None
    dropout: float = 0.0
    secure: bool = False
    sum_bits: int | None = None
    tolerate: float | None = None
    corrupted: float | None = None
    threat: str | None = None
    masks: str | None = None
    noise_mode: str = "fast"
    noise_seed: int | None = None
    diagnostics: bool | None = None
    ledger: str | None = None
    population: str | None = None
    rollback_protection: bool = True
    eval_every: int = 1
    track_test: bool = False
    set: dict[str, Any] = Field(default_factory=dict)

    @staticmethod
    def read(values: dict[str, Any], where: str = "") -> Spec:
        """Checked values, or one sentence about the first that is wrong."""
        for key in values:
            pick(Spec.model_fields, key, f"key{where}")
        try:
            return Spec(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UsageError(f"{name}{where} cannot be {first['input']!r}: {first['msg']}.") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a configuration file: those of `Spec`, with the method's own under `[set]`."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of `--set`."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set takes key=value, not '{pair}'.")
        settings[key.strip()] = value.strip()
    return settings


@dataclass(frozen=True)
class Experiment:
    """The objects that run."""

    spec: Spec
    method: Method
    cohort: Cohort
    clients: int | None
    """None: all that the data set has by nature."""
    rounds: int
    budget: Budget | None
    public: int
    settings: dict[str, Any]
    """What the data set suggests and the user said; the rest is the method's own."""

    @property
    def population(self) -> int:
        """How many clients there are, before the data were read."""
        entry = dataset(self.spec.data)
        return self.clients or entry.natural or entry.clients

    @property
    def secure_sum(self) -> SecureSum | None:
        """How the sum is made secure, where it shall be."""
        spec = self.spec
        given = {key: value for key in SECURE_KEYS if (value := getattr(spec, key)) is not None}
        bits = given.pop("sum_bits", None)
        return SecureSum(bits=bits, **given) if spec.secure else None

    def as_run(self, clients: int | None = None) -> Method:
        """The method with the kind of noise and of sum that it runs with."""
        spec = self.spec
        many = clients or self.population
        return as_run(self.method, self.cohort, many, spec.noise_mode == "secure", self.secure_sum, spec.dropout)

    def task(self, folder: Path | None = None) -> Task:
        spec = self.spec
        return load_task(
            spec.data,
            spec.model,
            clients=self.clients,
            split=spec.partition,
            validation=spec.validation,
            public=self.public,
            evaluation=spec.evaluation,
            test_examples=spec.test_examples,
            start=spec.start,
            seed=spec.seed,
            folder=folder,
        )

    def set_up(self, task: Task) -> Run:
        """Everything checked and placed; nothing trained and nothing written."""
        spec = self.spec
        return set_up(
            self.method,
            task,
            rounds=self.rounds,
            cohort=self.cohort,
            privacy=self.budget,
            delta=spec.delta,
            seed=spec.seed,
            device=spec.device,
            memory=spec.memory,
            dropout=spec.dropout,
            noise_mode=spec.noise_mode,
            noise_seed=spec.noise_seed,
            diagnostics=spec.diagnostics,
            secure_sum=self.secure_sum,
            ledger=spec.ledger,
            population=spec.population,
            rollback_protection=spec.rollback_protection,
            eval_every=spec.eval_every,
            track_test=spec.track_test,
        )


def resolve(spec: Spec, lenient: bool = False) -> Experiment:
    """Fill in the defaults and build method, cohort and budget.

    `lenient` is for comparisons: privacy flags then pass over methods that have no noise instead of being refused.
    """
    entry = dataset(spec.data)
    if spec.noise is not None and spec.epsilon is not None:
        raise UsageError("Give --noise or --epsilon, not both: one determines the other.")
    if not spec.secure and (asked := next((key for key in SECURE_KEYS if getattr(spec, key) is not None), None)):
        raise UsageError(f"--{asked.replace('_', '-')} goes with --secure.")
    if spec.participations is not None and spec.sampling != "bounded":
        raise UsageError("--participations goes with --sampling bounded.")
    recordwise = protects_records(spec.method)
    usual = methods.usual(spec.method)
    suggested = {} if usual.gradients else dict(entry.record_settings if recordwise else entry.settings)
    if "local_epochs" in usual.settings:
        suggested.pop("local_steps", None)
    settings = _settings(spec, suggested | dict(usual.settings))
    method = methods.build(spec.method, **settings)
    if lenient and spec.secure and not is_private(method):  # a baseline beside methods whose sum is secure, in the same turns
        plain = dict.fromkeys(SECURE_KEYS) | {"secure": False, "sampling": spec.sampling or "rotation"}
        spec = spec.model_copy(update=plain)
    split, *_ = parse(spec.partition or entry.partition)
    if recordwise:
        spec = _filled(spec)
    many, few = (entry.record_clients or entry.clients, entry.record_cohort) if recordwise else (entry.clients, None)
    clients = spec.clients if spec.clients is not None or split == "natural" else many
    rounds = spec.rounds if spec.rounds is not None else usual.rounds or entry.rounds
    if clients is not None and clients < 1:
        raise UsageError(f"clients must be at least 1, not {clients}.")
    most = clients or entry.natural or entry.clients
    size = spec.cohort if spec.cohort is not None else most if usual.everybody else min(few or entry.cohort, most)
    sampling = spec.sampling or ("rotation" if spec.secure else usual_sampling(method))
    cohort = make_cohort(sampling, size, spec.participations or 1)
    cohort.check(most)
    budget = _budget(spec, method, lenient)
    public = (
        spec.public
        if spec.public is not None
        else (entry.public if method.pipeline.needs_public or read_start(spec.start)[0] == "public" else 0)
    )
    if public:
        method = method.fitted(public, entry.classes)
    return Experiment(spec, method, cohort, clients, rounds, budget, public, settings)


def protects_records(method: str) -> bool:
    """Whether a method, by its name, puts noise on every local step."""
    return "batches" in methods.settings_of(method)


def on_the_same_clients(specs: list[Spec]) -> list[Spec]:
    """For comparisons: where one method protects records, all share the data among as few clients as it does."""
    return [_filled(spec) for spec in specs] if any(protects_records(spec.method) for spec in specs) else specs


def _filled(spec: Spec) -> Spec:
    """What is unsaid, as the data set has it for records: clients, cohort, rounds and model."""
    entry = dataset(spec.data)
    usual = {key: getattr(entry, f"record_{key}") for key in ("clients", "cohort", "rounds", "model")}
    unsaid = {key: value for key, value in usual.items() if value is not None and getattr(spec, key) is None}
    return spec.model_copy(update=unsaid)


def _settings(spec: Spec, defaults: dict[str, Any]) -> dict[str, Any]:
    """Data set's defaults that this method takes, then the user's, each checked against the method's own types."""
    known = methods.settings_of(spec.method)
    given = dict(spec.set)
    if spec.noise is not None and "noise" in known:
        given["noise"] = spec.noise
    for one, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
        if one in given:
            defaults.pop(other, None)
    every = {name: None for method in methods.METHODS for name in methods.settings_of(method)}
    for key in defaults:  # what this method does not take is for others; what none takes is a slip
        pick(every, key, f"setting of {spec.data}")
    chosen: dict[str, Any] = {}
    usual = {key: value for key, value in methods.taken(spec.method, defaults | given).items() if key in defaults}
    for key, value in (usual | given).items():
        kind = pick(known, key, f"setting of {spec.method}")
        try:
            chosen[key] = TypeAdapter(kind).validate_python(value)
        except ValidationError:
            raise UsageError(f"{key} must be {_kind_name(kind)}, not '{value}'.") from None
    return chosen


def _kind_name(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}.get(kind, "a number")


def _budget(spec: Spec, method: Method, lenient: bool) -> Budget | None:
    if not is_private(method):
        asked = next((flag for flag in ("noise", "epsilon", "budget") if getattr(spec, flag) is not None), None)
        if asked and not lenient:
            raise NoGuarantee(
                f"{method.name} adds no noise, so it has no privacy guarantee and --{asked} means nothing to it.",
                "Choose a private method, such as dp-fedavg or fed-smp-rand-k, or leave the flag out.",
            )
        return None
    noise_given = not needs_noise(method)
    if spec.noise is not None and "noise" not in methods.settings_of(spec.method) and not lenient:
        raise UsageError(f"{method.name} has no noise multiplier: give --epsilon, or a setting of its own (--set).")
    if spec.budget is not None:
        if not noise_given:
            raise UsageError(
                "--budget stops a run of a given --noise before it is exceeded; with --epsilon the noise is found for you."
            )
        return Budget(spec.budget, spec.delta)
    if noise_given:
        return None
    return Budget(spec.epsilon if spec.epsilon is not None else DEFAULT_EPSILON, spec.delta)


def usual_sampling(method: Method) -> str:
    """Poisson cohorts where sampling amplifies; where it cannot, nobody should come more often than others."""
    return "rotation" if takes_turns(method) else "poisson"


def make_cohort(sampling: str, size: float, participations: int = 1) -> Cohort:
    """A cohort by its name on the command line."""
    if sampling == "poisson":
        return Poisson(size)
    if sampling == "fixed":
        return FixedSize(size)
    if sampling == "bounded":
        return Bounded(size, participations)
    if sampling == "secret":
        return SecretParticipation(size)
    if sampling == "rotation":
        return Rotation(size)
    pick(dict.fromkeys(SAMPLINGS), sampling, "sampling")
    raise AssertionError(sampling)
