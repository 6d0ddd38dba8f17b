"""What papers state for themselves: their own figure, their theorem's own conditions, and why it is not what is proved.

Pure functions of plain numbers. A `Claim` is shown as `claimed`, never as ours: see `docs/privacy.md`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import rdp
from scipy.special import wrightomega

from hush.errors import UsageError
from hush.privacy.guarantee import check_delta

_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))  # Opacus'
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class Condition:
    """One premise of a theorem with its place in the paper, and whether the figures in `detail` show it met."""

    statement: str
    met: bool
    detail: str


@dataclass(frozen=True)
class Claim:
    """A paper's own epsilon, or None where its theorem gives no figure, with the premises that the figure needs."""

    epsilon: float | None
    source: str
    conditions: tuple[Condition, ...]
    why: str

    @property
    def holds(self) -> bool:
        """Whether every listed condition is met. It does not mean that the claim is proved."""
        return all(c.met for c in self.conditions)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "epsilon": _finite(self.epsilon),
            "conditions": [asdict(c) for c in self.conditions],
            "holds": self.holds,
        }

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Claim:
        """The inverse of `to_dict`."""
        conditions = tuple(Condition(**c) for c in value["conditions"])
        return Claim(value["epsilon"], value["source"], conditions, value["why"])


def dp_fedavg(noise_multiplier: float, rate: float, rounds: int, delta: float, poisson: bool, constant_divisor: bool) -> Claim:
    """McMahan et al. 2018, Algorithm 1: the moments accountant of the Poisson-sampled Gaussian, eps = rdp + ln(1/d)/(alpha - 1)."""
    divisor = "a constant divides" if constant_divisor else "the cohort's own weight divides, which one client moves as well"
    conditions = (
        _poisson("Algorithm 1: every user is drawn by an independent coin of probability q", poisson),
        Condition("Algorithm 1: the fixed-denominator estimator divides by the constant qW", constant_divisor, divisor),
    )
    why = "Where both conditions are met it is an upper bound, and a loose one: privacy loss distributions prove less."
    return Claim(opacus_classic(noise_multiplier, rate, rounds, delta), "McMahan et al. 2018, moments accountant", conditions, why)


def fed_smp(noise_multiplier: float, rate: float, rounds: int, delta: float, poisson: bool) -> Claim:
    """Fed-SMP's printed figure (Section 6.2): Opacus' Poisson RDP with Lemma 1, eps = rdp + ln(1/d)/(alpha - 1).

    Its conditions are the accountant's and those of Theorem 1, the paper's proof that there is such a figure.
    """
    place = "Section 6.2: Opacus accounts for Poisson cohorts (while Algorithm 2, line 3, draws a fixed number r of n)"
    theorem = fed_smp_theorem1(noise_multiplier, rate, rounds, delta, poisson)
    conditions = (_poisson(place, poisson), *theorem.conditions[1:])
    why = (
        "The accountant is proved for Poisson cohorts alone, where privacy loss distributions prove less (in the paper's own "
        "setting 0.63 for its 1.01); with its fixed-size cohorts an explicit pair of data sets attains 3.2 for that 1.01."
    )
    return Claim(opacus_classic(noise_multiplier, rate, rounds, delta), "Fed-SMP, Section 6.2 (Opacus RDP)", conditions, why)


def fed_smp_theorem1(noise_multiplier: float, rate: float, rounds: int, delta: float, poisson: bool) -> Claim:
    """Fed-SMP's Theorem 1, sigma^2 = 7 q^2 T (e + 2 ln(1/d)) / e^2, solved for e; its proof takes alpha = 1 + 2 ln(1/d)/e.

    Its "sampled without replacement with probability q" does not go with Section 5.1's W' = W + {c}; the latter is checked.
    """
    _check(delta, noise_multiplier=noise_multiplier, rate=rate, rounds=rounds)
    log, cost = math.log(1 / delta), _cost(noise_multiplier, rate, rounds)
    epsilon = cost + math.sqrt(cost * cost + 4 * cost * log)
    order = 1 + 2 * log / epsilon if epsilon > 0 else math.inf
    place = "Lemma 3 and Appendix A (without its stray C^2)"
    conditions = (
        _poisson("Section 5.1: neighbouring cohorts differ by one added client, W' = W + {c}, and the sum by at most C", poisson),
        *_lemma(place, "sigma", noise_multiplier, rate, cost, log, order),
        Condition(
            "Theorem 1: epsilon < 2 ln(1/delta)", epsilon < 2 * log, f"the theorem gives {epsilon:.4g}, against {2 * log:.4g}"
        ),
    )
    why = (
        "The theorem leaves out the conditions of its Lemma 3, which the order that its proof takes can break, and counts a "
        "sensitivity of C where the paper's fixed-size cohorts move the sum by 2C."
    )
    return Claim(_finite(epsilon), "Fed-SMP, Theorem 1", conditions, why)


def fed_spa(
    *,
    noise: float,
    bound: float,
    ratio: float,
    batch: float,
    records: float,
    steps: float,
    delta: float,
    coordinate_clip: float | None,
    fresh_batches: bool,
) -> Claim:
    """Fed-SPA's Theorem 1 at its best order: e = 7 q^2 (I tau) alpha p G^2 / (B^2 sigma^2) + ln(1/d)/(alpha - 1), q = B/m.

    `noise` is sigma, `bound` G, `ratio` p, `records` m, `steps` I tau: one agent's local steps in all its rounds. `coordinate_clip`
    is the G' with every coordinate of every record's gradient clipped to G'/sqrt(d); None where only the L2 norm is, or nothing.
    """
    _check(delta, noise=noise, bound=bound, ratio=ratio, batch=batch, records=records, steps=steps, coordinate_clip=coordinate_clip)
    claimed = math.sqrt(2 * ratio) * bound / batch
    log, scaled, rate = math.log(1 / delta), noise / claimed, batch / records  # scaled is the theorem's sigma'
    _check(delta, rate=rate)
    cost = _cost(scaled, rate, steps)
    order = 1 + math.sqrt(log / cost) if cost > 0 else math.inf
    enforced = coordinate_clip if coordinate_clip is not None else math.inf
    moved = 2 * math.sqrt(ratio) * enforced / batch
    anew = "drawn anew for every step" if fresh_batches else "not so drawn: each by its own coin, or not anew at every step"
    batches = f"{batch:g} of {records:g}, {anew}"
    ranges = f"G is {bound:.4g}, and {f'{enforced:.4g} is enforced' if enforced < math.inf else 'no coordinate is clipped'}"
    most = f"between opposite signs it is up to {moved:.4g}" if moved < math.inf else "an L2 clip allows more, on few coordinates"
    moves = f"the paper counts {claimed:.4g}; {most}"
    conditions = (
        Condition("Theorem 1: every step draws its batch of the m records without replacement", fresh_batches, batches),
        Condition("Assumption 3: no coordinate of a record's gradient exceeds G/sqrt(d)", enforced <= bound, ranges),
        Condition("Section 4.1: a replaced record moves the gradient by sqrt(2p) G/B at most", moved <= claimed * _ROUNDING, moves),
        *_lemma("Theorem 1 (its plain sigma read as sigma')", "sigma'", scaled, rate, cost, log, order),
    )
    why = (
        "Clipping the L2 norm does not bound coordinates, and the squared sensitivity is 4pG^2/B^2 and not 2pG^2/B^2. Where every "
        "coordinate is clipped less is proved all the same, since the lemma's constant is loose."
    )
    return Claim(_finite(cost + 2 * math.sqrt(cost * log)), "Fed-SPA, Theorem 1", conditions, why)


def blur_lus(
    *, noise_multiplier: float, rate: float, clients: int, rounds: int, delta: float, pull: float, lr: float, constant_divisor: bool
) -> Claim:
    """BLUR+LUS's Theorem 1: c1 and c2 exist such that sigma >= c2 P sqrt(T ln(1/d)) / (N e) is enough for any e < c1 q^2 T.

    `rate` is P/N, `pull` BLUR's lambda, `lr` its eta_l.
    """
    _check(delta, noise_multiplier=noise_multiplier, rate=rate, clients=clients, rounds=rounds, lr=lr, pull=pull or None)
    times = rate * math.sqrt(rounds * math.log(1 / delta)) / noise_multiplier
    size = "a constant divides and scales the noise" if constant_divisor else "|P_t|, which is random, divides and scales the noise"
    conditions = (
        Condition("Theorem 1: epsilon < c1 q^2 T", False, "c1 and q are not given, so this cannot be checked"),
        Condition("Theorem 1: the number P of participants is fixed (while Algorithm 1 divides by |P_t|)", constant_divisor, size),
        Condition("Lemma 2, on the local update: lambda < 1/eta_l", pull * lr < 1, f"lambda eta_l is {pull * lr:.4g}"),
    )
    why = (
        f"No figure: epsilon would be c2 times {times:.4g}, and c2 is not given. In the paper noise and divisor follow the "
        "cohort's size, which thereby shows, and then amplification by Poisson sampling is not proved."
    )
    if delta * clients * _ROUNDING >= 1:
        why += " A delta of 1/N or more permits publishing one user."
    return Claim(None, "BLUR+LUS, Theorem 1", conditions, why)


def cpfed(
    *,
    noise: float,
    lipschitz: float,
    batch: float,
    steps: int,
    rounds: int,
    clients: int,
    cohort: int,
    delta: float,
    gradient_clip: float | None,
    secure_sum: bool,
    cohort_secret: bool,
) -> Claim:
    """CPFed's Theorem 1: e = rho + 2 sqrt(rho ln(1/d)), rho = T (r/n) * 2 tau L^2 / (r B^2 sigma^2); r cancels.

    Without a secure sum the noise of one client covers its model, and rho is r times that.

    `noise` is sigma, `lipschitz` L, `steps` tau, `cohort` r; `gradient_clip` is the bound enforced on records' gradients, if any.
    """
    sizes = {"batch": batch, "steps": steps, "rounds": rounds, "clients": clients, "cohort": cohort}
    _check(delta, noise=noise, lipschitz=lipschitz, gradient_clip=gradient_clip, **sizes)
    if cohort > clients:
        raise UsageError(f"cohort must be at most the {clients} clients, not {cohort}.")
    unit = lipschitz / batch / noise
    rho = 2 * rounds * steps * unit * unit / clients
    enforced = "nothing is" if gradient_clip is None else f"{gradient_clip:.4g} is"
    total = (
        "a secure sum is assumed (in simulation it is plain)"
        if secure_sum
        else f"each model shows, with its own noise alone: rho is {rho * cohort:.4g}"
    )
    seen = f"rho is {rho:.4g}; for a client seen to take part in every round it is {rho * clients / cohort:.4g}"
    clipped = gradient_clip is not None and gradient_clip <= lipschitz
    conditions = (
        Condition("Corollary 1: the loss is L-Lipschitz", clipped, f"L is {lipschitz:.4g}, and {enforced} enforced"),
        Condition("Section V: attackers obtain the sum of the r models alone, with the noise of all", secure_sum, total),
        Condition("Lemma 4: both data sets' gradients are taken at the same parameters", steps == 1, f"{steps} local steps"),
        Condition("Theorem 1's proof: a client is in with probability r/n", cohort_secret or cohort == clients, seen),
    )
    why = (
        "zCDP is not multiplied by the sampling rate, be the cohort secret or not; after one step the local models differ, and "
        "only a client's own noise is proved to cover its gradients; unclipped, those have no bound."
    )
    source = "CPFed, Theorem 1" if secure_sum else "CPFed, Theorem 1, without the noise of the others (section VII)"
    return Claim(_from_zcdp(rho if secure_sum else rho * cohort, delta), source, conditions, why)


def dpsfl(
    *,
    noise: float,
    clip: float,
    rows: int,
    releases: int,
    delta: float,
    operator_norm: float,
    replaced: bool = True,
    bit_noise: float | None = None,
) -> Claim:
    """DPSFL's Theorem 2: e = rho + 2 sqrt(rho ln(1/d)) with sigma = C sqrt(l / (2 rho)), once for the whole run.

    `noise` is sigma, `clip` C, `rows` l, `releases` the sketches that one client sends, `operator_norm` the sketch's. A neighbour's
    gradient is `replaced`, or else zeroed. `bit_noise` is sigma_b, the noise on DPSFL-AC's clipping bit; None without the bit.
    """
    _check(delta, noise=noise, clip=clip, rows=rows, releases=releases, operator_norm=operator_norm, bit_noise=bit_noise)
    unit, root = clip / noise, math.sqrt(rows)
    rho, bit = rows * unit * unit / 2, 0.0 if bit_noise is None else 0.5 / bit_noise / bit_noise
    run = _from_zcdp(releases * rho, delta) or math.inf
    apart = f"up to {2 * clip:.4g} where one is replaced" if replaced else f"up to {clip:.4g} where one is zeroed"
    grows = f"sqrt(l) is {root:.4g}, the sketch's operator norm {operator_norm:.4g}"
    bits = "no bit is sent" if bit_noise is None else f"rho is {bit:.4g} for the bit, {rho:.4g} for the sketch"
    conditions = (
        Condition("Lemma 1: rho adds up over releases (Theorem 2 counts one)", releases == 1, f"{releases} cost epsilon {run:.4g}"),
        Condition("Privacy Analysis: neighbouring clipped gradients are at most C apart", not replaced, apart),
        Condition(
            "Definition 4: in each row one counter changes, so norms grow by sqrt(l)", operator_norm <= root * _ROUNDING, grows
        ),
        Condition("Private aggregation: the bit costs a negligible fraction (here 1%)", bit <= rho / 100, bits),
    )
    why = (
        "A record changes every coordinate and not one, coordinates collide in the sketch, so that norms can grow by more than "
        "sqrt(l), and rho is spent in every round and not once."
    )
    return Claim(_from_zcdp(rho, delta), "DPSFL, Theorem 2", conditions, why)


def opacus_classic(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float | None:
    """Poisson RDP at Opacus' orders with the classical conversion, eps = rdp + ln(1/d)/(order - 1); None where it overflows."""
    _check(delta, noise_multiplier=noise_multiplier, rate=rate, rounds=rounds)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    log = logging.getLogger("absl")  # the library warns of every fractional order it leaves out; the minimum does not need them
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            spent = rdp.RdpAccountant(_ORDERS).compose(event, rounds).rdp
    except ArithmeticError:
        return None
    finally:
        log.setLevel(level)
    return _finite(float(min(r + math.log(1 / delta) / (a - 1) for a, r in zip(_ORDERS, spent, strict=True))))


def _poisson(statement: str, poisson: bool) -> Condition:
    fixed = "cohorts have a fixed size: a client who is added displaces another, which moves the sum by up to twice the clip norm"
    return Condition(statement, poisson, "each client is drawn by its own coin" if poisson else fixed)


def _cost(noise: float, rate: float, releases: float) -> float:
    """What so many releases of the sampled Gaussian cost by the lemma of `_lemma`, over alpha: 3.5 q^2 / sigma^2 each."""
    unit = rate / noise
    return 3.5 * unit * unit * releases


def _lemma(place: str, name: str, noise: float, rate: float, cost: float, log: float, order: float) -> tuple[Condition, Condition]:
    """Under what the releases cost alpha * `cost` (Fed-SMP's Lemma 3, after Wang et al.), at the `order` that the paper takes."""
    variance = noise * noise
    scale, cap = 2 / 3 * variance, 0.0
    if 0 < scale < math.inf:  # alpha + s ln(alpha) = 1 + s ln(1/(q (1 + sigma^2))), solved for alpha
        cap = float(scale * wrightomega(1 / scale - math.log(rate * (1 + variance)) - math.log(scale)))
    detail = f"alpha is {order:.4g}, and none above 1 is allowed"
    if cap > 1:
        best = min(cap, 1 + math.sqrt(log / cost)) if cost > 0 else cap
        detail = f"alpha is {order:.4g}, at most {cap:.4g} is allowed; within that epsilon is {cost * best + log / (best - 1):.4g}"
    return (
        Condition(f"{place}: {name}^2 >= 0.7", variance >= 0.7, f"{name}^2 is {variance:.4g}"),
        Condition(f"{place}: alpha <= 1 + (2/3) {name}^2 ln(1/(q alpha (1 + {name}^2)))", order <= cap * _ROUNDING, detail),
    )


def _from_zcdp(rho: float, delta: float) -> float | None:
    return _finite(rho + 2 * math.sqrt(rho * math.log(1 / delta)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _check(delta: float, **positive: float | None) -> None:
    check_delta(delta)
    for name, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} must be a positive number, not {value:g}.")
    if (positive.get("rate") or 0) > 1:
        raise UsageError(f"rate must be at most 1, not {positive['rate']:g}.")
