"""From an experiment as it was asked for to a search over it: what each trial runs, where it starts, what it cost, and its best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from hush import methods
from hush.config import RunConfig
from hush.engines.run import Run
from hush.engines.setup import set_up
from hush.errors import NoGuarantee, UsageError
from hush.experiment import Experiment, resolve
from hush.methods.ratio import best_ratio
from hush.names import pick
from hush.privacy.plan import is_private
from hush.privacy.settle import Settled, settle_privacy
from hush.random import derive
from hush.tasks.catalogue import dataset
from hush.tasks.task import Clients, Examples, Task
from hush.transforms import RandK
from hush.tuning.cost import Cost, accounted_cost, keeps_the_plan, public_cost, uncounted_cost
from hush.tuning.space import AUTO, OF_THE_RUN, Range, Space, default_space, parse_search
from hush.tuning.study import COMPLETE, FAILED, PRUNED, Trial, Tuning

TUNING_DATA = ("private", "public")
_HELD = 5
"""One in so many public examples validates, and one makes the mask where there is one."""


@dataclass(frozen=True)
class Asked:
    """A search over a run as it was asked for. `search` is what was typed; nothing is the default space."""

    config: RunConfig
    search: tuple[str, ...] = ()
    trials: int = 20
    pruning: bool = True
    tuning_data: str = "private"
    accounted: bool = False
    data_dir: Path | None = None
    jobs: int = 1

    @staticmethod
    def of(config: RunConfig, search: list[str], tuning_data: str, accounted: bool, **more: Any) -> Asked:
        """Everything that can be refused before data are read."""
        pick(dict.fromkeys(TUNING_DATA), tuning_data, "tuning data")
        auto = config.set.get("ratio") == AUTO or f"ratio={AUTO}" in search
        if config.set.get("ratio") == AUTO:  # another way to say so
            config = replace(config, set={key: value for key, value in config.set.items() if key != "ratio"})
            search = [*search, f"ratio={AUTO}"] if search else []
        if tuning_data == "public":
            if accounted:
                raise UsageError("Trials on public examples cost nothing: leave --accounted out.")
            # the chosen settings are for clients that do not hold these examples, so the run after the search keeps them out, too
            config = replace(config, public=config.public if config.public is not None else dataset(config.data).public)
        asked = Asked(config, tuple(search), tuning_data=tuning_data, accounted=accounted, **more)
        method = asked.experiment.method
        if is_private(method) and (asked.experiment.budget is None or config.budget is not None):
            raise UsageError("A search holds epsilon fixed and finds the noise of every trial: give --epsilon, not the noise.")
        if not is_private(method) and accounted:
            raise NoGuarantee(f"{method.name} adds no noise, so no number covers its trials.", "Leave --accounted out.")
        if auto and not asked.has_random_mask:
            raise UsageError(f"ratio=auto is for masks of random coordinates (rand-k), which {method.name} does not have.")
        if asked.jobs > 1 and config.ledger is not None:
            raise UsageError("Trials on one ledger are charged one after the other, which --jobs cannot promise: leave --jobs out.")
        if asked.counts and config.ledger is not None and not keeps_the_plan(asked.space):
            raise NoGuarantee(
                "What is searched shapes the trials' plans, so that later ones are chosen by earlier results: the figure of a "
                "ledger's population does not cover that.",
                "Search settings that leave the plan alone (lr, clip, ratio, ...), or leave --ledger out and give --accounted.",
            )
        return asked

    @cached_property
    def experiment(self) -> Experiment:
        """The run without a search."""
        return resolve(self.config)

    @cached_property
    def space(self) -> Space:
        return parse_search(list(self.search), self.config) if self.search else default_space(self.config, self.experiment)

    @property
    def has_random_mask(self) -> bool:
        return any(isinstance(part, RandK) for part in self.experiment.method.pipeline.parts)

    @cached_property
    def task(self) -> Task:
        """The data, without the test examples: no trial can see what it does not have."""
        task = replace(self.experiment.task(self.data_dir), test=None)
        if task.validation is None and self.tuning_data != "public":
            raise UsageError("A search chooses by validation examples, and the task has none: hold some out (--validation N).")
        if self.counts and task.belongs_to_clients("validation"):
            raise NoGuarantee(
                "The validation examples are clients' own and chosen by without noise, which no number covers.",
                "Take --evaluation central, or leave --accounted and --ledger out.",
            )
        return task

    @property
    def counts(self) -> bool:
        """Whether the trials' cost is to be a number."""
        return self.tuning_data == "private" and (self.accounted or self.config.ledger is not None)

    @cached_property
    def public_task(self) -> Task:
        return on_public_examples(self.task, self.experiment)

    def read(self) -> None:
        """Read the data now: what is wrong with them is wrong for every trial."""
        self.public_task if self.tuning_data == "public" else self.task  # noqa: B018

    def config_with(self, settings: dict[str, Any]) -> RunConfig:
        """The experiment with some settings chosen."""
        own = {key: value for key, value in settings.items() if key in OF_THE_RUN}
        searched = {key: value for key, value in settings.items() if key not in own}
        together = {**self.config.set, **searched}
        used = methods.taken(self.config.method, together)  # what is idle beside the others is left out
        kept = {key: value for key, value in together.items() if key in used or key not in searched}
        return RunConfig.read(self.config.to_dict() | own | {"set": kept})

    def begin(self, settings: dict[str, Any]) -> Run:
        """One trial, set up: the noise is found for the same epsilon, whatever the settings are."""
        experiment = resolve(self.config_with(settings))
        return experiment.set_up(self.task) if self.tuning_data == "private" else self._in_public(experiment)

    def _in_public(self, experiment: Experiment) -> Run:
        """The noise that the clients would need, on public examples: what is proved is of the run that follows."""
        config = experiment.config
        settled = self._settled(experiment)
        run = set_up(
            settled.method,
            self.public_task,
            rounds=experiment.rounds,
            cohort=experiment.cohort,
            delta=settled.delta,
            seed=config.seed,
            device=config.device,
            memory=config.memory,
            dropout=config.dropout,
            eval_every=config.eval_every,
        )
        return replace(run, privacy=replace(run.privacy, plan=settled.plan, delta=settled.delta), rounds=settled.rounds)

    def _settled(self, experiment: Experiment) -> Settled:
        config, enrolled = experiment.config, self.task.enrolled
        method, cohort, rounds = experiment.method, experiment.cohort, experiment.rounds
        return settle_privacy(method, cohort, enrolled, rounds, experiment.budget, config.delta, config.dropout)

    def first(self) -> dict[str, Any]:
        """Where the search starts: at the defaults, and for rand-k at the ratio of Fed-SMP's Theorem 2."""
        values = {**self.experiment.config.set, "rounds": self.experiment.rounds, "cohort": self.experiment.cohort.size}
        where = self.space.get("ratio")
        if self.has_random_mask and isinstance(where, Range):
            values["ratio"] = min(max(self.ratio(values), where.low), where.high)
        return {key: values[key] for key in self.space if key in values}

    def ratio(self, values: dict[str, Any]) -> float:
        """Theorem 2's ratio for the usual settings."""
        enrolled, experiment = self.task.enrolled, self.experiment
        settled = self._settled(experiment)
        batches = math.ceil((enrolled.total or 1) / enrolled.clients / values.get("batch_size", 10))
        steps = values.get("local_steps") or values.get("local_epochs", 1) * batches
        noise = settled.plan.noise_multiplier if settled.plan is not None else 0.0
        return best_ratio(values["lr"], steps, experiment.cohort.size, enrolled.dim or 1, values.get("clip", 1.0), noise)

    def cost(self, tuning: Tuning) -> Cost:
        """What the trials cost the clients."""
        if self.tuning_data == "public":
            return public_cost(len(tuning.history), self.task.belongs_to_clients("public"))
        if self.experiment.budget is not None and self.counts:
            cost = accounted_cost(tuning, self.space, self.experiment.budget.epsilon)
            return cost._replace(text=f"{cost.text}; each was charged to {self.config.ledger}") if self.config.ledger else cost
        return uncounted_cost(tuning)

    def to_dict(self, tuning: Tuning) -> dict[str, Any]:
        """The JSON object of `hush tune`."""
        best, cost = tuning.best, self.cost(tuning)
        return {
            "method": self.config.method,
            "data": self.config.data,
            "trials": len(tuning.history),
            "completed": tuning.count(COMPLETE),
            "pruned": tuning.count(PRUNED),
            "failed": tuning.count(FAILED),
            "best": best.settings,
            "best_validation_accuracy": best.validation_accuracy,
            "best_validation_loss": best.validation_loss,
            "epsilon": best.epsilon,
            "delta": best.delta,
            "tuning_privacy": cost.text,
            "tuning_epsilon": cost.epsilon,
            "tuning_delta": cost.delta,
            "tuning_unit": cost.unit,
            "tuning_relation": cost.relation,
            "history": [_plain(trial) for trial in tuning.history],
        }

    def best_toml(self, settings: dict[str, Any]) -> str:
        """A file that `hush run --config` runs."""
        config = self.config_with(settings)
        resolved = resolve(config).config.set  # numbers, where they were typed as text
        config = replace(config, set={key: resolved[key] for key in config.set})
        if self.experiment.budget is not None and config.epsilon is None:
            config = replace(config, epsilon=self.experiment.budget.epsilon)
        return config.to_toml()


def on_public_examples(task: Task, experiment: Experiment) -> Task:
    """Public examples dealt to as many clients of the usual size as they make, and some kept to validate."""
    enrolled = task.enrolled
    each, least = max(1, round((enrolled.total or 1) / enrolled.clients)), math.ceil(experiment.cohort.size)
    masked = experiment.method.pipeline.needs_public
    there = len(task.public[0]) if task.public is not None else 0
    held = there // _HELD
    clients = (there - held * (1 + masked)) // each
    if clients < least or not held:
        wanted = math.ceil(least * each * _HELD / (_HELD - 1 - masked)) + _HELD
        raise UsageError(
            f"{there:,} public examples make {clients} clients of {each}, and a cohort is {least}: "
            f"give about --public {wanted}, a smaller --cohort, or --tuning-data private."
        )
    assert task.public is not None
    x, y = task.public
    order = torch.randperm(there, generator=torch.Generator().manual_seed(derive(experiment.config.seed, 32) % 2**63))
    parts = [Examples(x[rows], y[rows]) for rows in torch.split(order, [held, held * masked, there - held * (1 + masked)])]
    sizes = torch.full((clients,), each)
    train = Clients(parts[2].x[: clients * each], parts[2].y[: clients * each], sizes)
    return replace(task, clients=train, validation=parts[0], public=parts[1] if masked else None, of_clients=(), of_persons=())


def _plain(trial: Trial) -> dict[str, Any]:
    keys = ("number", "settings", "validation_accuracy", "validation_loss", "state", "seconds", "epsilon", "reason")
    return {key: getattr(trial, key) for key in keys}
