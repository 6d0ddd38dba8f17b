"""`hush epsilon` and `hush calibrate`: privacy figures without training anything."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hush.cli import options
from hush.cli.console import Json, print_json, say
from hush.cohort import Bounded, Cohort, make_cohort
from hush.errors import NoGuarantee, UsageError
from hush.names import pick
from hush.privacy import accountant
from hush.privacy.client_plan import clip_and_noise, server_plan
from hush.privacy.guarantee import Relation, Unit, default_delta
from hush.privacy.vocabulary import Enrolled, Persons, Plan


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed."""

    rounds: Annotated[int, options.option("rounds")]
    cohort: Annotated[float | None, options.option("cohort")] = None
    clients: Annotated[int | None, typer.Option("--clients", help="How many clients there are.")] = None
    delta: options.Delta = None
    sampling: options.Sampling = None
    participations: Annotated[
        int | None,
        typer.Option("--participations", help="Most rounds of a client: with --sampling bounded, or with --unit record or person."),
    ] = None
    relation: Annotated[
        str | None,
        typer.Option("--relation", help="Neighbours: add-remove (default for clients), replace-one (for records), zero-out."),
    ] = None
    unit: Annotated[str, typer.Option("--unit", help="Who is protected: client; record or person, by noise at every step.")] = (
        "client"
    )
    records: Annotated[
        int | None, typer.Option("--records", help="With --unit record, person: how many units the smallest client has.")
    ] = None
    batch: Annotated[int | None, typer.Option("--batch", help="With --unit record, person: how many units a step reads.")] = None
    local_steps: Annotated[int, typer.Option("--local-steps", help="With --unit record, person: noisy steps in a round.")] = 1
    batches: Annotated[str, typer.Option("--batches", help="With --unit record, person: poisson (default) or fixed batches.")] = (
        "poisson"
    )
    as_json: Json = False

    @property
    def kind(self) -> Unit:
        return pick({str(u): u for u in Unit}, self.unit, "unit")

    def drawn(self) -> Cohort:
        """Who takes part; for records only how often a client does at most."""
        if self.kind is Unit.CLIENT:
            if self.records is not None or self.batch is not None or self.local_steps != 1:
                raise UsageError("--records, --batch and --local-steps go with --unit record.")
            if self.cohort is None or self.clients is None:
                raise UsageError("Give --cohort and --clients: how many take part in a round, of how many.")
            if self.participations is not None and self.sampling != "bounded":
                raise UsageError("--participations goes with --sampling bounded, or with --unit record or person.")
            return make_cohort(self.sampling or "poisson", self.cohort, self.participations or 1)
        if self.participations is not None and self.sampling not in (None, "bounded"):
            raise UsageError(f"--sampling {self.sampling} says itself how often a client joins: leave --participations out.")
        if self.sampling is not None and (self.cohort is None or self.clients is None):
            raise UsageError(f"--sampling {self.sampling} needs --cohort and --clients.")
        size, of = (1.0, 1) if self.cohort is None or self.clients is None else (self.cohort, self.clients)
        most = self.participations if self.participations is not None else self.rounds
        counted = self.participations is not None or self.cohort is None or self.clients is None
        drawn = Bounded(size, most) if counted else make_cohort(self.sampling or "rotation", size)
        drawn.check(of)
        return drawn

    def plan(self, noise: float) -> Plan:
        """The plan of clip-and-noise: for clients from the numbers, for what is within them from the objects that would run."""
        relation = pick({str(r): r for r in Relation}, self.relation.replace("_", "-"), "relation") if self.relation else None
        if self.kind is Unit.CLIENT:
            assert self.clients is not None
            return clip_and_noise(noise, self.drawn(), self.clients, self.rounds, relation)
        if self.records is None or self.batch is None:
            raise UsageError("Give --records and --batch: how many records the smallest client holds, and how many a step reads.")
        from hush.methods import dp_fed
        from hush.privacy.plan import plan_of

        method = dp_fed(clip=1.0, noise=noise, batch_size=self.batch, local_steps=self.local_steps, batches=self.batches)
        enrolled = Enrolled(self.clients or 1, self.records, dim=1, persons=Persons() if self.kind is Unit.PERSON else None)
        return plan_of(method, self.drawn(), enrolled, self.rounds, relation)

    def chosen_delta(self) -> float:
        """The default is for the clients, or for the records that are known of."""
        if self.delta is not None:
            return self.delta
        return default_delta(Enrolled(self.clients or 1, self.records).units(records=self.kind.within_client))


@options.takes_flags
def epsilon(noise: Annotated[float, options.option("noise")], *, asked: Asked) -> None:
    """The epsilon that is proved for a noise multiplier."""
    drawn = asked.drawn()
    _print(asked, asked.plan(noise), drawn, asked.chosen_delta())


@options.takes_flags
def calibrate(epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon to spend.")], *, asked: Asked) -> None:
    """The least noise that is proved to spend at most an epsilon."""
    drawn, delta = asked.drawn(), asked.chosen_delta()
    plan = asked.plan(1.0)
    _print(asked, plan.with_noise(accountant.calibrate(plan, epsilon, delta)), drawn, delta)


def _print(asked: Asked, plan: Plan, cohort: Cohort, delta: float) -> None:
    guarantee = accountant.account(plan, delta)
    server = None
    with contextlib.suppress(NoGuarantee):
        server = accountant.account(server_plan(plan), delta)
    value: dict[str, Any] = guarantee.to_dict() | {
        "noise_multiplier": plan.noise_multiplier,
        "cohort": asked.cohort,
        "clients": asked.clients,
        "rounds": plan.rounds,
        "sampling": asked.sampling or ("poisson" if plan.unit is Unit.CLIENT else None),
        "epsilon_server": server.epsilon if server else None,
    }
    if plan.unit is Unit.CLIENT:
        value["participations"] = cohort.participations if isinstance(cohort, Bounded) else None
    else:
        phase = plan.phases[0]
        value |= {"participations": phase.participations, "records": asked.records, "batch": asked.batch, "steps": phase.times}
    for line in (*guarantee.warnings, *_notes(asked, plan, cohort)):
        say(f"note: {line}")
    if asked.as_json:
        print_json(value)
        return
    print(f"noise {plan.noise_multiplier:g}: {guarantee}")
    print(f"  {guarantee.method}, {guarantee.relation}, {_setting(asked, plan, cohort)}")
    for line in guarantee.assumptions:
        print(f"  if {line}")
    if server is not None and server.view is not guarantee.view:
        print(f"and {server}")
        for line in server.assumptions:
            print(f"  if {line}")


def _setting(asked: Asked, plan: Plan, cohort: Cohort) -> str:
    if plan.unit is Unit.CLIENT:
        return f"{cohort.size:g} of {plan.population:,} clients, {plan.rounds} rounds"
    phase = plan.phases[0]
    joined = f"{phase.times:,} steps: at most {phase.participations} of {phase.rounds} rounds, {phase.steps} steps each"
    return f"{asked.batch} of {plan.population:,} {plan.unit}s a step, {joined}"


def _notes(asked: Asked, plan: Plan, cohort: Cohort) -> list[str]:
    """What is right and still surprises."""
    if plan.unit is Unit.CLIENT:
        short = isinstance(cohort, Bounded) and cohort.lasts(plan.population) < plan.rounds
        return [cohort.too_short(plan.population, plan.rounds)] if isinstance(cohort, Bounded) and short else []
    if plan.phases[0].participations == plan.rounds > 1 and (asked.sampling or asked.participations is None):
        return [
            f"a client is taken to join every round: which clients are drawn shows, so it amplifies nothing for a {plan.unit}; "
            "--sampling rotation with --cohort and --clients, or --participations, says how often one joins at most"
        ]
    return []
