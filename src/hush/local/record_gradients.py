"""One step's gradients, record by record: each is encoded by itself, and a client's message is their sum.

    message_i = sum over the records j that client i draws of encode(grad l(theta, z_j))

What `encode` (the pipeline's mask, clip and grid) makes of a record depends on that record, the model and public randomness alone,
and adding up whole numbers is exact. So a record that is left out changes the message by its own row and by nothing else, and the
row is no longer than the clip. Under a secure sum with shares of noise the server sees DP-SGD over the records of all clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from scipy import stats
from torch import Tensor

from hush.checks import MANY, check_number
from hush.core import LocalUpdate, Public, Round, Shard, Trained
from hush.local.flat import FlatModel
from hush.local.per_example import Encode, encoded_sums, places_at_once
from hush.local.records import drawn_records, in_places
from hush.local.sgd import Batch, batch_width

_RARELY = 2.0**-40
MUCH_MORE = 2
"""Times as many records as a sum was made for, before it is said that it may wrap around: they do not all point one way."""


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
        """Clients of like size work on as many rows, however many they draw."""
        return torch.tensor([batch_width(size, MANY) for size in sizes.tolist()])

    def messages(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, encode: Encode) -> Trained:
        """Each client's sum of its drawn records' encoded gradients, `[clients, m]`, in blocks of one shape."""
        width = places_at_once(learner, len(data.size))
        blocks = max([_blocks(size, self.rate, width) for size in data.size.tolist()], default=1)
        (drawn,) = drawn_records(data, rnd, "poisson", self.batch_size, 1, self.rate)
        return self.of_records(learner, params, data, in_places(data, drawn, width, blocks), keys, encode)

    def of_records(self, learner: FlatModel, params: Tensor, data: Shard, batch: Batch, keys: Tensor, encode: Encode) -> Trained:
        """The same of records that are given, `in_places`."""
        at, width = params.expand(len(data.size), -1), places_at_once(learner, len(data.size))
        rows = (data.x[batch.rows], data.y[batch.rows], batch.real, keys, data.numbers_of(batch.rows))
        return Trained(*encoded_sums(learner, at, *rows, encode, width))

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        """The same in floating point, unclipped: for trials and estimates."""
        return self.messages(learner, params, data, rnd, keys, lambda rows, own: rows.nan_to_num(0.0, 0.0, 0.0))


@lru_cache(maxsize=4096)
def _blocks(size: int, rate: float, width: int) -> int:
    """Blocks for what a client may draw whose size may be known by its power of two alone: as many as it hardly ever exceeds.

    All are worked on in every step, drawn or not, so that time does not tell how many there were. Beyond them comes one more.
    """
    each = -(-batch_width(size, MANY) // width)  # records that share a place
    return each if rate >= 1 else max(1, min(each, int(stats.binom.isf(_RARELY / width, each, rate))))
