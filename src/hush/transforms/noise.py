"""Noise on the sum, once a round, whoever took part and however many: an empty cohort gets the same.

`Gaussian` draws floats (`fast`: for research). `ExactNoise` draws integers, exactly, from a cryptographic stream (`secure`); it
follows `Discretize`, which turns updates into integers and enforces their norm there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hush.checks import check_noise
from hush.core import Bound, Public, Round, State, Transform
from hush.errors import UsageError
from hush.names import pick
from hush.secret import Secret
from hush.transforms.clip import scale_after

if TYPE_CHECKING:
    from hush.own import OwnSecrets


@dataclass(frozen=True)
class Noise(Transform):
    """Standard deviation `multiplier * sensitivity`.

    The sensitivity is the bound of what precedes it in the chain; `multiplier=None` is filled in from a privacy budget.
    """

    multiplier: float | None = None
    sensitivity: float | None = None
    shares: bool = False
    """Every client adds its share before a secure sum, so that it covers clients from the server, too; a simulation, whose sum is
    plain, draws what the shares add up to."""

    def __post_init__(self) -> None:
        check_noise(self.multiplier)

    def after(self, incoming: Bound) -> Noise:
        return replace(self, sensitivity=scale_after(incoming, f"{type(self).__name__} noise"))

    @property
    def std(self) -> float:
        if self.multiplier is None or self.sensitivity is None:
            raise UsageError("The noise is not set: give noise=... or a budget, privacy=hush.Budget(epsilon=...).")
        return self.multiplier * self.sensitivity


@dataclass(frozen=True)
class Gaussian(Noise):
    """N(0, std^2) on every entry of the *sum*, in floating point."""

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total + secret.noise(rnd.index, total, self.std), state


@dataclass(frozen=True)
class MessageGaussian(Noise):
    """N(0, std^2) on every entry of every *message*, drawn by its client: it covers clients from whoever reads messages.

    The sum holds the noise of all who came, so it needs far more than `Gaussian` for the same epsilon.
    """

    def cover(self, x: Tensor, rnd: Round, own: OwnSecrets | None) -> Tensor:
        if own is None:
            raise UsageError("Noise on messages is each client's own, and these clients have no secrets: set draws_its_own.")
        return x + self.std * own.normals("message", rnd.index, x.shape[1], x).draw()


EXACT_KINDS = {"gaussian": "RoundedGaussian", "discrete-gaussian": "DiscreteGaussian", "skellam": "Skellam"}
"""Kinds of exact noise, and their names in `hush.exact_noise`."""


@dataclass(frozen=True)
class ExactNoise(Noise):
    """Integer noise on every entry of an integer sum, drawn exactly from AES-CTR.

    `gaussian` is N(0, std^2) rounded to integers. Integers plus that equal integers plus N(0, std^2), rounded: post-processing of
    the continuous mechanism, with its privacy to the last digit. `skellam` is for noise in shares, whose sums it survives;
    `discrete-gaussian` is the mechanism of Canonne, Kamath and Steinke.
    """

    kind: str = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        pick(EXACT_KINDS, self.kind, "kind of exact noise")

    def after(self, incoming: Bound) -> Noise:
        if math.isfinite(incoming.l2) and not incoming.integer:
            raise UsageError("Exact noise is added to integers: put Discretize() directly before it.")
        return super().after(incoming)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        if total.is_floating_point():
            raise UsageError("Exact noise is added to integers, and the sum is not of integers.")
        key = secret.stream(f"exact {self.kind} {self.std.hex()}", rnd.index, 32)
        return total + _drawn(self.kind, self.std, key, total.numel()).to(total.device).reshape(total.shape), state


@dataclass(frozen=True)
class NoiseShares(ExactNoise):
    """Integer noise that every client draws its share of, and nobody the whole: for a secure sum.

    A share has the variance std^2 / among, where `among` is the fewest shares of honest clients that any sum holds which is opened.
    A sum with more of them has more noise than it must. Shares of Skellam noise add up to Skellam noise, however many there are.
    """

    kind: str = "skellam"
    among: int = 1
    corrupted: float = 0.0
    """The share of a cohort that may tell the server what it knows, its noise included; `among` counts on none of it."""
    threat: str = "curious"
    """What the server may do: `hush.secagg.Terms`."""
    masks: str = "fresh"
    """Of the secure sum: `hush.SecureSum`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shares", True)
        if self.kind == "gaussian":
            raise UsageError("Rounded Gaussian shares do not add up to a rounded Gaussian: draw shares of Skellam noise.")

    @property
    def share_std(self) -> float:
        return self.std / math.sqrt(self.among)

    def cover(self, x: Tensor, rnd: Round, own: OwnSecrets | None) -> Tensor:
        if own is None:
            raise UsageError("Shares of noise are each client's own, and these clients have no secrets.")
        if x.is_floating_point():
            raise UsageError("Exact noise is added to integers, and these messages are not of integers.")
        label = f"exact {self.kind} {self.share_std.hex()}"
        rows = [_drawn(self.kind, self.share_std, key, x.shape[1]) for key in own.keys(label, rnd.index)]
        return x + torch.stack(rows).to(x.device) if rows else x

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total, state


def _drawn(kind: str, std: float, key: bytes, entries: int) -> Tensor:
    from hush import exact_noise

    return torch.from_numpy(getattr(exact_noise, EXACT_KINDS[kind])(std).draw(exact_noise.KeyStream(key), entries))
