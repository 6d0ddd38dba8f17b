"""Vectorised simulation: the cohort is one tensor, trained chunk by chunk; memory is a setting, not a matter of the cohort."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import torch
from torch import Tensor

from hush.checks import check_number, check_share
from hush.cohort import Bounded, Cohort, Poisson, Rotation
from hush.core import LocalUpdate, Method, Server, Transform
from hush.engines import charging
from hush.engines.evaluate import refuse_broken_metrics
from hush.engines.federation import FEDERATIONS
from hush.engines.fingerprint import arithmetic, fingerprint
from hush.engines.judge import conclude, configuration
from hush.engines.memory import chunk_size, default_memory, parse_bytes, slots
from hush.engines.result import Result
from hush.engines.round import play_round
from hush.engines.run import Run, Snapshot, pick_device
from hush.engines.rundir import CHECKPOINT, RunDir
from hush.errors import UsageError
from hush.local import frozen
from hush.local.flat import FlatModel
from hush.names import pick
from hush.own import OwnSecrets
from hush.privacy.certificate import digest
from hush.privacy.guarantee import Budget
from hush.privacy.ledger import BudgetSpent, Ledger, RunAccount
from hush.privacy.plan import is_private, takes_turns
from hush.privacy.settle import settle_privacy
from hush.privacy.shares import SecureSum, as_run, refuse_shares_without_a_secure_sum
from hush.random import derive, keys_of
from hush.secret import Secret
from hush.tasks.task import Clients, Examples, Task, whole
from hush.version import __version__

OnRound = Callable[[dict[str, Any]], None]
NOISE_MODES = ("fast", "secure")


class Settings(TypedDict, total=False):
    """What `simulate` takes besides the method and the task; `set_up` has the defaults."""

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


def simulate(
    method: Method,
    task: Task,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Train `method` on `task` for `rounds` rounds.

    Args:
        rounds: how many.
        cohort: who takes part; a number is the expected size under Poisson sampling, or, for methods that protect records or
            sum securely, the size of a rotation (default: a tenth of the clients).
        privacy: the most that may be spent. A method whose noise is not set gets it calibrated to spend just that in
            `rounds` rounds; one whose noise is set stops *before* the round that would exceed it.
        delta: for a method run without a budget (default min(n^-1.1, 0.01), n the clients or records).
        seed: starting point of everything public: batch orders, dropout, masks. Not of noise and cohorts.
        memory: what a chunk of clients may use, such as "2GiB"; `chunk` sets the number of clients outright.
        dropout: the share of selected clients that vanishes: that never answers, or under a secure sum at any moment of a round.
        secure_sum: sum by secure aggregation, `hush.SecureSum()`: updates become whole numbers, every client adds its share of the
            noise, and the server learns the sum alone. Cohorts have a known size: a rotation, a fixed one, or secret participation.
        track_test: evaluate the test set every round, and report the best over rounds, as papers do. Otherwise the test set
            is read once at the end, and the best round is the one that validation picks.
        diagnostics: write un-noised error terms and training losses, for simulation alone, to `diagnostics.jsonl` (default: where
            the run has no guarantee that they would go around).
        out: a folder for the run; with `resume=True` a run found there goes on to the identical result.
        on_round: called with each round's record.
        noise_mode: `fast`, floating-point noise that a resumed run repeats, fit for research; or `secure`, exact integers from a
            cryptographic stream that nobody can repeat: an interrupted round is then drawn anew and charged again. A client's row
            then depends, to the last bit, on settings and on its own data alone.
        noise_seed: repeat noise and cohorts to the last bit, wherever the same number is given. Whoever knows it can take the noise
            off again, so such a run has no guarantee. By default every run with a guarantee draws its own, for once.
        ledger: a file shared by all runs on the same clients; every round is charged there before its noise is drawn, and the
            run ends where the budget of its `population` does (default: the task's name).
        rollback_protection: refuse a ledger that this machine cannot remember, since an older copy of it would then pass unseen.
    """
    if resume and out is None:
        raise UsageError("resume=True needs the folder of the run: out=...")
    run = set_up(method, task, **settings)
    return train(run, out=Path(out) if out is not None else None, resume=resume, on_round=on_round)


def train(run: Run, *, out: Path | None = None, resume: bool = False, on_round: OnRound | None = None) -> Result:
    """Every round of a run that was set up, checkpointed after each where it has a folder."""
    folder = RunDir(out) if out is not None else None
    if folder is not None and folder.finished and resume:
        done = Result.read(folder)
        if (done.data, done.model, done.configuration) == (run.task.name, run.task.model_name, configuration(run)):
            folder.forget_secrets()
            charging.refuse_uncharged(run, done)
            return done
    if folder is not None and (folder.finished or (folder.started and not resume)):
        raise UsageError(f"{folder.path} already holds a {'complete ' if folder.finished else ''}run: choose another folder.")
    run = charging.identified(run, folder)
    now, history = start(run, folder)
    with charging.account_of(run, folder, now) as account:
        if account is not None:  # a round that was paid for and not reached counts from the first record on
            now = replace(now, charges=max(now.charges, account.charges))
        result = _all_rounds(run, now, history, folder, account, on_round)
        if folder is not None:
            _write(folder, result, account)
    return result


def _write(folder: RunDir, result: Result, account: RunAccount | None) -> None:
    """Model, certificate and result; the ledger knows their hashes before anybody can read them."""
    folder.write_tensors("model.safetensors", result.state_dict, {"hush": __version__})
    model = folder.digest("model.safetensors")
    certificate, figures = result.certificate(model), result.to_dict()
    if account is not None:
        account.release(model=model, certificate=digest(certificate), result=digest(figures))
    folder.write_json("certificate.json", certificate)
    folder.write_json("result.json", figures)
    folder.forget_secrets()


def _all_rounds(
    run: Run,
    now: Snapshot,
    history: list[dict[str, Any]],
    folder: RunDir | None,
    account: RunAccount | None,
    on_round: OnRound | None,
) -> Result:
    """Charge, train, keep, tell; until the rounds or the budget are spent."""
    stopped = None
    began = time.perf_counter() - now.seconds
    while now.round < run.rounds:
        try:
            now, record, details = play_round(run, now, partial(_pay, account, now))
        except BudgetSpent as enough:
            stopped = f"budget: in round {now.round + 1} of {run.rounds_planned} {enough}"
            if now.round == 0:
                raise UsageError(f"Not one round fits: {enough}.") from None
            break
        now = replace(now, seconds=time.perf_counter() - began)
        history.append(record)
        if folder is not None:  # the records first: a record without its checkpoint is dropped on resume, never the reverse
            folder.append("rounds.jsonl", record)
            if details:
                folder.append("diagnostics.jsonl", details)
            folder.write_tensors(CHECKPOINT, *now.to_disk(), mode=0o600)
        if on_round is not None:
            on_round(record | {"train_loss": now.train_loss, "rounds": run.rounds, "seconds": now.seconds})
    if account is not None:  # also what was paid for and not reached
        now = replace(now, charges=max(now.charges, account.charges))
    return conclude(run, now, history, stopped, account)


def set_up(
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
    diagnostics: bool | None = None,
    noise_mode: str = "fast",
    noise_seed: int | None = None,
    ledger: Ledger | Path | str | None = None,
    population: str | None = None,
    rollback_protection: bool = True,
    secure_sum: SecureSum | None = None,
) -> Run:
    """Place data and model on the device, settle the privacy, and choose the chunk."""
    if rounds < 1 or rounds != int(rounds):
        raise UsageError(f"rounds must be a whole number of at least 1, not {rounds:g}.")
    check_number("eval_every", eval_every, least=1)
    check_share("dropout", dropout)
    _refuse_wrong_kinds(method, task, privacy, secure_sum)
    place = pick_device(device)
    train = task.placed_train(place, dtype)
    cohort = as_cohort(cohort, train.count, method, turns=secure_sum is not None)
    pick(dict.fromkeys(NOISE_MODES), noise_mode, "noise mode")
    if noise_seed is not None and noise_mode == "secure":
        raise UsageError("Secure noise is noise that nobody can repeat: leave noise_seed out, or choose noise_mode='fast'.")
    refuse_shares_without_a_secure_sum(method, secure_sum)
    method = as_run(method, cohort, train.count, noise_mode == "secure", secure_sum, dropout)
    task.refuse_impossible_values()
    learner = task.learner(place, dtype)
    held = {part: task.placed(part, place, dtype) for part in ("public", "validation", "test")}
    learner.probe(train.x, train.y)  # the whole of it, before any layer of it sees two clients at once
    apart = noise_mode == "secure" or secure_sum is not None
    learner, train, held = past_frozen_layers(learner, train, held, apart)
    if learner.whole is not None:
        learner.probe(train.x, train.y)
    if apart:
        learner.probe_nobodys(train.x, train.y)
    refuse_broken_metrics(task, learner, held["test"] if held["test"] is not None else held["validation"])
    public = held["public"]
    if method.pipeline.needs_public and public is None:
        raise UsageError(f"{method.name} learns from public examples and the task has none: give it some (public=N, --public N).")
    method = fitted(method, learner, public)
    enrolled = task.enrolled
    if delta is None and (privacy is None or privacy.delta is None) and is_private(method):
        delta = charging.delta_of(ledger, population or task.name, rollback_protection)
    method, plan, delta, allowed, refused = settle_privacy(method, cohort, enrolled, rounds, privacy, delta, dropout)
    if isinstance(cohort, Bounded) and cohort.lasts(train.count) < rounds:
        warnings.warn(cohort.too_short(train.count, rounds), stacklevel=2)
    if plan is not None:
        task.refuse_clients_examples()
    if refused is not None:
        method = replace(method, local=_initial_round(method, learner, train, cohort, seed))
    if noise_seed is not None and plan is not None:
        plan, refused = None, f"The noise came from a seed (noise_seed={noise_seed}): whoever knows it can take it off again."
    charging.refuse_idle_ledger(method, plan, ledger, population, rollback_protection)
    terms = None if secure_sum is None else secure_sum.terms_of(method, cohort, train.count, dropout, learner.dim, rounds)
    bytes_allowed = parse_bytes(memory) if memory is not None else default_memory(place)
    if method.local.draws_its_own:  # half for the clients side by side, half for the gradients of their single examples
        bytes_allowed //= 2
    learner.memory = bytes_allowed
    if chunk is None:
        chunk = (slots if apart else chunk_size)(learner, method.local, train.x, train.y, bytes_allowed)
    return Run(
        method=method,
        task=task,
        learner=learner,
        train=train,
        server=Server(learner, None if public is None else whole(public)),
        validation=held["validation"],
        test=held["test"],
        cohort=cohort,
        secret=Secret.of_seed(seed, noise_seed or 0) if plan is None else Secret.fresh(),  # what has no proof may repeat
        secure=plan is not None and plan.secure,
        apart=apart,
        run_id=os.urandom(8).hex(),
        fingerprint=fingerprint(method, task, cohort, dtype, rounds, seed, noise_seed, dropout, *arithmetic(place)),
        plan=plan,
        refused=refused,
        enrolled=enrolled,
        delta=delta,
        rounds=allowed,
        rounds_planned=rounds,
        seed=seed,
        chunk=max(1, chunk),
        dropout=dropout,
        notes=task.notes,
        eval_every=eval_every,
        track_test=track_test,
        diagnostics=plan is None if diagnostics is None else diagnostics,
        ledger=ledger.path if isinstance(ledger, Ledger) else Path(ledger) if ledger is not None else None,
        population=population or task.name,
        rollback_protection=rollback_protection and getattr(ledger, "rollback_protection", True),
        budget=privacy.epsilon if privacy is not None and plan is not None else None,
        federation=None if terms is None or secure_sum is None else FEDERATIONS[secure_sum.masks](train.count, terms),
    )


def past_frozen_layers(
    learner: FlatModel, train: Clients, held: dict[str, Examples | None], apart: bool
) -> tuple[FlatModel, Clients, dict[str, Examples | None]]:
    """Model and examples as the first layer that is trained sees them; as they are, where no layer before it is frozen."""
    parts = frozen.split(learner.module)
    if parts is None:
        return learner, train, held
    body, rest = parts
    seen = {name: frozen.seen_by(body, examples.x) for name, examples in held.items() if examples is not None and len(examples.x)}
    own = frozen.seen_by(body, train.x, train.sizes.tolist() if apart else ())
    if own is None or any(x is None for x in seen.values()):
        return learner, train, held
    past = {name: Examples(x, examples.y) for name, examples in held.items() if examples and (x := seen.get(name)) is not None}
    return learner.after(rest), replace(train, x=own), held | past


def fitted(method: Method, learner: FlatModel, public: Examples | None) -> Method:
    """The method, told how many public examples and classes there are, where a part of it asks."""
    if public is None or all(type(part).fitted is Transform.fitted for part in method.pipeline.parts):
        return method
    outputs = learner.predictions(learner.initial()[None], public.x[:1])[0]
    return method.fitted(len(public.x), outputs.shape[1] if outputs.dim() > 1 else 1)


def _initial_round(method: Method, learner: FlatModel, train: Clients, cohort: Cohort, seed: int) -> LocalUpdate:
    """What a paper's initial round finds out about the first clients' data: no proof covers it."""
    ids = torch.arange(min(train.count, max(1, round(cohort.size))), device=learner.device)
    data = train.shard(ids)._replace(own=OwnSecrets.simulated(Secret(bytes(32)), ids.tolist()))
    return method.local.initialised(learner, learner.initial(), data, keys_of(derive(seed, 3), ids))


def _refuse_wrong_kinds(method: object, task: object, privacy: object, secure_sum: object) -> None:
    """What Python would otherwise complain about somewhere deep inside."""
    if not isinstance(method, Method):
        raise UsageError(f"A method is a hush.Method, such as hush.methods.dp_fedavg(), not {method!r}.")
    if not isinstance(task, Task):
        raise UsageError(f"A task is a hush.Task or what hush.load_task returns, not {type(task).__name__}.")
    if secure_sum is not None and not isinstance(secure_sum, SecureSum):
        raise UsageError(f"secure_sum is a hush.SecureSum(), not {secure_sum!r}.")
    if privacy is not None and not isinstance(privacy, Budget):
        raise UsageError(f"privacy is a hush.Budget(epsilon=...), not {privacy!r}.")


def as_cohort(cohort: Cohort | int | float | None, clients: int, method: Method, turns: bool = False) -> Cohort:
    """A number is an expected size under Poisson sampling, or turns of that size; the default is a tenth of the clients."""
    if not isinstance(cohort, Cohort):
        size = float(cohort) if cohort is not None else max(1.0, clients / 10)
        cohort = Rotation(max(1.0, float(round(size)))) if turns or takes_turns(method) else Poisson(size)
    cohort.check(clients)
    return cohort


def start(run: Run, folder: RunDir | None) -> tuple[Snapshot, list[dict[str, Any]]]:
    """Where the run stands: at its beginning, or where its folder says."""
    params = run.learner.initial()
    now = Snapshot(0, params, run.method.init(params), run.cohort.init(run.train.count), params)
    if folder is None:
        return now, []
    saved = folder.read_tensors(CHECKPOINT)
    if saved is not None:
        now = Snapshot.from_disk(*saved, run.learner.device)
    if now.round > run.rounds:
        raise UsageError(f"{folder.path} is at round {now.round} already, past the {run.rounds} that this budget allows.")
    folder.keep_rounds("diagnostics.jsonl", now.round)
    return now, folder.keep_rounds("rounds.jsonl", now.round)


def _pay(account: RunAccount | None, now: Snapshot, run: Run, total: Tensor | None) -> int:
    return charging.charge(run, account, now, total)
