"""The end of a run: its last model judged, what was proved of the rounds that were charged, and the result of both."""

from __future__ import annotations

from typing import Any

from hush.cohort import Cohort, sampling_name
from hush.config import RunConfig
from hush.core import Method, State, within
from hush.engines.diagnostics import wasted
from hush.engines.evaluate import evaluate
from hush.engines.federation import AmortisedFederation, Remote
from hush.engines.fingerprint import device_name
from hush.engines.judge import best_by, score_of_clients, un_noised, uplink_bytes
from hush.engines.result import Result
from hush.engines.run import Run, Snapshot
from hush.engines.traffic import in_all
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import L2Clip
from hush.plain import plain
from hush.privacy.ledger import UNPROTECTED, RunAccount
from hush.privacy.population import Population
from hush.privacy.settle import as_charged, certify, claim_without_proof, figures_of
from hush.privacy.shares import contacted
from hush.privacy.vocabulary import Enrolled, Plan
from hush.secagg.terms import Terms
from hush.transforms import AdaptiveClip, Clip, HistoryClip
from hush.version import __version__

History = list[dict[str, Any]]


def conclude(run: Run, now: Snapshot, history: History, stopped: str | None = None, account: RunAccount | None = None) -> Result:
    """The result: the last model, and the best round's beside it."""
    told = _what_ran(run, now) | _judged(run, now, history) | _proved(run, now, account) | _cost(run, now, history)
    return Result(
        **told,
        stopped=stopped or _ended_early(run, now, history),
        population=_population(run, account),
        configuration=configuration(run),
        history=history,
        state_dict=run.data.learner.state_dict(run.method.model(now.params, now.state)),
    )


def _what_ran(run: Run, now: Snapshot) -> dict[str, Any]:
    """Who trained what."""
    task, config = run.data.task, run.config
    unprotected = () if config.ledger is None or config.rollback_protection else (UNPROTECTED,)
    return {
        "method": run.method.name,
        "data": task.name,
        "model": task.model_name,
        "clients": run.data.train.count,
        "cohort": run.cohort.size,
        "sampling": sampling_name(run.cohort),
        "rounds": now.round,
        "rounds_planned": config.rounds,
        "seed": config.seed,
        "parameters": run.data.learner.dim,
        "clip": clip_of(run.method, now.state),
        "run_id": run.identity.run_id,
        "device": device_name(run.data.learner.device),
        "hush_version": __version__,
        "notes": task.notes,
        "caveats": run.data.caveats + unprotected,
        "un_noised": un_noised(run),
    }


def _judged(run: Run, now: Snapshot, history: History) -> dict[str, Any]:
    """How good the last model is, and the best."""
    figures = evaluate(run, run.method.model(now.params, now.state), "test")
    best = None
    if run.data.test is not None and best_by(run) == "test":
        best = now.best_accuracy if now.best_accuracy >= 0 else None
    elif run.data.test is not None and best_by(run) == "validation":
        best = evaluate(run, now.best, "test").accuracy
    return {
        "test_accuracy": figures.accuracy,
        "best_test_accuracy": best,
        "best_by": best_by(run),
        "test_loss": figures.loss,
        "test_metrics": figures.metrics or {},
        "per_client": figures.per_client,
        "clients_accuracy": score_of_clients(run.method, now.state),
        "train_loss": now.train_loss if run.config.diagnostics else None,
        "wasted_work": wasted(now.computed, now.own),
        "validation_accuracy": next((r.get("validation_accuracy") for r in reversed(history)), None),
        "validation_metrics": next((r["validation_metrics"] for r in reversed(history) if r.get("validation_metrics")), {}),
    }


def _proved(run: Run, now: Snapshot, account: RunAccount | None) -> dict[str, Any]:
    """What holds for the rounds that were paid for, also one that was not reached; and what the paper would print."""
    privacy = run.privacy
    counted = max(now.counted, account.rounds if account is not None else 0)
    charged = as_charged(privacy.plan, counted, now.charges) if privacy.plan is not None else None
    proof = certify(charged, privacy.delta, run.method)
    claim = proof.claim if proof else None
    if privacy.refused is not None and run.config.noise_seed is None:  # papers suppose noise that nobody can repeat
        claim = claim_without_proof(run.method, run.cohort, privacy.enrolled, now.round, privacy.delta)
    return figures_of(proof) | {
        "claimed_epsilon": claim.epsilon if claim else None,
        "noise_multiplier": privacy.plan.noise_multiplier if privacy.plan else None,
        "noise_mode": None if privacy.plan is None else "secure" if privacy.plan.secure else "fast",
        "rounds_charged": charged.rounds if charged is not None else None,
        "rounds_counted": counted if charged is not None else None,
        "rounds_aborted": now.aborted if privacy.federation is not None else None,
        "secure_sum": _secure_sum(run),
        "no_guarantee": privacy.refused,
        "proof": proof,
        "claim": claim,
    }


def _cost(run: Run, now: Snapshot, history: History) -> dict[str, Any]:
    """Bytes and seconds."""
    times = run.cohort.expected_participations(now.round, run.data.train.count)
    counted = isinstance(run.privacy.federation, Remote)  # letter by letter
    downloads = 0.0 if counted else run.method.downloads(run.data.learner.dim, now.round, times)
    return {
        "uplink_bytes_per_client": uplink_bytes(run, now),
        "downlink_bytes_per_client": downloads + now.received / run.data.train.count,
        "traffic": in_all(history),
        "seconds": now.seconds,
        "seconds_per_round": now.seconds / now.round if now.round else None,
    }


def _ended_early(run: Run, now: Snapshot, history: History) -> str | None:
    """Why a run has fewer rounds than were asked for, or none that was opened."""
    if now.round and not now.counted:
        why = str(history[-1].get("broke_off", "")).rstrip(".")
        return f"no round was opened: {why}; tolerate more losses (--tolerate), or take larger cohorts"
    if run.config.rounds is not None and run.rounds < run.config.rounds:
        return f"budget: round {run.rounds + 1} of {run.config.rounds} would have exceeded it"
    return None


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
    privacy = run.privacy
    told = describe(run.config, run.method, run.cohort, privacy.enrolled, privacy.plan, privacy.delta, _secure_sum(run))
    return told | ({"proposal": privacy.federation.name.hex()} if isinstance(privacy.federation, Remote) else {})


def describe(
    config: RunConfig,
    method: Method,
    cohort: Cohort,
    enrolled: Enrolled,
    plan: Plan | None,
    delta: float | None,
    summed: dict[str, Any] | None,
) -> dict[str, Any]:
    """The run and its parts as data. How much clients hold is told only where it is no secret: where records are protected."""
    by_record = plan is not None and plan.unit.within_client
    return {
        "run": config.published(),
        "method": method.name,
        "local": plain(method.local),
        "pipeline": [plain(part) for part in method.pipeline.parts],
        "server": plain(method.server),
        "cohort": plain(cohort),
        "clients": enrolled.clients,
        "records": enrolled.records if by_record else None,
        "records_in_all": enrolled.total if by_record else None,
        "rows_of_a_person": enrolled.persons.rows if enrolled.persons is not None else None,
        "parameters": enrolled.dim,
        "rounds": config.rounds,
        "dropout": config.dropout,
        "delta": delta,
        "seed": config.seed,
        "secure_sum": summed,
    }


def _secure_sum(run: Run) -> dict[str, Any] | None:
    federation = run.privacy.federation
    if federation is None:
        return None
    return describe_sum(federation.terms, not isinstance(federation, AmortisedFederation), run.cohort, run.data.train.count)


def describe_sum(terms: Terms, fresh: bool, cohort: Cohort, clients: int) -> dict[str, Any]:
    """What the protocol was asked to withstand, and the numbers that follow from it; `fresh` masks, or CPFed's.

    They are those of the smallest cohort, but for the bound on a leak, which holds for all: it may grow with the cohort.
    """
    graph = terms.graph(terms.smallest)
    fewest, most = contacted(cohort, clients)
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
        "leak_bound": max(terms.leak(size) for size in range(fewest, most + 1)) if fresh else 0.0,
    }


def _population(run: Run, account: RunAccount | None) -> dict[str, Any] | None:
    """What all runs on the same clients spent together, where they share a ledger."""
    if account is None or run.config.ledger is None or run.privacy.delta is None:
        return None
    ledger = account.ledger
    return spent_together(ledger.populations[account.population], run.privacy.delta, ledger.entries, ledger.head)


def spent_together(pool: Population, delta: float, entries: int, head: str) -> dict[str, Any]:
    """What a ledger up to one of its entries says of a population, at its own delta or else this one."""
    delta = pool.delta if pool.delta is not None else delta
    return {
        "name": pool.name,
        "runs": len(pool.runs),
        "epsilon": pool.spent(delta),
        "delta": delta,
        "budget": pool.epsilon,
        "adaptive": pool.adaptive,
        "epsilon_adaptive": pool.filtered() if pool.adaptive else None,
        "ledger_entries": entries,
        "ledger_head": head,
    }
