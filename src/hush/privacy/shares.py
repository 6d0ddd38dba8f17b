"""A method under a secure sum: whole numbers of so many bits, and noise in shares that whoever survives carries in full."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

from hush import cohort as cohorts
from hush.cohort import Cohort
from hush.config import SECURE_KEYS, RunConfig
from hush.core import Method, Transform
from hush.errors import NoGuarantee, UsageError
from hush.names import pick
from hush.privacy.plan import smallest_cohort, unproved_part, with_secure_noise
from hush.privacy.record_plan import has_own_noise
from hush.privacy.summed_records import one_sum_of_records, rows_of_records
from hush.privacy.vocabulary import Enrolled
from hush.secagg.parameters import THREATS, exactly
from hush.secagg.terms import Terms
from hush.transforms import Discretize, ExactNoise, Gaussian, MessageGaussian, Modulo, Noise, NoiseShares, Rotate
from hush.transforms.modulo import finest, grid_bits

BITS, RECORD_BITS = 24, 32
LEAST_BITS, MOST_BITS = 10, 48
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
        for name in ("tolerate", "corrupted"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | float) or not 0 <= value < 1):
                raise UsageError(f"{name} must lie in [0, 1), not {value}.")
        pick(THREATS, self.threat, "threat")

    @staticmethod
    def of_config(config: RunConfig) -> SecureSum | None:
        """How the sum of a run is made secure, where it shall be."""
        given = {key: value for key in SECURE_KEYS if (value := getattr(config, key)) is not None}
        bits = given.pop("sum_bits", None)
        return SecureSum(bits=bits, **given) if config.secure else None

    def to_config(self) -> dict[str, Any]:
        """The inverse, by the keys of a configuration."""
        return {"secure": True, "sum_bits": self.bits} | {key: getattr(self, key) for key in SECURE_KEYS if key != "sum_bits"}

    def tolerated(self, clients: int, dropout: float) -> float:
        """The share that may vanish from a cohort of so many."""
        if self.masks == "amortised":
            return 0.0
        if self.tolerate is not None:
            return self.tolerate
        likely = int(stats.binom.ppf(1 - _RARELY, clients, dropout))  # the fewest that hardly any round exceeds
        return math.ceil(1e6 * likely / clients) / 1e6  # up: a third of three must be one

    def terms(
        self,
        cohort: Cohort,
        clients: int,
        dropout: float,
        entries: int = 1,
        bits: int = BITS,
        context: bytes = b"",
        participations: int | None = None,
    ) -> Terms:
        """What clients agree to."""
        fewest, most = contacted(cohort, clients)
        if fewest < 3:
            raise UsageError(f"A sum hides its parts from three clients on, and a cohort here has {fewest}: take a larger one.")
        if self.masks == "amortised" and fewest < clients:
            raise UsageError(
                f"Amortised masks are made once, among all: take all {clients:,} clients (--cohort {clients}), or fresh ones."
            )
        if self.masks == "amortised" and dropout:
            raise UsageError(
                "Amortised masks cannot do without anybody, and with --dropout rounds would be paid for in vain: leave one out."
            )
        lost = self.tolerated(fewest, dropout)
        if fewest * (1 - exactly(lost) - exactly(self.corrupted)) < 2:
            raise UsageError(
                f"Of a cohort of {fewest} clients, {lost:.0%} may vanish and {self.corrupted:.0%} be corrupted: fewer than two "
                "honest ones may be left. Take larger cohorts (--cohort), or lower --dropout, --tolerate or --corrupted."
            )
        try:
            agreed = Terms(entries, bits, lost, self.corrupted, self.threat, fewest, context, participations)
            agreed.graph(most)
        except UsageError as error:
            raise UsageError(
                f"{error} (--tolerate is {lost:g} here, --corrupted {self.corrupted:g}, --cohort at least {fewest}.)"
            ) from None
        return agreed

    def terms_of(
        self, method: Method, cohort: Cohort, clients: int, dropout: float, dim: int, rounds: int, name: bytes | None = None
    ) -> Terms:
        """The same for a method that runs: clients agree on its pipeline, with clip, grid and noise, and on a name of the run."""
        message = method.uplink(dim)
        context = hashlib.sha256(repr(method.pipeline.parts).encode()).digest() + (name or os.urandom(16))
        times = cohort.most_participations(rounds, clients)
        return self.terms(cohort, clients, dropout, message.entries, message.bits, context, times)


def contacted(cohort: Cohort, clients: int) -> tuple[int, int]:
    """The fewest and the most clients that a round asks."""
    if type(cohort) is cohorts.SecretParticipation:
        return clients, clients
    fewest = smallest_cohort(cohort, clients)  # refuses those of any size
    return fewest, -(-clients // cohort.period(clients)) if isinstance(cohort, cohorts.Rotation) else fewest


def with_secure_sum(method: Method, cohort: Cohort, clients: int | Enrolled, secure: SecureSum, dropout: float) -> Method:
    """The same method on integers of so many bits, each client with its own share of the noise; or why that is not possible."""
    enrolled = clients if isinstance(clients, Enrolled) else Enrolled(clients)
    if has_own_noise(method):
        method = one_sum_of_records(method, enrolled)
    _refuse_what_does_not_add_up(method)
    terms, most = secure.terms(cohort, enrolled.clients, dropout), contacted(cohort, enrolled.clients)[1]
    parts = method.pipeline.parts
    noise = next(part for part in parts if isinstance(part, Noise))
    louder = math.sqrt(most / terms.honest_min)
    before: list[Transform] = []
    for part in parts[: parts.index(noise)]:
        if isinstance(part, Discretize) and part.modulus is not None:
            told = replace(part, louder=louder, rows=most, spread=any(isinstance(other, Rotate) for other in parts))
            before.append(told if noise.multiplier is None else told.covered(noise.multiplier))
        else:
            before.append(part)
    own = next((part.bits for part in parts if isinstance(part, Modulo)), None)
    if own is None:
        before += _grid(method, noise, secure.bits, most, louder)
    elif secure.bits not in (None, own):
        raise UsageError(f"{method.name} has a modulus of its own: set bits there (--set bits={secure.bits}).")
    kind = noise.kind if isinstance(noise, ExactNoise) and noise.kind != "gaussian" else "skellam"
    shares = NoiseShares(noise.multiplier, kind=kind, among=terms.honest_min, corrupted=terms.corrupted, threat=terms.threat)
    return method.with_pipeline(*before, replace(shares, masks=secure.masks), *parts[parts.index(noise) + 1 :])


def _refuse_what_does_not_add_up(method: Method) -> None:
    parts = method.pipeline.parts
    if any(isinstance(part, MessageGaussian) for part in parts):
        raise NoGuarantee(
            f"{method.name} covers every message by its client's own noise: a secure sum would add nothing.",
            "Leave --secure out, or take noise_by=shares.",
        )
    if (written := unproved_part(method)) is not None:
        raise NoGuarantee(f"{written.no_proof} A secure sum does not change that.", written.fix)
    if not any(isinstance(part, Noise) for part in parts):
        raise NoGuarantee(
            f"{method.name} adds no noise: two of its sums differ by what a client sent, secure or not.",
            "Choose a private method, such as dp-fedavg or fed-smp-rand-k.",
        )
    if any(type(part).unpack is not Transform.unpack for part in parts):
        raise NoGuarantee(
            f"In {method.name} each client has a mask of its own: what they send does not add up entry by entry.",
            "Use a mask for the whole cohort, such as fed-smp-rand-k has.",
        )


def _grid(method: Method, noise: Noise, bits: int | None, clients: int, louder: float) -> tuple[Transform, ...]:
    """Whole numbers of so many bits, for a method that has floats: as fine as rows and noise leave room for."""
    if not isinstance(noise, Gaussian):  # exact noise on a grid that was made for a plain sum
        raise UsageError(f"{method.name} has integers and no modulus: put Modulo() before the noise.")
    level, by_record = None if noise.multiplier is None else noise.multiplier * louder, method.local.by_record
    rows = rows_of_records(method, clients) if by_record else clients
    if bits is None:  # single records, each rounded by itself, want a fine grid
        bits = min(RECORD_BITS, finest(level, rows)) if by_record else BITS
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise UsageError(f"--sum-bits must be a whole number from {LEAST_BITS} to {MOST_BITS}, not {bits}.")
    return Discretize(grid_bits(bits, level, rows), modulus=bits, rows=rows, louder=louder, nearest=by_record), Modulo(bits)


def refuse_shares_without_a_secure_sum(method: Method, secure: SecureSum | None) -> None:
    """Shares that clients draw are for a sum that clients guard: of a plain one nobody knows how many it holds."""
    if secure is None and any(isinstance(part, NoiseShares) for part in method.pipeline.parts):
        raise NoGuarantee(
            f"{method.name} has clients draw shares of the noise, and its sum is not secure: it may hold too few of them.",
            "Give secure_sum=hush.SecureSum(), or noise that is drawn once, ExactNoise.",
        )


def as_run(
    method: Method, cohort: Cohort, clients: int | Enrolled, secure_noise: bool, secure_sum: SecureSum | None, dropout: float
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
