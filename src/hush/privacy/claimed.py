"""What papers print for themselves. Shown as `claimed`, never as ours: see `docs/privacy.md`."""

from __future__ import annotations

import logging
import math

import dp_accounting
from dp_accounting import rdp

from hush.privacy.plan import Plan

_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))


def opacus_classic(plan: Plan, delta: float) -> float | None:
    """Fed-SMP's figure: Poisson RDP at Opacus' orders whatever the sampling was, and eps = rdp + log(1/delta)/(order - 1)."""
    event = dp_accounting.PoissonSampledDpEvent(
        plan.cohort.size / plan.clients, dp_accounting.GaussianDpEvent(plan.noise_multiplier)
    )
    log = logging.getLogger("absl")  # the library warns of every fractional order it leaves out; the minimum does not need them
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        accountant = rdp.RdpAccountant(_ORDERS).compose(event, plan.rounds)
    finally:
        log.setLevel(level)
    figures = (r + math.log(1 / delta) / (a - 1) for a, r in zip(_ORDERS, accountant.rdp, strict=True))
    best = float(min(figures))
    return best if math.isfinite(best) else None
