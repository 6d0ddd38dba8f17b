"""The words a privacy statement is made of: noise, sampling, release, phase, plan; `hush.privacy.bounds` has those for bounds.

Everything is plain data. Noise is an *absolute* standard deviation; the sensitivity follows from (bound, relation), so nobody types
one. `hush.privacy.plan` derives a plan from the objects that run, `hush.privacy.rules` refuses what has no proof,
`hush.privacy.accountant` puts a number on the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from hush.errors import UsageError
from hush.privacy.bounds import Bound
from hush.privacy.guarantee import Relation, Unit, View


def _coerce(owner: object, **kinds: type[StrEnum]) -> None:
    """A word that was given as text becomes the word itself, or is refused: no misspelt one slips past a rule."""
    for name, kind in kinds.items():
        try:
            object.__setattr__(owner, name, kind(getattr(owner, name)))
        except ValueError:
            known = ", ".join(kind)
            raise UsageError(f"{name} must be one of {known}, not '{getattr(owner, name)}'.") from None


def _check_count(name: str, value: float | None) -> None:
    if value is not None and (not math.isfinite(value) or value < 1 or value != int(value)):
        raise UsageError(f"{name} must be a whole number of at least 1, not {value:g}.")


# -- noise -----------------------------------------------------------------------------------------------------------------------


class On(StrEnum):
    """Which entries get noise. On the private support alone it has no proof."""

    EVERY = "every entry"
    MASK = "public mask"
    SUPPORT = "private support"


class Drawn(StrEnum):
    """Who draws the noise: a trusted server, once on the sum; every contacted client, a share; the client, on its own message."""

    SERVER = "server"
    SHARES = "shares"
    MESSAGE = "message"


@dataclass(frozen=True)
class Noise:
    """`std` is that of one draw: of the whole where the server draws it, of one share or one message otherwise."""

    std: float
    on: On = On.EVERY
    drawn: Drawn = Drawn.SERVER
    secure: bool = False
    """Exact integers from a cryptographic stream, instead of floating-point draws fit for research."""

    def louder(self, factor: float) -> Noise:
        """The same, `factor` times as strong."""
        return replace(self, std=self.std * factor)

    def __post_init__(self) -> None:
        _coerce(self, on=On, drawn=Drawn)


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """N(0, std^2); exact where it is rounded to integers after it was added to integers, which is post-processing."""


@dataclass(frozen=True)
class DiscreteGaussianNoise(Noise):
    """P(k) ~ exp(-k^2 grid^2 / (2 std^2)) on multiples of `grid`, on `entries` coordinates (Canonne, Kamath, Steinke 2020)."""

    grid: float = 1.0
    entries: int | None = None
    draws: int = 1
    """How many equal draws `std` is the sum of: such a sum is not quite discrete Gaussian, whoever looks at it."""


@dataclass(frozen=True)
class SkellamNoise(Noise):
    """The difference of two Poisson variables on multiples of `grid`; sums of it are of the same kind (Agarwal et al. 2021)."""

    grid: float = 1.0
    entries: int | None = None
    """Nothing depends on it: ledgers and plans that were written before still say it."""


@dataclass(frozen=True)
class LaplaceNoise(Noise):
    """Laplace noise of standard deviation `std` (scale std/sqrt(2)), for one-hot votes and bits."""


@dataclass(frozen=True)
class BinomialNoise(Noise):
    """grid * (Binomial(trials, p) - trials p) on `entries` coordinates (cpSGD); std = grid sqrt(trials p (1 - p))."""

    trials: int = 1
    probability: float = 0.5
    entries: int = 1

    @property
    def grid(self) -> float:
        return self.std / math.sqrt(self.trials * self.probability * (1 - self.probability))

    def louder(self, factor: float) -> BinomialNoise:
        """More coins on the same grid, an even number of them."""
        trials = max(2, 2 * math.ceil(self.trials * factor**2 / 2 * (1 - 1e-12)))
        return replace(self, trials=trials, std=self.std * math.sqrt(trials / self.trials))


# -- sampling --------------------------------------------------------------------------------------------------------------------


class Sampler(StrEnum):
    """Whose secret the draw is: the server's, or the unit's own device's."""

    SERVER = "server"
    OWN = "own coins"


@dataclass(frozen=True)
class Sampling:
    """Which units take part in a round."""

    def __post_init__(self) -> None:
        if hasattr(self, "by"):
            _coerce(self, by=Sampler)
        for name in ("population", "size", "contacted", "times", "separation"):
            _check_count(name, getattr(self, name, None))
        rate = getattr(self, "rate", 1.0)
        if not 0 < rate <= 1:
            raise UsageError(f"A sampling rate lies in (0, 1], and this one is {rate:g}.")
        if getattr(self, "repeats", 0) < 0:
            raise UsageError("Rounds cannot be repeated a negative number of times.")

    @property
    def amplifies(self) -> bool:
        """Whether there is a chance that a unit was not drawn."""
        return bool(getattr(self, "rate", 1.0) < 1)


@dataclass(frozen=True)
class Everyone(Sampling):
    """Every unit in every round."""


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Each of `population` units by its own coin of probability `rate`; how many came stays secret."""

    rate: float
    population: int
    by: Sampler = Sampler.SERVER


@dataclass(frozen=True)
class FixedSampling(Sampling):
    """Exactly `size` of `population`, uniformly, without replacement."""

    size: int
    population: int
    by: Sampler = Sampler.SERVER

    @property
    def rate(self) -> float:
        return self.size / self.population

    @property
    def amplifies(self) -> bool:
        return self.size < self.population


@dataclass(frozen=True)
class BoundedParticipation(Sampling):
    """At most `times` rounds for each unit, enforced; `None`: nothing limits it."""

    times: int | None
    repeats: int = 0
    """Rounds drawn again after an interruption: a unit may have been in both."""


@dataclass(frozen=True)
class SecretParticipation(Sampling):
    """All of a public set of `contacted` units send noise in every round; each adds its data if its own secret coin says so."""

    rate: float
    contacted: int

    @property
    def population(self) -> int:
        return self.contacted


@dataclass(frozen=True)
class MinSeparation(Sampling):
    """At most `times` participations, at least `separation` rounds apart, under correlated noise C^-1 z (DP-FTRL).

    `strategy` is the first column of the lower-triangular Toeplitz matrix C: non-negative and not increasing.
    """

    times: int
    separation: int
    strategy: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strategy or not all(math.isfinite(v) for v in self.strategy):
            raise UsageError("A strategy is a column of finite numbers.")


# -- the whole -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persons:
    """What makes a record of all rows that one person has at a client."""

    rows: int | None = None
    """The most rows of a person that a client uses; None: nobody says."""
    clients: int = 1
    """The most clients that have rows of one person."""

    def __post_init__(self) -> None:
        for name in ("rows", "clients"):
            _check_count(name, getattr(self, name))


@dataclass(frozen=True)
class Enrolled:
    """Whom a plan speaks of."""

    clients: int
    records: int | None = None
    """Of the client that holds the fewest: the larger a client, the better a secret batch hides a record."""
    total: int | None = None
    """Records of all clients together."""
    dim: int | None = None
    """Parameters of the model."""
    persons: Persons | None = None
    """Where a record is a person, and not a row."""

    @property
    def record(self) -> Unit:
        """What a record is."""
        return Unit.RECORD if self.persons is None else Unit.PERSON

    @property
    def holders(self) -> int:
        """The most clients that have data of one record."""
        return 1 if self.persons is None else self.persons.clients

    def units(self, records: bool) -> int:
        """How many are protected: clients, or records as far as they are known of."""
        return (self.total or self.clients * (self.records or 1)) if records else self.clients


class Divisor(StrEnum):
    """What the noisy sum is divided by: a constant, or the cohort that came, which may reveal it."""

    CONSTANT = "constant"
    REALISED = "realised"


@dataclass(frozen=True)
class Release:
    """One noisy sum a round."""

    bound: Bound
    noise: Noise
    divisor: Divisor = Divisor.CONSTANT

    def __post_init__(self) -> None:
        _coerce(self, divisor=Divisor)


@dataclass(frozen=True)
class Phase:
    """`rounds` adaptive repetitions of the joint release of `releases`, to one cohort each."""

    releases: tuple[Release, ...]
    sampling: Sampling
    rounds: int
    steps: int = 1
    """Releases of one round: the local steps, where each draws its own batch of records and its own noise."""
    participations: int | None = None
    """The most rounds that one unit's client joins, enforced; `None`: all of them."""
    period: int | None = None
    """After so many rounds everybody had one turn, and nobody two (`Rotation`)."""
    repeats: int = 0
    """Rounds drawn again after an interruption: a client may have been in both."""
    holders: int = 1
    """The most clients that have data of one unit, each with releases of its own."""

    def __post_init__(self) -> None:
        for name in ("steps", "participations", "period", "holders"):
            _check_count(name, getattr(self, name))

    @property
    def times(self) -> int:
        """How many releases one unit can be in."""
        distinct = max(self.rounds - self.repeats, 1)
        joined = distinct if self.period is None else -(-distinct // self.period)
        joined = joined if self.participations is None else min(joined, self.participations)
        return min(self.rounds, joined + self.repeats) * self.steps * self.holders

    def again(self, repeats: int) -> Phase:
        """The same, where so many of its rounds are others drawn again."""
        sampling = self.sampling
        if isinstance(sampling, BoundedParticipation):
            sampling = replace(sampling, repeats=repeats)
        return replace(self, sampling=sampling, repeats=repeats)


class SideData(StrEnum):
    """What else shapes a release: nothing, public data, or protected data without noise, which has no proof."""

    NONE = "none"
    PUBLIC = "public"
    PRIVATE = "private"


@dataclass(frozen=True)
class Plan:
    """What is released, to whom, about whom."""

    phases: tuple[Phase, ...]
    population: int
    """How many units are enrolled."""
    unit: Unit = Unit.CLIENT
    relation: Relation = Relation.ADD_REMOVE
    view: View = View.RELEASED
    sampled: Unit = Unit.CLIENT
    """What `sampling` samples."""
    honest_min: int | None = None
    """The fewest honest, surviving noise shares in any sum."""
    noise_per_local_step: bool = False
    side_data: SideData = SideData.NONE
    assumptions: tuple[str, ...] = ()
    clients: int | None = None
    """Who holds the units, where those are records."""
    cohort: float | None = None
    """How many of them take part in a round."""
    parameters: int | None = None
    """Of the model, where the bound depends on them."""
    total: int | None = None
    """Records of all clients together, where units are records."""

    def __post_init__(self) -> None:
        _coerce(self, unit=Unit, relation=Relation, view=View, sampled=Unit, side_data=SideData)
        for name, value in (("clients", self.population), *(("rounds", phase.rounds) for phase in self.phases)):
            _check_count(name, value)
            if value > (most := 10**15 if name == "clients" else 10**7):
                raise UsageError(f"{name} must be at most {most:,}, not {value:,}.")
        for std, reach in ((release.noise.std, release.bound.reach()) for release in self.releases):
            if not 0 < std < math.inf:
                raise UsageError(f"noise must be a positive number, not {std:g}.")
            if math.isnan(reach) or reach <= 0:
                raise UsageError(f"A bound must be a positive number, not {reach:g}.")
            if math.isfinite(reach) and not 1e-12 < std / reach < 1e12:
                raise UsageError(f"noise of {std:g} on what is at most {reach:g} cannot be meant.")
        _check_count("honest_min", self.honest_min)

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    @property
    def releases(self) -> tuple[Release, ...]:
        """Of all phases."""
        return tuple(release for phase in self.phases for release in phase.releases)

    @property
    def units(self) -> int:
        """How many are protected: the population, or the records of everybody, of which each holds a population at least."""
        return self.total or self.population * (self.clients or 1)

    @property
    def noise_multiplier(self) -> float:
        """The first phase's noise over the most that one unit adds to it."""
        first = self.phases[0].releases
        shift = math.sqrt(sum((r.bound.reach() / r.noise.std) ** 2 / self.shares(r) for r in first))
        return float(f"{1.0 / shift:.12g}")  # what rounding added is not worth printing

    def shares(self, release: Release) -> int:
        """How many draws of a noise add up in what the adversary sees: one client's alone where he sees messages."""
        if release.noise.drawn is Drawn.SHARES and self.view is not View.MESSAGES:
            return self.honest_min if self.honest_min is not None else 1
        return 1

    @property
    def secure(self) -> bool:
        """Whether all noise is exact and cryptographic."""
        return all(release.noise.secure for release in self.releases)

    def with_noise(self, multiplier: float) -> Plan:
        """The same plan with all noise scaled so that `noise_multiplier` is this."""
        factor = multiplier / self.noise_multiplier

        def louder(release: Release) -> Release:
            return replace(release, noise=release.noise.louder(factor))

        return replace(self, phases=tuple(replace(p, releases=tuple(map(louder, p.releases))) for p in self.phases))

    def first(self, rounds: int) -> Plan:
        """The plan's first `rounds` rounds; beyond its end the last phase goes on."""
        kept: list[Phase] = []
        for number, phase in enumerate(self.phases):
            own = rounds if number == len(self.phases) - 1 else min(rounds, phase.rounds)
            rounds -= own
            if own:
                kept.append(replace(phase, rounds=own))
        return replace(self, phases=tuple(kept))
