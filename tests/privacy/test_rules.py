"""What has no proof is refused, each with its reason and its fix: the list at the end of the analysis, item by item."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from hush import NoGuarantee, Plan, UsageError, account
from hush.privacy.bounds import (
    Bit,
    Bound,
    L2Ball,
    LinearImage,
    OneVote,
    Quantised,
    RecordMean,
    Rounded,
    Weighted,
)
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import (
    BoundedParticipation,
    DiscreteGaussianNoise,
    Drawn,
    Everyone,
    FixedSampling,
    GaussianNoise,
    LaplaceNoise,
    MinSeparation,
    Noise,
    On,
    Phase,
    PoissonSampling,
    Release,
    Sampler,
    Sampling,
    SecretParticipation,
    SkellamNoise,
)

HUNDRED = PoissonSampling(0.1, 100)


def plan(
    bound: Bound | None = None,
    noise: Noise | None = None,
    sampling: Sampling = HUNDRED,
    rounds: int = 10,
    divisor: str = "constant",
    **how: object,
) -> Plan:
    release = Release(bound or L2Ball(1.0), noise or GaussianNoise(1.0), divisor)
    return Plan((Phase((release,), sampling, rounds),), **{"population": 100} | how)  # type: ignore[arg-type]


SHARES = GaussianNoise(0.1, drawn=Drawn.SHARES)
MESSAGE = GaussianNoise(1.0, drawn=Drawn.MESSAGE)
SERVER_SEES = {"view": View.SECAGG, "relation": Relation.ZERO_OUT, "honest_min": 100}
RECORDS = {"unit": Unit.RECORD, "relation": Relation.REPLACE_ONE, "view": View.MESSAGES}

REFUSED = {
    "sketch without a proved operator norm": (plan(LinearImage(1.5)), "hash collisions", "Clip the sketch table"),
    "noise on the private support": (plan(noise=GaussianNoise(1.0, on="private support")), "support", "Noise every entry"),
    "realised divisor under Poisson": (plan(divisor="realised"), "reveals its size", "constant expected cohort"),
    "amplification against a server that picks": (plan(noise=SHARES, **SERVER_SEES), "picks the cohort", "secret participation"),
    "amplification in messages": (
        plan(noise=MESSAGE, view=View.MESSAGES, relation=Relation.ZERO_OUT),
        "picks the cohort",
        "bound the participations",
    ),
    "clients sampled, records protected": (plan(unit=Unit.RECORD), "not amplified", "Sample records"),
    "noise in the local loop under a secure sum": (
        plan(noise=SHARES, sampling=Everyone(), noise_per_local_step=True, **SERVER_SEES),
        "lemma 4",
        "Clip the final update",
    ),
    "noise shares without honest_min": (
        plan(noise=SHARES, sampling=Everyone(), **SERVER_SEES | {"honest_min": None}),
        "how many honest ones",
        "honest_min",
    ),
    "shares under server-side Poisson": (
        plan(noise=SHARES, honest_min=10, relation=Relation.ZERO_OUT),
        "how many there were",
        "secret participation",
    ),
    "messages' own noise under server-side Poisson": (
        plan(noise=MESSAGE, relation=Relation.ZERO_OUT),
        "how many there were",
        "secret participation",
    ),
    "a client's own coin, where who sends is seen": (
        plan(noise=SHARES, sampling=PoissonSampling(0.1, 100, by=Sampler.OWN), **SERVER_SEES),
        "sees who sends",
        "secret participation",
    ),
    "a removed client takes its share along": (plan(noise=SHARES, sampling=Everyone(), honest_min=100), "noise along", "zero-out"),
    "more honest shares than are sent": (
        plan(noise=SHARES, sampling=FixedSampling(10, 100), honest_min=100),
        "no more than 10 are sent",
        "really there",
    ),
    "a batch's mean for a client": (plan(RecordMean(1.0, 10)), "every record of the batch", "Protect records"),
    "integer noise off its grid": (plan(noise=SkellamNoise(9.0)), "covers integers alone", "Discretize"),
    "Laplace in shares": (
        plan(OneVote(), LaplaceNoise(1.0, drawn=Drawn.SHARES), Everyone(), **SERVER_SEES),
        "not Laplace noise",
        "Skellam",
    ),
    "rounded Gaussian in shares": (
        plan(noise=replace(SHARES, secure=True), sampling=Everyone(), **SERVER_SEES),
        "do not add up",
        "Skellam",
    ),
    "shares below half a step": (
        plan(Rounded(1.0, 1.0, 9), DiscreteGaussianNoise(0.4, drawn=Drawn.SHARES, entries=9), Everyone(), **SERVER_SEES),
        "half a grid step",
        "finer grid",
    ),
    "realised divisor under secret participation": (
        plan(sampling=SecretParticipation(0.1, 100), relation=Relation.ZERO_OUT, divisor="realised"),
        "reveals its size",
        "constant",
    ),
    "realised divisor, everyone, add/remove": (plan(sampling=Everyone(), divisor="realised"), "reveals its size", "constant"),
    "an adaptive clip in disguise": (plan(Weighted(L2Ball(1.0, adaptive=True), 1.0)), "not among the releases", "AdaptiveClip"),
    "mean, then clip, with 1/B": (plan(RecordMean(1.0, 10, per_record=False)), "not each record", "record by record"),
    "a mask from protected data": (plan(side_data="private"), "protected data", "public examples"),
    "an adaptive clip without its bit": (plan(L2Ball(1.0, adaptive=True)), "not among the releases", "AdaptiveClip"),
    "unbounded participation": (plan(sampling=BoundedParticipation(None)), "how often", "Cap the participations"),
    "a hypothetical population": (plan(sampling=PoissonSampling(1e-8, 10**9)), "hypothetical", "really there"),
    "weights that nothing bounds": (plan(Weighted(L2Ball(1.0))), "nothing bounds the weight", "cap the weights"),
    "add/remove where messages are seen": (
        plan(noise=MESSAGE, sampling=Everyone(), view=View.MESSAGES),
        "cannot be hidden",
        "zero-out",
    ),
    "add/remove under secret participation": (plan(sampling=SecretParticipation(0.1, 100)), "contacted clients", "zero-out"),
    "noise that the server draws, against the server": (
        plan(sampling=Everyone(), **SERVER_SEES),
        "draws the noise itself",
        "clients draw it",
    ),
    "no release": (Plan((), 100), "Nothing in this plan is noised", "Add noise"),
    "no bound": (plan(L2Ball(math.inf)), "covers no bound", "Clip"),
    "discrete Gaussian shares of unknown length": (
        plan(L2Ball(1.0, grid=1.0), DiscreteGaussianNoise(9.0, drawn=Drawn.SHARES), Everyone(), **SERVER_SEES),
        "not discrete Gaussian",
        "Skellam",
    ),
    "a strategy whose worst pattern is unknown": (
        plan(sampling=MinSeparation(2, 5, (1.0, 2.0)), relation=Relation.ZERO_OUT),
        "worst pattern",
        "Toeplitz",
    ),
    "Renyi accounting that is not proved": (
        plan(L2Ball(1.0, grid=1.0), DiscreteGaussianNoise(9.0), relation=Relation.REPLACE_ONE),
        "Renyi accounting of PoissonSampling",
        "zero-out",
    ),
    "Skellam noise correlated over rounds": (
        plan(L2Ball(1.0, grid=1.0), SkellamNoise(9.0), MinSeparation(2, 5, (1.0, 0.5)), relation=Relation.ZERO_OUT),
        "whole numbers alone",
        "Gaussian",
    ),
    "Skellam noise of next to nothing": (
        plan(L2Ball(1.0, grid=1.0), SkellamNoise(1e-8), Everyone(), relation=Relation.ZERO_OUT),
        "moves off zero",
        "Raise the noise",
    ),
    "two kinds of noise in one round": (
        Plan((Phase((Release(OneVote(), GaussianNoise(1.0)), Release(Bit(), LaplaceNoise(9.0))), Everyone(), 1),), 100),
        "mixes kinds",
        "one kind of noise",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    refused, reason, fix = REFUSED[name]
    with pytest.raises(NoGuarantee) as refusal:
        account(refused, 1e-5)
    assert reason in refusal.value.reason
    assert fix in refusal.value.fix


PROVED = {
    "DP-FedAvg, Fed-SMP": plan(noise=GaussianNoise(1.4, on="public mask")),
    "the same with fixed cohorts": plan(sampling=FixedSampling(10, 100)),
    "BLUR+LUS": plan(noise=GaussianNoise(1.4)),
    "Fed-SPA": plan(noise=MESSAGE, sampling=FixedSampling(10, 100, by=Sampler.OWN), sampled=Unit.RECORD, **RECORDS),
    "CPFed, local": plan(noise=MESSAGE, sampling=Everyone(), noise_per_local_step=True, **RECORDS),
    "CPFed, output": plan(noise=SHARES, sampling=BoundedParticipation(5), **SERVER_SEES),
    "DPSFL": plan(noise=MESSAGE, sampling=BoundedParticipation(5), view=View.MESSAGES, relation=Relation.REPLACE_ONE),
    "DPSFL-AC": Plan(
        (Phase((Release(L2Ball(1.0, adaptive=True), SHARES), Release(Bit(0.2), SHARES)), BoundedParticipation(5), 10),),
        100,
        **SERVER_SEES,  # type: ignore[arg-type]
    ),
    "DDGauss": plan(
        Rounded(1.0, 1e-3, 100),
        DiscreteGaussianNoise(0.1, drawn=Drawn.SHARES, grid=1e-3, entries=100),
        BoundedParticipation(5),
        **SERVER_SEES,
    ),
    "Skellam": plan(
        Rounded(1.0, 1e-3, 100), SkellamNoise(0.1, drawn=Drawn.SHARES, grid=1e-3), BoundedParticipation(5), **SERVER_SEES
    ),
    "Skellam, secret participation": plan(
        L2Ball(1.0, grid=1e-3), SkellamNoise(0.1, drawn=Drawn.SHARES, grid=1e-3), SecretParticipation(0.1, 100), **SERVER_SEES
    ),
    "AE-DPFL": plan(OneVote(), GaussianNoise(40.0), Everyone(), 100, relation=Relation.REPLACE_ONE),
    "DP-SGD": plan(RecordMean(1.0, 10), GaussianNoise(0.1), unit=Unit.RECORD, sampled=Unit.RECORD),
    "DP-FTRL": plan(sampling=MinSeparation(2, 5, (1.0, 0.5)), relation=Relation.ZERO_OUT),
    "weights that are capped": plan(Weighted(L2Ball(1.0), 2.0), GaussianNoise(2.8)),
}


@pytest.mark.parametrize("name", PROVED)
def test_every_method_of_the_field_can_be_said(name: str) -> None:
    guarantee = account(PROVED[name], 1e-5)
    assert 0 < guarantee.epsilon < 300
    assert guarantee.view is PROVED[name].view
    assert not guarantee.warnings


@pytest.mark.parametrize(
    "broken",
    [
        lambda: PoissonSampling(math.nan, 100),
        lambda: PoissonSampling(1.5, 100),
        lambda: PoissonSampling(0.0, 100),
        lambda: FixedSampling(0, 100),
        lambda: FixedSampling(200, 100),
        lambda: BoundedParticipation(0),
        lambda: BoundedParticipation(-5),
        lambda: BoundedParticipation(3, repeats=-1),
        lambda: SecretParticipation(0.5, 0),
        lambda: MinSeparation(0, 5, (1.0,)),
        lambda: MinSeparation(2, -1, (1.0,)),
        lambda: MinSeparation(2, 5, ()),
        lambda: MinSeparation(2, 5, (1.0, math.nan)),
        lambda: plan(honest_min=0),
        lambda: plan(divisor="Realised"),
        lambda: plan(noise=GaussianNoise(1.0, on="support")),  # type: ignore[arg-type]
        lambda: plan(side_data="privat"),
        lambda: plan(rounds=0),
        lambda: plan(population=0),
    ],
)
def test_words_that_mean_nothing(broken: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        broken()


def test_words_given_as_text_are_the_words_themselves() -> None:
    assert plan(noise=GaussianNoise(1.0, on="private support")).phases[0].releases[0].noise.on is On.SUPPORT  # type: ignore[arg-type]
    assert plan(view="released").view is View.RELEASED


def test_fedavg_and_fetchsgd_have_no_number() -> None:
    with pytest.raises(NoGuarantee, match="no privacy guarantee"):
        account(Plan((Phase((), HUNDRED, 10),), 100), 1e-5)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_noise(std: float) -> None:
    with pytest.raises(UsageError, match="noise must be a positive number"):
        plan(noise=GaussianNoise(std))


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan])
def test_nonsense_bounds(norm: float) -> None:
    with pytest.raises(UsageError, match="bound must be a positive number"):
        plan(L2Ball(norm))


def test_a_delta_that_permits_publishing_one_client_is_warned_of() -> None:
    assert account(plan(), 0.009).warnings == ()
    (said,) = account(plan(), 0.01).warnings
    assert "permits publishing one of the clients" in said


def test_few_clients_are_told_of_records() -> None:
    """Noise for whole clients is for many of them."""
    (said,) = account(plan(sampling=PoissonSampling(0.1, 99), population=99), 1e-5).warnings
    assert "hush run fed-spa" in said
    assert account(plan(), 1e-5).warnings == ()  # of a hundred


def test_shares_seen_one_by_one_hide_little() -> None:
    """The same noise, as a sum under a secure sum and as single messages: a hundred times less variance."""
    together = plan(noise=SHARES, sampling=BoundedParticipation(5), **SERVER_SEES)
    apart = replace(together, view=View.MESSAGES)
    assert account(apart, 1e-5).epsilon > 20 * account(together, 1e-5).epsilon


def test_repeated_rounds_count_as_participations() -> None:
    """A client that may join 3 times may also have been in a round that was drawn again."""
    three = plan(sampling=BoundedParticipation(3))
    four = plan(sampling=BoundedParticipation(4))
    repeated = plan(sampling=BoundedParticipation(3, repeats=1), rounds=11)
    assert account(repeated, 1e-5).epsilon == pytest.approx(account(four, 1e-5).epsilon)
    assert account(repeated, 1e-5).epsilon > account(three, 1e-5).epsilon


@pytest.mark.parametrize("sampling", [PoissonSampling(0.1, 100), FixedSampling(10, 100)])
@pytest.mark.parametrize("limit", [{"participations": 1}, {"period": 100}])
def test_limited_turns_and_amplification_do_not_go_together(sampling: Sampling, limit: dict[str, int]) -> None:
    """One turn of a thousand rounds is not one amplified round: whichever it is, it may show the client."""
    free = plan(sampling=sampling)
    account(free, 1e-5)
    limited = replace(free, phases=tuple(replace(phase, **limit) for phase in free.phases))  # type: ignore[arg-type]
    with pytest.raises(NoGuarantee, match="not independent"):
        account(limited, 1e-5)


def test_a_weight_gives_no_bound_to_what_has_none() -> None:
    account(plan(bound=Weighted(L2Ball(1.0), 1.0)), 1e-5)
    with pytest.raises(NoGuarantee, match="no L2 bound"):
        account(plan(bound=Weighted(Quantised(L2Ball(1.0), 0.1, 10, 16), 1.0)), 1e-5)
