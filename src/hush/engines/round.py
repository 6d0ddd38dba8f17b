"""One round, all stations in their order: who takes part, what they send, the sum, the charge, the noise, the step."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hush.core import State
from hush.engines.diagnostics import Recorder, client_spread, watched
from hush.engines.federation import Remote
from hush.engines.judge import is_judged, judge
from hush.engines.run import Run, Snapshot
from hush.engines.sharded import Share
from hush.engines.summing import Summed, all_rows, plain_sum, read_ahead, secure_sum
from hush.errors import Diverged
from hush.privacy.ledger import DrawnBefore
from hush.privacy.plan import is_private
from hush.secret import Secret
from hush.tasks.stored import Stored

Pay = Callable[[Run, Tensor | None], int]
"""Charges a round, and says how many were by now."""


def play_round(run: Run, now: Snapshot, charge: Pay | None = None) -> tuple[Snapshot, dict[str, Any], dict[str, Any]]:
    """One round, and what may be published of it, and what may not. `charge` pays for it between the sum and the noise.

    A round that was released before with another sum (rounding on a GPU, a generator that Hush knows nothing of) is drawn afresh,
    cohort and noise: the same noise under both would be no noise on their difference.
    """
    try:
        return _play_round(run, now, charge)
    except DrawnBefore as why:
        warnings.warn(f"{str(why).capitalize()}: it is drawn afresh, and charged again.", stacklevel=2)
        return _play_round(run.drawing(Secret.fresh(), secure=True), now, charge)


def play_share(run: Run, share: Share) -> None:
    """A round's work in a process that helps another one: train some of the cohort, and send what they send."""
    run, recorder = run.drawing(Secret(share.key)), Recorder(share.rnd.cohort)
    method = watched(run.method, recorder) if run.config.diagnostics else run.method
    work = (run, method, share.params, share.ids, share.rnd, share.public, recorder)
    if share.rows:
        deque(all_rows(*work), maxlen=0)
    else:
        plain_sum(*work)


def _cohort(run: Run, now: Snapshot) -> tuple[Tensor, State]:
    """Who takes part in the round that comes now and answers, and what that leaves of the cohort's state."""
    ids, state = run.cohort.draw(now.counted, run.data.train.count, now.cohort_state, run.identity.secret)
    if run.config.dropout and run.privacy.federation is None:
        ids = ids[run.identity.secret.coins("dropout", now.round, len(ids)) >= run.config.dropout]
    return ids, state


def _play_round(run: Run, now: Snapshot, charge: Pay | None) -> tuple[Snapshot, dict[str, Any], dict[str, Any]]:
    rnd = run.round(now.round)
    ids, cohort_state = _cohort(run, now)
    if now.round + 1 < run.rounds and isinstance(run.data.train, Stored):
        following = replace(now, round=now.round + 1, cohort_state=cohort_state)
        read_ahead(run, _cohort(run, following)[0])
    recorder = Recorder(rnd.cohort)
    method = watched(run.method, recorder) if run.config.diagnostics else run.method
    public = method.prepare(now.params, now.state, rnd, run.data.server)
    pay: Callable[[Tensor | None], int] = partial(charge, run) if charge is not None else lambda total: now.charges + 1
    if run.privacy.federation is None:
        total = plain_sum(run, method, now.params, ids, rnd, public, recorder)
        summed = Summed(total, pay(total))
    elif isinstance(run.privacy.federation, Remote):
        summed = run.privacy.federation.sum_of(run, now, ids, rnd, public, pay)
    else:
        summed = secure_sum(run, method, now, ids, rnd, public, recorder, pay)
    openly = run.config.diagnostics or run.privacy.plan is None  # how many clients returned NaN is an un-noised fact about them
    bad = recorder.not_finite if openly else 0  # they contribute zero
    if bad and bad == sum(map(len, recorder.update_norms)):
        warnings.warn("In some rounds every client returned NaN or infinity: check the data, or lower lr.", stacklevel=2)
    params, state = now.params, now.state
    if summed.total is not None:
        params, state = method.finish(params, summed.total, state, rnd, public, run.identity.secret)
    if not bool(torch.isfinite(params).all()):
        raise Diverged(
            f"The model became NaN or infinite in round {now.round + 1} of {run.rounds}: lower lr"
            + (f", or look for NaN in the data ({bad} of its clients returned such)" if bad else "")
            + ("" if is_private(run.method) else ", or choose a method that clips")
            + "."
        )
    worked = recorder.worked
    now = replace(
        now,
        round=now.round + 1,
        params=params,
        state=state,
        cohort_state=cohort_state,
        charges=summed.charges,
        aborted=now.aborted + summed.broke_off,
        sent=now.sent + summed.sent,
        received=now.received + summed.received,
        begun=max(now.begun, summed.begun),
        computed=now.computed + worked[0],
        own=now.own + worked[1],
        train_loss=recorder.train_loss if recorder.losses and run.config.diagnostics else now.train_loss,
    )
    now, record = judge(run, now)
    if summed.why:
        record["broke_off"] = summed.why
    if summed.tried_again:
        record["tried_again"] = summed.tried_again
    if summed.trip_seconds is not None and summed.traffic is not None:
        record |= {"trip_seconds": dict(summed.trip_seconds), "traffic": dict(summed.traffic)}
    details: dict[str, Any] = {}
    if run.config.diagnostics:
        details = {"round": now.round, "un_noised": True} | recorder.summary()
        if is_judged(run, now.round):
            details |= client_spread(run.data.learner, run.method.model(now.params, now.state), run.data.train, ids)
    return now, record, details
