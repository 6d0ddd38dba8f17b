"""Records against the server: one step's gradients, clipped record by record, in one secure sum over all clients.

The server sees, once a round, N + sum of E(z) over the records z that were drawn: E(z) is what mask, clip and grid make of z's own
gradient, N the noise that honest clients' shares add up to. In ten lines:

1. E(z) is whole numbers, and |E(z)| <= R was checked in whole numbers. It depends on z, the model, and public randomness alone.
2. A client's message is the sum of its drawn records' E(z), exactly, and its share of the noise.
3. Zero-out: z adds nothing in one of the two worlds. Everything else is the same in both: others' coins, their E, the shapes.
4. Given all that, the model and what corrupted clients know, the sum is N + S where z was not drawn, and N + S + E(z) where it was.
5. z's coin is its client's secret, of chance q, and independent of the rest. So one world shows N + S, and the other
   (1 - q)(N + S) + q(N + S + E(z)): the Poisson-sampled mechanism of sensitivity R.
6. N is Skellam noise of the fewest honest shares that a sum may hold; more shares are more noise, drawn independently.
7. The next model, mask and invitation are made of what was seen, so the rounds compose adaptively: as many as a client can be in.
8. Modulus, division, learning rate, momentum, Adam and averages come after the sum.

It fails where coins decide who drops out or how long a client takes, where examples of a batch affect each other's gradients, and
where a client keeps to another q. It fails for several local steps: the second step's gradient depends on the first step's records,
and what other clients add to the sum does not hide from it how far a client went (`docs/privacy.md`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from hush.cohort import Cohort, FixedSize, Rotation
from hush.core import Method, chain
from hush.errors import NoGuarantee, UsageError
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import L2Clip
from hush.local.record_gradients import RecordGradients
from hush.privacy import vocabulary as say
from hush.privacy.guarantee import Relation, View
from hush.privacy.vocabulary import Enrolled, Phase, Plan, Release
from hush.transforms import BinomialMechanism, Clip, ExactNoise, Gaussian, Noise, NoiseShares
from hush.transforms.gradient_step import GradientStep

_INSTEAD = "Make one step a round: dp-sgd, or cpfed with local_steps=1."


def one_sum_of_records(method: Method, enrolled: Enrolled) -> Method:
    """The same step with its noise on the sum of all clients' records; or why a secure sum cannot help."""
    local = method.local
    if not isinstance(local, DpSgd) or any(isinstance(part, BinomialMechanism) for part in method.pipeline.parts):
        raise NoGuarantee(
            f"{method.name} covers every message by its client's own noise: a secure sum would add nothing.",
            "Use dp-sgd, whose noise a secure sum lets clients share.",
        )
    if type(local) is not DpSgd:
        raise NoGuarantee(
            getattr(local, "no_proof", f"{type(local).__name__} is not the local training that was proved."), local_fix(local)
        )
    if local.steps > 1:
        raise NoGuarantee(
            f"{method.name} makes {local.steps} noisy steps a round, and other clients' noise does not hide which way a client "
            "went in between: what is proved is each client's own noise, with a secure sum or without.",
            _INSTEAD,
        )
    if local.mask is not None:
        raise NoGuarantee(
            f"In {method.name} each client has a mask of its own: what they send does not add up entry by entry.",
            "Use a mask for the whole cohort: dp-sgd+rand-k.",
        )
    if not isinstance(local.clip, L2Clip):
        raise NoGuarantee("Under a secure sum a record's gradient is clipped by its L2 norm.", "Leave clip_per out.")
    if local.records != "poisson":
        raise NoGuarantee(
            "Of a fixed batch the server knows how many records are in, and one that is not drawn makes room for another: under a "
            "secure sum that is not what was proved.",
            "Draw each record by its own coin: batches=poisson.",
        )
    step = GradientStep(local.lr, local.batch_size, local.decay, local.every)
    pipeline = chain(step, *method.pipeline.parts, Clip(local.clip.norm), Gaussian(local.noise, shares=True))
    return replace(method, local=RecordGradients(rate_of(local, enrolled), local.batch_size), pipeline=pipeline, claim=None)


def local_fix(local: DpSgd) -> str:
    """What to do instead of a paper's own words."""
    return str(getattr(local, "fix", "Use hush.local.DpSgd itself."))


def rate_of(local: DpSgd, enrolled: Enrolled) -> float:
    """The chance of every record to be in a step, at all clients: as it was given, or so that a client draws a batch on average."""
    if local.rate is not None:
        return local.rate
    if enrolled.total is None:
        raise UsageError(
            "Under a secure sum every record has the same chance to be in a step, and nobody here knows how many records clients "
            "hold: say the chance, --set rate=0.01."
        )
    return min(1.0, local.batch_size * enrolled.clients / enrolled.total)


def rows_of_records(method: Method, clients: int) -> int:
    """How many records a sum over so many clients hardly ever exceeds; beyond that it may wrap, which costs accuracy alone."""
    local = method.local
    assert isinstance(local, RecordGradients)
    expected = clients * local.batch_size
    return math.ceil(expected + 6 * math.sqrt(expected))


def refuse_unproved_sums(method: Method, noise: Noise, cohort: Cohort) -> None:
    """Only the very classes that the proof speaks of."""
    if type(method.local) is not RecordGradients or type(noise) not in (NoiseShares, ExactNoise) or not noise.shares:
        raise NoGuarantee(
            f"{method.name} sends sums of records' gradients, which are covered by shares of noise under a secure sum alone.",
            "Give --secure, or secure_sum=hush.SecureSum().",
        )
    if type(cohort) not in (Rotation, FixedSize):
        raise NoGuarantee(
            "What hides a record is its own coin; who sends is public, and a cohort has a known size.",
            "Take turns: --sampling rotation.",
        )


def summed_plan(
    method: Method,
    shares: int,
    releases: tuple[Release, ...],
    cohort: Cohort,
    enrolled: Enrolled,
    rounds: int,
    relation: Relation | None,
) -> Plan:
    """What is released about one record; assumptions are the caller's to add."""
    local = method.local
    assert isinstance(local, RecordGradients)
    records = enrolled.records or max(1, round(local.batch_size / local.rate))
    sampling = say.PoissonSampling(local.rate, records, say.Sampler.OWN)
    most = cohort.most_participations(rounds, enrolled.clients)
    return Plan(
        phases=(Phase(releases, sampling, rounds, 1, most, cohort.turns(enrolled.clients), holders=enrolled.holders),),
        population=records,
        unit=enrolled.record,
        relation=relation or Relation.ZERO_OUT,
        view=View.SECAGG,
        sampled=enrolled.record,
        honest_min=shares,
        side_data=say.SideData.PUBLIC if method.pipeline.needs_public else say.SideData.NONE,
        clients=enrolled.clients,
        cohort=float(cohort.size),
        parameters=enrolled.dim,
        total=enrolled.total,
    )
