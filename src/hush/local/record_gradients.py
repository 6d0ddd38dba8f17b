"""One step's gradients, record by record: each is encoded by itself, and a client's message is their sum.

    message_i = sum over the records j that client i draws of encode(grad l(theta, z_j))

What `encode` (the pipeline's mask, clip and grid) makes of a record depends on that record, the model and public randomness alone,
and adding up whole numbers is exact. So a record that is left out changes the message by its own row and by nothing else, and the
row is no longer than the clip. Under a secure sum with shares of noise the server sees DP-SGD over the records of all clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from scipy import stats
from torch import Tensor

from hush.checks import MANY, check_number
from hush.core import LocalUpdate, Public, Round, Shard, Trained
from hush.errors import UsageError
from hush.local.flat import FlatModel
from hush.local.per_example import example_rows
from hush.local.records import blocks_of_records
from hush.local.sgd import batch_width
from hush.random import fold

Encode = Callable[[Tensor, Tensor], Tensor]
"""`[rows, d]` gradients and a public key for each to `[rows, m]` whole numbers, row by row."""
_BYTES = 80
"""What an entry of one record's gradient takes until it is a whole number: autograd's, and a few copies in float64."""
_RARELY = 2.0**-40


@dataclass(frozen=True)
class RecordGradients(LocalUpdate):
    """Every record is in a step by its own secret coin of chance `rate`, the same for all records of all clients."""

    rate: float
    batch_size: int = 10

    def __post_init__(self) -> None:
        check_number("rate", self.rate, above=0, most=1)
        check_number("batch_size", self.batch_size, least=1, most=MANY)

    @property
    def draws_its_own(self) -> bool:
        return True

    @property
    def by_record(self) -> bool:
        return True

    def size_class(self, sizes: Tensor) -> Tensor:
        """How many rows a client of this size works on, however many it draws."""
        return torch.tensor([_room(size, self.rate) for size in sizes.tolist()])

    def messages(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, encode: Encode) -> Trained:
        """Each client's sum of its drawn records' encoded gradients, `[clients, m]`, in blocks of one shape."""
        if data.own is None:
            raise UsageError("Records are drawn from the clients' own secrets, and this shard has none (Shard.own).")
        count, room = len(data.size), max(self.size_class(data.size).tolist(), default=1)
        width = min(room, max(1, learner.memory // (_BYTES * learner.dim * max(count, 1))))
        at, total, losses = params.expand(count, -1), None, params.new_zeros(count)
        drawn = params.new_zeros(count)
        for batch in blocks_of_records(data, rnd, self.rate, width, math.ceil(room / width)):
            numbers = data.numbers_of(batch.rows)
            found = example_rows(learner, at, data.x[batch.rows], data.y[batch.rows], batch.real, keys, numbers)
            rows = encode(found.gradients.flatten(0, 1), fold(keys[:, None], numbers).flatten())
            rows = rows.masked_fill_(~found.counts.flatten()[:, None], 0).view(count, width, -1).sum(1)
            total = rows if total is None else total.add_(rows)
            losses += torch.where(found.counts, found.losses, 0.0).sum(1)
            drawn += found.counts.sum(1)
        assert total is not None
        return Trained(total, losses / drawn.clamp_min(1))

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        """The same in floating point, unclipped: for trials and estimates."""
        return self.messages(learner, params, data, rnd, keys, lambda rows, own: rows.nan_to_num(0.0, 0.0, 0.0))

    def with_everybody(self) -> RecordGradients:
        """The same step on all records, for trials."""
        return replace(self, rate=1.0)


@lru_cache(maxsize=4096)
def _room(size: int, rate: float) -> int:
    """Rows for what a client may draw whose size may be known by its power of two alone: as many as it hardly ever exceeds.

    All are worked on in every step, drawn or not, so that time does not tell how many there were. Beyond it comes one more block.
    """
    upper = batch_width(size, MANY)
    return upper if rate >= 1 else max(1, min(upper, int(stats.binom.isf(_RARELY, upper, rate))))
