"""What a method's paper would print for a plan. Shown as `claimed`, never as ours: see `docs/privacy.md`."""

from __future__ import annotations

import math

from hush.core import Method
from hush.local.around import Around
from hush.local.as_written import CpfedAsWritten, FedSpaAsWritten
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import CoordinateClip, L2Clip
from hush.local.sgd import Sgd
from hush.privacy import theorems
from hush.privacy.guarantee import Relation
from hush.privacy.theorems import Claim
from hush.privacy.vocabulary import FixedSampling, Plan, PoissonSampling, SecretParticipation
from hush.transforms import AdaptiveClip, Clip, CountSketch, Noise


def claimed_by_fed_smp(plan: Plan, delta: float, method: Method | None = None) -> Claim | None:
    """Fed-SMP's accounting: Poisson RDP at Opacus' orders, whatever the sampling was."""
    rate, poisson = _rate(plan)
    return None if rate is None else theorems.fed_smp(plan.noise_multiplier, rate, plan.rounds, delta, poisson)


def claimed_by_dp_fedavg(plan: Plan, delta: float, method: Method | None = None) -> Claim | None:
    """DP-FedAvg's moments accountant, which is the same figure on conditions of its own."""
    rate, poisson = _rate(plan)
    if rate is None:
        return None
    constant = all(release.divisor == "constant" for release in plan.releases)
    return theorems.dp_fedavg(plan.noise_multiplier, rate, plan.rounds, delta, poisson, constant)


def claimed_by_blur_lus(plan: Plan, delta: float, method: Method) -> Claim | None:
    """BLUR+LUS's Theorem 1, whose constants are not given: no figure, and why."""
    rate, _ = _rate(plan)
    if rate is None:
        return None
    local = method.local
    while isinstance(local, Around):
        local = local.local
    return theorems.blur_lus(
        noise_multiplier=plan.noise_multiplier,
        rate=rate,
        clients=plan.population,
        rounds=plan.rounds,
        delta=delta,
        pull=local.blur if isinstance(local, Sgd) else 0.0,
        lr=local.lr if isinstance(local, Sgd) else 1.0,
        constant_divisor=True,
    )


def _rate(plan: Plan) -> tuple[float | None, bool]:
    """The rate a paper would put into its formula, and whether the coins are independent."""
    sampling = plan.phases[0].sampling
    if isinstance(sampling, PoissonSampling | SecretParticipation):
        return sampling.rate, True
    return (sampling.rate, False) if isinstance(sampling, FixedSampling) else (None, False)


def claimed_by_fed_spa(plan: Plan, delta: float, method: Method) -> Claim | None:
    """Fed-SPA's Theorem 1, for the G that would give each record the reach that it has here."""
    local, dim = method.local, plan.parameters
    if not isinstance(local, DpSgd) or local.clip is None or dim is None or not local.noise:
        return None
    ratio = local.entries(dim) / dim
    coordinate = local.clip.most * math.sqrt(dim) if isinstance(local.clip, CoordinateClip) else None
    written = isinstance(local, FedSpaAsWritten)
    bound = local.clip.norm if written and isinstance(local.clip, L2Clip) else local.reach(dim) / math.sqrt(ratio)
    return theorems.fed_spa(
        noise=local.std(dim) / local.batch_size,
        bound=bound,
        ratio=ratio,
        batch=local.batch_size,
        records=max(plan.population, local.batch_size),
        steps=sum(phase.times for phase in plan.phases),
        delta=delta,
        fresh_batches=local.records == "fixed",
        coordinate_clip=coordinate,
    )


def claimed_by_dpsfl(plan: Plan, delta: float, method: Method) -> Claim | None:
    """DPSFL's Theorem 2 for this noise, if it were on sketches whose rows are not scaled: on ours it stands against C alone."""
    parts = method.pipeline.parts
    sketch = next((part for part in parts if isinstance(part, CountSketch)), None)
    if sketch is None or not isinstance(parts[-1], Noise):
        return None
    plain = next((part for part in parts if isinstance(part, Clip)), None)
    adaptive = next((part for part in parts if isinstance(part, AdaptiveClip)), None)
    unit = plain.norm if plain is not None else 1.0
    clipped_first = plain is not None and parts.index(plain) < parts.index(sketch)
    norm = (sketch.norm or math.inf) if clipped_first else 1.0
    root = math.sqrt(sketch.rows)
    return theorems.dpsfl(
        noise=parts[-1].std * root,
        clip=unit,
        rows=sketch.rows,
        releases=plan.rounds,
        delta=delta,
        operator_norm=root * norm,
        replaced=plan.relation is Relation.REPLACE_ONE,
        bit_noise=None if adaptive is None else parts[-1].std / adaptive.weight,
    )


def claimed_by_cpfed(plan: Plan, delta: float, method: Method, secure_sum: bool) -> Claim | None:
    """CPFed's Theorem 1, for the L that clipping enforces, or that the paper assumes."""
    local, dim = method.local, plan.parameters
    if not isinstance(local, DpSgd) or local.clip is None or dim is None or not local.noise or plan.clients is None:
        return None
    return theorems.cpfed(
        noise=local.std(dim) / local.batch_size,
        lipschitz=local.reach(dim),
        batch=local.batch_size,
        steps=local.steps,
        rounds=plan.rounds,
        clients=plan.clients,
        cohort=max(1, round(plan.cohort or 1)),
        delta=delta,
        gradient_clip=None if isinstance(local, CpfedAsWritten) else local.reach(dim),
        secure_sum=secure_sum,
        cohort_secret=False,
    )
