"""Local training as two papers write it. It runs, it carries their claims, and it has no proof: no number of ours goes with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from hush.core import LocalUpdate, Round, Shard
from hush.errors import UsageError
from hush.local.dp_sgd import DpSgd, Read
from hush.local.flat import FlatModel
from hush.local.per_example import ClippedSums, L2Clip
from hush.local.records import record_batches
from hush.transforms.clip import LEAST


@dataclass(frozen=True)
class AsWritten(DpSgd):
    """DP-SGD with something else in the place of what is proved."""

    no_proof: ClassVar[str]
    shows_at: ClassVar[float] = 1.4
    """The noise at which an audit shows what is wrong."""
    fix: ClassVar[str] = "Leave out mode=paper: the default clips what is sent, record by record."

    @classmethod
    def of(cls, local: DpSgd, clip: float | None) -> Any:
        """The same settings."""
        own = {f.name: getattr(local, f.name) for f in fields(DpSgd)}
        return cls(**own | {"clip": None if clip is None else L2Clip(clip), "records": "fixed"})


@dataclass(frozen=True)
class FedSpaAsWritten(AsWritten):
    """Each gradient is clipped in L2 to G before the mask; `noise` counts sqrt(2p) G/B, what the paper takes one record to change.

    Without a clip, G/sqrt(d) is the median absolute entry of gradients in an initial round, as in its section 5.1.
    """

    no_proof: ClassVar[str] = (
        "Fed-SPA as written clips the L2 norm of the whole gradient, which does not bound the coordinates that are sent, and takes "
        "its threshold from the data without noise."
    )

    def reach(self, dim: int) -> float:
        if not isinstance(self.clip, L2Clip):
            raise UsageError("Fed-SPA as written finds its clip in an initial round, which has not been yet.")
        return math.sqrt(2 * self.entries(dim) / dim) * self.clip.norm

    def sums(self, learner: FlatModel, params: Tensor, read: Read) -> ClippedSums:
        assert isinstance(self.clip, L2Clip)
        found = read.clipped(learner, params, self.clip, None)
        return found if read.active is None else found._replace(sums=found.sums * read.active)

    def initialised(self, learner: FlatModel, params: Tensor, data: Shard, keys: Tensor) -> LocalUpdate:
        """The median of the absolute entries of one batch's gradients, client by client."""
        if self.clip is not None:
            return self
        (batch,) = record_batches(data, Round(0, 0, 1.0), self.records, self.batch_size, 1)
        now = params.expand(len(data.size), -1)
        found, _ = learner.gradients(now, data.x[batch.rows], data.y[batch.rows], batch.real.to(params.dtype), keys)
        middle = float(found[torch.isfinite(found)].abs().median()) if found.numel() else 0.0
        return replace(self, clip=L2Clip(max(middle * math.sqrt(params.numel()), LEAST)))


@dataclass(frozen=True)
class CpfedAsWritten(AsWritten):
    """Nothing is clipped: `clip` is the Lipschitz constant L that the loss is assumed to have, and scales the noise alone."""

    no_proof: ClassVar[str] = (
        "CPFed as written clips nothing: it assumes a Lipschitz constant that cross-entropy does not have, so nothing bounds a "
        "record."
    )
    shows_at: ClassVar[float] = 0.045

    def sums(self, learner: FlatModel, params: Tensor, read: Read) -> ClippedSums:
        weight = read.real.to(params.dtype)
        mean, losses = learner.gradients(params, read.x, read.y, weight, read.keys)
        return ClippedSums(mean * weight.sum(1, keepdim=True), losses)
