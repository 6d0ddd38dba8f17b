"""From a method, a cohort and a budget to the noise that runs and the guarantee that is printed."""

from __future__ import annotations

from dataclasses import replace

from hush.cohort import Cohort
from hush.core import Method
from hush.errors import UsageError
from hush.privacy.accountant import account, calibrate, rounds_within, spent
from hush.privacy.guarantee import Budget, Guarantee, check_delta, default_delta
from hush.privacy.plan import Plan, is_private, needs_noise, plan_of, with_noise


def settle_privacy(
    method: Method, cohort: Cohort, clients: int, rounds: int, budget: Budget | None, delta: float | None
) -> tuple[Method, Plan | None, float | None, int]:
    """The method with its noise set, its plan, the delta, and how many rounds the budget allows."""
    if not is_private(method):
        if budget is not None:
            plan_of(method, cohort, clients, rounds)  # raises, with the reason and the fix
        return method, None, None, rounds
    given = [d for d in (budget.delta if budget is not None else None, delta) if d is not None]
    chosen = given[0] if given else default_delta(clients)
    check_delta(chosen)
    if needs_noise(method):
        if budget is None:
            raise UsageError(f"{method.name} needs noise=... or a budget, privacy=hush.Budget(epsilon=...).")
        trial = plan_of(with_noise(method, 1.0), cohort, clients, rounds)
        method = with_noise(method, calibrate(trial, budget.epsilon, chosen))
        return method, plan_of(method, cohort, clients, rounds), chosen, rounds
    plan = plan_of(method, cohort, clients, rounds)
    allowed = rounds if budget is None else rounds_within(plan, budget.epsilon, chosen)
    if allowed == 0:
        assert budget is not None
        first = spent(plan, chosen, 1)
        raise UsageError(
            f"Not one round fits the budget: the first alone costs epsilon {first:.3g}, the budget is {budget.epsilon:g}. "
            "Raise the noise or the budget."
        )
    spent(plan, chosen, allowed)  # what cannot be accounted is refused now, not after training
    return method, plan, chosen, allowed


def certify(plan: Plan | None, delta: float | None, rounds: int, method: Method) -> tuple[Guarantee | None, float | None]:
    """The proved guarantee of the rounds that ran, and the figure the paper would print for them."""
    if plan is None or delta is None or rounds == 0:
        return None, None
    plan = replace(plan, rounds=rounds)
    return account(plan, delta), method.claim(plan, delta) if method.claim else None
