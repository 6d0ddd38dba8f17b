"""How good a round's released model is, on examples that belong to no client."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hush.core import Method, State, within
from hush.engines.evaluate import evaluate
from hush.engines.run import Run, Snapshot
from hush.errors import Diverged
from hush.privacy.accountant import spent
from hush.privacy.settle import as_charged
from hush.transforms import Score


def is_judged(run: Run, round: int) -> bool:
    """Whether this round's model is evaluated."""
    return round % run.config.eval_every == 0 or round == run.rounds


def judge(run: Run, now: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
    """Evaluate the released model on public data and say what was spent so far."""
    record: dict[str, Any] = {"round": now.round}
    record["uplink_bytes_per_client"] = uplink_bytes(run, now)
    if run.privacy.federation is not None:
        record["aborted"] = now.aborted
    if not is_judged(run, now.round):
        return now, record
    model = run.method.model(now.params, now.state)
    record |= {"validation_accuracy": None, "validation_loss": None, "test_accuracy": None, "test_loss": None}
    for name, examples, wanted in (("validation", run.data.validation, True), ("test", run.data.test, run.config.track_test)):
        if examples is not None and wanted:
            figures = evaluate(run, model, name)
            record |= {f"{name}_loss": figures.loss, f"{name}_accuracy": figures.accuracy}
            if figures.metrics:
                record[f"{name}_metrics"] = figures.metrics
            if figures.loss is None and len(examples.x):
                raise Diverged(f"The model of round {now.round} returns NaN or infinity on the {name} examples: lower lr.")
    if (score := score_of_clients(run.method, now.state)) is not None:
        record["clients_accuracy"] = score
    if views := [key for key in un_noised(run) if record.get(key) is not None]:
        record["un_noised"] = views
    record["epsilon"] = None
    if run.privacy.plan is not None and run.privacy.delta is not None:
        charged = as_charged(run.privacy.plan, now.counted, now.charges)
        record["epsilon"] = spent(charged, run.privacy.delta, charged.rounds) if charged.phases else 0.0
    judged = record[f"{best_by(run)}_accuracy"] if best_by(run) else None
    if judged is not None and judged >= now.best_accuracy:
        now = replace(now, best=model, best_accuracy=judged)
    return now, record


def score_of_clients(method: Method, state: State) -> float | None:
    """How clients judged the model that this round began with, noised as everything of the round is; None where they did not."""
    for i, part in enumerate(method.pipeline.parts):
        if isinstance(part, Score):
            score = float(within(str(i), within("pipeline", state))["accuracy"])
            return score if math.isfinite(score) else None
    return None


def uplink_bytes(run: Run, now: Snapshot) -> float:
    """What a client sent so far, on average: its expected participations that are not lost, times its message; counted, where
    it is more than a message."""
    if run.privacy.federation is not None:
        return now.sent / run.data.train.count
    times = run.cohort.expected_participations(now.round, run.data.train.count)
    return (1 - run.config.dropout) * times * run.method.uplink(run.data.learner.dim).bytes


def best_by(run: Run) -> str | None:
    """Which examples pick the best round."""
    if run.config.track_test and run.data.test is not None:
        return "test"
    return "validation" if run.data.validation is not None else None


def un_noised(run: Run) -> tuple[str, ...]:
    """The figures that no guarantee covers: of clients' own examples, and without noise. For simulation alone."""
    names, task = ["train_loss", "wasted_work"] if run.config.diagnostics else [], run.data.task
    for part in ("validation", "test"):
        if task.belongs_to_clients(part):
            names += [f"{part}_accuracy", f"{part}_loss", f"{part}_metrics"]
            names += ["per_client"] if part == "test" else []
    if any(task.belongs_to_clients(part) for part in ("validation", "test")):  # also a round that clients' own examples picked
        names.append("best_test_accuracy")
    return tuple(names)
