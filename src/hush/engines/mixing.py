"""Sensitivity is per client: nobody's row may depend on a neighbour. It is tried, and refused where it does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hush.core import Method, Public, Round, Shard, Trained
from hush.engines.run import Run
from hush.errors import HushError, UsageError
from hush.local.dp_sgd import DpSgd, Read
from hush.local.flat import FlatModel
from hush.local.per_example import places_at_once
from hush.local.record_gradients import RecordGradients
from hush.local.records import in_places
from hush.own import OwnSecrets
from hush.random import derive, keys_of, uniform
from hush.rows import places


def refuse_mixed_rows(
    method: Method, encoded: Tensor, one: Trained, rnd: Round, keys: Tensor, public: Public, own: OwnSecrets | None
) -> None:
    """Encode one client's update alone, and see that its neighbours made no difference."""
    alone = method.pipeline.send(one.updates, rnd, keys, public, own, None, one.scores)
    if torch.equal(alone, encoded):  # as nearly always
        return
    alone, row = alone.double(), encoded.double()
    finite = row[torch.isfinite(row)]
    usual, most = (float(finite.square().mean().sqrt()), float(finite.abs().max())) if len(finite) else (0.0, 0.0)
    least = 1e-3 * usual + 1e-6 * most if encoded.is_floating_point() else 1.0  # rounding may fall to either side of an integer
    if not torch.allclose(alone, row, rtol=1e-3, atol=least, equal_nan=True):
        raise UsageError(
            f"The pipeline of {method.name} lets clients affect each other's rows, so no bound holds: encode row by row, with "
            "randomness from rnd.seed or keys."
        )


FEW_RECORDS = 8


def refuse_mixed_records(
    method: Method, learner: FlatModel, params: Tensor, data: Shard, client: int, keys: Tensor, rnd: Round, public: Public
) -> None:
    """Take one record of a client out of a batch: the sum of whole numbers must lose that record's row, and nothing else."""
    local, count = method.local, len(data.size)
    if not (local.by_record or local.exact):
        return

    def total(numbers: list[int]) -> Tensor:
        chosen = [np.array(numbers if i == client else [], dtype=np.int64) for i in range(count)]
        batch = in_places(data, chosen, places_at_once(learner, count))
        if isinstance(local, DpSgd):
            active = local.active(keys, learner.dim)
            return local.sums(learner, params.expand(count, -1), Read.of(data, batch, keys, active)).sums[client]
        assert isinstance(local, RecordGradients)
        encode = partial(_encode, method, rnd, public)
        return local.of_records(learner, params, data, batch, keys, encode).updates[client]

    everybody = list(range(min(FEW_RECORDS, int(data.size[client]))))
    for one in everybody[:: max(1, len(everybody) - 1)]:
        others = [i for i in everybody if i != one]
        if not torch.equal(total(everybody), total(others) + total([one])):
            raise UsageError(
                f"With {method.name} on this device, a record's gradient changes with who else is in the batch, so no bound "
                "holds for it: use a model whose examples do not affect each other (no batch normalisation), or a CPU."
            )


def _encode(method: Method, rnd: Round, public: Public, rows: Tensor, keys: Tensor) -> Tensor:
    return method.pipeline.encode(rows, rnd, keys, public)


def refuse_mixed_training(run: Run, params: Tensor, two: Tensor, rnd: Round, public: Public) -> None:
    """Train two clients beside each other, and again with other neighbours: a shard holds everybody's rows.

    In float64, in which nothing but a neighbour explains a difference, for the two steps that a trial takes; or in the precision
    of the run where model or loss take no other.
    """
    learner = run.data.learner if run.chunk > 1 else run.data.learner.one_by_one()  # there may be no room for two side by side
    try:
        mixed = _is_mixed(run, learner.in_float64(), params, two, rnd, public, 1e-6)
    except HushError:
        raise
    except Exception:  # what is written for single precision
        rounding = 2e-2 if learner.device.type == "cuda" else 1e-3
        mixed = _is_mixed(run, learner, params, two, rnd, public, rounding)
    if mixed:
        raise UsageError(
            f"Local training of {run.method.name} takes a client elsewhere beside others than alone, so no bound holds: let it "
            "read the client's own rows (x[start:start + size], not all of x) and draw from keys, not from a generator of its own."
        )


def _is_mixed(run: Run, learner: FlatModel, params: Tensor, some: Tensor, rnd: Round, public: Public, rounding: float) -> bool:
    """Whether one of two clients ends elsewhere when its neighbour is another.

    On their own examples, beside a copy of itself in the neighbour's place: so nothing but the neighbour's data changes, no shape
    and no order, by which rounding alone may take a client elsewhere (a black image, normalised, is nothing but rounding). Then on
    examples that were drawn, beside each other and each alone: so the place counts, too, and whether anybody is there.
    """
    told = replace(rnd, room=run.method.pipeline.room(None, public))
    both = _only(run, some, learner.dtype)

    def updates(data: Shard, ids: Tensor = some) -> Tensor:
        own = OwnSecrets.simulated(run.identity.secret, ids.tolist()) if run.method.draws_its_own else None
        keys = keys_of(derive(run.config.seed, 2, rnd.index), ids)
        local, at = run.method.local.shortened(2), params.to(learner.dtype)
        return local(learner, at, data._replace(own=own), told, keys, public).updates.double()

    def differ(a: Tensor, b: Tensor) -> bool:
        return not torch.allclose(a, b, rtol=rounding, atol=rounding * float(b.nan_to_num().abs().max()), equal_nan=True)

    beside = updates(both)
    if any(differ(beside[i], updates(_beside_itself(both, i))[i]) for i in (0, 1)):
        return True
    drawn = of_nobody(both)
    if drawn is None:
        return False
    beside = updates(drawn)
    return any(differ(beside[i], updates(_alone(drawn, i), some[i : i + 1])[0]) for i in (0, 1))


def _only(run: Run, ids: Tensor, dtype: torch.dtype) -> Shard:
    """These clients' data without anybody else's."""
    shard = run.data.train.shard(ids)
    rows, _ = places(shard.start, shard.size)
    x, y = shard.x[rows], shard.y[rows]
    x, y = (v.to(dtype) if v.is_floating_point() else v for v in (x, y))
    return Shard(x, y, torch.cumsum(shard.size, 0) - shard.size, shard.size)


def _alone(both: Shard, i: int) -> Shard:
    """One of two clients' data without the other's."""
    own = slice(int(both.start[i]), int(both.start[i] + both.size[i]))
    return Shard(both.x[own], both.y[own], torch.zeros_like(both.start[:1]), both.size[i : i + 1])


def _beside_itself(both: Shard, i: int) -> Shard:
    """The same two clients, but the other one holds what client `i` holds, over and over, as much as it held itself."""
    (first, size), (start, others) = ((int(both.start[j]), int(both.size[j])) for j in (i, 1 - i))
    again = first + torch.arange(others, device=both.x.device) % size
    x, y = both.x.clone(), both.y.clone()
    x[start : start + others], y[start : start + others] = both.x[again], both.y[again]
    return both._replace(x=x, y=y)


def of_nobody(both: Shard) -> Shard | None:
    """As many examples of nobody: no two values are alike, and no sum of them is nothing but rounding.

    Whole numbers lie between the lowest and the highest at their place, so that tables have them; None where these are all alike.
    """
    x = both.x
    lengths = (len(x), x.shape[1:].numel())
    rows, columns = (uniform(keys_of(i, torch.arange(n, device=x.device)), ()) for i, n in enumerate(lengths))
    drawn = ((rows[:, None] + columns) % 1.0).reshape(x.shape)
    if x.is_floating_point():
        return both._replace(x=drawn.to(x.dtype))
    low, high = (v.long() for v in (x.amin(0), x.amax(0)))
    if torch.equal(low, high):
        return None
    return both._replace(x=torch.minimum(low + (drawn * (high - low + 1)).long(), high).to(x.dtype))
