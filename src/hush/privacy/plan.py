"""From the objects that run to the plan that is accounted: nobody types a sensitivity or a sampling rate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hush import cohort as cohorts
from hush.cohort import Cohort
from hush.core import Bound, Chain, Method, Transform, Wire, is_ours
from hush.errors import NoGuarantee
from hush.local.dp_sgd import DpSgd
from hush.privacy import vocabulary as say
from hush.privacy.assumed import DIFFERENT_PARTIES, ONE_PROCESS, assumptions
from hush.privacy.bounds import Bit, L2Ball
from hush.privacy.client_plan import least_survivors, relation_of, sampling_of
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.record_plan import has_own_noise, record_plan, refuse_unproved, what_a_record_is
from hush.privacy.summed_records import local_fix, refuse_unproved_sums, summed_plan
from hush.privacy.vocabulary import Drawn, Enrolled, Phase, Plan, Release
from hush.transforms import BinomialMechanism, Discretize, ExactNoise, Gaussian, MessageGaussian, Noise, NoiseShares

_TOO_MANY_SHARES = "{among:,} honest shares of the noise are counted on, and a cohort may have fewer clients than that."

_PROBE = Wire(1000)
"""Any message: a part that shortens it sends a mask's worth."""


def plan_of(
    method: Method,
    cohort: Cohort | float,
    clients: int | Enrolled,
    rounds: int,
    relation: Relation | None = None,
    view: View = View.RELEASED,
    dropout: float = 0.0,
    as_written: bool = False,
) -> Plan:
    """The plan of `method` over `cohort`, read from its own parts, or `NoGuarantee` with the reason and the fix.

    A number is an expected cohort under Poisson sampling. `relation=None` is add-remove, zero-out where those who take part are
    public, and replace-one for records. A method that protects records needs more than the number of clients: `Enrolled`.
    `as_written` takes a paper's bound for granted: such a plan says what the paper counts, and proves nothing.
    """
    if not isinstance(cohort, Cohort):
        cohort = cohorts.Poisson(float(cohort))
    enrolled = clients if isinstance(clients, Enrolled) else Enrolled(clients)
    if has_own_noise(method):
        _refuse_overridden(method)
        refuse_unproved(method, cohort)
        cohort.check(enrolled.clients)
        return record_plan(method, cohort, enrolled, rounds, relation)
    clients = enrolled.clients
    if enrolled.dim is not None:
        method = method.sized(enrolled.dim)
    noise, bound = find_noise(method, as_written)
    if method.local.by_record:
        cohort.check(clients)
        return _of_summed_records(method, noise, bound, cohort, enrolled, rounds, relation)
    own = type(noise) is MessageGaussian
    if noise.shares or own:
        view = View.MESSAGES if own else View.SECAGG
    secret = type(cohort) is cohorts.SecretParticipation
    sampling = sampling_of(cohort, clients)
    relation = relation_of(cohort, relation, hidden=secret or view is not View.RELEASED)
    if own and secret:
        raise NoGuarantee(
            "Every message is covered by its client's own noise, so that secret participation would only have clients send more.",
            "Take turns: --sampling rotation.",
        )
    real, survivors = noise if isinstance(noise, NoiseShares) else None, None
    if noise.shares or secret:
        fewest = clients if secret else smallest_cohort(cohort, clients)
        if real is not None and real.among > fewest:
            raise NoGuarantee(_TOO_MANY_SHARES.format(among=real.among), "Let hush.SecureSum() size the shares.")
        survivors = real.among if real is not None else least_survivors(fewest, dropout)
    if (own and sampling.amplifies) or (noise.shares and not secret):
        sampling = say.Everyone()  # who takes part is visible: nothing is amplified, every round that a client can join counts
    entries = None if enrolled.dim is None else method.uplink(enrolled.dim).summed
    told = _noise(noise, _on(method), survivors, entries)
    plan = Plan(
        phases=(Phase(_releases(bound, told), sampling, rounds, period=cohort.turns(clients)),),
        population=clients,
        unit=Unit.CLIENT,
        relation=relation,
        view=view,
        honest_min=survivors,
        side_data=say.SideData.PUBLIC if method.pipeline.needs_public else say.SideData.NONE,
    )
    return replace(plan, assumptions=assumptions(plan, real))


def _of_summed_records(
    method: Method, noise: Noise, bound: Bound, cohort: Cohort, enrolled: Enrolled, rounds: int, relation: Relation | None
) -> Plan:
    """What is released about one record, where clients add up their records' rows and shares of noise cover the sum."""
    refuse_unproved_sums(method, noise, cohort)
    fewest, real = smallest_cohort(cohort, enrolled.clients), noise if isinstance(noise, NoiseShares) else None
    among = fewest if real is None else real.among
    if among > fewest:
        raise NoGuarantee(_TOO_MANY_SHARES.format(among=among), "Let hush.SecureSum() size the shares.")
    releases = _releases(bound, _noise(noise, _on(method), among, None))
    plan = summed_plan(method, among, releases, cohort, enrolled, rounds, relation)
    return replace(plan, assumptions=(*assumptions(plan, real), *what_a_record_is(enrolled)))


def in_a_federation(plan: Plan) -> Plan:
    """The same plan, where every client runs on a machine of its own: what must be so is about them."""
    told = tuple(line.replace(ONE_PROCESS, "") for line in plan.assumptions)
    return replace(plan, assumptions=(*told, DIFFERENT_PARTIES))


def smallest_cohort(cohort: Cohort, clients: int) -> int:
    """The smallest cohort: as many shares of the noise a sum holds at least."""
    if type(cohort) is cohorts.FixedSize:
        return int(cohort.size)
    if type(cohort) is cohorts.Rotation:
        return clients // cohort.period(clients)
    raise NoGuarantee(
        f"{type(cohort).__name__} cohorts have any size, so nothing says how many shares of the noise a sum holds.",
        "Use cohorts of a known size, FixedSize or Rotation (--sampling fixed, rotation), or secret participation (secret).",
    )


def _on(method: Method) -> say.On:
    masked = any(part.wire(_PROBE).entries < _PROBE.entries for part in method.pipeline.parts)
    return say.On.MASK if masked else say.On.EVERY


def _noise(part: Noise, on: say.On, shares: int | None, entries: int | None) -> say.Noise:
    """The noise as a word: the whole of it, or one of `shares` equal ones."""
    std = part.std if shares is None else part.std / math.sqrt(shares)
    drawn = Drawn.SERVER if shares is None else Drawn.SHARES
    if type(part) is MessageGaussian:
        return say.GaussianNoise(part.std, on, Drawn.MESSAGE)
    if type(part) is Gaussian:
        return say.GaussianNoise(std, on, drawn)
    kind = part.kind if isinstance(part, ExactNoise) and type(part) in (ExactNoise, NoiseShares) else None
    if kind == "gaussian":
        if shares is not None:
            raise NoGuarantee(
                "Rounded Gaussian shares do not add up to a rounded Gaussian.", "Draw shares of Skellam noise: kind='skellam'."
            )
        return say.GaussianNoise(std, on, drawn, secure=True)
    if kind == "discrete-gaussian":
        return say.DiscreteGaussianNoise(std, on, drawn, secure=True, entries=entries if shares is not None else None)
    if kind == "skellam":
        return say.SkellamNoise(std, on, drawn, secure=True)
    raise NoGuarantee(f"{type(part).__name__} is not the noise that was proved.", "Use Gaussian itself.")


def _releases(bound: Bound, noise: say.Noise) -> tuple[Release, ...]:
    """One release, or for an adaptive clip two: the update, and the bit that moves the clip, under the same noise."""
    grid = 1.0 if bound.integer else None
    if not bound.bit:
        return (Release(L2Ball(bound.l2, grid=grid), noise),)
    ball = math.sqrt(bound.l2**2 - bound.bit**2 / 4)
    return (Release(L2Ball(ball, adaptive=True, grid=grid), noise), Release(Bit(bound.bit, grid=grid), noise))


def _refuse_overridden(method: Method) -> None:
    for name in ("contribute", "finish"):
        if getattr(type(method), name) is not getattr(Method, name):
            raise NoGuarantee(
                f"{type(method).__name__} overrides {name}, so its parts no longer say what runs.", "Use Method itself."
            )


def find_noise(method: Method, as_written: bool = False) -> tuple[Noise, Bound]:
    """The one noise of a pipeline and the bound of what it covers."""
    _refuse_overridden(method)
    parts = method.pipeline.parts
    noises = [i for i, part in enumerate(parts) if isinstance(part, Noise)]
    if not noises:
        raise NoGuarantee(
            f"{method.name} adds no noise, so it has no privacy guarantee.",
            "Choose a private method, such as dp-fedavg or fed-smp-rand-k, or end the pipeline with Clip(C), Gaussian(z).",
        )
    if len(noises) > 1:
        raise NoGuarantee(f"{method.name} draws noise {len(noises)} times in one pipeline.", "Keep one Gaussian, at the end.")
    if isinstance(method.local, DpSgd) and method.local.noise != 0:
        raise NoGuarantee(
            f"{method.name} draws noise inside local training, for records, and on the sum, for clients: which shall be stated?",
            "Keep one: DpSgd(noise=0.0), or a pipeline without noise.",
        )
    for part in parts[noises[0] + 1 :]:
        if any(
            getattr(type(part), name) is not getattr(Transform, name) for name in ("encode", "beside", "cover", "unpack", "decode")
        ):
            raise NoGuarantee(
                f"{type(part).__name__} stands after the noise, so it changes updates after they were clipped.",
                "Put Clip and then Gaussian last in the chain.",
            )
    for part in parts[: noises[0]]:
        if type(part).unpack is not Transform.unpack and not is_ours(type(part)):
            raise NoGuarantee(
                f"{type(part).__name__} changes messages when they arrive (unpack), after they were clipped, so no bound is known.",
                "Do it in encode, before Clip, or in decode, on the sum.",
            )
    bound = Chain(parts[: noises[0]]).bound(Bound())
    noise = parts[noises[0]]
    assert isinstance(noise, Noise)
    if bound.unproved and not as_written:
        raise NoGuarantee(bound.unproved, getattr(unproved_part(method), "fix", "Put Clip(C) directly before the noise."))
    if type(noise) not in (Gaussian, MessageGaussian, ExactNoise, NoiseShares):
        raise NoGuarantee(f"{type(noise).__name__} is not the noise that was proved.", "Use Gaussian itself.")
    if not math.isfinite(bound.l2):
        raise NoGuarantee(f"The noise of {method.name} covers no bound: {bound.reason}.", "Put Clip(C) directly before it.")
    if isinstance(noise, ExactNoise) and not bound.integer:
        raise NoGuarantee("Exact noise is added to something that was not checked in integers.", "Put Discretize() before it.")
    return noise, bound


def unproved_part(method: Method) -> Any:
    """The station that does what a paper says and nothing proves: it says why (`no_proof`) and what to do instead (`fix`)."""
    stations: tuple[Any, ...] = (method.local, *method.pipeline.parts)
    return next((station for station in stations if getattr(station, "no_proof", None)), None)


def is_private(method: Method) -> bool:
    """Whether the method draws noise at all."""
    return has_own_noise(method) or any(isinstance(part, Noise) for part in method.pipeline.parts)


def takes_turns(method: Method) -> bool:
    """Whether the sampling of clients amplifies nothing, so that nobody should come more often than others: `Rotation` is best."""
    parts = method.pipeline.parts
    return has_own_noise(method) or any(isinstance(p, MessageGaussian) or (isinstance(p, Noise) and p.shares) for p in parts)


def needs_noise(method: Method) -> bool:
    """Whether the noise still has to be filled in from a budget."""
    if isinstance(method.local, DpSgd) and method.local.noise is None:
        return True
    if any(isinstance(part, BinomialMechanism) and part.trials is None for part in method.pipeline.parts):
        return True
    return any(isinstance(part, Noise) and part.multiplier is None for part in method.pipeline.parts)


def with_noise(method: Method, multiplier: float) -> Method:
    """The same method with its noise set."""
    if has_own_noise(method) and isinstance(method.local, DpSgd):
        local = method.local
        if not any(isinstance(part, BinomialMechanism) for part in method.pipeline.parts):
            return replace(method, local=replace(local, noise=multiplier))
        least = multiplier * local.lr * local.reach(1) / local.batch_size  # of one step's update
        own = (part.with_std(least) if isinstance(part, BinomialMechanism) else part for part in method.pipeline.parts)
        return method.with_pipeline(*own)
    parts = (replace(p, multiplier=multiplier) if isinstance(p, Noise) else p.covered(multiplier) for p in method.pipeline.parts)
    return method.with_pipeline(*parts)


def with_secure_noise(method: Method, cohort: Cohort) -> Method:
    """The same method on integers, under exact noise from a cryptographic stream; Skellam where it comes in shares."""
    local = method.local
    if isinstance(local, DpSgd) and has_own_noise(method) and local.noise != 0:
        if type(local) is not DpSgd:
            why = getattr(local, "no_proof", f"{type(local).__name__} is not the local training that was proved.")
            raise NoGuarantee(f"{why} So it has no secure noise mode.", f"{local_fix(local)} Or use --noise-mode fast.")
        return replace(method, local=replace(local, exact=True))
    if any(isinstance(part, MessageGaussian) for part in method.pipeline.parts):
        raise NoGuarantee(
            f"{method.name} draws noise on every message, in floating point so far: it has no secure noise mode.",
            "Use --noise-mode fast, whose statement says what it assumes, or noise_by=shares.",
        )
    shared = any(isinstance(part, Noise) and part.shares for part in method.pipeline.parts)
    kind = "skellam" if isinstance(cohort, cohorts.SecretParticipation) or shared else "gaussian"
    parts: list[Transform] = []
    for part in method.pipeline.parts:
        parts += [Discretize(), ExactNoise(part.multiplier, shares=part.shares, kind=kind)] if type(part) is Gaussian else [part]
    return method.with_pipeline(*parts)
