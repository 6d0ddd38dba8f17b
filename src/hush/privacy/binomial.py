"""Binomial noise on whole numbers, and on updates rounded to levels at random (cpSGD: Agarwal, Suresh, Yu, Kumar, McMahan 2018).

Everything is in units of the grid, vectors have d entries, and D1, D2, Dinf bound how far two of them are apart in the three norms.

**The noise** (ours, for p = 1/2). X is Binomial(m, 1/2) - m/2, n = (m + 1)/2, and the loss of one entry that moved by v > 0 is

    log P(x)/P(x - v) = -2 sum_{i<v} artanh(z_i/n) = v^2/n - 2 v x/n - 2 sum R(z_i/n),   z_i = x - i - 1/2,  R(u) = artanh(u) - u,

because P(x)/P(x - 1) = (n - z_0)/(n + z_0). Where |x| <= t in all entries, the last sums come to no more than the drift
G = 2 D1 R((t + Dinf - 1/2)/n); by Hoeffding some |x| > t with a probability of 2 d e^(-2 t^2/m) at most: the tails. For k > 0,
E e^(-2 k v X/n) = cosh(k v/n)^m <= e^(m k^2 v^2/(2 n^2)), and both 1/n and m/(2 n^2) are below 2/m. So but for the tails

    log E e^(k loss) <= k (k + 1) r + k G,   r = 2 D2^2/m,

what a Gaussian of the same variance m/4 has, and the drift. The other direction is the same: x -> v - x swaps the pair. Over
releases moments multiply and tails add up, also where later ones depend on earlier ones. As 1 - e^-y <= k^k/(k+1)^(k+1) e^(ky),

    delta(eps) <= tails + min_k k^k/(k+1)^(k+1) e^(k ((k+1) r + G - eps)).

For one entry under 500 coins or more this epsilon is 5 to 40% above the exact one, where that exceeds 0.1.

**cpSGD's own theorem 1** (arXiv 1805.10559, equation 7): where v = m p (1-p) >= max(23 ln(10 d/delta), 2 Dinf), q = 1 - p >= p,

    epsilon = D2 sqrt(2 ln(1.25/delta) / v) + (D2 c sqrt(ln(10/delta)) + D1 b) / (v (1 - delta/10))
              + Dinf (2/3 ln(1.25/delta) + e ln(20 d/delta) ln(10/delta)) / v,

    b = 2/3 (p^2 + q^2) + 1 - 2p,   c = sqrt(2) (3 p^3 + 3 q^3 + 2 p^2 + 2 q^2),   e = 4/3 (p^2 + q^2).

The paper's text could not be reached. The formula was compared with two restatements, which agree but share an author: the source
of the Internet-Draft draft-case-ppm-binomial-dp (Case and Thomson 2024; at p = 1/2 it has b = 1/3, c = 7/4 sqrt(2), e = 2/3) and
public code that cites theorem 1. As restated it is **false for large epsilon**: its first term is the classical Gaussian bound,
which holds up to epsilon 1. One entry that moves by 500 under 20,000 coins has epsilon 40.6 at delta = 0.01, and the formula says
26.5. So it is used up to epsilon 1 alone, where tests found no counter-example and we have no proof of our own, and only where
the proof above does not speak: bounds that name no grid, and p other than 1/2.

**Rounding at random** (ours). x and x' are clamped, which brings them no further apart, and rounded with the same uniform coins u:
y_j = floor(x_j + u_j). Let a_j = |x_j - x'_j|, of L2 norm at most r, and f_j the fraction of a_j.

1. y_j is monotone in x_j and has mean x_j, so |y_j - y'_j| = floor(a_j) + B_j = a_j + g_j, where B_j is 1 with probability f_j and
   else 0, and g_j = B_j - f_j, independent over j. Hence Dinf <= min(ceil(r), levels - 1).
2. w = sum f_j (1 - f_j) <= sum h(a_j^2), h(s) = sqrt(s) - s up to s = 1/4 and 1/4 from there on: concave and increasing. By Jensen
   w <= d h(r^2/d) = sqrt(d) r - r^2 where r <= sqrt(d)/2, and d/4 beyond.
3. D1 = sum a_j + sum g_j. The first is at most sqrt(d) r; by Bernstein the second exceeds t = sqrt(2wL) + L/3 with probability
   e^-L.
4. D2^2 = |a|^2 + 2 <a, g> + |g|^2. The g_j^2 lie in [0, 1], have mean f_j (1 - f_j) and no larger variance: by Bernstein |g|^2
   exceeds w + t with probability e^-L. Each g_j lies in an interval of length 1: by Hoeffding <a, g> exceeds r sqrt(L/2) with
   probability e^-L, and it never exceeds r |g|.
5. With L = ln(3/beta) all of this holds but with probability beta, which adds to delta: for coins in the good set the noise above
   covers the gap, for others nothing is claimed. Whoever chose x and x' must not have known the coins: they are the client's own.
6. Where it holds, D2^2 <= Dinf D1, D2 <= sqrt(d) Dinf, D1 <= min(sqrt(d) D2, D2^2, d Dinf); D2^2 because these are whole numbers.

**Secret batches.** What is (eps, delta) private on a batch is (ln(1 + q (e^eps - 1)), q delta) private on what the batch was drawn
from at rate q: batches of a fixed size under replace-one, Poisson batches under zero-out (Balle, Barthe, Gaboardi 2018, theorems 9
and 8). That holds for all eps at once, so the whole curve is amplified, made convex in e^eps as every true curve is, completed by
symmetry to negative eps, and composed as a privacy loss distribution. The tails of a single release are free: the least of many
results holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld

from hush.errors import NoGuarantee
from hush.privacy import renyi
from hush.privacy import vocabulary as say
from hush.privacy.bounds import Quantised
from hush.privacy.guarantee import Relation
from hush.privacy.vocabulary import Phase, Plan, Release

DELTAS = tuple(10.0**-j for j in range(2, 17))
"""What a single release may be given of delta, before its batch makes it smaller."""
_FLOATS = 1 + 2.0**-16
"""Distances are taken this much larger, for what floats did to an update before it was rounded."""
_MOMENTS = np.exp(np.linspace(math.log(1e-3), math.log(1e5), 400))
"""The k of the moments."""
_CONSTANTS = _MOMENTS * np.log(_MOMENTS / (1 + _MOMENTS)) - np.log1p(_MOMENTS)
_FARTHEST = 300.0
"""An epsilon of one release beyond which no figure is of use, and exponentials leave floating point."""


class Norms(NamedTuple):
    """By how much two vectors of whole numbers can differ."""

    one: float
    two: float
    most: float


@dataclass(frozen=True)
class Moments:
    """log E e^(k loss) <= k (k + 1) rho + k drift for every k > 0, but for events of probability `tails`."""

    rho: float
    drift: float
    tails: float

    def times(self, count: int) -> Moments:
        return Moments(self.rho * count, self.drift * count, self.tails * count)

    def plus(self, other: Moments) -> Moments:
        return Moments(self.rho + other.rho, self.drift + other.drift, self.tails + other.tails)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The name is dp-accounting's, so that this and its distributions can stand for one another."""
        if delta <= self.tails:
            return math.inf
        return max(0.0, float(np.min((self._logs() - math.log(delta - self.tails)) / _MOMENTS)))

    def get_delta_for_epsilon(self, eps: list[float]) -> np.ndarray:
        """At negative eps by the symmetry h(a) = 1 - a + a h(1/a) of a pair and its mirror image."""
        at = np.asarray(eps, float)
        up, low = self.above(np.abs(at)), np.minimum(at, 0.0)
        return np.asarray(np.where(at >= 0, up, -np.expm1(low) + np.exp(low) * up))

    def above(self, eps: np.ndarray) -> np.ndarray:
        """delta at eps >= 0."""
        least = np.array([np.min(self._logs() - _MOMENTS * e) for e in eps])
        return np.asarray(np.minimum(1.0, self.tails + np.exp(np.minimum(least, 0.0))))

    def _logs(self) -> np.ndarray:
        return np.asarray(_CONSTANTS + _MOMENTS * ((_MOMENTS + 1) * self.rho + self.drift))


@dataclass(frozen=True)
class LeastLoss:
    """One proved loss of a plan, as dp-accounting composes it, or several of them; the least holds."""

    each: tuple[Any, ...]
    method: str

    def epsilon(self, delta: float) -> float:
        return min(float(one.get_epsilon_for_delta(delta)) for one in self.each)

    def deltas(self, eps: np.ndarray) -> np.ndarray:
        points = list(map(float, eps))
        return np.asarray(np.min([one.get_delta_for_epsilon(points) for one in self.each], axis=0))


def binomial_loss(plan: Plan, step: float) -> LeastLoss:
    """The loss of a plan all of whose noise is binomial, or `NoGuarantee`."""
    by_moments = all(map(_on_its_grid, plan.phases))
    made = [_by_moments(plan, tails, step) if by_moments else _by_theorem(plan, tails, step) for tails in DELTAS]
    found = tuple(one for one in made if one is not None)
    if found:
        return LeastLoss(found, "moments of binomial noise" if by_moments else "cpSGD's theorem for binomial noise")
    if by_moments:
        raise NoGuarantee("The trials are too few for any finite epsilon.", "Raise the trials, or take a coarser grid.")
    raise NoGuarantee(
        "cpSGD's theorem needs trials * p(1-p) >= max(23 log(10d/delta), 2 D/s), and holds up to epsilon 1 alone.",
        "Raise the trials, or toss fair coins (p = 1/2), for which more is proved.",
    )


# -- one release -----------------------------------------------------------------------------------------------------------------


def apart(plan: Plan, phase: Phase, beta: float) -> Norms:
    """How far apart one unit can take what is released, in units of the grid, but with probability `beta` where it was rounded."""
    release, noise = _only(phase)
    bound = release.bound
    # zero-out is bounded by replace-one: the victim's zero is one of the contributions it may be replaced by
    relation = Relation.REPLACE_ONE if isinstance(phase.sampling, say.FixedSampling) else plan.relation
    if isinstance(bound, Quantised):
        _match(bound, noise)
        return rounded_apart(bound.inner.l2(relation) / bound.grid, bound.entries, bound.levels, beta)
    two, root = bound.l2(relation) / noise.grid, math.sqrt(noise.entries)
    return Norms(min(root * two, two * two) if _on_its_grid(phase) else root * two, two, two)


def rounded_apart(distance: float, entries: int, levels: int, beta: float) -> Norms:
    """How far apart two vectors at this L2 distance can be once rounded at random, but with probability `beta`: see above."""
    r, root, long = distance * _FLOATS, math.sqrt(entries), math.log(3 / beta)
    w = root * r - r * r if r <= root / 2 else entries / 4
    t = math.sqrt(2 * w * long) + long / 3
    most = float(min(math.ceil(r), levels - 1))
    one = root * r + t
    two = math.sqrt(r * r + w + t + r * min(math.sqrt(2 * long), 2 * math.sqrt(w + t)))
    two = min(two, math.sqrt(most * one), root * most)
    return Norms(min(one, root * two, two * two, entries * most), two, most)


def moments(norms: Norms, trials: int, entries: int, tails: float) -> Moments | None:
    """Of centred binomial noise (p = 1/2) but for `tails`; None where the noise is narrower than what it covers."""
    cut, half = math.sqrt(trials / 2 * math.log(2 * entries / tails)), (trials + 1) / 2
    reach = (cut + norms.most - 0.5) / half
    if reach >= 1:
        return None
    return Moments(2 * norms.two**2 / trials, 2 * norms.one * (math.atanh(reach) - reach), tails)


def theorem(norms: Norms, trials: int, probability: float, entries: int, delta: float) -> float | None:
    """cpSGD's theorem 1; None where its condition fails, or where it gives more than the 1 up to which it holds."""
    p = min(probability, 1 - probability)  # the same noise, mirrored
    variance = trials * p * (1 - p)
    if variance < max(23 * math.log(10 * entries / delta), 2 * norms.most):
        return None
    square = p**2 + (1 - p) ** 2
    b, c, e = 2 / 3 * square + 1 - 2 * p, math.sqrt(2) * (3 * p**3 + 3 * (1 - p) ** 3 + 2 * square), 4 / 3 * square
    gaussian = norms.two * math.sqrt(2 * math.log(1.25 / delta) / variance)
    middle = (norms.two * c * math.sqrt(math.log(10 / delta)) + norms.one * b) / (1 - delta / 10)
    tail = norms.most * (2 / 3 * math.log(1.25 / delta) + e * math.log(20 * entries / delta) * math.log(10 / delta))
    epsilon = gaussian + (middle + tail) / variance
    return epsilon if epsilon <= 1 else None


# -- a whole plan ----------------------------------------------------------------------------------------------------------------


def _covered(plan: Plan, delta: float, part: int) -> Iterator[tuple[Norms, int, say.BinomialNoise, float]]:
    """Each phase's distances, the coins and the noise on them, and what is left of `delta`: a rounding takes one `part` of it."""
    for phase in plan.phases:
        release, noise = _only(phase)
        coins = delta / part if isinstance(release.bound, Quantised) else 0.0
        yield apart(plan, phase, coins), noise.trials * plan.shares(release), noise, delta - coins


def _by_moments(plan: Plan, tails: float, step: float) -> Any:
    """The composed loss where every release may fail with probability `tails`: half of it for the rounding, where there is any."""
    each: list[Moments] = []
    for norms, trials, noise, left in _covered(plan, tails, 2):
        one = moments(norms, trials, noise.entries, left)
        if one is None:
            return None
        each.append(Moments(one.rho, one.drift, tails))
    rates = [_rate(plan, phase) for phase in plan.phases]
    if min(rates) == 1:
        total = Moments(0.0, 0.0, 0.0)
        for phase, one in zip(plan.phases, each, strict=True):
            total = total.plus(one.times(renyi.times(phase)))
        return total
    tops = [_top(one, rate) for one, rate in zip(each, rates, strict=True)]
    if max(tops) > _FARTHEST:
        return None
    step = max(step, max(tops) / 20_000)
    composed = pld.identity(step)
    for phase, one, rate, top in zip(plan.phases, each, rates, tops, strict=True):
        composed = composed.compose(_sampled(one, rate, top, step).self_compose(renyi.times(phase)))
    return composed


def _top(one: Moments, rate: float) -> float:
    """The epsilon from which on nearly nothing but the tails is left."""
    return amplified(one.get_epsilon_for_delta(1.001 * one.tails), rate)


def _sampled(one: Moments, rate: float, top: float, step: float) -> Any:
    """The privacy loss distribution of one release from a secret batch."""
    last = math.ceil(top / step)
    places = np.unique(np.round(np.concatenate([np.arange(200), np.geomspace(1, last, 1500)])).astype(int))
    places = places[places <= last]
    eps = places * step
    inner = np.where(eps > 100, eps - math.log(rate), np.log1p(np.expm1(np.minimum(eps, 100)) / rate))
    up = rate * one.above(inner)
    low = -eps[:0:-1]  # from the lowest on: h(a) = 1 - a + a h(1/a)
    deltas = np.clip(np.concatenate([-np.expm1(low) + np.exp(low) * up[:0:-1], up]) * (1 + 1e-12), 0.0, 1.0)
    places = np.concatenate([-places[:0:-1], places])
    kept = _hull(np.exp(places * step), deltas)
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(step, places[kept], deltas[kept]))


def _hull(x: np.ndarray, y: np.ndarray) -> list[int]:
    """The corners of the greatest convex curve below some points, given from left to right."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept


def amplified(epsilon: float, rate: float) -> float:
    """ln(1 + rate (e^epsilon - 1))."""
    if epsilon < 30:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))


def _by_theorem(plan: Plan, delta: float, step: float) -> Any:
    """The composed loss where every release is given `delta`: each becomes the worst of all (epsilon, delta) private pairs."""
    each: list[float] = []
    for norms, trials, noise, left in _covered(plan, delta, 10):
        one = theorem(norms, trials, noise.probability, noise.entries, left)
        if one is None:
            return None
        each.append(one)
    rates = [_rate(plan, phase) for phase in plan.phases]
    epsilons = [amplified(one, rate) for one, rate in zip(each, rates, strict=True)]
    if len(set(epsilons)) == 1:
        step = epsilons[0]  # on a grid of its own nothing is rounded
    else:
        step = max(min(step, min(epsilons) / 100), max(epsilons) * max(map(renyi.times, plan.phases)) / 1e6)
    composed = pld.identity(step)
    for phase, epsilon, rate in zip(plan.phases, epsilons, rates, strict=True):
        pair = common.DifferentialPrivacyParameters(epsilon, rate * delta)
        one_pair = pld.from_privacy_parameters(pair, value_discretization_interval=step)
        composed = composed.compose(one_pair.self_compose(renyi.times(phase)))
    return composed


# -- what is proved --------------------------------------------------------------------------------------------------------------


def _only(phase: Phase) -> tuple[Release, say.BinomialNoise]:
    noise = phase.releases[0].noise
    if len(phase.releases) > 1 or not isinstance(noise, say.BinomialNoise):
        raise NoGuarantee("Binomial noise is accounted alone, one release a round.", "Use one kind of noise throughout.")
    return phase.releases[0], noise


def _on_its_grid(phase: Phase) -> bool:
    """Whether whole numbers, as the noise counts, are covered by fair coins."""
    release, noise = _only(phase)
    lattice = release.bound.lattice
    return noise.probability == 0.5 and lattice is not None and math.isclose(lattice, noise.grid, rel_tol=1e-9)


def _match(bound: Quantised, noise: say.BinomialNoise) -> None:
    """The noise must be on the very grid and entries that were rounded; it is made louder by trials, not by its std."""
    if noise.entries != bound.entries or not math.isclose(noise.grid, bound.grid, rel_tol=1e-9):
        raise NoGuarantee(
            "Binomial noise covers whole numbers alone: the grid or the entries that were rounded are not those of the noise.",
            "Set the noise by its trials: std = grid sqrt(trials p (1 - p)).",
        )


def _rate(plan: Plan, phase: Phase) -> float:
    """The rate at which a client's own secret batches hold a record; 1 where nothing is sampled."""
    sampling = phase.sampling
    if isinstance(sampling, say.Everyone | say.BoundedParticipation):
        return 1.0
    if isinstance(sampling, say.FixedSampling | say.PoissonSampling):
        if sampling.by is not say.Sampler.OWN or not (plan.sampled is plan.unit and plan.unit.within_client):
            raise NoGuarantee(
                "Binomial noise is on every message, and a message shows who sent it: sampling clients amplifies nothing.",
                "Bound the participations, or let clients draw batches of records by themselves.",
            )
        proved = (Relation.ZERO_OUT, Relation.REPLACE_ONE) if isinstance(sampling, say.FixedSampling) else (Relation.ZERO_OUT,)
        if plan.relation in proved:
            return sampling.rate
    raise NoGuarantee(
        f"Binomial noise under {type(sampling).__name__} and {plan.relation} is not proved here.",
        "Draw batches of a fixed size under replace-one, or Poisson batches under zero-out.",
    )
