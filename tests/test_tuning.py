"""Searches: chosen on validation, at one epsilon, resumed, pruned, and honest about what they cost."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.config import RunConfig
from hush.engines.jobs import Done, Failed
from hush.engines.run import Run
from hush.engines.simulation import set_up
from hush.errors import Diverged, NoGuarantee, UsageError
from hush.local.flat import FlatModel
from hush.methods.ratio import best_ratio
from hush.tuning import Choice, Range, Trial, Tuning, tune
from hush.tuning.asked import Asked
from hush.tuning.cost import accounted_cost, uncounted_cost
from hush.tuning.space import default_space, parse_search
from hush.tuning.study import one_at_a_time, so_far

from .conftest import make_task

TASK = make_task(sizes=(6,) * 12)
LR = {"lr": Range(0.01, 1.0, log=True)}


def begin(settings: dict[str, Any]) -> Run:
    """Everybody in every round: such plans are accounted in no time."""
    method = hush.methods.dp_fedavg(lr=settings.get("lr", 0.1), clip=settings.get("clip", 1.0))
    return set_up(method, TASK, rounds=settings.get("rounds", 4), cohort=12, privacy=hush.Budget(4.0, 1e-2), device="cpu")


def outline(tuning: Tuning) -> list[tuple[Any, ...]]:
    return [(trial.settings, trial.state, trial.validation_accuracy) for trial in tuning.history]


# -- choosing --------------------------------------------------------------------------------------------------------------------


def test_chooses_on_validation_and_never_looks_at_test(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: set[int] = set()
    scores = FlatModel.scores

    def spy(self: FlatModel, params: Any, x: Any, y: Any, **more: Any) -> Any:
        looked.add(len(x))
        return scores(self, params, x, y, **more)

    runs = []

    def watched(settings: dict[str, Any]) -> Run:
        with monkeypatch.context() as blind:  # set_up tries metrics on the initial model, before anything is learned
            blind.setattr(FlatModel, "scores", scores)
            runs.append(begin(settings))
        return runs[-1]

    monkeypatch.setattr(FlatModel, "scores", spy)
    found = tune(watched, LR, trials=3, pruning=False)
    assert all(run.data.test is not None for run in runs)  # it was there to be looked at
    assert looked == {40}  # the validation examples; there are 60 to test on
    accuracies = [trial.validation_accuracy for trial in found.history]
    assert found.best.validation_accuracy == max(accuracies)  # type: ignore[type-var]


def test_every_trial_spends_the_same_epsilon_although_rounds_vary() -> None:
    noises = {}

    def watched(settings: dict[str, Any]) -> Run:
        run = begin(settings)
        assert run.privacy.plan is not None
        noises[settings["rounds"]] = run.privacy.plan.noise_multiplier
        return run

    found = tune(watched, {"rounds": Range(1, 9, whole=True)}, trials=4, pruning=False)
    rounds = sorted(noises)
    assert len(rounds) > 2
    assert [noises[r] for r in rounds] == sorted(noises.values())  # more rounds, more noise
    assert noises[rounds[-1]] / noises[rounds[0]] == pytest.approx(math.sqrt(rounds[-1] / rounds[0]), rel=1e-2)
    assert all(3.99 < trial.epsilon <= 4.0 for trial in found.history)  # type: ignore[operator]
    assert {trial.delta for trial in found.history} == {1e-2}


def test_settings_are_short_enough_to_type() -> None:
    used = []
    tune(lambda settings: used.append(settings["lr"]) or begin(settings), LR, trials=2, pruning=False)  # type: ignore[func-returns-value]
    assert all(lr == float(f"{lr:.4g}") for lr in used)


def test_a_task_without_validation_examples_is_refused() -> None:
    def blind(settings: dict[str, Any]) -> Run:
        run = begin(settings)
        return replace(run, data=replace(run.data, validation=None))

    with pytest.raises(UsageError, match=r"None of the 2 trials.*--validation"):
        tune(blind, LR, trials=2).best  # noqa: B018


# -- interruptions, pruning, failures --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_secret")
def test_an_interrupted_search_goes_on_to_the_identical_result(tmp_path: Path) -> None:
    whole = tune(begin, LR, trials=4, seed=3, pruning=False, first={"lr": 0.1})
    rounds = 0

    def pull_the_plug(_: dict[str, Any]) -> None:
        nonlocal rounds
        rounds += 1
        if rounds in (2, 11):  # in the first trial, and in the third
            raise KeyboardInterrupt

    file = tmp_path / "a b" / "study.db"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(begin, LR, trials=4, seed=3, pruning=False, first={"lr": 0.1}, study=file, on_round=pull_the_plug)
    assert 0 < len(so_far(file).history) < 4
    again = tune(begin, LR, trials=4, seed=3, pruning=False, first={"lr": 0.1}, study=file, on_round=pull_the_plug)
    assert outline(again) == outline(whole)
    assert outline(so_far(file)) == outline(whole)
    assert whole.history[0].settings == {"lr": 0.1}
    with pytest.raises(UsageError, match="other settings, or with another seed"):
        tune(begin, LR, trials=4, seed=4, study=file)


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(hush.DataError, match="cannot be read"):
        tune(begin, LR, trials=1, study=tmp_path / "study.db")


def test_hopeless_trials_are_pruned_and_cost_less() -> None:
    rounds: list[int] = []

    def plain(settings: dict[str, Any]) -> Run:
        rounds.append(0)
        method = hush.methods.fedavg(lr=0.3 if len(rounds) < 4 else 1e-9)
        return set_up(method, TASK, rounds=10, cohort=12, device="cpu")

    def count(record: dict[str, Any]) -> None:
        rounds[-1] = record["round"]

    found = tune(plain, LR, trials=4, on_round=count)
    assert [trial.state for trial in found.history] == ["complete"] * 3 + ["pruned"]
    assert rounds[:3] == [10, 10, 10]
    assert rounds[3] < 10
    assert found.history[3].validation_accuracy is None
    assert found.best.number < 4


def test_trials_that_fail_are_counted_and_do_not_end_the_search() -> None:
    made = 0

    def shaky(settings: dict[str, Any]) -> Run:
        nonlocal made
        made += 1
        if made == 1:
            raise UsageError("This one cannot be.")
        if made == 2:
            raise Diverged("The model became NaN.")
        return begin(settings)

    found = tune(shaky, LR, trials=3)
    assert [(trial.state, trial.reason) for trial in found.history] == [
        ("failed", "This one cannot be."),
        ("failed", "The model became NaN."),
        ("complete", None),
    ]
    assert found.history[0].plan is None  # nothing was trained, so nothing is charged
    with pytest.raises(UsageError, match=r"None of the 2 trials came to an end. The first: This one cannot be."):
        Tuning(found.history[:2]).best  # noqa: B018


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'hush-fl\[tune\]'"):
        tune(begin, LR, trials=1)


def test_optuna_is_loaded_by_a_search_alone() -> None:
    for file in (Path(__file__).parent.parent / "src" / "hush").rglob("*.py"):
        heavy = ("import optuna", "from optuna", "import sqlalchemy", "from sqlalchemy")
        assert not [line for line in file.read_text().splitlines() if line.startswith(heavy)], file


# -- what a search costs ---------------------------------------------------------------------------------------------------------


def test_identical_trials_cost_what_one_run_of_all_their_rounds_would() -> None:
    found = tune(begin, {"lr": Range(0.01, 1.0), "clip": Choice((0.5, 1.0))}, trials=3, pruning=False)
    plan = found.history[0].plan
    assert plan is not None
    (phase,) = plan.phases
    thrice = hush.account(replace(plan, phases=(replace(phase, rounds=3 * phase.rounds),)), 1e-2)
    cost = accounted_cost(found, {"lr": LR["lr"], "clip": Choice((0.5, 1.0))}, 4.0)
    assert cost.epsilon == pytest.approx(thrice.epsilon, rel=1e-6)
    assert cost.delta == 1e-2
    assert 4.0 < cost.epsilon < 12.0
    assert cost.text.startswith("accounted: the 3 trials that saw the clients' data cost each client (add-remove) epsilon")


def test_plans_that_the_search_shapes_add_up_epsilon_and_delta() -> None:
    """Later plans depend on earlier results, so only each trial's (epsilon, delta) is fixed beforehand."""
    found = tune(begin, {"rounds": Choice((2, 3))}, trials=3, pruning=False)
    cost = accounted_cost(found, {"rounds": Choice((2, 3))}, 4.0)
    assert cost.epsilon == 12.0
    assert cost.delta == pytest.approx(3e-2)
    assert "may fail altogether" in cost.text or "permits publishing" in cost.text  # a sum that nobody typed


def test_what_was_not_counted_says_so() -> None:
    found = tune(begin, LR, trials=2)
    cost = uncounted_cost(found)
    assert cost.epsilon is None
    assert cost.text.startswith("not accounted: 2 trials saw the clients' data; the guarantee printed covers one run")
    nothing = Trial(1, {}, "complete", 0.5, 1.0, None, None, 1.0)
    assert "no guarantee" in uncounted_cost(Tuning((nothing,))).text
    with pytest.raises(NoGuarantee):
        accounted_cost(Tuning((nothing,)), LR, 4.0)


def test_a_trial_that_was_broken_off_counts(tmp_path: Path) -> None:
    """The noise of a trial that is made again is drawn afresh, so that the repeat is another release."""

    def broken(kind: str, trials_after: int) -> Tuning:
        rounds = 0

        def interrupt(_: dict[str, object]) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 4:
                raise KeyboardInterrupt

        def start(settings: dict[str, Any]) -> Run:
            method = hush.methods.build(kind, lr=settings["lr"])
            return set_up(method, make_task(sizes=(4,) * 20), rounds=3, cohort=5, privacy=hush.Budget(4.0, 1e-2))

        study = tmp_path / f"{kind}-{trials_after}.db"
        with pytest.raises(KeyboardInterrupt):
            tune(start, LR, trials=2, study=study, on_round=interrupt, pruning=False)
        return tune(start, LR, trials=trials_after, study=study, pruning=False)

    assert [len(found.interrupted) for found in (broken("dp-fedavg", 2), broken("dp-fedavg", 1))] == [1, 1]
    again = broken("ddgauss", 2)
    assert len(again.interrupted) == 1
    assert "the 3 trials" in accounted_cost(again, LR, 4.0).text


def test_trials_that_protect_in_different_senses_do_not_add_up() -> None:
    def start(settings: dict[str, Any]) -> Run:
        method = hush.methods.build("skellam", shares=settings["shares"])
        return set_up(method, make_task(sizes=(4,) * 20), rounds=2, cohort=5, privacy=hush.Budget(4.0, 1e-2))

    space = {"shares": Choice((True, False))}
    found = tune(start, space, trials=4, pruning=False)
    assert {trial.settings["shares"] for trial in found.history} == {True, False}
    with pytest.raises(NoGuarantee, match="different senses"):
        accounted_cost(found, space, 4.0)


def test_what_a_number_cannot_cover_is_refused_before_anything_is_trained() -> None:
    spec = RunConfig(method="dp-fedavg", clients=40, cohort=10, rounds=2, epsilon=4.0, ledger="book.db", evaluation="clients")
    with pytest.raises(NoGuarantee, match="without noise"):
        Asked.of(spec, ["lr=0.1:1"], "private", False).task  # noqa: B018
    with pytest.raises(NoGuarantee, match="chosen by earlier results"):
        Asked.of(replace(spec, rounds=None), ["rounds=2:5"], "private", False)


def test_choices_are_not_tried_twice_before_all_were() -> None:
    space = {"clip": Choice((0.5, 1.0, 2.0)), "lr": Choice((0.1, 0.3))}
    found = tune(begin, space, trials=6, pruning=False, first={"clip": 1.0, "lr": 0.1})
    assert found.history[0].settings == {"clip": 1.0, "lr": 0.1}
    assert len({str(sorted(trial.settings.items())) for trial in found.history}) == 6


# -- spaces ----------------------------------------------------------------------------------------------------------------------


def test_search_as_typed() -> None:
    texts = [
        "lr=0.01:1:log",
        "local_steps=1:20",
        "rounds=10:40:log",
        "cohort=5:10",
        "server=average,adam",
        "clip=0.1:2",
        "blur=0,0.5",
    ]
    assert parse_search(texts, RunConfig(method="dp-fedavg")) == {
        "lr": Range(0.01, 1, log=True),
        "local_steps": Range(1, 20, whole=True),
        "rounds": Range(10, 40, log=True, whole=True),
        "cohort": Range(5, 10, whole=True),
        "server": Choice(("average", "adam")),
        "clip": Range(0.1, 2),
        "blur": Choice((0, 0.5)),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lr", "takes KEY=LOW:HIGH"),
        ("lr=0.1", "nothing to choose"),
        ("lr=1:0.1", "smaller number to a larger"),
        ("lr=0:1:log", "above zero"),
        ("lr=0.1:1:cubic", "is not KEY=LOW:HIGH"),
        ("local_steps=1:2.5", "whole numbers"),
        ("noise=0.1:1", "no setting of dp-fedavg to search"),
        ("epsilon=1:8", "no setting of dp-fedavg to search"),
        ("lrr=1:8", "did you mean 'lr'"),
        ("momentum=0:0.9", "set and searched"),
        ("rounds=1:9", "set and searched"),
    ],
)
def test_searches_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_search([text], RunConfig(method="dp-fedavg", rounds=3, set={"momentum": "0.5"}))


@pytest.mark.parametrize(
    ("method", "settings", "keys"),
    [
        ("fedavg", {}, {"lr", "server_lr"}),
        ("dp-fedavg", {}, {"lr", "server_lr", "clip"}),
        ("dp-fedavg", {"clip": "0.5"}, {"lr", "server_lr"}),
        ("dp-fedavg+blur+lus", {}, {"lr", "server_lr", "clip", "blur", "sparsity"}),
        ("dp-fedavg+rand-k", {}, {"lr", "server_lr", "clip", "ratio"}),
        ("fed-smp-top-k", {}, {"lr", "server_lr", "clip", "ratio"}),
        ("fed-spa", {}, {"lr", "server_lr", "clip", "ratio"}),
    ],
)
def test_default_spaces_hold_what_is_in_use(method: str, settings: dict[str, str], keys: set[str]) -> None:
    space = default_space(RunConfig(method=method, set=settings))
    assert set(space) == keys
    assert space["server_lr"] == (Range(0.1, 3, log=True) if method != "fed-spa" else Range(0.001, 0.1, log=True))


# -- the ratio of Fed-SMP's Theorem 2 --------------------------------------------------------------------------------------------


def test_a_rand_k_search_starts_from_that_ratio() -> None:
    spec = RunConfig(method="fed-smp-rand-k", model="logistic", clients=60, cohort=60, rounds=5, epsilon=1.0)
    asked = Asked.of(spec, ["ratio=auto", "lr=0.01:1:log"], "private", False)
    noise = asked.begin({}).privacy.plan.noise_multiplier  # type: ignore[union-attr]
    examples, batch, epochs = asked.task.enrolled.total, 4, 5  # as digits has them
    steps = epochs * math.ceil(examples / 60 / batch)  # type: ignore[operator]
    assert asked.first() == {"ratio": pytest.approx(best_ratio(0.1, steps, 60, 650, 1.0, noise)), "lr": 0.1}
    assert asked.task.test is None
    same = Asked.of(replace(spec, set={"ratio": "auto"}), [], "private", False)
    assert set(same.space) == {"lr", "clip", "server_lr", "ratio"}
    assert same.first()["ratio"] == asked.first()["ratio"]
    with pytest.raises(UsageError, match="random coordinates"):
        Asked.of(RunConfig(method="fed-smp-top-k"), ["ratio=auto"], "private", False)


# -- side by side ----------------------------------------------------------------------------------------------------------------


def test_trials_of_a_batch_do_not_depend_on_who_is_first() -> None:
    """They are given up by what was complete before all of them, and told in the order of the proposals."""

    def last_first(proposed: Sequence[Mapping[str, Any]], heard: Callable[[int, Any], Any]) -> Iterator[tuple[int, Done | Failed]]:
        here = one_at_a_time(begin)
        for number in reversed(range(len(proposed))):
            for _, outcome in here([proposed[number]], lambda _, said, own=number: heard(own, said)):
                yield number, outcome

    usual = tune(begin, LR, trials=5, jobs=2)
    other = tune(begin, LR, trials=5, jobs=2, player=last_first)
    assert [trial.settings for trial in usual.history] == [trial.settings for trial in other.history]
    alone = tune(begin, LR, trials=5, pruning=False)
    assert [trial.settings for trial in alone.history] == [
        trial.settings for trial in usual.history
    ]  # before any was chosen by others


def test_a_broken_batch_keeps_what_it_found(tmp_path: Path) -> None:
    def interrupted(proposed: Sequence[Mapping[str, Any]], heard: Callable[[int, Any], Any]) -> Iterator[tuple[int, Done | Failed]]:
        yield next(one_at_a_time(begin)(proposed, heard))
        raise KeyboardInterrupt

    file = tmp_path / "study.db"
    with pytest.raises(KeyboardInterrupt):
        tune(begin, LR, trials=4, jobs=2, player=interrupted, study=file)
    assert len(so_far(file).history) == 1
    went_on = tune(begin, LR, trials=4, jobs=2, study=file)
    assert len({trial.settings["lr"] for trial in went_on.history}) == 4
