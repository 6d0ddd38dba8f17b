"""A method under a secure sum: whole numbers of so many bits, and noise in shares that whoever survives carries in full."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, replace

from hush import cohort as cohorts
from hush.cohort import Cohort
from hush.core import Method, Transform
from hush.errors import NoGuarantee, UsageError
from hush.names import pick
from hush.privacy.plan import smallest_cohort, unproved_part, with_secure_noise
from hush.privacy.record_plan import has_own_noise
from hush.secagg.terms import Terms
from hush.transforms.discretize import Discretize
from hush.transforms.modulo import Modulo, grid_bits
from hush.transforms.noise import ExactNoise, Gaussian, MessageGaussian, Noise, NoiseShares

BITS = 24
PROTOCOLS = ("fresh", "amortised")
_RARELY = 1e-3
"""How often a round may fail because more clients vanished than it tolerates: it costs a round, and no privacy."""


@dataclass(frozen=True)
class SecureSum:
    """How the sum is made secure. What the terms of `hush.secagg` say in general, this says for a run."""

    bits: int | None = None
    """Of each entry on the wire [default: 24, or the method's own]."""
    tolerate: float | None = None
    """The share of a cohort that may vanish from a round that still counts [default: what `dropout` makes likely]."""
    corrupted: float = 0.1
    """The share of a cohort that may tell the server what it knows."""
    threat: str = "curious"
    """What the server may do: `curious` or `malicious`."""
    masks: str = "fresh"
    """`fresh` in every round, by SecAgg+; or `amortised`, as CPFed has them: pairs agree on seeds once, a round is one trip, and it
    counts with everybody or not at all."""

    def __post_init__(self) -> None:
        pick(dict.fromkeys(PROTOCOLS), self.masks, "kind of masks")
        if self.masks == "amortised" and self.threat != "curious":
            raise UsageError("Amortised masks have no proof against a malicious server: take fresh ones.")
        if self.masks == "amortised" and self.tolerate:
            raise UsageError("Amortised masks cannot do without anybody: leave --tolerate out, or take fresh ones.")

    def tolerated(self, clients: int, dropout: float) -> float:
        """The share that may vanish from a cohort of so many."""
        if self.masks == "amortised":
            return 0.0
        if self.tolerate is not None:
            return self.tolerate
        return math.ceil(1e6 * _likely_losses(clients, dropout) / clients) / 1e6  # up: a third of three must be one

    def terms(
        self, cohort: Cohort, clients: int, dropout: float, entries: int = 1, bits: int = BITS, context: bytes = b""
    ) -> Terms:
        """What clients agree to."""
        fewest = contacted(cohort, clients)[0]
        if fewest < 3:
            raise UsageError(f"A sum hides its parts from three clients on, and a cohort here has {fewest}: take a larger one.")
        if self.masks == "amortised" and fewest < clients:
            raise UsageError(
                f"Amortised masks are made once, among all: take all {clients:,} clients (--cohort {clients}), or fresh ones."
            )
        lost = self.tolerated(fewest, dropout)
        return Terms(entries, bits, lost, self.corrupted, self.threat, fewest, context)

    def terms_of(self, method: Method, cohort: Cohort, clients: int, dropout: float, dim: int) -> Terms:
        """The same for a method that runs: clients agree on its pipeline, with clip, grid and noise, and on a name of this run."""
        message = method.uplink(dim)
        context = hashlib.sha256(repr(method.pipeline.parts).encode()).digest() + os.urandom(16)
        return self.terms(cohort, clients, dropout, message.entries, message.bits, context)


def contacted(cohort: Cohort, clients: int) -> tuple[int, int]:
    """The fewest and the most clients that a round asks."""
    if type(cohort) is cohorts.SecretParticipation:
        return clients, clients
    fewest = smallest_cohort(cohort, clients)  # refuses those of any size
    return fewest, -(-clients // cohort.period(clients)) if isinstance(cohort, cohorts.Rotation) else fewest


def _likely_losses(clients: int, dropout: float) -> int:
    """The fewest losses that no more than one round in a thousand exceeds."""
    chance, below = (1 - dropout) ** clients, 0.0
    for lost in range(clients):
        below += chance
        if below >= 1 - _RARELY:
            return lost
        chance *= (clients - lost) / (lost + 1) * dropout / (1 - dropout)
    return clients - 1


def with_secure_sum(method: Method, cohort: Cohort, clients: int, secure: SecureSum, dropout: float) -> Method:
    """The same method on integers of so many bits, each client with its own share of the noise; or why that is not possible."""
    parts = method.pipeline.parts
    if has_own_noise(method):
        raise NoGuarantee(
            f"{method.name} covers records by noise inside local training: its updates have no bound, so no group of whole numbers "
            "holds their sum.",
            "Use cpfed-output or skellam, which noise what is summed; what is proved for records needs no secure sum.",
        )
    if any(isinstance(part, MessageGaussian) for part in parts):
        raise NoGuarantee(
            f"{method.name} covers every message by its client's own noise: a secure sum would add nothing.",
            "Leave --secure out, or take noise_by=shares.",
        )
    if (written := unproved_part(method)) is not None:
        raise NoGuarantee(f"{written.no_proof} A secure sum does not change that.", written.fix)
    if not any(isinstance(part, Noise) for part in parts):
        raise NoGuarantee(
            f"{method.name} neither clips nor noises: its sums fit no group of whole numbers, and their differences show clients.",
            "Choose a private method, such as dp-fedavg or fed-smp-rand-k.",
        )
    if any(type(part).unpack is not Transform.unpack for part in parts):
        raise NoGuarantee(
            f"In {method.name} each client has a mask of its own: what they send does not add up entry by entry.",
            "Use a mask for the whole cohort, such as fed-smp-rand-k has.",
        )
    terms = secure.terms(cohort, clients, dropout)
    most = contacted(cohort, clients)[1]
    among = terms.honest_min
    own = next((part.bits for part in parts if isinstance(part, Modulo)), None)
    if own is not None and secure.bits not in (None, own):
        raise UsageError(f"{method.name} has a modulus of its own: set bits there (--set bits={secure.bits}).")
    bits, louder = own or secure.bits or BITS, math.sqrt(most / among)
    noise = next(part for part in parts if isinstance(part, Noise))
    kept: list[Transform] = []
    for part in parts:
        if isinstance(part, Discretize) and part.modulus is not None:
            told = replace(part, louder=louder)
            kept.append(told if noise.multiplier is None else told.covered(noise.multiplier))
            continue
        if not isinstance(part, Noise):
            kept.append(part)
            continue
        if own is None:
            if not isinstance(part, Gaussian):  # exact noise on a grid that was made for a plain sum
                raise UsageError(f"{method.name} has integers and no modulus: put Modulo() before the noise.")
            level = None if part.multiplier is None else part.multiplier * louder
            kept += [Discretize(grid_bits(bits, level, most), modulus=bits, rows=most, louder=louder), Modulo(bits)]
        kind = part.kind if isinstance(part, ExactNoise) and part.kind != "gaussian" else "skellam"
        kept.append(
            NoiseShares(part.multiplier, kind=kind, among=among, corrupted=terms.corrupted, threat=terms.threat, masks=secure.masks)
        )
    return method.with_pipeline(*kept)


def as_run(
    method: Method, cohort: Cohort, clients: int, secure_noise: bool, secure_sum: SecureSum | None, dropout: float
) -> Method:
    """The method with the kind of noise and of sum that it runs with."""
    if secure_sum is not None:
        return with_secure_sum(method, cohort, clients, secure_sum, dropout)
    return with_secure_noise(method, cohort) if secure_noise else method


def as_summed(method: Method) -> Method:
    """The same with the shares of noise as what the fewest of them add up to, drawn once: what a plain sum needs."""
    parts = [
        ExactNoise(part.multiplier, shares=True, kind=part.kind) if isinstance(part, NoiseShares) else part
        for part in method.pipeline.parts
    ]
    return method.with_pipeline(*parts)
