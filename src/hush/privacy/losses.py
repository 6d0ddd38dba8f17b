"""The privacy loss of a whole plan, as something that answers for epsilon and for delta.

* Gaussian noise without sampling is one Gaussian, exactly (Balle and Wang 2018).
* Gaussian noise with sampling is a privacy loss distribution (dp-accounting), composed; all estimates are pessimistic, so every
  figure is an upper bound at any discretisation, and finer steps make it smaller.
* Skellam noise is as private as a Gaussian of nearly its own strength, and accounted as that (`hush.privacy.skellam`).
* Discrete Gaussian noise is accounted by Renyi divergences at integer orders (`hush.privacy.renyi`).
* Binomial noise by moments that hold but for its tails, composed as a distribution where sampled (`hush.privacy.binomial`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from hush.errors import NoGuarantee
from hush.privacy import renyi
from hush.privacy import vocabulary as say
from hush.privacy.binomial import LeastLoss, binomial_loss
from hush.privacy.bounds import Bit, OneVote
from hush.privacy.guarantee import Relation
from hush.privacy.matrix import toeplitz_sensitivity
from hush.privacy.skellam import gaussian_std
from hush.privacy.vocabulary import Phase, Plan


class Loss(Protocol):
    """A composed privacy loss."""

    @property
    def method(self) -> str:
        """How it was computed, in words."""

    def epsilon(self, delta: float) -> float: ...

    def deltas(self, eps: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class GaussianLoss:
    """N(0, 1) against N(shift, 1)."""

    shift: float
    method: str

    def epsilon(self, delta: float) -> float:
        return float(dp_accounting.get_epsilon_gaussian(1.0 / self.shift, delta))

    def deltas(self, eps: np.ndarray) -> np.ndarray:
        down = np.exp(log_gaussian_delta(np.abs(eps), self.shift))
        return np.asarray(np.where(eps >= 0, down, -np.expm1(np.minimum(eps, 0)) + np.exp(np.minimum(eps, 0)) * down))


RENYI = "Renyi divergences at integer orders"


@dataclass(frozen=True)
class RenyiLoss:
    """Renyi divergences at integer orders."""

    values: tuple[float, ...]
    method: str = RENYI

    def epsilon(self, delta: float) -> float:
        return renyi.epsilon(renyi.ORDERS, list(self.values), delta)

    def deltas(self, eps: np.ndarray) -> np.ndarray:
        # at negative eps: the profile of any symmetric pair, h(a) = 1 - a + a h(1/a), bounds both directions
        up = np.array([renyi.delta(renyi.ORDERS, list(self.values), abs(float(e))) for e in eps])
        up = np.minimum(up, math.sqrt(min(self.values[0] / 2, -math.expm1(-self.values[0]))))  # Pinsker; Bretagnolle and Huber
        return np.asarray(np.where(eps >= 0, up, -np.expm1(np.minimum(eps, 0)) + np.exp(np.minimum(eps, 0)) * up))


_GAUSSIAN = {say.GaussianNoise, say.SkellamNoise}
"""Kinds of noise that a Gaussian stands for."""


def loss_of(plan: Plan, step: float) -> Loss:
    """The loss of the whole plan. `hush.privacy.rules` must have let it pass."""
    kinds = {type(release.noise) for release in plan.releases}
    if say.BinomialNoise in kinds:
        return binomial_loss(plan, step)
    if say.DiscreteGaussianNoise in kinds:
        return RenyiLoss(tuple(renyi.renyi(plan, order) for order in renyi.ORDERS))
    if kinds <= _GAUSSIAN and not any(phase.sampling.amplifies for phase in plan.phases):
        shift = math.sqrt(sum(_unsampled_shift(plan, phase) ** 2 for phase in plan.phases))
        return GaussianLoss(shift, "exact Gaussian composition" + _over(plan))
    grid = max(_fitting(plan, phase, step) for phase in plan.phases)
    total, words = None, []
    for phase in plan.phases:
        distribution, name = _distribution(plan, phase, grid)
        total = distribution if total is None else total.compose(distribution)
        words.append(name)
    return LeastLoss((total,), "PLD, " + ", then ".join(dict.fromkeys(words)))


def _over(plan: Plan) -> str:
    kinds = {type(phase.sampling) for phase in plan.phases}
    if kinds == {say.BoundedParticipation}:
        return f" over at most {sum(renyi.times(phase) // phase.steps for phase in plan.phases)} participations of a client"
    if any(phase.period is not None for phase in plan.phases):
        return f" over at most {sum(phase.times for phase in plan.phases)} participations of a client, in turns"
    return " under min-separation" if say.MinSeparation in kinds else ""


def shift(plan: Plan, phase: Phase, relation: Relation) -> float:
    """The joint mean shift of one round's Gaussian releases, in standard deviations of what the adversary cannot subtract."""
    total = 0.0
    for release in phase.releases:
        total += (release.bound.l2(relation) / gaussian_std(release.noise, plan.shares(release))) ** 2
    return math.sqrt(total)


def _unsampled_shift(plan: Plan, phase: Phase) -> float:
    one, sampling = shift(plan, phase, plan.relation), phase.sampling
    if isinstance(sampling, say.MinSeparation):
        return one * toeplitz_sensitivity(sampling, phase.rounds)
    if isinstance(sampling, say.FixedSampling):  # everybody is drawn, and adding a unit displaces another
        relation = Relation.REPLACE_ONE if plan.relation is Relation.ADD_REMOVE else plan.relation
        one = shift(plan, phase, relation)
    return one * math.sqrt(renyi.times(phase))


_SELDOM = 1e-10
"""Who is drawn less often is accounted as drawn so often, which can only cost more: 1 - rate must not be 1."""


def _distribution(plan: Plan, phase: Phase, step: float) -> tuple[Any, str]:
    """One phase's composed privacy loss, and its name."""
    sampling, kinds = phase.sampling, {type(release.noise) for release in phase.releases}
    if kinds == {say.LaplaceNoise}:
        return _laplace(plan, phase, step), "Laplace noise"
    if not kinds <= _GAUSSIAN:
        raise NoGuarantee("One round mixes kinds of noise whose joint loss is not known.", "Use one kind of noise in a round.")
    if not sampling.amplifies:
        one = pld.from_gaussian_mechanism(1.0 / _unsampled_shift(plan, phase), value_discretization_interval=step)
        return one, "exact Gaussian composition"
    reach, gap = shift(plan, phase, Relation.ADD_REMOVE), shift(plan, phase, Relation.REPLACE_ONE)
    if isinstance(sampling, say.PoissonSampling | say.SecretParticipation):
        name = "Poisson sampling" if isinstance(sampling, say.PoissonSampling) else "secret participation"
        one = _poisson(1.0 / reach, max(sampling.rate, _SELDOM), plan.relation is Relation.REPLACE_ONE, step)
    elif isinstance(sampling, say.FixedSampling):
        name = "fixed-size sampling"
        if plan.relation is Relation.ADD_REMOVE:  # exactly Poisson's pair at the doubled shift (Lebeda et al. 2024)
            one = _poisson(1.0 / gap, max(sampling.rate, _SELDOM), False, step)
        else:  # zero-out is bounded by replace-one: its victim's zero is one of the contributions it may be replaced by
            one = _replaced_in_fixed_size(gap, max(sampling.rate, _SELDOM), step)
    else:
        raise NoGuarantee(f"{type(sampling).__name__} has no proved accounting.", "Sample with Poisson, FixedSize or Bounded.")
    with np.errstate(over="ignore"):  # where the library looks for tail bounds at orders that it then leaves out
        return one.self_compose(phase.times), name


@lru_cache(maxsize=64)
def _poisson(noise: float, rate: float, replaced: bool, step: float, above: bool = True) -> Any:
    """One round of the Poisson-sampled Gaussian, estimated from above or below; why it stands for Skellam noise under
    REPLACE_ONE, too, where three laws meet: `hush.privacy.skellam`.

    The library itself doubles the sensitivity for REPLACE_ONE, in its PLD.
    """
    kinds = dp_accounting.NeighboringRelation
    return pld.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=above,
        value_discretization_interval=step,
        sampling_prob=rate,
        use_connect_dots=above,
        neighboring_relation=kinds.REPLACE_ONE if replaced else kinds.ADD_OR_REMOVE_ONE,
    )


@lru_cache(maxsize=16)
def _replaced_in_fixed_size(shift: float, rate: float, step: float) -> Any:
    """The dominating pair of a Gaussian of mean shift `shift` under sampling without replacement.

    Its profile is delta'(log(1 + q(e^eps - 1))) = q delta(eps) (Balle, Barthe, Gaboardi 2018), completed to negative eps by
    symmetry (Zhu, Dong, Wang 2022), discretised pessimistically.
    """

    def log_profile(eps: np.ndarray) -> np.ndarray:
        inner = np.where(eps > 100, eps - np.log(rate), np.log1p(np.expm1(np.minimum(eps, 100)) / rate))
        return np.asarray(np.log(rate) + log_gaussian_delta(inner, shift))

    top = 1.0
    while log_profile(np.array([top]))[0] > -55 and top < 5000:
        top *= 1.25
    grid = np.arange(-math.ceil(top / step), math.ceil(top / step) + 1)
    eps = grid * step
    above = np.exp(log_profile(np.maximum(eps, 0.0)))
    below = np.minimum(eps, 0.0)
    mirrored = -np.expm1(below) + np.exp(below + log_profile(np.maximum(-eps, 0.0)))
    deltas = np.where(eps >= 0, above, mirrored)
    deltas = np.minimum.accumulate(np.clip(deltas * (1 + 1e-12), 0.0, 1.0))
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(step, grid, deltas))


def log_gaussian_delta(eps: np.ndarray, shift: float) -> np.ndarray:
    """log delta(eps) of N(0,1) against N(shift,1) (Balle and Wang 2018)."""
    first = stats.norm.logcdf(shift / 2 - eps / shift)
    gap = eps + stats.norm.logcdf(-shift / 2 - eps / shift) - first
    with np.errstate(all="ignore"):
        return np.asarray(np.where(gap >= 0, -np.inf, first + np.log1p(-np.exp(np.minimum(gap, -1e-300)))))


def _laplace(plan: Plan, phase: Phase, step: float) -> Any:
    """Laplace noise on one vote or one bit, for everyone."""
    total = pld.identity(step)
    for release in phase.releases:
        if not isinstance(release.bound, OneVote | Bit) or not isinstance(phase.sampling, say.Everyone):
            raise NoGuarantee("Laplace noise is accounted for votes and bits of everyone alone.", "Use Gaussian noise.")
        ones = release.bound.l2(plan.relation)
        if isinstance(release.bound, OneVote) and plan.relation is Relation.REPLACE_ONE:
            ones = 2.0  # in L1, a vote that moves changes two entries by one each
        scale = release.noise.std * math.sqrt(plan.shares(release)) / math.sqrt(2)
        total = total.compose(pld.from_laplace_mechanism(scale / ones, value_discretization_interval=step))
    return total.self_compose(phase.times)


def _fitting(plan: Plan, phase: Phase, step: float) -> float:
    """A coarser grid where the loss of one round spans many thousands of steps: still an upper bound, and it fits memory."""
    if any(type(release.noise) not in _GAUSSIAN for release in phase.releases):
        return step
    widest = shift(plan, phase, Relation.REPLACE_ONE)
    if isinstance(phase.sampling, say.PoissonSampling | say.SecretParticipation) and plan.relation is not Relation.REPLACE_ONE:
        widest = shift(plan, phase, Relation.ADD_REMOVE)
    return max(step, (widest**2 + 10.0 * widest) * math.sqrt(phase.times) / 2e6)


def optimistic(plan: Plan, step: float) -> Loss | None:
    """The loss of a pair of data sets that attains it, estimated from below; None where no such pair is known here."""
    kinds = {type(release.noise) for release in plan.releases}
    if kinds != {say.GaussianNoise} or not all(_opposite(plan, phase) for phase in plan.phases):
        return None
    if not any(phase.sampling.amplifies for phase in plan.phases):
        return loss_of(plan, step)
    total = pld.identity(step, pessimistic_estimate=False)
    for phase in plan.phases:
        total = total.compose(_attained(plan, phase, step))
    return LeastLoss((total,), "PLD from below")


def _opposite(plan: Plan, phase: Phase) -> bool:
    """Whether two contributions can point in opposite directions at full length, as the pairs below do."""
    reach, gap = shift(plan, phase, Relation.ADD_REMOVE), shift(plan, phase, Relation.REPLACE_ONE)
    return not phase.sampling.amplifies or plan.relation is not Relation.REPLACE_ONE or gap > 2 * reach * (1 - 1e-9)


def _attained(plan: Plan, phase: Phase, step: float) -> Any:
    """A pair that one phase really has: others at zero, or under fixed-size sampling all others at -C and the victim at +C."""
    sampling, rate, replaced = phase.sampling, 1.0, False
    noise = 1.0 / shift(plan, phase, Relation.ADD_REMOVE)
    if isinstance(sampling, say.PoissonSampling | say.SecretParticipation):
        rate, replaced = sampling.rate, plan.relation is Relation.REPLACE_ONE
    elif isinstance(sampling, say.FixedSampling):
        # whether the victim joins and displaces another or turns from +C to -C: the sum moves by 2C if it is drawn
        rate = sampling.size / (sampling.population + (plan.relation is Relation.ADD_REMOVE))
        if plan.relation is not Relation.ZERO_OUT:
            noise = 1.0 / shift(plan, phase, Relation.REPLACE_ONE)
    else:
        noise = 1.0 / _unsampled_shift(plan, phase)
        phase = replace(phase, rounds=1, steps=1, participations=None, holders=1)
    return _poisson(noise, rate, replaced, step, above=False).self_compose(phase.times)
