"""Records under a secure sum: the plan that is derived, the figure that follows, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import hush
from hush import NoGuarantee, UsageError, methods
from hush.cohort import Cohort, FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import chain
from hush.local.record_gradients import RecordGradients
from hush.privacy import vocabulary as say
from hush.privacy.accountant import account
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.plan import plan_of
from hush.privacy.shares import SecureSum, with_secure_sum
from hush.privacy.vocabulary import Enrolled
from hush.transforms import Clip, Discretize, ExactNoise, Gaussian, Modulo

EVERYBODY = Rotation(16)
ENROLLED = Enrolled(16, records=1000, total=32_000, dim=206)


def secured(method: hush.Method, cohort: Cohort = EVERYBODY, enrolled: Enrolled = ENROLLED, **how: object) -> hush.Method:
    return with_secure_sum(method, cohort, enrolled, SecureSum(corrupted=0.0, tolerate=0.0, **how), 0.0)  # type: ignore[arg-type]


def test_the_plan_says_what_the_server_sees() -> None:
    method = secured(methods.dp_sgd(noise=1.5, batch_size=64))
    plan = plan_of(method, Rotation(16), ENROLLED, 50)
    (release,) = plan.releases
    assert (plan.unit, plan.view, plan.relation, plan.sampled) == (Unit.RECORD, View.SECAGG, Relation.ZERO_OUT, Unit.RECORD)
    assert plan.phases[0].sampling == say.PoissonSampling(64 * 16 / 32_000, 1000, say.Sampler.OWN)
    assert (plan.phases[0].times, plan.honest_min, plan.clients, plan.total) == (50, 16, 16, 32_000)
    assert release.bound.reach() == 2**20
    assert plan.noise_multiplier == pytest.approx(1.5)
    assert isinstance(release.noise, say.SkellamNoise)
    assert release.noise.secure
    assert any("coins of its own" in line and "0.032" in line for line in plan.assumptions)


def test_it_is_dp_sgd_over_all_records() -> None:
    """Within what whole numbers cost, the figure of one server that holds all records (add-remove, by its loss distribution)."""
    plan = plan_of(secured(methods.dp_sgd(noise=1.2, batch_size=64)), Rotation(16), ENROLLED, 50)
    noise = say.GaussianNoise(1.2)
    central = say.Plan(
        phases=(say.Phase((say.Release(hush.privacy.bounds.L2Ball(1.0), noise),), say.PoissonSampling(0.032, 32_000), 50),),
        population=32_000,
        unit=Unit.RECORD,
        sampled=Unit.RECORD,
    )
    ours, theirs = account(plan, 1e-5).epsilon, account(central, 1e-5).epsilon
    assert theirs <= ours * (1 + 1e-6)
    assert ours < 1.25 * theirs


def test_more_clients_need_no_more_noise_but_a_client_that_comes_seldom_costs_less() -> None:
    all_the_time = plan_of(secured(methods.dp_sgd(noise=1.5, rate=0.03)), Rotation(16), ENROLLED, 48)
    in_turns = plan_of(secured(methods.dp_sgd(noise=1.5, rate=0.03), Rotation(4)), Rotation(4), ENROLLED, 48)
    assert (all_the_time.phases[0].times, in_turns.phases[0].times) == (48, 12)
    assert in_turns.noise_multiplier == pytest.approx(all_the_time.noise_multiplier)
    assert account(in_turns, 1e-5).epsilon < account(all_the_time, 1e-5).epsilon


def test_dropouts_and_colluders_are_made_up_for_by_larger_shares() -> None:
    cohort, method = FixedSize(16), methods.dp_sgd(noise=1.5, rate=0.03)
    made = with_secure_sum(method, cohort, ENROLLED, SecureSum(corrupted=0.1, tolerate=0.25), 0.0)
    plan = plan_of(made, cohort, ENROLLED, 50)
    assert plan.honest_min is not None
    assert plan.honest_min <= 16 - 4 - 1
    assert plan.noise_multiplier == pytest.approx(1.5)
    assert plan.releases[0].noise.std ** 2 * plan.honest_min == pytest.approx((1.5 * 2**20) ** 2)


def test_who_knows_nothing_of_clients_records_must_say_the_rate() -> None:
    with pytest.raises(UsageError, match="--set rate"):
        secured(methods.dp_sgd(noise=1.0), enrolled=Enrolled(16, dim=206))
    method = secured(methods.dp_sgd(noise=1.0, rate=0.01), enrolled=Enrolled(16, dim=206))
    plan = plan_of(method, Rotation(16), Enrolled(16, dim=206), 10)
    known = plan_of(secured(methods.dp_sgd(noise=1.0, rate=0.01)), Rotation(16), ENROLLED, 10)
    assert account(plan, 1e-5).epsilon == account(known, 1e-5).epsilon, "nothing of it depends on how many records there are"


@dataclass(frozen=True)
class Other(RecordGradients):
    pass


def test_only_what_was_proved_has_a_number() -> None:
    good = secured(methods.dp_sgd(noise=1.0, rate=0.1))
    with pytest.raises(NoGuarantee, match="under a secure sum alone"):
        plan_of(replace(good, local=Other(0.1)), Rotation(16), ENROLLED, 10)
    grid = Discretize(16, nearest=True)
    for pipeline in (chain(Clip(1.0), Gaussian(1.0)), chain(Clip(1.0), grid, ExactNoise(1.0))):
        with pytest.raises(NoGuarantee, match="under a secure sum alone"):
            plan_of(replace(good, pipeline=pipeline), Rotation(16), ENROLLED, 10)
    for cohort in (Poisson(8.0), SecretParticipation(8)):
        with pytest.raises(NoGuarantee, match="--sampling rotation"):
            plan_of(good, cohort, ENROLLED, 10)
    with pytest.raises(NoGuarantee, match="cannot be hidden"):
        account(plan_of(good, Rotation(16), ENROLLED, 10, relation=Relation.ADD_REMOVE), 1e-5)


def test_the_group_of_the_sum_has_room_for_all_records() -> None:

    for batch, bits in ((1, 27), (64, 32), (4000, 32)):
        method = secured(methods.dp_sgd(noise=1.0, rate=0.1, batch_size=batch))
        modulo = next(part for part in method.pipeline.parts if isinstance(part, Modulo))
        grid = next(part for part in method.pipeline.parts if isinstance(part, Discretize))
        assert modulo.bits == bits
        assert (16 * batch + 6) * 2**grid.bits < 2 ** (bits - 1)
