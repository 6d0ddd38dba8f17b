"""The plan of clients under the server's clip and noise, from numbers alone: `hush epsilon` waits for no PyTorch.

`plan_of` reads the same from the objects that run; tests hold the two against each other.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hush import cohort as cohorts
from hush.cohort import Cohort
from hush.errors import NoGuarantee
from hush.privacy import vocabulary as say
from hush.privacy.assumed import assumptions
from hush.privacy.bounds import L2Ball
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import Drawn, Phase, Plan, Release, Sampling


def clip_and_noise(noise: float, cohort: Cohort, clients: int, rounds: int, relation: Relation | None = None) -> Plan:
    """A clip of one and Gaussian noise, as `dp_fedavg(clip=1, noise=noise)` has them."""
    secret, sampling = type(cohort) is cohorts.SecretParticipation, sampling_of(cohort, clients)
    relation = relation_of(cohort, relation, hidden=secret)
    shares = least_survivors(clients, dropout=0.0) if secret else None
    drawn = say.GaussianNoise(
        noise if shares is None else noise / math.sqrt(shares), say.On.EVERY, Drawn.SERVER if shares is None else Drawn.SHARES
    )
    phase = Phase((Release(L2Ball(1.0), drawn),), sampling, rounds, period=cohort.turns(clients))
    plan = Plan((phase,), clients, Unit.CLIENT, relation, View.RELEASED, honest_min=shares)
    return replace(plan, assumptions=assumptions(plan))


def relation_of(cohort: Cohort, asked: Relation | None, hidden: bool) -> Relation:
    """Which neighbours: as asked, or those that fit; `hidden` where presence in a round is no matter of its plan."""
    rotation = type(cohort) is cohorts.Rotation
    if asked is None:
        return Relation.ZERO_OUT if hidden or rotation else Relation.ADD_REMOVE
    if asked is Relation.ADD_REMOVE and rotation:
        raise NoGuarantee(
            "Under a rotation one more client changes everybody's turn, so adding or removing one cannot be hidden.",
            "Ask for zero-out or replace-one: what a client's data said stays secret.",
        )
    return asked


def least_survivors(clients: int, dropout: float) -> int:
    """The fewest clients that answer, at a loss of this rate, six standard deviations below the mean."""
    return max(1, math.floor(clients * (1 - dropout) - 6 * math.sqrt(clients * dropout * (1 - dropout))))


def server_plan(plan: Plan) -> Plan:
    """The same run as the server sees it: the sums, under a secure sum. `account` refuses it where nothing is proved."""
    if plan.view is not View.RELEASED:  # the server is whom it speaks of
        return plan
    seen = replace(plan, view=View.SECAGG, relation=Relation.ZERO_OUT if plan.relation is Relation.ADD_REMOVE else plan.relation)
    return replace(seen, assumptions=assumptions(seen))


def sampling_of(cohort: Cohort, clients: int) -> Sampling:
    """What a cohort's kind and numbers say; a subclass may draw otherwise, so it says nothing."""
    cohort.check(clients)
    rate = cohort.size / clients
    if type(cohort) is cohorts.Poisson:
        return say.PoissonSampling(rate, clients)
    if type(cohort) is cohorts.FixedSize:
        return say.FixedSampling(int(cohort.size), clients)
    if type(cohort) is cohorts.Bounded:
        return say.BoundedParticipation(cohort.participations)
    if type(cohort) is cohorts.SecretParticipation:
        return say.SecretParticipation(rate, clients)
    if type(cohort) is cohorts.Rotation:
        return say.Everyone()  # in their turns: see the phase
    raise NoGuarantee(f"{type(cohort).__name__} has no proved accounting.", "Sample with Poisson, FixedSize or Bounded.")
