"""DP-SGD inside local training: what is protected is a record, against anybody who reads the client's messages (Abadi et al. 2016).

    theta_i <- theta_i - lr (1/p) (sum_j clip(m_i * grad l(theta_i, z_j)) + noise on m_i) / B

over a fresh secret batch of B records at every step; m_i is the client's own public mask of a share p of the coordinates, kept for
the whole round, or all of them. Every step is one release, whatever is done with its result afterwards.

`exact`: every record's clipped gradient is rounded to whole numbers by itself (`local.grid`), these are added up exactly, and the
noise is N(0, std^2) rounded to whole numbers. Whole numbers plus that are whole numbers plus N(0, std^2), rounded: what is released
is the Gaussian mechanism, of sensitivity `radius`, post-processed. No rounding of floats is left for an attacker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hush.checks import MANY, check_noise, check_number
from hush.core import LocalUpdate, Public, Round, Shard, Trained
from hush.errors import UsageError
from hush.local.flat import FlatModel
from hush.local.grid import Grid, grid_of
from hush.local.per_example import ClippedSums, ClipRule, L2Clip, clipped_sums, encoded_sums, places_at_once
from hush.local.pull import check_steps, pull_back
from hush.local.records import KINDS, drawn_records, in_places, record_batches, record_width
from hush.local.sgd import Batch
from hush.names import pick
from hush.random import fold
from hush.transforms.own_mask import OwnRandK


class Read(NamedTuple):
    """What clients read in one step: `[clients, batch]` records, which of them are real, and what each client's are known by."""

    x: Tensor
    y: Tensor
    real: Tensor
    keys: Tensor
    active: Tensor | None
    """`[clients, d]`: the coordinates that are trained; None: all."""
    numbers: Tensor
    """Of the records, among their client's own."""
    path: str = "auto"
    """How gradients of single records are found: see `clipped_sums`."""

    @staticmethod
    def of(data: Shard, batch: Batch, keys: Tensor, active: Tensor | None) -> Read:
        """The records that a batch names."""
        numbers = data.numbers_of(batch.rows)  # a record's dropout is its own, whoever else was drawn
        path = "plain" if data.slots else "auto"  # a trial on some clients' records must not decide how others are computed
        return Read(data.x[batch.rows], data.y[batch.rows], batch.real, keys, active, numbers, path)

    def clipped(self, learner: FlatModel, params: Tensor, clip: ClipRule, mask: Tensor | None) -> ClippedSums:
        """Each client's sum of its records' gradients, masked and then clipped one by one."""
        rows = (self.x, self.y, self.real, self.keys)
        return clipped_sums(learner, params, *rows, clip, mask, memory=learner.memory, path=self.path, numbers=self.numbers)

    def whole(self, learner: FlatModel, params: Tensor, grid: Grid) -> ClippedSums:
        """The same in whole numbers, exactly; the records lie `in_places`."""
        count, width = len(params), places_at_once(learner, len(params))
        places = None if self.active is None else self.active.nonzero()[:, 1].view(count, -1)

        def encode(rows: Tensor, own: Tensor) -> Tensor:
            return grid.encode(rows if places is None else rows.gather(1, places.repeat_interleave(width, 0)))

        found = encoded_sums(learner, params, self.x, self.y, self.real, self.keys, self.numbers, encode, width)
        if places is None:
            return found
        return found._replace(sums=torch.zeros_like(params, dtype=torch.int64).scatter_(1, places, found.sums))


@dataclass(frozen=True)
class DpSgd(LocalUpdate):
    """`steps` noisy steps on `batch_size` records each; `noise=None` is filled in from a budget, and 0 is none.

    The noise on the sum of a batch has the standard deviation `noise * reach`; `reach` is the most that one record adds to it.
    """

    lr: float = 0.1
    batch_size: int = 10
    steps: int = 1
    clip: ClipRule | None = field(default_factory=lambda: L2Clip(1.0))
    noise: float | None = None
    records: str = "fixed"
    rate: float | None = None
    """Of Poisson batches: the chance of every record, the same at all clients; None: `batch_size` over the client's own."""
    mask: OwnRandK | None = None
    momentum: float = 0.0
    decay: float = 1.0
    every: int = 1
    prox: float = 0.0
    blur: float = 0.0
    blur_limit: float | None = None
    exact: bool = False
    """Whole numbers under exact noise, in place of floating point."""

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        for name in ("batch_size", "steps", "every"):
            check_number(name, getattr(self, name), least=1, most=MANY)
        check_noise(self.noise, none=True)
        check_steps(self.lr, self.momentum, self.decay, self.prox, self.blur, self.blur_limit)
        pick(dict.fromkeys(KINDS), self.records, "kind of batch")
        if self.rate is not None:
            check_number("rate", self.rate, above=0, most=1)
            if self.records != "poisson":
                raise UsageError("rate is the chance of a record in Poisson batches: fixed ones have a size (batch_size).")

    @property
    def draws_its_own(self) -> bool:
        return True

    @property
    def needs_room(self) -> bool:
        return self.blur > 0 and self.blur_limit is None

    def entries(self, dim: int) -> int:
        """How many coordinates are trained, sent and noised."""
        return dim if self.mask is None else self.mask.kept(dim)

    def reach(self, dim: int) -> float:
        """The most that one record adds to the sum of a batch: the L2 norm that its clip enforces."""
        if self.clip is None:
            return math.inf
        if self.exact:
            grid = self.grid(dim)
            return grid.radius * grid.step
        return self.clip.norm if isinstance(self.clip, L2Clip) else self.clip.most * math.sqrt(self.entries(dim))

    def std(self, dim: int) -> float:
        """Of the noise on each coordinate of that sum."""
        if self.noise is None:
            raise UsageError("The noise is not set: give noise=... or a budget, privacy=hush.Budget(epsilon=...).")
        return self.noise * self.reach(dim) if self.noise else 0.0

    def active(self, keys: Tensor, dim: int) -> Tensor | None:
        """`[clients, d]`: the coordinates that each client trains; None: all."""
        return None if self.mask is None else _marked(self.mask.places(keys, dim), dim)

    def grid(self, dim: int) -> Grid:
        """The whole numbers that stand for a record's gradient, where noise is exact."""
        if self.clip is None:
            raise UsageError("DP-SGD clips every record's gradient: give a clip.")
        return grid_of(self.clip, self.entries(dim), self.noise or 0.0)

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        if params.dtype in (torch.float16, torch.bfloat16):
            raise UsageError("Noise in half precision leaves coordinates bare: DP-SGD needs float32 or float64.")
        dim, count = params.numel(), len(data.size)
        lr = self.lr * self.decay ** (rnd.index // self.every)
        places = None if self.mask is None else self.mask.places(keys, dim)
        active = None if places is None else _marked(places, dim)
        draw, unit = self._noise(data, rnd, params), self.grid(dim).step if self.exact else 1.0
        local = params.expand(count, -1).clone()
        moved = torch.zeros_like(local)  # kept apart: what is sent must not be rounded as the weights are
        velocity = torch.zeros_like(local) if self.momentum else None
        losses = params.new_zeros(count)
        for step, batch in enumerate(self._batches(learner, data, rnd)):
            gradient, loss = self.sums(learner, local, Read.of(data, batch, fold(keys, step), active))
            if draw is not None:
                gradient = gradient.add_(draw()) if places is None else gradient.scatter_add_(1, places, draw())
            gradient = gradient.to(params.dtype).mul_(unit * dim / self.entries(dim) / self.batch_size)  # (1/p)(1/B), constants
            if self.prox or self.blur:
                gradient = pull_back(gradient, local - params, self.prox, self.blur, self.blur_limit or rnd.room)
            if velocity is not None:
                gradient = velocity.mul_(self.momentum).add_(gradient)
            moved.add_(gradient, alpha=lr)
            torch.sub(params, moved, out=local)
            losses += loss
        return Trained(moved, losses / self.steps)

    def _noise(self, data: Shard, rnd: Round, params: Tensor) -> Callable[[], Tensor] | None:
        """What draws the next step's noise, `[clients, entries]`, in the units of the sums that it covers."""
        dim, own = params.numel(), data.own
        std, entries = self.std(dim), self.entries(dim)
        if not std or own is None:
            return None
        if self.exact:
            from hush.exact_noise import RoundedGaussian

            whole = own.integers("gradient", rnd.index, RoundedGaussian((self.noise or 0.0) * self.grid(dim).radius), entries)
            return lambda: whole.draw().to(params.device)
        normals = own.normals("gradient", rnd.index, entries, params)
        return lambda: normals.draw() * std

    def _batches(self, learner: FlatModel, data: Shard, rnd: Round) -> Iterator[Batch]:
        if not self.exact:
            return record_batches(data, rnd, self.records, self.batch_size, self.steps, self.rate)
        width = places_at_once(learner, len(data.size))
        drawn = drawn_records(data, rnd, self.records, self.batch_size, self.steps, self.rate)
        return (in_places(data, numbers, width) for numbers in drawn)

    def shortened(self, steps: int) -> DpSgd:
        """The same for so many steps only."""
        return replace(self, steps=steps)

    def size_class(self, sizes: Tensor) -> Tensor:
        """How wide its batches are; in blocks of one shape all are alike."""
        if self.exact:
            return torch.zeros_like(sizes)
        return torch.tensor([record_width(size, self.records, self.batch_size) for size in sizes.tolist()])

    def steps_of(self, sizes: Tensor) -> Tensor:
        """How many steps clients of these sizes make in a round."""
        return torch.full_like(sizes, self.steps)

    def sums(self, learner: FlatModel, params: Tensor, read: Read) -> ClippedSums:
        """Each client's sum of its records' gradients, masked and then clipped one by one."""
        if self.clip is None:
            raise UsageError("DP-SGD clips every record's gradient: give a clip.")
        if self.exact:
            return read.whole(learner, params, self.grid(params.shape[1]))
        return read.clipped(learner, params, self.clip, read.active)


def _marked(places: Tensor, dim: int) -> Tensor:
    return torch.zeros(len(places), dim, dtype=torch.bool, device=places.device).scatter_(1, places, True)
