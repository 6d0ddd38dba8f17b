"""Sensitivity is per client: nobody's row may depend on a neighbour. It is tried, and refused where it does."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hush.core import Method, Public, Round, Shard
from hush.engines.run import Run
from hush.errors import UsageError
from hush.own import OwnSecrets
from hush.random import derive, keys_of
from hush.rows import places


def refuse_mixed_rows(
    method: Method, encoded: Tensor, update: Tensor, rnd: Round, keys: Tensor, public: Public, own: OwnSecrets | None
) -> None:
    """Encode one client's update alone, and see that its neighbours made no difference."""
    alone, row = method.pipeline.send(update, rnd, keys, public, own).double(), encoded.double()
    finite = row[torch.isfinite(row)]
    usual, most = (float(finite.square().mean().sqrt()), float(finite.abs().max())) if len(finite) else (0.0, 0.0)
    least = 1e-3 * usual + 1e-6 * most if encoded.is_floating_point() else 1.0  # rounding may fall to either side of an integer
    if not torch.allclose(alone, row, rtol=1e-3, atol=least, equal_nan=True):
        raise UsageError(
            f"The pipeline of {method.name} lets clients affect each other's rows, so no bound holds: encode row by row, with "
            "randomness from rnd.seed or keys."
        )


def refuse_mixed_training(run: Run, params: Tensor, ids: Tensor, rnd: Round, public: Public) -> None:
    """Train two clients beside each other and each alone: a shard holds everybody's rows.

    In float64, in which nothing but a neighbour explains a difference, for the two steps that a trial takes.
    """
    local = run.method.local
    learner, some = run.data.learner, ids[[0, -1]]
    exact = learner.in_float64()
    told = replace(rnd, room=run.method.pipeline.room(None, public))

    def updates(who: Tensor) -> Tensor:
        own = OwnSecrets.simulated(run.identity.secret, who.tolist()) if run.method.draws_its_own else None
        keys, data = keys_of(derive(run.config.seed, 2, rnd.index), who), _only(run, who, torch.float64)
        return local.shortened(2)(exact, params.double(), data._replace(own=own), told, keys, public).updates.double()

    beside, alone = updates(some), torch.cat([updates(one) for one in torch.split(some, 1)])
    if not torch.allclose(beside, alone, rtol=1e-5, atol=1e-7 * float(alone.nan_to_num().abs().max()), equal_nan=True):
        raise UsageError(
            f"Local training of {run.method.name} takes a client elsewhere beside others than alone, so no bound holds: let it "
            "read the client's own rows (x[start:start + size], not all of x) and draw from keys, not from a generator of its own."
        )


def _only(run: Run, ids: Tensor, dtype: torch.dtype) -> Shard:
    """These clients' data without anybody else's."""
    shard = run.data.train.shard(ids)
    rows, _ = places(shard.start, shard.size)
    x, y = shard.x[rows], shard.y[rows]
    x, y = (v.to(dtype) if v.is_floating_point() else v for v in (x, y))
    return Shard(x, y, torch.cumsum(shard.size, 0) - shard.size, shard.size)
