"""`hush epsilon` and `hush calibrate`: privacy figures without training anything."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from hush.cli import options
from hush.cli.console import print_json, say
from hush.cohort import Bounded, Cohort
from hush.errors import NoGuarantee, UsageError
from hush.experiment import make_cohort
from hush.names import pick
from hush.privacy import accountant
from hush.privacy.guarantee import Relation, default_delta
from hush.privacy.plan import plan_of, server_plan
from hush.privacy.vocabulary import Plan

RelationFlag = Annotated[
    str | None, typer.Option("--relation", help="Neighbouring data sets: add-remove (default), replace-one or zero-out.")
]
CohortFlag = Annotated[float, typer.Option("--cohort", help="Expected number of clients a round.")]
ClientsFlag = Annotated[int, typer.Option("--clients", help="How many clients there are.")]
RoundsFlag = Annotated[int, typer.Option("--rounds", help="Number of rounds.")]


def epsilon(
    noise: Annotated[float, typer.Option("--noise", help="Noise multiplier: standard deviation over the clip.")],
    cohort: CohortFlag,
    clients: ClientsFlag,
    rounds: RoundsFlag,
    delta: options.Delta = None,
    sampling: options.Sampling = None,
    participations: options.Participations = None,
    relation: RelationFlag = None,
    as_json: options.Json = False,
) -> None:
    """The epsilon that is proved for a noise multiplier."""
    drawn = _cohort(sampling, cohort, participations)
    plan = _plan(noise, drawn, clients, rounds, relation)
    _print(plan, drawn, sampling or "poisson", delta if delta is not None else default_delta(clients), as_json)


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon to spend.")],
    cohort: CohortFlag,
    clients: ClientsFlag,
    rounds: RoundsFlag,
    delta: options.Delta = None,
    sampling: options.Sampling = None,
    participations: options.Participations = None,
    relation: RelationFlag = None,
    as_json: options.Json = False,
) -> None:
    """The least noise that is proved to spend at most an epsilon."""
    drawn = _cohort(sampling, cohort, participations)
    chosen = delta if delta is not None else default_delta(clients)
    plan = _plan(1.0, drawn, clients, rounds, relation)
    plan = plan.with_noise(accountant.calibrate(plan, epsilon, chosen))
    _print(plan, drawn, sampling or "poisson", chosen, as_json)


def _cohort(sampling: str | None, size: float, participations: int | None) -> Cohort:
    if participations is not None and sampling != "bounded":
        raise UsageError("--participations goes with --sampling bounded.")
    return make_cohort(sampling or "poisson", size, participations or 1)


def _plan(noise: float, cohort: Cohort, clients: int, rounds: int, relation: str | None) -> Plan:
    """The plan of clip-and-noise, derived from the very objects that would run."""
    from hush.methods import dp_fedavg

    known = {str(r): r for r in Relation}
    kind = pick(known, relation.replace("_", "-"), "relation") if relation is not None else None
    return plan_of(dp_fedavg(clip=1.0, noise=noise), cohort, clients, rounds, kind)


def _print(plan: Plan, cohort: Cohort, sampling: str, delta: float, as_json: bool) -> None:
    guarantee = accountant.account(plan, delta)
    server = None
    with contextlib.suppress(NoGuarantee):
        server = accountant.account(server_plan(plan), delta)
    value: dict[str, Any] = guarantee.to_dict() | {
        "noise_multiplier": plan.noise_multiplier,
        "cohort": cohort.size,
        "clients": plan.population,
        "rounds": plan.rounds,
        "sampling": sampling,
        "epsilon_server": server.epsilon if server else None,
    }
    value["participations"] = cohort.participations if isinstance(cohort, Bounded) else None
    for line in guarantee.warnings:
        say(f"note: {line}")
    if isinstance(cohort, Bounded) and cohort.lasts(plan.population) < plan.rounds:
        say(f"note: {cohort.too_short(plan.population, plan.rounds)}")
    if as_json:
        print_json(value)
        return
    print(f"noise {plan.noise_multiplier:g}: {guarantee}")
    print(f"  {guarantee.method}, {guarantee.relation}, {cohort.size:g} of {plan.population:,} clients, {plan.rounds} rounds")
    for line in guarantee.assumptions:
        print(f"  if {line}")
    if server is not None:
        print(f"and {server}")
        for line in server.assumptions:
            print(f"  if {line}")
