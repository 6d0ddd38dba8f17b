"""Vectorised simulation: the cohort is one tensor, trained chunk by chunk; memory is a setting, not a matter of the cohort."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hush.cohort import Bounded, Cohort, FixedSize, Poisson
from hush.core import Method, Public, Round, Server, State, scope, within
from hush.engines.diagnostics import Recorder, client_spread, watched
from hush.engines.memory import chunk_size, default_memory, parse_bytes
from hush.engines.result import Result
from hush.engines.rundir import CHECKPOINT, RunDir
from hush.errors import DataError, Diverged, UsageError
from hush.local.flat import FlatModel
from hush.privacy.accountant import account, calibrate, rounds_within, spent
from hush.privacy.guarantee import Budget, Guarantee, default_delta
from hush.privacy.plan import Plan, is_private, needs_noise, plan_of, with_noise
from hush.privacy.secret import Secret
from hush.random import derive, keys_of
from hush.tasks.task import Clients, Examples, Task, whole
from hush.version import __version__

OnRound = Callable[[dict[str, Any]], None]


def simulate(
    method: Method,
    task: Task,
    *,
    rounds: int,
    cohort: Cohort | int | float | None = None,
    privacy: Budget | None = None,
    delta: float | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    memory: str | None = None,
    chunk: int | None = None,
    dropout: float = 0.0,
    eval_every: int = 1,
    track_test: bool = False,
    diagnostics: bool = True,
    out: Path | str | None = None,
    resume: bool = False,
    secret: Secret | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """Train `method` on `task` for `rounds` rounds.

    Args:
        cohort: who takes part; a number is the expected size under Poisson sampling (default: a tenth of the clients).
        privacy: the most that may be spent. A method whose noise is not set gets it calibrated to spend just that in
            `rounds` rounds; one whose noise is set stops *before* the round that would exceed it.
        delta: for a method run without a budget (default clients^-1.1).
        seed: starting point of everything public: batch orders, dropout, masks. Not of noise and cohorts.
        memory: what a chunk of clients may use, such as "2GiB"; `chunk` sets the number of clients outright.
        dropout: the share of selected clients that never answers.
        track_test: evaluate the test set every round, and report the best over rounds, as papers do. Otherwise the test set
            is read once at the end, and the best round is the one that validation picks.
        out: a folder for the run; with `resume=True` a run found there goes on to the identical result.
        secret: where noise and cohorts come from; by default a key of this machine for exactly this run.
    """
    run = _set_up(method, task, rounds, cohort, privacy, delta, seed, device, dtype, memory, chunk, dropout, secret)
    run = replace(run, eval_every=max(1, eval_every), track_test=track_test, diagnostics=diagnostics)
    folder = RunDir(Path(out)) if out is not None else None
    now, history = _start(run, folder, resume)
    began = time.perf_counter() - now.seconds
    while now.round < run.rounds:
        now, record, details = _round(run, now)
        now = replace(now, seconds=time.perf_counter() - began)
        history.append(record)
        if folder is not None:  # the records first: a record without its checkpoint is dropped on resume, never the reverse
            folder.append("rounds.jsonl", record)
            if details:
                folder.append("diagnostics.jsonl", details)
            folder.write_tensors(CHECKPOINT, *now.to_disk(run), mode=0o600)
        if on_round is not None:
            on_round(record | {"train_loss": now.train_loss, "rounds": run.rounds, "seconds": now.seconds})
    result = _finish(run, now, history)
    if folder is not None:
        folder.write_tensors("model.safetensors", result.state_dict, {"hush": __version__})
        folder.write_json("certificate.json", result.certificate())
        folder.write_json("result.json", result.to_dict())
        folder.forget_checkpoint()
    return result


@dataclass(frozen=True)
class Run:
    """Everything that stays the same from the first round to the last."""

    method: Method
    task: Task
    learner: FlatModel
    train: Clients
    server: Server
    validation: Examples | None
    test: Examples | None
    cohort: Cohort
    secret: Secret
    fingerprint: str
    plan: Plan | None
    delta: float | None
    rounds: int
    rounds_planned: int
    seed: int
    chunk: int
    dropout: float
    notes: tuple[str, ...]
    eval_every: int = 1
    track_test: bool = False
    diagnostics: bool = True

    def round(self, index: int) -> Round:
        return Round(index, derive(self.seed, 1, index), self.cohort.size)


@dataclass(frozen=True)
class Snapshot:
    """Everything that changes: what a checkpoint holds."""

    round: int
    params: Tensor
    state: State
    cohort_state: State
    best: Tensor
    best_accuracy: float = -1.0
    train_loss: float | None = None
    seconds: float = 0.0

    def to_disk(self, run: Run) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors = {"params": self.params, "best": self.best, "secret": torch.tensor(list(run.secret.key), dtype=torch.uint8)}
        tensors |= scope("state", self.state) | scope("cohort", self.cohort_state)
        keys = ("round", "best_accuracy", "train_loss", "seconds")
        return tensors, {"fingerprint": run.fingerprint} | {k: json.dumps(getattr(self, k)) for k in keys}


def _set_up(
    method: Method,
    task: Task,
    rounds: int,
    cohort: Cohort | int | float | None,
    privacy: Budget | None,
    delta: float | None,
    seed: int,
    device: str,
    dtype: torch.dtype,
    memory: str | None,
    chunk: int | None,
    dropout: float,
    secret: Secret | None,
) -> Run:
    if rounds < 1:
        raise UsageError(f"rounds must be at least 1, not {rounds}.")
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout must lie in [0, 1), not {dropout:g}.")
    place = pick_device(device)
    train = task.placed_train(place, dtype)
    cohort = as_cohort(cohort, train.count)
    method, plan, delta, allowed = settle_privacy(method, cohort, train.count, rounds, privacy, delta)

    learner = task.learner(place, dtype)
    learner.probe(train.x, train.y)
    public = task.placed("public", place, dtype)
    facts = [repr(part) for part in (method.local, method.pipeline, method.server, cohort, dtype, rounds, seed, dropout)]
    facts += [place.type, __version__, task.fingerprint().hex()]
    fingerprint = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    if chunk is None:
        bytes_allowed = parse_bytes(memory) if memory is not None else default_memory(place)
        chunk = chunk_size(learner, method.local, train.x, train.y, bytes_allowed)
    return Run(
        method=method,
        task=task,
        learner=learner,
        train=train,
        server=Server(learner, None if public is None else whole(public)),
        validation=task.placed("validation", place, dtype),
        test=task.placed("test", place, dtype),
        cohort=cohort,
        secret=secret or Secret.for_run(fingerprint.encode()),
        fingerprint=fingerprint,
        plan=plan,
        delta=delta,
        rounds=allowed,
        rounds_planned=rounds,
        seed=seed,
        chunk=max(1, chunk),
        dropout=dropout,
        notes=task.notes,
    )


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("This machine has no CUDA device that PyTorch can use: choose --device cpu.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UsageError(f"There is no device '{name}': choose auto, cpu or cuda.") from None


def as_cohort(cohort: Cohort | int | float | None, clients: int) -> Cohort:
    if not isinstance(cohort, Cohort):
        cohort = Poisson(float(cohort) if cohort is not None else max(1.0, clients / 10))
    cohort.check(clients)
    return cohort


def settle_privacy(
    method: Method, cohort: Cohort, clients: int, rounds: int, budget: Budget | None, delta: float | None
) -> tuple[Method, Plan | None, float | None, int]:
    """The method with its noise set, its plan, the delta, and how many rounds the budget allows."""
    if not is_private(method):
        if budget is not None:
            plan_of(method, cohort, clients, rounds)  # raises, with the reason and the fix
        return method, None, None, rounds
    chosen = (budget.delta if budget is not None else None) or delta or default_delta(clients)
    if needs_noise(method):
        if budget is None:
            raise UsageError(f"{method.name} needs noise=... or a budget, privacy=hush.Budget(epsilon=...).")
        trial = plan_of(with_noise(method, 1.0), cohort, clients, rounds)
        method = with_noise(method, calibrate(trial, budget.epsilon, chosen))
        return method, plan_of(method, cohort, clients, rounds), chosen, rounds
    plan = plan_of(method, cohort, clients, rounds)
    allowed = rounds if budget is None else rounds_within(plan, budget.epsilon, chosen)
    if allowed == 0:
        assert budget is not None
        first = spent(plan, chosen, 1)
        raise UsageError(
            f"Not one round fits the budget: the first alone costs epsilon {first:.3g}, the budget is {budget.epsilon:g}. "
            "Raise the noise or the budget."
        )
    return method, plan, chosen, allowed


def _start(run: Run, folder: RunDir | None, resume: bool) -> tuple[Snapshot, list[dict[str, Any]]]:
    params = run.learner.initial()
    fresh = Snapshot(0, params, run.method.init(params), run.cohort.init(run.train.count), params)
    if folder is None:
        return fresh, []
    if not resume:
        if folder.started:
            raise UsageError(f"{folder.path} already holds a run: resume it, or choose another folder.")
        return fresh, []
    saved = folder.read_tensors(CHECKPOINT)
    if saved is None:  # killed before the first round was complete
        folder.keep_rounds("diagnostics.jsonl", 0)
        return fresh, folder.keep_rounds("rounds.jsonl", 0)
    tensors, meta = saved
    if meta.get("fingerprint") != run.fingerprint:
        raise DataError(f"{folder.path} holds a run with other settings or other data: it cannot go on from here.")
    if bytes(tensors["secret"].tolist()) != run.secret.key:
        raise DataError(f"{folder.path} was begun on another machine, whose noise cannot be repeated here.")
    notes = {key: json.loads(value) for key, value in meta.items() if key != "fingerprint"}
    place = run.learner.device
    state = {name: value.to(params.device) if value.dim() else value for name, value in within("state", tensors).items()}
    now = Snapshot(
        params=tensors["params"].to(place),
        best=tensors["best"].to(place),
        state=state,
        cohort_state=within("cohort", tensors),
        **notes,
    )
    folder.keep_rounds("diagnostics.jsonl", now.round)
    return now, folder.keep_rounds("rounds.jsonl", now.round)


def _round(run: Run, now: Snapshot) -> tuple[Snapshot, dict[str, Any], dict[str, Any]]:
    """One round, and what may be published of it, and what may not."""
    rnd = run.round(now.round)
    ids, cohort_state = run.cohort.draw(now.round, run.train.count, now.cohort_state, run.secret)
    if run.dropout:
        ids = ids[run.secret.coins("dropout", now.round, len(ids)) >= run.dropout]
    recorder = Recorder(rnd.cohort)
    method = watched(run.method, recorder) if run.diagnostics else run.method
    public = method.prepare(now.params, now.state, rnd, run.server)
    total = _sum(run, method, now.params, ids, rnd, public, recorder)
    _check_clients(recorder, now.round)
    params, state = method.finish(now.params, total, now.state, rnd, public, run.secret)
    if not bool(torch.isfinite(params).all()):
        raise Diverged(
            f"The model became NaN or infinite in round {now.round + 1} of {run.rounds}: lower lr"
            + ("" if is_private(run.method) else ", or choose a method that clips")
            + "."
        )
    now = replace(
        now,
        round=now.round + 1,
        params=params,
        state=state,
        cohort_state=cohort_state,
        train_loss=recorder.train_loss if len(ids) else now.train_loss,
    )
    now, record = _judge(run, now)
    details: dict[str, Any] = {}
    if run.diagnostics:
        details = {"round": now.round, "un_noised": True} | recorder.summary()
        if _is_judged(run, now.round):
            details |= client_spread(run.learner, run.method.model(now.params, now.state), run.train.shard(ids))
    return now, record, details


def _sum(
    run: Run, method: Method, params: Tensor, ids: Tensor, rnd: Round, public: Public, recorder: Recorder
) -> Tensor:
    """The sum over the cohort, accumulated in float64 chunk by chunk; clients of like size train together."""
    total = torch.zeros(run.method.uplink(run.learner.dim).entries, dtype=torch.float64, device=params.device)
    ids = ids.to(params.device)
    ids = ids[run.train.sizes[ids].argsort(descending=True, stable=True)]
    for part in ids.split(run.chunk):
        keys = keys_of(derive(run.seed, 2, rnd.index), part)
        encoded, trained = method.contribute(run.learner, params, run.train.shard(part), rnd, keys, public)
        assert encoded.shape[1] == len(total), "a pipeline sends other entries than its wire() counts"
        recorder.trained(trained.updates, trained.losses)
        total += encoded.sum(0, dtype=torch.float64)
    return total


def _check_clients(recorder: Recorder, index: int) -> None:
    """Every single update NaN is no bad luck: stop, rather than train on noise alone."""
    norms = torch.cat(recorder.update_norms) if recorder.update_norms else torch.zeros(0)
    if len(norms) and not bool(torch.isfinite(norms).any()):
        raise Diverged(
            f"All {len(norms)} clients of round {index + 1} returned NaN or infinity: check the model and the data, or lower lr."
        )


def _is_judged(run: Run, round: int) -> bool:
    return round % run.eval_every == 0 or round == run.rounds


def _judge(run: Run, now: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
    """Evaluate the released model on public data and say what was spent so far."""
    record: dict[str, Any] = {"round": now.round}
    sent = now.round * run.cohort.size / run.train.count
    record["uplink_bytes_per_client"] = sent * run.method.uplink(run.learner.dim).bytes
    if not _is_judged(run, now.round):
        return now, record
    model = run.method.model(now.params, now.state)
    record |= {"validation_accuracy": None, "validation_loss": None, "test_accuracy": None, "test_loss": None}
    for name, examples, wanted in (("validation", run.validation, True), ("test", run.test, run.track_test)):
        if examples is not None and wanted:
            record[f"{name}_loss"], record[f"{name}_accuracy"] = _evaluate(run.learner, model, examples)
    record["epsilon"] = spent(run.plan, run.delta, now.round) if run.plan is not None and run.delta is not None else None
    judged = record[f"{best_by(run)}_accuracy"] if best_by(run) else None
    if judged is not None and judged > now.best_accuracy:
        now = replace(now, best=model, best_accuracy=judged)
    return now, record


def best_by(run: Run) -> str | None:
    """Which examples pick the best round."""
    if run.track_test and run.test is not None:
        return "test"
    return "validation" if run.validation is not None else None


def _evaluate(learner: FlatModel, model: Tensor, examples: Examples) -> tuple[float | None, float | None]:
    scores = learner.scores(model, *examples)
    loss = float(scores.losses.double().mean())
    accuracy = None if scores.correct is None else float(scores.correct.double().mean())
    return (loss if math.isfinite(loss) else None), accuracy


def _finish(run: Run, now: Snapshot, history: list[dict[str, Any]]) -> Result:
    model = run.method.model(now.params, now.state)
    loss, accuracy = _evaluate(run.learner, model, run.test) if run.test is not None else (None, None)
    best = None
    if run.test is not None and best_by(run) == "test":
        best = now.best_accuracy
    elif run.test is not None and best_by(run) == "validation":
        best = _evaluate(run.learner, now.best, run.test)[1]
    guarantee, claimed = certify(run.plan, run.delta, now.round, run.method)
    stopped = None
    if run.rounds < run.rounds_planned:
        stopped = f"budget: round {run.rounds + 1} of {run.rounds_planned} would have exceeded it"
    shares = now.round * run.cohort.size / run.train.count
    dim = run.learner.dim
    return Result(
        method=run.method.name,
        data=run.task.name,
        model=run.task.model_name,
        clients=run.train.count,
        cohort=run.cohort.size,
        rounds=now.round,
        seed=run.seed,
        parameters=dim,
        test_accuracy=accuracy,
        best_test_accuracy=best,
        test_loss=loss,
        train_loss=now.train_loss,
        validation_accuracy=next((r.get("validation_accuracy") for r in reversed(history)), None),
        epsilon=guarantee.epsilon if guarantee else None,
        epsilon_server=None,
        delta=guarantee.delta if guarantee else None,
        unit=str(guarantee.unit) if guarantee else None,
        relation=str(guarantee.relation) if guarantee else None,
        view=str(guarantee.view) if guarantee else None,
        noise_multiplier=run.plan.noise_multiplier if run.plan else None,
        clip=run.plan.sensitivity if run.plan else None,
        claimed_epsilon=claimed,
        uplink_bytes_per_client=shares * run.method.uplink(dim).bytes,
        downlink_bytes_per_client=shares * run.method.downlink_bytes(dim),
        seconds=now.seconds,
        seconds_per_round=now.seconds / now.round if now.round else None,
        device=_describe(run.learner.device),
        hush_version=__version__,
        sampling=sampling_name(run.cohort),
        rounds_planned=run.rounds_planned,
        stopped=stopped,
        best_by=best_by(run),
        notes=run.notes,
        guarantee=guarantee,
        history=history,
        state_dict=run.learner.state_dict(model),
    )


def certify(
    plan: Plan | None, delta: float | None, rounds: int, method: Method
) -> tuple[Guarantee | None, float | None]:
    """The proved guarantee of the rounds that ran, and the figure the paper would print for them."""
    if plan is None or delta is None or rounds == 0:
        return None, None
    plan = replace(plan, rounds=rounds)
    return account(plan, delta), method.claim(plan, delta) if method.claim else None


def sampling_name(cohort: Cohort) -> str:
    names: dict[type[Cohort], str] = {Poisson: "poisson", FixedSize: "fixed", Bounded: "bounded"}
    return names.get(type(cohort), type(cohort).__name__)


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
