"""What a method's paper would print for a plan. Shown as `claimed`, never as ours: see `docs/privacy.md`."""

from __future__ import annotations

from hush.privacy import theorems
from hush.privacy.theorems import Claim
from hush.privacy.vocabulary import FixedSampling, Plan, PoissonSampling, SecretParticipation


def claimed_by_fed_smp(plan: Plan, delta: float) -> Claim | None:
    """Fed-SMP's accounting: Poisson RDP at Opacus' orders, whatever the sampling was."""
    rate, poisson = _rate(plan)
    return None if rate is None else theorems.fed_smp(plan.noise_multiplier, rate, plan.rounds, delta, poisson)


def claimed_by_dp_fedavg(plan: Plan, delta: float) -> Claim | None:
    """DP-FedAvg's moments accountant, which is the same figure on conditions of its own."""
    rate, poisson = _rate(plan)
    if rate is None:
        return None
    constant = all(release.divisor == "constant" for phase in plan.phases for release in phase.releases)
    return theorems.dp_fedavg(plan.noise_multiplier, rate, plan.rounds, delta, poisson, constant)


def _rate(plan: Plan) -> tuple[float | None, bool]:
    """The rate a paper would put into its formula, and whether the coins are independent."""
    sampling = plan.phases[0].sampling
    if isinstance(sampling, PoissonSampling | SecretParticipation):
        return sampling.rate, True
    return (sampling.rate, False) if isinstance(sampling, FixedSampling) else (None, False)
