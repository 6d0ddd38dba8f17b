"""Paying for rounds: under which name a run is charged, in which ledger, and when."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from hush.config import RunConfig
from hush.core import Method
from hush.engines.federation import Remote
from hush.engines.fingerprint import INITIAL
from hush.engines.result import Result
from hush.engines.run import Run, Snapshot
from hush.engines.rundir import CHECKPOINT, IDENTITY, LEDGER, RunDir
from hush.errors import DataError, NoGuarantee, UsageError
from hush.privacy.accountant import fits
from hush.privacy.ledger import BudgetSpent, Ledger, RunAccount
from hush.privacy.plan import is_private
from hush.privacy.settle import as_charged
from hush.privacy.vocabulary import Plan
from hush.secret import Secret


def refuse_idle_ledger(method: Method, plan: Plan | None, config: RunConfig) -> None:
    """A ledger that would have nothing to write down, or what is said of a ledger where there is none."""
    ledger = config.ledger
    if ledger is not None and plan is None:
        how = "a proof" if is_private(method) else "noise"
        raise NoGuarantee(
            f"{method.name} releases its clients without {how}: a ledger has no number for that, and a budget no room.",
            "Leave the ledger out, or choose a private method.",
        )
    if config.population is not None and ledger is None:
        raise UsageError("A population is who a ledger keeps account of: give the ledger, too (ledger=..., --ledger FILE).")
    if not config.rollback_protection and ledger is None:
        raise UsageError("Rollback protection is a shared ledger's: give the ledger, too (ledger=..., --ledger FILE).")


def delta_of(ledger: str | None, population: str, rollback_protection: bool) -> float | None:
    """The delta of the budget that a run will be held to, where its ledger has one: what is said of the run is said at that."""
    if ledger is None or not Path(ledger).is_file():
        return None
    with closing(Ledger(ledger, rollback_protection=rollback_protection)) as opened:
        pool = opened.populations.get(population.strip())
        return pool.delta if pool is not None else None


def refuse_uncharged(run: Run, done: Result) -> None:
    """A complete run that is asked for with a ledger must have been charged there."""
    if run.config.ledger is None or run.privacy.plan is None or done.run_id is None:
        return
    with closing(Ledger(run.config.ledger, rollback_protection=run.config.rollback_protection)) as ledger:
        charged = sum(pool.runs[done.run_id].charges for pool in ledger.populations.values() if done.run_id in pool.runs)
    if charged < (done.rounds_charged or 0):
        raise UsageError(f"This run is complete and was charged elsewhere, not in {run.config.ledger}: choose another folder.")


def identified(run: Run, folder: RunDir | None) -> Run:
    """The run under a name of its own, or under the name and with the secret that its folder keeps until it is complete.

    Secure noise is never kept. A run that was set up once and is trained twice is two runs.
    """
    if run.privacy.plan is not None:
        run = replace(run, identity=replace(run.identity, run_id=os.urandom(8).hex(), secret=Secret.fresh()))
    if folder is None:
        return run
    if folder.has(IDENTITY):
        kept = folder.read_json(IDENTITY)
        _refuse_another(run, kept["fingerprint"], folder)
        run = replace(run, identity=replace(run.identity, run_id=kept["run_id"]))
        if run.identity.secure or "secret" not in kept:
            return run.drawing(run.identity.secret, secure=True)
        return run.drawing(Secret(bytes.fromhex(kept["secret"])))
    if folder.has(CHECKPOINT):
        raise DataError(f"{folder.path} holds a run without its {IDENTITY}: what it released cannot be told, and it cannot go on.")
    _keep(run, folder)
    return run


def _refuse_another(run: Run, known: dict[str, str], folder: RunDir) -> None:
    """Only the same run goes on: the same settings, the same start, the same data."""
    other = [name for name, digest in run.identity.fingerprint.items() if known.get(name) != digest]
    if not other:
        return
    fix = ": call torch.manual_seed before building the model" if other == [INITIAL] else ": it cannot go on from here"
    raise DataError(f"{folder.path} holds a run with other {' and other '.join(other)}{fix}.")


def _keep(run: Run, folder: RunDir) -> None:
    kept = {"run_id": run.identity.run_id, "fingerprint": dict(run.identity.fingerprint), "charged": run.privacy.plan is not None}
    folder.write_json(IDENTITY, kept if run.identity.secure else kept | {"secret": run.identity.secret.key.hex()}, mode=0o600)


def drawing_here(run: Run, folder: RunDir, account: RunAccount) -> Run:
    """The run with its kept secret, where this machine began it; elsewhere with another, for good.

    A folder that was copied halfway may go on in two places, and the memory of one knows nothing of the other: with one secret the
    same noise would cover two sums. Where nothing was charged yet, the run begins here.
    """
    if run.identity.secure or account.ledger.charged_here(run.identity.run_id):
        return run
    if account.charges:
        told = "This machine does not remember this run: the rounds that are left are drawn with a secret of their own."
        warnings.warn(told, stacklevel=2)
    run = run.drawing(Secret.fresh(), secure=account.charges > 0)
    _keep(run, folder)
    return run


@contextmanager
def account_of(run: Run, folder: RunDir | None, now: Snapshot) -> Iterator[RunAccount | None]:
    """Where this run's rounds are charged: the ledger it shares, or one of its own; the one where they were charged so far."""
    path = run.config.ledger or (folder.path / LEDGER if folder is not None else None)
    if run.privacy.plan is None or path is None:
        yield None
        return
    with closing(Ledger(path, own=run.config.ledger is None, rollback_protection=run.config.rollback_protection)) as ledger:
        name = run.config.population or run.data.task.name
        federation = run.privacy.federation
        roster = federation.roster if isinstance(federation, Remote) else None
        account = ledger.open_run(run.identity.run_id, name, run.privacy.plan, roster)
        if account.charges < now.charges or ledger.charged_here(account.run) is False:
            raise DataError(
                f"{path} holds {account.charges} charges of this run, and "
                + (f"{now.charges} were made" if account.charges < now.charges else "this machine made some elsewhere")
                + ": it is not the ledger that the run was charged in. Give that one."
            )
        if account.new and run.config.ledger is not None:
            warnings.warn(f"'{name}' is new in {path} and has no budget: rounds are recorded, not limited.", stacklevel=2)
        yield account


def charge(run: Run, account: RunAccount | None, now: Snapshot, total: Tensor | None) -> int:
    """Pay for this round's noise before it is drawn, or before a sum that holds it is opened; how many have been paid for by now.

    Fast noise repeats, so the same sum in the same round of the same run is the same release, and paid for once. One that differs
    in a single bit raises `DrawnBefore`: it needs a cohort and noise of its own.
    """
    if account is None:
        return now.charges + 1
    round = now.counted
    attempt = run.identity.attempt
    if not attempt:
        assert total is not None
        attempt = run.identity.secret.mark("attempt", round, total)
    if account.has_paid(round, attempt):
        return account.charges
    plan, delta, budget = run.privacy.plan, run.privacy.delta, run.privacy.budget
    if budget is not None and plan is not None and delta is not None and account.charges > round:
        again = as_charged(plan, round + 1, account.charges + 1)  # rounds that were drawn again count, too
        if not fits(again, delta, again.rounds, budget):
            raise BudgetSpent(f"the budget of this run, epsilon {budget:g}, would be exceeded")
    account.charge(round, attempt, run.identity.secure)
    return account.charges
