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
    width = record_width(max(data.size.tolist(), default=0), kind, batch) if data.slots else 1
    for drawn in drawn_records(data, rnd, kind, batch, steps, rate):
        yield side_by_side(data, drawn, width)


def drawn_records(
    data: Shard, rnd: Round, kind: str, batch: int, steps: int, rate: float | None = None
) -> Iterator[list[np.ndarray]]:
    """The same draws as numbers of each client's own records."""
    if data.own is None:
        raise UsageError(
            "Batches of records are drawn from the clients' own secrets, and this shard has none (Shard.own): a local update that "
            "wraps DpSgd must say so, draws_its_own = True."
        )
    words, sizes = data.own.words("records", rnd.index), data.size.tolist()
    ahead = max(1, _AHEAD // max(1, sum(sizes)))
    for first in range(0, steps, ahead):
        some = min(ahead, steps - first)
        if rate is None:
            drawn = [_draws(words, c, m, min(batch, m), kind == "poisson", some) for c, m in enumerate(sizes)]
        else:
            drawn = [[_by_coin(words, c, m, rate) for _ in range(some)] for c, m in enumerate(sizes)]
        yield from ([rows[step] for rows in drawn] for step in range(some))


def side_by_side(data: Shard, chosen: list[np.ndarray], least: int = 1) -> Batch:
    """Each client's chosen records, by number, as they come."""
    width = max(least, max((len(rows) for rows in chosen), default=1))
    rows, real = (np.zeros((len(chosen), width), dtype=kind) for kind in (np.int64, bool))
    for client, own in enumerate(chosen):
        rows[client, : len(own)], real[client, : len(own)] = own, True
    return _of_rows(rows, real, _starts(data))


def in_places(data: Shard, chosen: list[np.ndarray], width: int, blocks: int = 1) -> Batch:
    """Each client's chosen records, by number, in blocks of `width` rows: at least so many, and more where that takes more.

    In a block a record has a place of its own, its number modulo `width`, whoever else was chosen: in the same shape and at the
    same place the arithmetic is the same to the last bit, so what comes of a record depends on no other.
    """
    turns = [_turns(own % width) for own in chosen]
    blocks = max([blocks, *(int(turn.max()) + 1 for turn in turns if len(turn))])
    rows, real = (np.zeros((len(chosen), blocks * width), dtype=kind) for kind in (np.int64, bool))
    for client, (own, turn) in enumerate(zip(chosen, turns, strict=True)):
        at = turn * width + own % width
        rows[client, at], real[client, at] = own, True
    return _of_rows(rows, real, _starts(data))


def _turns(places: np.ndarray) -> np.ndarray:
    """How many before it ask for the same place."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    turns = np.empty_like(places)
    turns[order] = np.arange(len(places)) - np.searchsorted(ordered, ordered)
    return turns


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


def _of_rows(rows: np.ndarray, real: np.ndarray, starts: torch.Tensor) -> Batch:
    """A padded row repeats the client's first record and is not real."""
    return Batch(torch.from_numpy(rows).to(starts.device) + starts[:, None], torch.from_numpy(real).to(starts.device))


def _starts(data: Shard) -> torch.Tensor:
    """Where clients' records begin: somewhere, too, for one without records, which reads nothing."""
    return data.start.clamp_max(max(len(data.x) - 1, 0))
