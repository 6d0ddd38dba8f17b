"""`hush epsilon` and `hush calibrate`: privacy figures without training anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from hush.cli import options
from hush.cli.console import print_json
from hush.errors import UsageError
from hush.experiment import make_cohort
from hush.names import pick
from hush.privacy import accountant
from hush.privacy.guarantee import Guarantee, Relation, default_delta
from hush.privacy.plan import Plan, plan_of

RelationFlag = Annotated[str, typer.Option("--relation", help="Neighbouring data sets: add-remove, replace-one or zero-out.")]


def epsilon(
    noise: Annotated[float, typer.Option("--noise", help="Noise multiplier: standard deviation over the clip.")],
    cohort: Annotated[float, typer.Option("--cohort", help="Expected number of clients a round.")],
    clients: Annotated[int, typer.Option("--clients", help="How many clients there are.")],
    rounds: Annotated[int, typer.Option("--rounds", help="Number of rounds.")],
    delta: options.Delta = None,
    sampling: options.Sampling = None,
    participations: options.Participations = None,
    relation: RelationFlag = "add-remove",
    as_json: options.Json = False,
) -> None:
    """The epsilon that is proved for a noise multiplier."""
    plan = _plan(noise, cohort, clients, rounds, sampling, participations, relation)
    chosen = delta if delta is not None else default_delta(clients)
    _print(plan, accountant.account(plan, chosen), sampling or "poisson", as_json)


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon to spend.")],
    cohort: Annotated[float, typer.Option("--cohort", help="Expected number of clients a round.")],
    clients: Annotated[int, typer.Option("--clients", help="How many clients there are.")],
    rounds: Annotated[int, typer.Option("--rounds", help="Number of rounds.")],
    delta: options.Delta = None,
    sampling: options.Sampling = None,
    participations: options.Participations = None,
    relation: RelationFlag = "add-remove",
    as_json: options.Json = False,
) -> None:
    """The least noise that is proved to spend at most an epsilon."""
    plan = _plan(1.0, cohort, clients, rounds, sampling, participations, relation)
    chosen = delta if delta is not None else default_delta(clients)
    plan = replace(plan, noise_multiplier=accountant.calibrate(plan, epsilon, chosen))
    _print(plan, accountant.account(plan, chosen), sampling or "poisson", as_json)


def _plan(
    noise: float, cohort: float, clients: int, rounds: int, sampling: str | None, participations: int | None, relation: str
) -> Plan:
    """The plan of clip-and-noise, derived from the very objects that would run."""
    from hush.methods import dp_fedavg

    known = {str(r): r for r in Relation}
    kind = pick(known, relation.replace("_", "-"), "relation")
    if participations is not None and sampling != "bounded":
        raise UsageError("--participations goes with --sampling bounded.")
    drawn = make_cohort(sampling or "poisson", cohort, participations or 1)
    return plan_of(dp_fedavg(clip=1.0, noise=noise), drawn, clients, rounds, kind)


def _print(plan: Plan, guarantee: Guarantee, sampling: str, as_json: bool) -> None:
    value: dict[str, Any] = guarantee.to_dict() | {
        "noise_multiplier": plan.noise_multiplier,
        "cohort": plan.cohort.size,
        "clients": plan.clients,
        "rounds": plan.rounds,
        "sampling": sampling,
        "epsilon_server": None,
    }
    if as_json:
        print_json(value)
        return
    print(f"noise {plan.noise_multiplier:g}: {guarantee}")
    print(f"  {guarantee.method}, {guarantee.relation}, {plan.cohort.size:g} of {plan.clients:,} clients, {plan.rounds} rounds")
    for line in guarantee.assumptions:
        print(f"  if {line}")
