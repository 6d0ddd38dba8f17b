"""From the objects that run to the plan that is accounted: nobody types a sensitivity or a sampling rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hush.cohort import Cohort
from hush.core import Bound, Chain, Method, Transform
from hush.errors import NoGuarantee, UsageError
from hush.privacy.guarantee import Relation, Unit, View
from hush.transforms.noise import Gaussian


@dataclass(frozen=True)
class Plan:
    """`rounds` releases of a sum of bounded contributions under Gaussian noise, over sampled clients.

    `noise_multiplier` is the noise's standard deviation over the most that one client can add to the sum.
    """

    noise_multiplier: float
    sensitivity: float
    cohort: Cohort
    clients: int
    rounds: int
    relation: Relation = Relation.ADD_REMOVE
    unit: Unit = Unit.CLIENT
    view: View = View.RELEASED
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("clients", "rounds"):
            value = getattr(self, name)
            if value < 1 or value != int(value):
                raise UsageError(f"{name} must be a whole number of at least 1, not {value:g}.")
        if not 0 < self.noise_multiplier < math.inf:
            raise UsageError(f"noise must be a positive number, not {self.noise_multiplier:g}.")
        self.cohort.check(self.clients)


ASSUMPTIONS = (
    "the server that sums and draws the noise is trusted; others see the models it releases, after any number of rounds",
    "nobody else learns who took part in a round, and the rate or size of cohorts was fixed beforehand",
    "nobody exploits the rounding of floating-point noise (fast noise: fit for research, not for adversaries)",
)


PUBLIC_ASSUMPTION = "the public examples, from which the mask is made, belong to no client"


def plan_of(method: Method, cohort: Cohort, clients: int, rounds: int, relation: Relation = Relation.ADD_REMOVE) -> Plan:
    """The plan of `method` over `cohort`, read from its own parts, or `NoGuarantee` with the reason and the fix."""
    noise, bound = find_noise(method)
    return Plan(
        noise_multiplier=noise.std / bound.l2,
        sensitivity=bound.l2,
        cohort=cohort,
        clients=clients,
        rounds=rounds,
        relation=relation,
        assumptions=ASSUMPTIONS + ((PUBLIC_ASSUMPTION,) if method.pipeline.needs_public else ()),
    )


def find_noise(method: Method) -> tuple[Gaussian, Bound]:
    """The one noise of a pipeline and the bound of what it covers."""
    for name in ("contribute", "finish"):
        if getattr(type(method), name) is not getattr(Method, name):
            raise NoGuarantee(
                f"{type(method).__name__} overrides {name}, so its parts no longer say what runs.", "Use Method itself."
            )
    parts = method.pipeline.parts
    noises = [i for i, part in enumerate(parts) if isinstance(part, Gaussian)]
    if not noises:
        raise NoGuarantee(
            f"{method.name} adds no noise, so it has no privacy guarantee.",
            "Choose a private method, such as dp-fedavg or fed-smp-rand-k, or end the pipeline with Clip(C), Gaussian(z).",
        )
    if len(noises) > 1:
        raise NoGuarantee(f"{method.name} draws noise {len(noises)} times in one pipeline.", "Keep one Gaussian, at the end.")
    for part in parts[noises[0] + 1 :]:
        if type(part).encode is not Transform.encode or type(part).decode is not Transform.decode:
            raise NoGuarantee(
                f"{type(part).__name__} stands after the noise, so it changes updates after they were clipped.",
                "Put Clip and then Gaussian last in the chain.",
            )
    bound = Chain(parts[: noises[0]]).bound(Bound())
    noise = parts[noises[0]]
    if type(noise) is not Gaussian:
        raise NoGuarantee(f"{type(noise).__name__} is not the noise that was proved.", "Use Gaussian itself.")
    if not math.isfinite(bound.l2):
        raise NoGuarantee(f"The noise of {method.name} covers no bound: {bound.reason}.", "Put Clip(C) directly before it.")
    return noise, bound


def is_private(method: Method) -> bool:
    """Whether the method's pipeline draws noise at all."""
    return any(isinstance(part, Gaussian) for part in method.pipeline.parts)


def needs_noise(method: Method) -> bool:
    """Whether the noise still has to be filled in from a budget."""
    return any(isinstance(part, Gaussian) and part.multiplier is None for part in method.pipeline.parts)


def with_noise(method: Method, multiplier: float) -> Method:
    """The same method with its noise set."""
    parts = (replace(p, multiplier=multiplier) if isinstance(p, Gaussian) else p for p in method.pipeline.parts)
    return method.with_pipeline(*parts)
