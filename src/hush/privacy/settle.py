"""From a method, a cohort and a budget to the noise that runs and the guarantee that is printed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hush.cohort import Cohort
from hush.core import Method
from hush.errors import NoGuarantee, UsageError
from hush.privacy.accountant import account, calibrate, rounds_within, spent
from hush.privacy.client_plan import server_plan
from hush.privacy.guarantee import Budget, Guarantee, Relation, check_delta, default_delta
from hush.privacy.plan import is_private, needs_noise, plan_of, unproved_part, with_noise
from hush.privacy.record_plan import has_own_noise, is_record_level, record_plan
from hush.privacy.theorems import Claim
from hush.privacy.vocabulary import Enrolled, Plan
from hush.transforms.noise import Noise


class Settled(NamedTuple):
    """The method with its noise set, its plan, the delta, and how many rounds the budget allows; or why nothing is proved."""

    method: Method
    plan: Plan | None
    delta: float | None
    rounds: int
    refused: str | None = None
    """Of a paper's own words, which run without a proof: the reason."""


def settle_privacy(
    method: Method,
    cohort: Cohort,
    clients: int | Enrolled,
    rounds: int,
    budget: Budget | None,
    delta: float | None,
    dropout: float = 0.0,
) -> Settled:
    """Find the noise for a budget, or the rounds that a budget allows; refuse now what cannot be accounted."""
    enrolled = clients if isinstance(clients, Enrolled) else Enrolled(clients)
    if enrolled.dim is not None:
        method = method.sized(enrolled.dim)

    def planned(method: Method) -> Plan:
        return plan_of(method, cohort, enrolled, rounds, dropout=dropout)

    if not is_private(method):
        if budget is not None:
            planned(method)  # raises, with the reason and the fix
        return Settled(method, None, None, rounds)
    given = [d for d in (budget.delta if budget is not None else None, delta) if d is not None]
    chosen = given[0] if given else default_delta(enrolled.units(records=is_record_level(method)))
    check_delta(chosen)
    if (written := unproved_part(method)) is not None:
        if budget is not None:
            raise NoGuarantee(f"{written.no_proof} So it has no epsilon to keep to.", f"{written.fix} Or give --noise.")
        if needs_noise(method):
            raise UsageError(f"{method.name} as written needs noise=...: no budget can find it.")
        return Settled(method, None, chosen, rounds, written.no_proof)
    if needs_noise(method):
        if budget is None:
            kind = "trials" if is_record_level(method) and getattr(method.local, "noise", None) == 0 else "noise"
            raise UsageError(f"{method.name} needs {kind}=... or a budget, privacy=hush.Budget(epsilon=...).")
        method = with_noise(method, 1.0)
        for _ in range(8):  # a grid that must leave room for the noise changes with it, and the noise a little with the grid
            before = planned(method)
            method = with_noise(method, calibrate(before, budget.epsilon, chosen))
            plan = planned(method)
            if [one.bound for one in plan.releases] == [one.bound for one in before.releases]:
                return Settled(method, plan, chosen, rounds)
        raise NoGuarantee(f"No grid of {method.name} goes with the noise that it needs.", "Give --noise, or more bits.")
    if (set_to := next((part.multiplier for part in method.pipeline.parts if isinstance(part, Noise)), None)) is not None:
        method = with_noise(method, set_to)  # a grid that was told the size of rows since takes its bits anew
    plan = planned(method)
    allowed = rounds if budget is None else rounds_within(plan, budget.epsilon, chosen)
    if allowed == 0:
        assert budget is not None
        first = spent(plan, chosen, 1)
        raise UsageError(
            f"Not one round fits the budget: the first alone costs epsilon {first:.3g}, the budget is {budget.epsilon:g}. "
            "Raise the noise or the budget."
        )
    spent(plan, chosen, allowed)  # what cannot be accounted is refused now, not after training
    return Settled(method, plan, chosen, allowed)


def as_charged(plan: Plan, rounds: int, charges: int) -> Plan:
    """The plan of a run that made `rounds` rounds and was charged for `charges`: a round drawn again is one more release."""
    charged = plan.first(max(charges, rounds))
    repeats = max(charges - rounds, 0)
    return replace(charged, phases=tuple(phase.again(repeats) for phase in charged.phases))


@dataclass(frozen=True)
class Proof:
    """What holds for the rounds that ran: against readers, against the server or why not, and what the paper would print."""

    plan: Plan
    guarantee: Guarantee
    server: Guarantee | None
    no_server: str | None
    claim: Claim | None


def replaced_epsilon(plan: Plan, delta: float) -> float | None:
    """What a plan of records that may be left out costs where they may be replaced by others; None of any other plan."""
    if not plan.unit.within_client or plan.relation is not Relation.ZERO_OUT:
        return None
    return account(replace(plan, relation=Relation.REPLACE_ONE), delta).epsilon


def figures_of(proof: Proof | None) -> dict[str, Any]:
    """What a result says of privacy; None throughout where nothing was proved."""
    told: dict[str, Any] = dict.fromkeys(("epsilon", "delta", "unit", "relation", "view", "epsilon_server", "claimed_epsilon"))
    if proof is None:
        return told
    others = {"epsilon_server": proof.server, "claimed_epsilon": proof.claim}
    figures = proof.guarantee.to_dict() | {key: one.epsilon for key, one in others.items() if one is not None}
    return {key: figures.get(key) for key in told}


def certify(plan: Plan | None, delta: float | None, method: Method) -> Proof | None:
    """The proof of a plan as it was charged; None where nothing was noised or nothing ran."""
    if plan is None or delta is None or not plan.phases:
        return None
    server, reason = None, None
    try:
        server = account(server_plan(plan), delta)
    except NoGuarantee as refusal:
        reason = str(refusal)
    return Proof(plan, account(plan, delta), server, reason, method.claim(plan, delta, method) if method.claim else None)


def claim_without_proof(method: Method, cohort: Cohort, enrolled: Enrolled, rounds: int, delta: float | None) -> Claim | None:
    """What a paper would print for its own words, as they ran."""
    if method.claim is None or delta is None or rounds < 1:
        return None
    if has_own_noise(method):
        return method.claim(record_plan(method, cohort, enrolled, rounds, None), delta, method)
    return method.claim(plan_of(method, cohort, enrolled, rounds, as_written=True), delta, method)
