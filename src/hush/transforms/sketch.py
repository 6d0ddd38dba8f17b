"""A count sketch instead of an update: linear, without a mask, and the heavy coordinates are found after the sum, and its noise."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform, Wire
from hush.errors import UsageError
from hush.secret import Secret
from hush.sketch import Hashes, hashes_of, largest_norm, sketch, unsketch, whole_tiles
from hush.transforms.sparsify import spread

_WHY = (
    "a sketch after the clip can be longer than the clip: coordinates collide, and sqrt(rows) * C is no bound (clip the sketch "
    "itself, or keep its hashes for the whole run, so that a bound on its norm can be computed)"
)


@dataclass(frozen=True)
class CountSketch(Transform):
    """Clients send `rows` x `cols` counters; the server keeps momentum and error in such tables and applies k coordinates a round.

        S_u <- momentum S_u + S,   S_e <- S_e + lr S_u,   Delta <- top-k(unsketch(S_e)),   S_e <- S_e - sketch(Delta)

    This is the server of FetchSGD (Rothchild et al. 2020): the learning rate acts inside the error feedback, and no client keeps
    anything. `cols` and `k` below 1 are shares of the model. With `fresh` hashes in every round tables of different rounds do not
    add up, so nothing is carried over: Delta <- top-k(unsketch(lr S)).
    """

    rows: int = 5
    cols: float = 0.07
    k: float = 0.007
    lr: float = 1.0
    momentum: float = 0.0
    lr_decay: float = 1.0
    fresh: bool = False
    dim: int | None = None
    """The coordinates of an update, once known: with them, `norm` is."""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.rows != int(self.rows):
            raise UsageError(f"rows must be a whole number of at least 1, not {self.rows:g}.")
        for name, value in (("cols", self.cols), ("k", self.k)):
            if not 0 < value < math.inf or (value >= 1 and value != int(value)):
                raise UsageError(f"{name} is a whole number, or below 1 a share of the model's coordinates, not {value:g}.")
        if not (0 < self.lr < math.inf and 0 < self.lr_decay <= 1 and 0 <= self.momentum < 1):
            raise UsageError("The sketch's learning rate must be positive, its decay in (0, 1], its momentum in [0, 1).")
        if self.fresh and self.momentum:
            raise UsageError("Momentum adds up sketches of several rounds, which needs the same hashes: drop fresh, or momentum.")

    def init(self, dim: int) -> State:
        self._warn_of_growth(dim)
        zeros = torch.zeros(self.entries(dim), dtype=torch.float64)
        memory = {} if self.fresh else {"error": zeros}
        return {"dim": torch.tensor(dim)} | memory | ({"momentum": zeros.clone()} if self.momentum else {})

    def _warn_of_growth(self, dim: int) -> None:
        """Estimates of coordinates that collide are wrong, and where too many are applied at once, taking them off the table adds
        more than it removes. The limit is measured (docs/sketches.md): a tenth of a row at five rows, a third at nine."""
        cols, k = self.width(dim), count_of(self.k, dim)
        if self.fresh or k == 1 or dim <= 3 * cols or (self.rows >= 5 and k <= 0.075 * (self.rows - 3) * cols):
            return
        warnings.warn(
            f"{k:,} coordinates a round from {self.rows} rows of {cols:,} counters: what error feedback carries over may grow "
            "without bound. Take rows=5 and k a tenth of cols, or rows=9 and k a third.",
            stacklevel=2,
        )

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return sketch(x, self.hashes(rnd, x.shape[1], x.device))

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        dim, lr = int(state["dim"]), self.lr * self.lr_decay**rnd.index
        hashes = self.hashes(rnd, dim, total.device)
        after: dict[str, Tensor] = {"dim": state["dim"]}
        moved = total
        if self.momentum:
            moved = after["momentum"] = self.momentum * state["momentum"].to(total) + total
        table = lr * moved if self.fresh else state["error"].to(total) + lr * moved
        found = unsketch(table, hashes)
        where = found.abs().topk(count_of(self.k, dim)).indices
        applied = spread(found[where], where, dim)
        if not self.fresh:
            after["error"] = table - sketch(applied[None], hashes)[0]
        return applied, after

    def hashes(self, rnd: Round, dim: int, device: torch.device) -> Hashes:
        """Drawn from the round's public seed, or one for all rounds and runs: hashes are no secret."""
        return hashes_of(rnd.seed if self.fresh else 0, self.rows, self.width(dim), dim, device)

    def width(self, dim: int) -> int:
        """Counters in a row, in whole tiles."""
        return whole_tiles(count_of(self.cols, dim))

    def entries(self, dim: int) -> int:
        return self.rows * self.width(dim)

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, entries=self.entries(incoming.entries))

    def answer(self, dim: int) -> int:
        """k values and their places."""
        return count_of(self.k, dim) * (32 + max(1, math.ceil(math.log2(dim))))

    def sized(self, dim: int) -> CountSketch:
        return replace(self, dim=dim)

    @property
    def norm(self) -> float | None:
        """By how much a sketch can exceed its vector, at most; None where hashes change or the model is not known yet."""
        if self.fresh or self.dim is None:
            return None
        return largest_norm(self.hashes(Round(0, 0, 1.0), self.dim, torch.device("cpu")))

    def bound(self, incoming: Bound) -> Bound:
        if not math.isfinite(incoming.l2):
            return incoming
        if self.fresh or incoming.bit:
            return Bound(reason=_WHY)
        norm = self.norm
        return Bound(reason=_WHY, pending=True) if norm is None else Bound(incoming.l2 * norm, unproved=incoming.unproved)


@dataclass(frozen=True)
class SketchAsWritten(CountSketch):
    """DPSFL's own: clipped before it is sketched, with noise for a sketch that is no longer than what was clipped."""

    no_proof = (
        "DPSFL clips the gradient and takes sqrt(rows) * C for the norm of its sketch, and coordinates collide: a client can make "
        "it several times as long."
    )
    fix = "Clip the sketch: clip_in=sketch."

    def bound(self, incoming: Bound) -> Bound:
        return replace(incoming, unproved=self.no_proof)


def count_of(value: float, dim: int) -> int:
    """A number of coordinates, or below 1 a share of them."""
    return min(dim, int(value)) if value >= 1 else max(1, round(value * dim))
