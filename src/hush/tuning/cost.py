"""What a search itself costs the clients: nothing, a number, or something that nobody counted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from hush.errors import NoGuarantee
from hush.methods import METHODS
from hush.privacy.accountant import account
from hush.privacy.guarantee import at_least
from hush.privacy.rules import large_delta
from hush.privacy.vocabulary import Plan
from hush.tuning.space import Space
from hush.tuning.study import FAILED, Tuning


class Cost(NamedTuple):
    """What the trials cost, in words and as a number; None where there is none."""

    text: str
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    relation: str | None = None


def public_cost(trials: int, taken_out: bool) -> Cost:
    """Trials on examples that belong to nobody, or to clients that were taken out for it."""
    text = f"public: {trials} trials trained and validated on public examples alone, and cost the clients nothing"
    return Cost(
        text + ("; these examples are of clients that were taken out, and that nothing protects" if taken_out else ""), 0.0, 0.0
    )


def uncounted_cost(tuning: Tuning) -> Cost:
    """Trials on the clients' data that nobody counts, as most papers' are."""
    count = sum(trial.state != FAILED or trial.plan is not None for trial in tuning.history)
    seen = f"not accounted: {count} trials saw the clients' data; "
    if not any(trial.plan for trial in tuning.history):
        return Cost(seen + "and the method has no guarantee")
    return Cost(seen + "the guarantee printed covers one run with the chosen settings as if they had been known beforehand")


def accounted_cost(tuning: Tuning, space: Space, budget: float) -> Cost:
    """All trials that trained, composed; one that was pruned or failed counts in full, since when it stopped depends on the data.

    Where every trial has the same plan, whatever was proposed, the plans compose exactly at the run's own delta. Where proposals
    shape the plan (rounds, cohort), later plans depend on earlier results, and all that is fixed beforehand is each trial's
    (epsilon, delta): these add up, both of them.
    """
    every = (*tuning.history, *tuning.interrupted)
    ran = [trial.plan for trial in every if trial.plan is not None]
    delta = next((trial.delta for trial in every if trial.plan is not None and trial.delta is not None), None)
    if delta is None:
        raise NoGuarantee("No trial with a guarantee was completed, so there is nothing to account.", "Tune a private method.")
    senses = {(plan.unit, plan.relation, plan.view) for plan in ran}
    if len(senses) > 1:
        told = "; ".join(sorted(f"{unit}, {relation}, {view}" for unit, relation, view in senses))
        raise NoGuarantee(f"The trials protect in different senses ({told}), which do not add up.", "Fix what decides it (--set).")
    unit, relation, _ = senses.pop()
    text = f"accounted: the {len(ran)} trials that saw the clients' data cost each {unit} ({relation})"
    if keeps_the_plan(space) and all(math.isclose(p.noise_multiplier, ran[0].noise_multiplier, rel_tol=1e-9) for p in ran):
        trials, final = composed(ran, delta), composed([*ran, ran[0]], delta)
        more = f"with the run of the chosen settings after them {at_least(final)}"
        text = f"{text} epsilon {at_least(trials)} together, at delta={at_least(delta, 2)}; {more}"
        return Cost(text, trials, delta, unit, relation)
    total, all_delta = budget * len(ran), delta * len(ran)
    why = "the sum of theirs, since what was searched shapes their plans"
    text = f"{text} epsilon {at_least(total)} together, at delta={at_least(all_delta, 2)}, {why}"
    large = large_delta(ran[0], all_delta)
    return Cost(text if large is None else f"{text}; {large}", total, all_delta, unit, relation)


def keeps_the_plan(space: Space) -> bool:
    """Whether every proposal has the same plan, so that nothing about it is chosen by earlier results."""
    known = {key: one for recipe in METHODS.values() for key, one in recipe.settings.known().items()}
    return all(key in known and known[key].keeps_plan for key in space)


def composed(plans: list[Plan], delta: float) -> float:
    """Epsilon of everything that runs of these plans release about the same clients."""
    return account(replace(plans[0], phases=tuple(phase for plan in plans for phase in plan.phases)), delta).epsilon
