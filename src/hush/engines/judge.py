"""How good the released model is, on examples that belong to no client, and the figures of the whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hush.cohort import Bounded, Cohort, FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import Method, State, within
from hush.engines.evaluate import evaluate
from hush.engines.federation import Federation
from hush.engines.result import Result
from hush.engines.run import Run, Snapshot
from hush.errors import Diverged
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import L2Clip
from hush.privacy.accountant import spent
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import UNPROTECTED, RunAccount
from hush.privacy.settle import as_charged, certify, claim_without_proof
from hush.privacy.vocabulary import Enrolled, Plan
from hush.secagg.terms import Terms
from hush.transforms import AdaptiveClip, Clip, HistoryClip
from hush.version import __version__


def is_judged(run: Run, round: int) -> bool:
    """Whether this round's model is evaluated."""
    return round % run.eval_every == 0 or round == run.rounds


def judge(run: Run, now: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
    """Evaluate the released model on public data and say what was spent so far."""
    record: dict[str, Any] = {"round": now.round}
    record["uplink_bytes_per_client"] = uplink_bytes(run, now)
    if run.federation is not None:
        record["aborted"] = now.aborted
    if not is_judged(run, now.round):
        return now, record
    model = run.method.model(now.params, now.state)
    record |= {"validation_accuracy": None, "validation_loss": None, "test_accuracy": None, "test_loss": None}
    for name, examples, wanted in (("validation", run.validation, True), ("test", run.test, run.track_test)):
        if examples is not None and wanted:
            figures = evaluate(run, model, name)
            record |= {f"{name}_loss": figures.loss, f"{name}_accuracy": figures.accuracy}
            if figures.metrics:
                record[f"{name}_metrics"] = figures.metrics
            if figures.loss is None and len(examples.x):
                raise Diverged(f"The model of round {now.round} returns NaN or infinity on the {name} examples: lower lr.")
    if views := [key for key in un_noised(run) if record.get(key) is not None]:
        record["un_noised"] = views
    record["epsilon"] = None
    if run.plan is not None and run.delta is not None:
        charged = as_charged(run.plan, now.counted, now.charges)
        record["epsilon"] = spent(charged, run.delta, charged.rounds) if charged.phases else 0.0
    judged = record[f"{best_by(run)}_accuracy"] if best_by(run) else None
    if judged is not None and judged >= now.best_accuracy:
        now = replace(now, best=model, best_accuracy=judged)
    return now, record


def uplink_bytes(run: Run, now: Snapshot) -> float:
    """What a client sent so far, on average: its expected participations that are not lost, times its message; counted, where
    it is more than a message."""
    if run.federation is not None:
        return now.sent / run.train.count
    times = run.cohort.expected_participations(now.round, run.train.count)
    return (1 - run.dropout) * times * run.method.uplink(run.learner.dim).bytes


def best_by(run: Run) -> str | None:
    """Which examples pick the best round."""
    if run.track_test and run.test is not None:
        return "test"
    return "validation" if run.validation is not None else None


def un_noised(run: Run) -> tuple[str, ...]:
    """The figures that no guarantee covers: of clients' own examples, and without noise. For simulation alone."""
    names = ["train_loss"] if run.diagnostics else []
    for part in ("validation", "test"):
        if run.task.belongs_to_clients(part):
            names += [f"{part}_accuracy", f"{part}_loss", f"{part}_metrics"]
            names += ["per_client"] if part == "test" else []
    if any(run.task.belongs_to_clients(part) for part in ("validation", "test")):  # also a round that clients' own examples picked
        names.append("best_test_accuracy")
    return tuple(names)


def conclude(
    run: Run, now: Snapshot, history: list[dict[str, Any]], stopped: str | None = None, account: RunAccount | None = None
) -> Result:
    """The result: the last model, and the best round's beside it."""
    model = run.method.model(now.params, now.state)
    figures = evaluate(run, model, "test")
    best = None
    if run.test is not None and best_by(run) == "test":
        best = now.best_accuracy if now.best_accuracy >= 0 else None
    elif run.test is not None and best_by(run) == "validation":
        best = evaluate(run, now.best, "test").accuracy
    counted = max(now.counted, account.rounds if account is not None else 0)  # also one that was paid for and not reached
    charged = as_charged(run.plan, counted, now.charges) if run.plan is not None else None
    proof = certify(charged, run.delta, run.method)
    guarantee = proof.guarantee if proof else None
    claim = proof.claim if proof else None
    if run.refused is not None:
        claim = claim_without_proof(run.method, run.cohort, run.enrolled, now.round, run.delta)
    if now.round and not now.counted:
        why = str(history[-1].get("broke_off", "")).rstrip(".")
        stopped = f"no round was opened: {why}; tolerate more losses (--tolerate), or take larger cohorts"
    if stopped is None and run.rounds < run.rounds_planned:
        stopped = f"budget: round {run.rounds + 1} of {run.rounds_planned} would have exceeded it"
    dim = run.learner.dim
    times = run.cohort.expected_participations(now.round, run.train.count)
    return Result(
        method=run.method.name,
        data=run.task.name,
        model=run.task.model_name,
        clients=run.train.count,
        cohort=run.cohort.size,
        rounds=now.round,
        seed=run.seed,
        parameters=dim,
        test_accuracy=figures.accuracy,
        best_test_accuracy=best,
        test_loss=figures.loss,
        train_loss=now.train_loss if run.diagnostics else None,
        validation_accuracy=next((r.get("validation_accuracy") for r in reversed(history)), None),
        epsilon=guarantee.epsilon if guarantee else None,
        epsilon_server=proof.server.epsilon if proof and proof.server else None,
        delta=guarantee.delta if guarantee else None,
        unit=str(guarantee.unit) if guarantee else None,
        relation=str(guarantee.relation) if guarantee else None,
        view=str(guarantee.view) if guarantee else None,
        noise_multiplier=run.plan.noise_multiplier if run.plan else None,
        clip=clip_of(run.method, now.state),
        claimed_epsilon=claim.epsilon if claim else None,
        uplink_bytes_per_client=uplink_bytes(run, now),
        downlink_bytes_per_client=run.method.downloads(dim, now.round, times) + now.received / run.train.count,
        seconds=now.seconds,
        seconds_per_round=now.seconds / now.round if now.round else None,
        device=_describe(run.learner.device),
        hush_version=__version__,
        sampling=sampling_name(run.cohort),
        rounds_planned=run.rounds_planned,
        stopped=stopped,
        best_by=best_by(run),
        notes=run.notes,
        test_metrics=figures.metrics or {},
        validation_metrics=next((r["validation_metrics"] for r in reversed(history) if r.get("validation_metrics")), {}),
        per_client=figures.per_client,
        caveats=run.task.all_caveats + (() if run.ledger is None or run.rollback_protection else (UNPROTECTED,)),
        un_noised=un_noised(run),
        run_id=run.run_id,
        noise_mode=None if run.plan is None else "secure" if run.plan.secure else "fast",
        rounds_charged=charged.rounds if charged is not None else None,
        rounds_counted=counted if charged is not None else None,
        rounds_aborted=now.aborted if run.federation is not None else None,
        secure_sum=_secure_sum(run),
        population=_population(run, account),
        no_guarantee=run.refused,
        configuration=configuration(run),
        proof=proof,
        claim=claim,
        history=history,
        state_dict=run.learner.state_dict(model),
    )


def clip_of(method: Method, state: State) -> float | None:
    """The clip that the next round would use."""
    for i, part in enumerate(method.pipeline.parts):
        if isinstance(part, AdaptiveClip | HistoryClip):
            return float(within(str(i), within("pipeline", state))["clip"])
        if isinstance(part, Clip):
            return part.norm
    if isinstance(method.local, DpSgd) and method.local.clip is not None:
        return method.local.clip.norm if isinstance(method.local.clip, L2Clip) else method.local.clip.most
    return None


def configuration(run: Run) -> dict[str, Any]:
    """What the guarantee depends on, as it ran."""
    told = describe(run.method, run.cohort, run.enrolled, run.plan, run.rounds_planned, run.dropout, run.delta)
    return told | {"secure_sum": _secure_sum(run), "seed": run.seed}


def describe(
    method: Method, cohort: Cohort, enrolled: Enrolled, plan: Plan | None, rounds: int, dropout: float, delta: float | None
) -> dict[str, Any]:
    """Settings in words. How much clients hold is told only where it is no secret: where records are protected."""
    by_record = plan is not None and plan.unit is Unit.RECORD
    return {
        "method": method.name,
        "pipeline": [repr(part) for part in method.pipeline.parts],
        "local": repr(method.local),
        "server": repr(method.server),
        "cohort": repr(cohort),
        "clients": enrolled.clients,
        "records": enrolled.records if by_record else None,
        "records_in_all": enrolled.total if by_record else None,
        "parameters": enrolled.dim,
        "rounds": rounds,
        "dropout": dropout,
        "delta": delta,
    }


def _secure_sum(run: Run) -> dict[str, Any] | None:
    return None if run.federation is None else describe_sum(run.federation.terms, isinstance(run.federation, Federation))


def describe_sum(terms: Terms, fresh: bool) -> dict[str, Any]:
    """What the protocol was asked to withstand, and the numbers that follow from it; `fresh` masks, or CPFed's."""
    graph = terms.graph(terms.smallest)
    return {
        "protocol": "SecAgg+" if fresh else "amortised masks",
        "threat": terms.threat,
        "bits": terms.bits,
        "entries": terms.entries,
        "cohort": terms.smallest,
        "tolerated_dropout": terms.dropout,
        "corrupted": terms.corrupted,
        "neighbours": graph.degree if fresh else terms.smallest - 1,
        "threshold": graph.threshold if fresh else None,
        "fewest_survivors": terms.fewest(terms.smallest),
        "honest_min": terms.honest_min,
        "leak_bound": terms.leak(terms.smallest) if fresh else 0.0,
    }


def _population(run: Run, account: RunAccount | None) -> dict[str, Any] | None:
    """What all runs on the same clients spent together, where they share a ledger."""
    if account is None or run.ledger is None or run.delta is None:
        return None
    pool = account.ledger.populations[account.population]
    delta = pool.delta if pool.delta is not None else run.delta
    return {
        "name": pool.name,
        "runs": len(pool.runs),
        "epsilon": pool.spent(delta),
        "delta": delta,
        "budget": pool.epsilon,
        "adaptive": pool.adaptive,
        "epsilon_adaptive": pool.filtered() if pool.adaptive else None,
        "ledger_entries": account.ledger.entries,
        "ledger_head": account.ledger.head,
    }


def sampling_name(cohort: Cohort) -> str:
    """A cohort's name on the command line."""
    names: dict[type[Cohort], str] = {
        Poisson: "poisson",
        FixedSize: "fixed",
        Bounded: "bounded",
        SecretParticipation: "secret",
        Rotation: "rotation",
    }
    return names.get(type(cohort), type(cohort).__name__)


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
