"""The plan of a method whose clients draw noise inside their own training: what is protected is a record, in every message.

Every local step is one release: gradients clipped record by record, summed over a fresh secret batch, divided by a constant, under
noise of the client's own. The guarantee holds against whoever reads the client's messages, the server included. The sampling of
clients amplifies nothing for a record, because it shows who took part; what counts is how often a client joins at most.
"""

from __future__ import annotations

from hush.cohort import Bounded, Cohort, FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import Chain, Method, Wire
from hush.errors import NoGuarantee, UsageError
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import CoordinateClip, L2Clip
from hush.names import pick
from hush.privacy import vocabulary as say
from hush.privacy.assumed import EXACT, FAST, PUBLIC_EXAMPLES
from hush.privacy.bounds import Bound, Quantised, RecordMean
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import Drawn, Enrolled, Phase, Plan, Release, Sampling
from hush.transforms import BinomialMechanism, Rotate
from hush.transforms import Noise as NoiseOnTheSum
from hush.transforms.own_mask import OwnRandK

OWN_SECRETS = (
    "each client draws the batches and the noise of every step by itself and tells nobody (in this simulation one process draws "
    "for all of them)"
)
ROUNDED = (
    "gradients, which are floating-point numbers, are rounded by less than 2^-16 of what a record may add (its noise is exact)"
)
PUBLIC_SIZES = "how many {unit}s a client holds, and which rounds it joins, are no secret"
ONE_ROW = "one row, one record: a person with k rows is covered k times less (person = ... names the column that says whose it is)"
ONE_PERSON = "a person's rows at a client are one record: they give one gradient, the mean of theirs, clipped once{most}"
MOST_ROWS = "; at most {rows:,} of them are used, picked by that person's rows alone"
ONE_CLIENT = "no person's rows lie at more than one client"
SEVERAL_CLIENTS = "no person's rows lie at more than {clients:,} clients, all of which are counted"
UNTIMED = "nobody sees how long a client's single steps take"


WITHIN_CLIENTS = (str(Unit.RECORD), str(Unit.PERSON))
NAME_PERSONS = 'Name the column: person = "patient_id" in the description, or hush.Columns(person=...).'


def is_record_level(method: Method) -> bool:
    """Whether single records are protected; otherwise noise, if any, covers whole clients."""
    covered_by_itself = isinstance(method.local, DpSgd) and not any(isinstance(p, NoiseOnTheSum) for p in method.pipeline.parts)
    return covered_by_itself or method.local.by_record


def has_own_noise(method: Method) -> bool:
    """Whether clients cover their own records, each by itself."""
    local = method.local
    if method.local.by_record:
        return False
    own = any(isinstance(part, BinomialMechanism) for part in method.pipeline.parts)
    return isinstance(local, DpSgd) and is_record_level(method) and (own or local.noise is None or local.noise > 0)


def record_plan(method: Method, cohort: Cohort, enrolled: Enrolled, rounds: int, relation: Relation | None) -> Plan:
    """What is released about one record of the smallest client."""
    local = method.local
    assert isinstance(local, DpSgd)
    if enrolled.records is None or enrolled.dim is None:
        raise UsageError(
            f"{method.name} protects records: say how many the smallest client holds and how many parameters there are, "
            "hush.Enrolled(clients, records=..., dim=...)."
        )
    if local.clip is None:
        raise NoGuarantee(f"Nothing clips a record's gradient in {method.name}, so nothing bounds it.", "Clip record by record.")
    batch = min(local.batch_size, enrolled.records)
    sampling: Sampling
    if local.records == "poisson":
        rate = batch / enrolled.records if local.rate is None else local.rate
        sampling = say.PoissonSampling(rate, enrolled.records, say.Sampler.OWN)
    else:
        sampling = say.FixedSampling(batch, enrolled.records, say.Sampler.OWN)
    binomial = [part for part in method.pipeline.parts if isinstance(part, BinomialMechanism)]
    bound, noise = _binomial(method, local, binomial, enrolled.dim) if binomial else _gaussian(local, enrolled.dim)
    most = cohort.most_participations(rounds, enrolled.clients)
    turns, sizes = cohort.turns(enrolled.clients), PUBLIC_SIZES.format(unit=enrolled.record)
    public = (PUBLIC_EXAMPLES,) if method.pipeline.needs_public else ()
    phase = Phase((Release(bound, noise),), sampling, rounds, local.steps, most, turns, holders=enrolled.holders)
    return Plan(
        phases=(phase,),
        population=enrolled.records,
        unit=enrolled.record,
        relation=relation or Relation.REPLACE_ONE,
        view=View.MESSAGES,
        sampled=enrolled.record,
        noise_per_local_step=True,
        side_data=say.SideData.PUBLIC if public else say.SideData.NONE,
        assumptions=(OWN_SECRETS, sizes, *what_a_record_is(enrolled), *public, *_of_the_noise(local, bool(binomial), enrolled)),
        clients=enrolled.clients,
        cohort=float(cohort.size),
        parameters=enrolled.dim,
        total=enrolled.total,
    )


def what_a_record_is(enrolled: Enrolled) -> tuple[str, ...]:
    """What must be so for a record to be what it is said to be: a row, or a person."""
    persons = enrolled.persons
    if persons is None:
        return (ONE_ROW,)
    most = MOST_ROWS.format(rows=persons.rows) if persons.rows is not None else ""
    where = ONE_CLIENT if persons.clients == 1 else SEVERAL_CLIENTS.format(clients=persons.clients)
    return ONE_PERSON.format(most=most), where


def unit_within_clients(method: Method, asked: str | None, named: bool) -> str | None:
    """What a method that protects records takes for one, `named` persons being known by a column; None of other methods."""
    if asked is not None:
        pick(dict.fromkeys(WITHIN_CLIENTS), asked, "unit")
    if not is_record_level(method):
        if asked is not None:
            raise UsageError(f"{method.name} does not protect a {asked}: leave the unit out, or choose dp-sgd, dp-fed or fed-spa.")
        return None
    if asked == Unit.PERSON and not named:
        raise UsageError(f"{NAME_PERSONS} Nothing says whose each row is, so no person can be protected.")
    return asked or str(Unit.PERSON if named else Unit.RECORD)


def _of_the_noise(local: DpSgd, binomial: bool, enrolled: Enrolled) -> tuple[str, ...]:
    if binomial:
        return (ROUNDED,)
    return (UNTIMED, EXACT.format(unit=enrolled.record)) if local.exact else (FAST,)


def _gaussian(local: DpSgd, dim: int) -> tuple[Bound, say.Noise]:
    """A step's mean over a constant, and the noise on it, on the coordinates of a mask that everybody knows.

    Exact noise is rounded, on whole numbers: the rounding of what these words say, which is post-processing.
    """
    on = say.On.MASK if local.mask else say.On.EVERY
    noise = say.GaussianNoise(local.std(dim) / local.batch_size, on, Drawn.MESSAGE, secure=local.exact)
    return RecordMean(local.reach(dim), local.batch_size), noise


def _binomial(method: Method, local: DpSgd, parts: list[BinomialMechanism], dim: int) -> tuple[Bound, say.Noise]:
    """cpSGD's: one step's mean gradient, quantised, under binomial noise."""
    if len(parts) > 1 or local.noise or local.steps != 1 or local.decay > 1 or local.mask is not None:
        raise NoGuarantee(  # in one step momentum and prox do nothing yet
            "Binomial noise covers the gradient of one local step, once, of a learning rate that does not grow.",
            "Use one step (local_steps=1) without masks, noise of its own, or lr_decay above 1.",
        )
    before = method.pipeline.parts[: method.pipeline.parts.index(parts[0])]
    if any(type(part) is not Rotate for part in before):
        raise NoGuarantee("What stands before the quantisation is not known to keep lengths.", "Put nothing but Rotate there.")
    entries = Chain(before).wire(Wire(dim)).entries
    mechanism = parts[0]
    reach = local.lr * local.reach(dim)  # the update is lr times the mean gradient, and lr does not grow
    inner = RecordMean(reach, local.batch_size)
    bound = Quantised(inner, mechanism.grid, entries, mechanism.levels)
    noise = say.BinomialNoise(mechanism.std, say.On.EVERY, Drawn.MESSAGE, secure=True, trials=mechanism.coins, entries=entries)
    return bound, noise


def refuse_unproved(method: Method, cohort: Cohort) -> None:
    """Only the very classes whose steps were proved."""
    local = method.local
    if type(local) is not DpSgd:
        raise NoGuarantee(
            getattr(local, "no_proof", f"{type(local).__name__} is not the local training that was proved."),
            getattr(local, "fix", "Use hush.local.DpSgd itself."),
        )
    if isinstance(cohort, SecretParticipation):
        raise NoGuarantee(
            "Secret participation hides who adds data to a sum; here every message is covered by itself, and each client would "
            "only send more of them.",
            "Take turns: --sampling rotation.",
        )
    mechanisms = [part for part in method.pipeline.parts if isinstance(part, BinomialMechanism)]
    known: tuple[tuple[object, tuple[type, ...]], ...] = (
        (cohort, (Rotation, Bounded, Poisson, FixedSize)),
        (local.clip, (L2Clip, CoordinateClip, type(None))),
        (local.mask, (OwnRandK, type(None))),
        *((part, (BinomialMechanism,)) for part in mechanisms),
    )
    for part, kinds in known:
        if type(part) not in kinds:
            raise NoGuarantee(
                f"{type(part).__name__} is not one that was proved: a class inherits no promise.",
                f"Use {kinds[0].__name__} itself.",
            )
    masks = [part for part in method.pipeline.parts if isinstance(part, OwnRandK)]
    if local.mask is not None and masks != [local.mask]:
        raise NoGuarantee("Clients train on one mask and send another.", "Put the mask of local training into the pipeline.")
