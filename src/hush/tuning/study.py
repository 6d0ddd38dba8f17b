"""The search itself: Optuna proposes settings, a run answers with its validation accuracy, a file remembers."""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.engines.jobs import Done, Failed, Note
from hush.engines.run import Run
from hush.engines.simulation import OnRound, train
from hush.errors import DataError, HushError, UsageError
from hush.privacy.vocabulary import Plan
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.random import derive
from hush.tuning.space import Choice, Range, Space

if TYPE_CHECKING:
    import optuna

COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
Begin = Callable[[dict[str, Any]], Run]
"""A run that is set up with the settings proposed, and not trained."""
Say = Callable[[Any], Any]
Player = Callable[[Sequence[Mapping[str, Any]], Callable[[int, Any], Any]], Iterator[tuple[int, Done | Failed]]]
"""Plays trials of the settings proposed, and gives what came of each as it ends."""

_STEPS = 10
"""Trials are compared by tenths of their training: they may have different rounds."""
_PATIENCE = 2
"""Tenths that every trial may take."""


@dataclass(frozen=True)
class Trial:
    """One run of a search."""

    number: int
    settings: dict[str, Any]
    state: str
    validation_accuracy: float | None
    """Of the last round's model, which is the one that is released; None where the trial was not completed."""
    validation_loss: float | None
    epsilon: float | None
    delta: float | None
    seconds: float
    reason: str | None = None
    plan: Plan | None = None
    """What it was to release about the clients; None where nothing was noised, or nothing was trained."""
    score: float = -math.inf


@dataclass(frozen=True)
class Tuning:
    """What a search found so far."""

    history: tuple[Trial, ...]
    interrupted: tuple[Trial, ...] = ()
    """Those that were broken off, and may have released something."""

    def count(self, state: str) -> int:
        return sum(trial.state == state for trial in self.history)

    @property
    def ranked(self) -> list[Trial]:
        """The completed ones, best first."""
        return sorted((trial for trial in self.history if trial.state == COMPLETE), key=lambda trial: -trial.score)

    @property
    def best(self) -> Trial:
        if self.ranked:
            return self.ranked[0]
        if not self.history:
            raise UsageError("No trial was made yet.")
        why = next((trial.reason for trial in self.history if trial.reason), "all were pruned")
        raise UsageError(f"None of the {len(self.history)} trials came to an end. The first: {why}")


def tune(
    begin: Begin,
    space: Space,
    *,
    trials: int = 20,
    seed: int = 0,
    pruning: bool = True,
    first: Mapping[str, Any] | None = None,
    study: Path | str | None = None,
    on_round: OnRound | None = None,
    on_trial: Callable[[Tuning], None] | None = None,
    jobs: int = 1,
    player: Player | None = None,
) -> Tuning:
    """Try settings of `space` and keep those of the best validation accuracy; no trial sees the test examples.

    Args:
        begin: settings to a run, as `hush.engines.simulation.set_up` returns it. Give it a budget: the noise of every trial is
            then found for the same epsilon, whatever its rounds and cohort.
        space: a `Range` or a `Choice` for each setting.
        trials: how many in all, those found in `study` included.
        seed: of the proposals; a search that was interrupted goes on to the proposals that it would have made.
        pruning: give up on trials below the median of the others at the same tenth of training.
        first: settings to try first, such as the defaults.
        study: a file to keep trials in; a search found there goes on.
        on_round: called with each round's record.
        on_trial: called with what was found after each trial.
        jobs: how many are proposed at a time, by what was found before all of them.
        player: runs them side by side (`hush tune --jobs`); by default they run here, one after the other.
    """
    player = player or one_at_a_time(begin, on_round)
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}.")
    if not space:
        raise UsageError("There is nothing to search: every setting is fixed.")
    with _opened(study, space, seed) as (optuna, found):
        others = min(5, max(2, trials // 4))
        found.pruner = optuna.pruners.MedianPruner(others, _PATIENCE) if pruning else optuna.pruners.NopPruner()
        start = {key: value for key, value in (first or {}).items() if key in space and space[key].holds(value)}
        if start and not found.get_trials(deepcopy=False):
            found.enqueue_trial(start)
        tuning = _tuning(found)
        while len(tuning.history) < trials:
            begun = []
            for number in range(len(tuning.history), min(len(tuning.history) + jobs, trials)):
                _put_untried(found, space, seed)
                found.sampler = optuna.samplers.TPESampler(seed=derive(seed, 31, number) % 2**32)
                begun.append(found.ask({key: _distribution(optuna, where) for key, where in space.items()}))
            _batch(optuna, found, begun, player)
            tuning = _tuning(found)
            if on_trial is not None:
                on_trial(tuning)
        return tuning


def so_far(study: Path) -> Tuning:
    """What a search in a file has found, finished or not."""
    if not study.is_file():
        return Tuning(())
    with _opened(study) as (_, found):
        return _tuning(found)


class GivenUp(Exception):
    """A trial that is worse than most at the same stage."""


def play(begin: Begin, settings: Mapping[str, Any], say: Say, on_round: OnRound | None = None) -> dict[str, Any]:
    """One trial, wherever it runs: what it found. `say` is told its plan before anything is released, and then how it comes on."""
    reached = 0

    def report(record: dict[str, Any]) -> None:
        nonlocal reached
        if on_round is not None:
            on_round(record)
        tenth, score = _STEPS * record["round"] // record["rounds"], _score(record)
        if score is None or tenth <= reached or record["round"] == record["rounds"]:
            return
        reached = tenth
        if say(("score", score, tenth)):
            raise GivenUp

    run = begin(_tidy(settings))
    config = replace(run.config, track_test=False, diagnostics=False)
    run = replace(run, data=replace(run.data, test=None), config=config)
    if run.data.validation is None:
        raise UsageError("A search chooses by validation examples, and the task has none: hold some out (--validation N).")
    say(("plan", plan_to_dict(run.privacy.plan) if run.privacy.plan is not None else None))
    try:
        result = train(run, on_round=report)
    except GivenUp:
        return {}
    last = result.history[-1]
    score = _score(last)
    if result.stopped is not None or score is None:
        raise UsageError(f"It stopped early, {result.stopped}." if result.stopped else "It has no validation figure.")
    figures = {"accuracy": last["validation_accuracy"], "loss": last["validation_loss"]}
    return figures | {"epsilon": result.epsilon, "delta": result.delta, "score": score}


def one_at_a_time(begin: Begin, on_round: OnRound | None = None) -> Player:
    """Trials in this process."""

    def each(proposed: Sequence[Mapping[str, Any]], heard: Callable[[int, Any], Any]) -> Iterator[tuple[int, Done | Failed]]:
        for number, settings in enumerate(proposed):
            try:
                yield number, Done(play(begin, settings, partial(heard, number), on_round))
            except HushError as error:
                yield number, Failed(str(error))

    return each


def _batch(optuna: Any, study: optuna.Study, trials: list[optuna.Trial], player: Player) -> None:
    """Some trials, of which none is chosen or given up by what another finds. Whatever is wrong with settings is a fact about
    them, not the end of the search."""
    came: dict[int, Done | Failed] = {}
    begun: dict[int, float] = {}

    def heard(number: int, said: Any) -> bool:
        if isinstance(said, Note):
            return False
        if said[0] == "plan":
            begun[number] = time.monotonic()
            trials[number].set_user_attr("plan", said[1])
            return False
        trials[number].report(*said[1:])
        return bool(trials[number].should_prune())

    try:
        for number, outcome in player([trial.params for trial in trials], heard):
            came[number] = outcome
            trials[number].set_user_attr("seconds", time.monotonic() - begun.get(number, time.monotonic()))
    finally:  # also what was found before Ctrl-C, in the order of the proposals
        for number in sorted(came):
            _tell(optuna, study, trials[number], came[number])


def _tell(optuna: Any, study: optuna.Study, trial: optuna.Trial, came: Done | Failed) -> None:
    if isinstance(came, Failed):
        trial.set_user_attr("reason", came.why)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    elif not came.value:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    else:
        score = came.value.pop("score")
        for key, value in came.value.items():
            trial.set_user_attr(key, value)
        study.tell(trial, score)


def _score(record: Mapping[str, Any]) -> float | None:
    """Accuracy, or of a task that has none the loss, from below."""
    if record.get("validation_accuracy") is not None:
        return float(record["validation_accuracy"])
    return -float(record["validation_loss"]) if record.get("validation_loss") is not None else None


def _tidy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Four digits are enough for a setting, and a person can type them."""
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in settings.items()}


# -- Optuna ----------------------------------------------------------------------------------------------------------------------


def refuse_without_optuna() -> None:
    """Say what to install."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UsageError("A search needs Optuna: pip install 'hush-fl[tune]'.") from None


@contextmanager
def _opened(path: Path | str | None, space: Space | None = None, seed: int = 0) -> Iterator[tuple[Any, optuna.Study]]:
    """Optuna, silent, and the study: the one in the file, if it is of this very search, or a new one."""
    refuse_without_optuna()
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    storage = None
    try:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        study = optuna.create_study(storage=storage, study_name="hush", direction="maximize", load_if_exists=True)
        if space is not None:
            asked = repr({"space": {key: asdict(where) for key, where in sorted(space.items())}, "seed": seed})
            if study.user_attrs.get("asked", asked) != asked:  # its trials would mislead this one
                raise UsageError(f"{path} holds a search over other settings, or with another seed: choose another folder.")
            study.set_user_attr("asked", asked)
            _clear_interrupted(optuna, study)
        yield optuna, study
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise DataError(f"{path} cannot be read or written as a study: {str(error).splitlines()[0]}.") from error
    finally:
        optuna.logging.set_verbosity(loud)
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()


def _clear_interrupted(optuna: Any, study: optuna.Study) -> None:
    """A trial that was running when the process ended is made again, with the same settings: one that fails has a reason."""
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if "reason" not in trial.user_attrs:
            study.enqueue_trial(trial.params)


def _put_untried(study: optuna.Study, space: Space, seed: int) -> None:
    """Where there are but so many combinations, none is tried twice before all were tried: they come in a shuffled order."""
    choices = [where.values for where in space.values() if isinstance(where, Choice)]
    trials = study.get_trials(deepcopy=False)
    if len(choices) < len(space) or any(trial.state.name == "WAITING" for trial in trials):
        return
    known = [trial.params or trial.system_attrs.get("fixed_params") for trial in trials]
    every = (dict(zip(space, values, strict=True)) for values in itertools.product(*choices))
    untried = [settings for settings in every if settings not in known]
    if untried:
        study.enqueue_trial(min(untried, key=lambda settings: derive(seed, 33, zlib.crc32(repr(settings).encode()))))


def _distribution(optuna: Any, where: Any) -> Any:
    if not isinstance(where, Range):
        return optuna.distributions.CategoricalDistribution(where.values)
    if where.whole:
        return optuna.distributions.IntDistribution(int(where.low), int(where.high), log=where.log)
    return optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)


def _tuning(study: optuna.Study) -> Tuning:
    """What was found, and what was broken off: a trial that is made again draws other noise, and is another release."""
    every = study.get_trials(deepcopy=False)
    broken = _trials([t for t in every if t.state.name in ("FAIL", "RUNNING") and not _ended(t)])
    return Tuning(_trials([t for t in every if _ended(t)]), tuple(trial for trial in broken if trial.plan is not None))


def _ended(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether it came to an end of its own; one that failed without a reason was interrupted."""
    return trial.state.name in ("COMPLETE", "PRUNED") or (trial.state.name == "FAIL" and "reason" in trial.user_attrs)


def _trials(done: list[optuna.trial.FrozenTrial]) -> tuple[Trial, ...]:
    states = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED, "RUNNING": FAILED}
    return tuple(
        Trial(
            number=number,
            settings=_tidy(trial.params),
            state=states[trial.state.name],
            validation_accuracy=trial.user_attrs.get("accuracy"),
            validation_loss=trial.user_attrs.get("loss"),
            epsilon=trial.user_attrs.get("epsilon"),
            delta=trial.user_attrs.get("delta"),
            seconds=trial.user_attrs.get("seconds", trial.duration.total_seconds() if trial.duration else 0.0),
            reason=trial.user_attrs.get("reason"),
            plan=plan_from_dict(trial.user_attrs["plan"]) if trial.user_attrs.get("plan") else None,
            score=trial.value if trial.state.name == "COMPLETE" and trial.value is not None else -math.inf,
        )
        for number, trial in enumerate(done, start=1)
    )
