"""Vectorised simulation: the cohort is one tensor, trained chunk by chunk; memory is a setting, not a matter of the cohort."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from hush.core import Method
from hush.engines import charging
from hush.engines.conclude import conclude, configuration
from hush.engines.result import Result, released
from hush.engines.round import play_round
from hush.engines.run import Run, Snapshot
from hush.engines.rundir import CHECKPOINT, IDENTITY, RunDir, tensors_as_bytes
from hush.engines.setup import Keywords, set_up
from hush.errors import UsageError
from hush.privacy.ledger import BudgetSpent, RunAccount
from hush.tasks.task import Task
from hush.version import __version__

__all__ = ["OnRound", "set_up", "simulate", "start", "train"]

OnRound = Callable[[dict[str, Any]], None]


def simulate(
    method: Method,
    task: Task,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    **keywords: Unpack[Keywords],
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
    if out is not None and not isinstance(out, Path | str):
        raise UsageError(f"out is a folder, not {out!r}.")
    run = set_up(method, task, **keywords)
    return train(run, out=Path(out) if out is not None else None, resume=resume, on_round=on_round)


def train(run: Run, *, out: Path | None = None, resume: bool = False, on_round: OnRound | None = None) -> Result:
    """Every round of a run that was set up, checkpointed after each where it has a folder."""
    folder = RunDir(out) if out is not None else None
    if folder is not None and folder.finished and resume:
        done = Result.read(folder)
        if done.configuration == configuration(run):
            folder.forget_secrets()
            charging.refuse_uncharged(run, done)
            return done
    if folder is not None and (folder.finished or (folder.started and not resume)):
        raise UsageError(f"{folder.path} already holds a {'complete ' if folder.finished else ''}run: choose another folder.")
    begun = folder is not None and folder.has(IDENTITY)
    run = charging.identified(run, folder)
    now, history = start(run, folder)
    with charging.account_of(run, folder, now) as account:
        if account is not None:  # a round that was paid for and not reached counts from the first record on
            now = replace(now, charges=max(now.charges, account.charges))
        if account is not None and folder is not None and begun:
            run = charging.drawing_here(run, folder, account)
        result = _all_rounds(run, now, history, folder, account, on_round)
        if folder is not None:
            _write(folder, result, account)
    return result


def _write(folder: RunDir, result: Result, account: RunAccount | None) -> None:
    """Model, certificate and result; the ledger knows their hashes before anybody can read them, and that of the rounds."""
    model = tensors_as_bytes(result.state_dict, {"hush": __version__})
    certificate, figures = result.certificate(hashlib.sha256(model).hexdigest()), result.to_dict()
    if account is not None:
        account.release(**released(certificate, figures, folder))
    folder.write_bytes("model.safetensors", model)
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
            stopped = f"budget: in round {now.round + 1} of {run.config.rounds} {enough}"
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


def start(run: Run, folder: RunDir | None) -> tuple[Snapshot, list[dict[str, Any]]]:
    """Where the run stands: at its beginning, or where its folder says."""
    params = run.data.learner.initial()
    now = Snapshot(0, params, run.method.init(params), run.cohort.init(run.data.train.count), params)
    if folder is None:
        return now, []
    saved = folder.read_tensors(CHECKPOINT)
    if saved is not None:
        now = Snapshot.from_disk(*saved, run.data.learner.device)
    if now.round > run.rounds:
        raise UsageError(f"{folder.path} is at round {now.round} already, past the {run.rounds} that this budget allows.")
    folder.keep_rounds("diagnostics.jsonl", now.round)
    return now, folder.keep_rounds("rounds.jsonl", now.round)


def _pay(account: RunAccount | None, now: Snapshot, run: Run, total: Tensor | None) -> int:
    return charging.charge(run, account, now, total)
