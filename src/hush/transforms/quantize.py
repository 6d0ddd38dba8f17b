"""From floats to few levels, and binomial noise on them: messages of a few bits an entry, private one by one (cpSGD)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hush.core import Bound, Public, Round, State, Transform, Wire
from hush.errors import UsageError
from hush.own import OwnSecrets
from hush.random import fold, words
from hush.secret import Secret

_ROUNDING = 0x6C657665
"""The word of the rounding's stream, apart from what else a client draws from its key."""
_NO_BOUND = (
    "rounding at random can carry two close updates a whole level apart in every entry, so that it has no bound that always "
    "holds; hush.privacy derives one that holds with a probability"
)


@dataclass(frozen=True)
class Quantize(Transform):
    """Clamp entries to [-most, most] and round each up or down at random to one of an odd number of equally spaced `levels`.

    Unbiased for entries that the clamp leaves alone. The clamp is a projection: it brings no two updates further apart. A row with
    NaN or infinity becomes zero. Levels are whole numbers from -(levels-1)/2 to (levels-1)/2, and `decode` multiplies by `grid`.
    """

    levels: int
    most: float

    def __post_init__(self) -> None:
        if not 3 <= self.levels <= 2**31 or self.levels != int(self.levels) or self.levels % 2 == 0:
            raise UsageError(f"levels must be an odd whole number from 3 to 2^31, not {self.levels}: zero is one of them.")
        if not 0 < self.most < math.inf:
            raise UsageError(f"most must be a positive number, not {self.most:g}.")

    @property
    def grid(self) -> float:
        """The distance of two levels."""
        return 2.0 * self.most / (self.levels - 1)

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return rounded(self._scaled(x), words(fold(keys, _ROUNDING), x.shape[1]))

    def _scaled(self, x: Tensor) -> Tensor:
        """Clamped, in units of the grid."""
        y = x.double()
        y = torch.where(torch.isfinite(y).all(1, keepdim=True), y, 0.0)
        return (y / self.grid).clamp(-(self.levels // 2), self.levels // 2)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total.double() * self.grid, state

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, bits=(self.levels - 1).bit_length(), integer=True)

    def bound(self, incoming: Bound) -> Bound:
        return Bound(reason=_NO_BOUND)


@dataclass(frozen=True)
class BinomialMechanism(Quantize):
    """Quantised as above, plus Binomial(trials, 1/2) - trials/2 on every entry: levels + trials values, as cpSGD counts its bits.

    Both the coins of the rounding and the noise are the client's own. That of the rounding matters: two neighbouring updates stay
    close with high probability over these coins, so they must not be known to whoever chose the data. Hence `encode` scales and
    clamps alone, and `cover` rounds. Accounted by `hush.privacy.binomial`.
    """

    trials: int | None = None
    """`None` is filled in from a budget."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials is None:
            return
        if not 2 <= self.trials <= 2**52 or self.trials != int(self.trials) or self.trials % 2:
            raise UsageError(f"trials must be an even whole number from 2 to 2^52, not {self.trials}: the noise is centred.")

    @property
    def coins(self) -> int:
        """The trials, which must have been set by now."""
        if self.trials is None:
            raise UsageError("The noise is not set: give trials=... or a budget, privacy=hush.Budget(epsilon=...).")
        return self.trials

    @property
    def std(self) -> float:
        """Of one entry of one message."""
        return self.grid * math.sqrt(self.coins) / 2

    def with_std(self, least: float) -> BinomialMechanism:
        """The same, with the least even number of trials that give the noise of an entry this standard deviation."""
        return replace(self, trials=max(2, 2 * math.ceil(2 * (least / self.grid) ** 2 * (1 - 1e-12))))

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return self._scaled(x)

    def cover(self, x: Tensor, rnd: Round, own: OwnSecrets | None) -> Tensor:
        from hush.exact_noise import CentredBinomial

        if own is None:
            raise UsageError("Binomial noise is each client's own, and these clients have no secrets: set draws_its_own.")
        if len(own) != len(x):
            raise UsageError(f"{len(x):,} messages and the secrets of {len(own):,} clients do not go together.")
        coins, noise = np.empty(x.shape, dtype=np.int64), np.empty(x.shape, dtype=np.int64)
        law, entries = CentredBinomial(self.coins), x.shape[1]
        rounding, streams = own.words("rounding", rnd.index), own.words(f"binomial {self.coins}", rnd.index).streams
        for client, stream in enumerate(streams):
            coins[client] = rounding.take(client, entries).view(np.int64)
            noise[client] = law.draw(stream, entries)
        return rounded(x, torch.from_numpy(coins).to(x.device)) + torch.from_numpy(noise).to(x.device)

    def wire(self, incoming: Wire) -> Wire:
        return replace(incoming, bits=(self.levels + self.coins - 1).bit_length(), integer=True)

    def bound(self, incoming: Bound) -> Bound:
        return Bound(reason=_NO_BOUND)


def rounded(y: Tensor, coins: Tensor) -> Tensor:
    """floor(y) or one more, whose mean is y, as int64: 53 bits of each 64-bit word of `coins` decide."""
    low = y.floor()
    coin = ((coins >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
    return (low + (coin < y - low)).long()
