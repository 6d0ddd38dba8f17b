"""Which of its own records a client reads at each step: drawn anew every time, and known to nobody else.

That secrecy is what amplifies the privacy of a record, also against a server that sees every message: a batch is a fresh draw from
the client's own stream, never an epoch's shuffle, and what divides the gradient is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hush.checks import MANY
from hush.core import Round, Shard
from hush.errors import UsageError
from hush.local.sgd import Batch, batch_width
from hush.own import OwnWords

KINDS = ("fixed", "poisson")
_AHEAD = 1 << 21
"""Words that a client draws at once."""


def record_batches(data: Shard, rnd: Round, kind: str, batch: int, steps: int, rate: float | None = None) -> Iterator[Batch]:
    """`steps` batches of every client: `batch` of its records without replacement, or each by its own coin: batch/size, or `rate`.

    A client that has no more than `batch` records reads them all, every time.
    """
    if data.own is None:
        raise UsageError(
            "Batches of records are drawn from the clients' own secrets, and this shard has none (Shard.own): a local update that "
            "wraps DpSgd must say so, draws_its_own = True."
        )
    words = data.own.words("records", rnd.index)
    sizes = data.size.tolist()
    starts = data.start.clamp_max(max(len(data.x) - 1, 0))  # of a client without records, which reads nothing
    width = record_width(max(sizes, default=0), kind, batch) if data.slots else 1
    ahead = max(1, _AHEAD // max(1, sum(sizes)))
    for first in range(0, steps, ahead):
        some = min(ahead, steps - first)
        if rate is None:
            drawn = [_draws(words, c, m, min(batch, m), kind == "poisson", some) for c, m in enumerate(sizes)]
        else:
            drawn = [[_by_coin(words, c, m, rate) for _ in range(some)] for c, m in enumerate(sizes)]
        for step in range(some):
            yield _as_batch([rows[step] for rows in drawn], starts, width)


def blocks_of_records(data: Shard, rnd: Round, rate: float, width: int, least: int) -> Iterator[Batch]:
    """One draw of every client's records, each by its own coin of chance `rate`: blocks of `width` rows a client.

    There are `least` blocks, however few records were drawn; more where these do not hold them.
    """
    assert data.own is not None
    words, starts = data.own.words("records", rnd.index), data.start.clamp_max(max(len(data.x) - 1, 0))
    drawn = [_by_coin(words, c, size, rate) for c, size in enumerate(data.size.tolist())]
    blocks = max(least, *(-(-len(rows) // width) for rows in drawn)) if drawn else 0
    for first in range(0, blocks * width, width):
        yield _as_batch([rows[first : first + width] for rows in drawn], starts, width)


def _by_coin(words: OwnWords, client: int, size: int, rate: float) -> np.ndarray:
    """Records by their own coins. The chance is `rate` cut to 64 bits: never above it."""
    if rate >= 1:
        return np.arange(size)
    return np.flatnonzero(words.take(client, size) < np.uint64(int(rate * 2.0**64)))


def record_width(size: int, kind: str, batch: int) -> int:
    """Rows of a batch that hold what a client of this size may draw, where its size may be known by its power of two alone."""
    return batch_width(size, MANY if kind == "poisson" else batch)


def _draws(words: OwnWords, client: int, size: int, batch: int, poisson: bool, steps: int) -> list[np.ndarray]:
    """One client's records at each of the next steps, by their numbers."""
    if batch == size:  # all, or none at all
        return [np.arange(size)] * steps
    coins = words.take(client, steps * size).reshape(steps, size)
    if poisson:
        return [np.flatnonzero(row) for row in coins < np.uint64((batch << 64) // size)]
    return list(np.sort(np.argpartition(coins, batch - 1, axis=1)[:, :batch], axis=1))


def _as_batch(chosen: list[np.ndarray], starts: torch.Tensor, least: int = 1) -> Batch:
    """Ragged choices side by side; a padded row repeats the client's first record and is not real."""
    width = max(least, max((len(rows) for rows in chosen), default=1))
    rows, real = np.zeros((len(chosen), width), dtype=np.int64), np.zeros((len(chosen), width), dtype=bool)
    for client, own in enumerate(chosen):
        rows[client, : len(own)], real[client, : len(own)] = own, True
    return Batch(torch.from_numpy(rows).to(starts.device) + starts[:, None], torch.from_numpy(real).to(starts.device))
