"""Plans that protect records: what is derived, the golden figures, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from hush import Budget, NoGuarantee, UsageError, methods
from hush.cohort import Bounded, FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import Method, chain
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import L2Clip
from hush.privacy.accountant import account, calibrate, spent
from hush.privacy.bounds import RecordMean
from hush.privacy.client_plan import server_plan
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.plan import is_private, needs_noise, plan_of, takes_turns, with_noise, with_secure_noise
from hush.privacy.settle import as_charged, settle_privacy
from hush.privacy.vocabulary import (
    BoundedParticipation,
    Drawn,
    Enrolled,
    Everyone,
    FixedSampling,
    GaussianNoise,
    Phase,
    Plan,
    PoissonSampling,
    Release,
    Sampler,
)
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.transforms import Clip, Gaussian
from hush.transforms.own_mask import OwnRandK
from hush.transforms.quantize import BinomialMechanism

MNIST = Enrolled(100, 600, 60_000, 21_840)


def fixed(noise: float, batch: int, steps: int, participations: int, records: int = 600) -> Plan:
    method = methods.dp_fed(noise=noise, batch_size=batch, local_steps=steps, batches="fixed")
    return plan_of(method, Bounded(10, participations), Enrolled(100, records, dim=1), 1000)


def test_a_delta_is_held_against_all_records_and_not_those_of_the_smallest_client() -> None:
    method = methods.dp_fed(noise=3.0, batch_size=10)
    for enrolled in (MNIST, Enrolled(100, 600, dim=21_840)):  # where nobody counted them, each client holds 600 at least
        plan = plan_of(method, Rotation(10), enrolled, 45)
        (said,) = account(plan, 1e-3).warnings
        assert "not below 1/60,000" in said
        assert account(plan, 1e-5).warnings == ()
        assert settle_privacy(method, Rotation(10), enrolled, 45, None, None).delta == pytest.approx(60_000**-1.1)


def test_the_plan_is_read_from_the_objects_that_run() -> None:
    method = methods.fed_spa(ratio=0.1, clip=0.4, noise=3.0, batch_size=20, local_steps=300, batches="fixed")
    plan = plan_of(method, Rotation(10), MNIST, 45)
    (phase,) = plan.phases
    assert phase.releases[0].bound == RecordMean(0.4, 20)
    assert phase.releases[0].noise.std == pytest.approx(3.0 * 0.4 / 20)
    assert (phase.releases[0].noise.on, phase.releases[0].noise.drawn) == ("public mask", "message")
    assert phase.sampling == FixedSampling(20, 600, Sampler.OWN)
    assert (phase.rounds, phase.steps, phase.participations, phase.times) == (45, 300, 5, 1500)
    assert (plan.unit, plan.relation, plan.view, plan.sampled) == (Unit.RECORD, Relation.REPLACE_ONE, View.MESSAGES, Unit.RECORD)
    assert (plan.population, plan.clients, plan.cohort, plan.parameters) == (600, 100, 10.0, 21_840)
    assert plan.noise_multiplier == pytest.approx(3.0)
    assert server_plan(plan) is plan  # it speaks of the server
    assert plan_from_dict(plan_to_dict(plan)) == plan
    poisson = plan_of(replace(method, local=replace(method.local, records="poisson")), Rotation(10), MNIST, 45)
    assert poisson.phases[0].sampling == PoissonSampling(20 / 600, 600, Sampler.OWN)


@pytest.mark.parametrize("mask", ["none", "rand-k", "top-k", "saliency", "free"])
def test_a_mask_from_public_examples_is_said_to_rest_on_them(mask: str) -> None:
    """Every message shows the mask, whoever's noise is on it: were a protected record among these examples, it would be seen."""
    plan = plan_of(methods.dp_sgd(noise=3.0, mask=mask), Rotation(10), MNIST, 45)
    said = any("public examples" in line for line in plan.assumptions)
    assert (plan.side_data == "public", said) == (mask in ("top-k", "saliency"),) * 2


@pytest.mark.parametrize("name", ["fed-spa", "dp-fed", "cpfed", "dp-sgd"])
@pytest.mark.parametrize("clip_per", ["l2", "coordinate"])
def test_exact_noise_has_the_same_guarantee_and_says_what_it_rests_on(name: str, clip_per: str) -> None:
    """What a record adds and what covers it follow from the grid; their ratio is the noise that was asked for."""
    fast = methods.build(name, noise=3.0, clip=0.4, clip_per=clip_per)
    secure = with_secure_noise(fast, Rotation(10))
    plans = [plan_of(method, Rotation(10), MNIST, 45) for method in (fast, secure)]
    assert [plan.secure for plan in plans] == [False, True]
    assert plans[1].noise_multiplier == pytest.approx(3.0, rel=1e-12)
    assert account(plans[1], 1e-3).epsilon == pytest.approx(account(plans[0], 1e-3).epsilon, rel=1e-9)
    (release,) = plans[1].releases
    assert isinstance(secure.local, DpSgd)
    grid = secure.local.grid(21_840)
    assert release.bound == RecordMean(grid.radius * grid.step, secure.local.batch_size)
    assert any("each record's norm was checked in integers" in line for line in plans[1].assumptions)
    assert not any("floating-point" in line for line in plans[1].assumptions)
    assert plan_from_dict(plan_to_dict(plans[1])) == plans[1]
    assert needs_noise(with_secure_noise(methods.build(name), Rotation(10)))


def test_epsilon_is_the_same_for_every_ratio_and_either_clip() -> None:
    plans = [plan_of(methods.fed_spa(ratio=p, noise=3.0), Rotation(10), MNIST, 45) for p in (0.05, 0.4, 1.0)]
    plans.append(plan_of(methods.fed_spa(ratio=0.4, clip=0.01, clip_per="coordinate", noise=3.0), Rotation(10), MNIST, 45))
    assert len({round(account(plan, 1e-3).epsilon, 9) for plan in plans}) == 1


@pytest.mark.parametrize(
    ("scaled", "batch", "steps", "participations", "records", "epsilon"),
    [
        (5.91, 10, 300, 4, 600, 0.329),
        (5.91, 10, 300, 10, 600, 0.568),
        (29.4, 50, 300, 4, 600, 0.300),
        (6.46, 10, 50, 20, 500, 0.326),
        (4.56, 10, 50, 10, 500, 0.343),
    ],
)
def test_fed_spa_as_recomputed_for_its_table(
    scaled: float, batch: int, steps: int, participations: int, records: int, epsilon: float
) -> None:
    """The profile's figures in the review of the papers, for noise that is sigma' times the claimed sensitivity sqrt(2) C."""
    plan = fixed(scaled * 2**0.5, batch, steps, participations, records)
    assert account(plan, 1e-3).epsilon == pytest.approx(epsilon, abs=0.006)


def test_fed_spas_theorem_states_one_where_the_review_says_so() -> None:
    method = methods.fed_spa(ratio=0.4, noise=5.876 * 2**0.5, batch_size=10, local_steps=300, batches="fixed")
    plan = plan_of(method, Bounded(10, 4), MNIST, 45)
    assert method.claim is not None
    claim = method.claim(plan, 1e-3, method)
    assert claim is not None
    assert claim.epsilon == pytest.approx(1.0, abs=0.001)
    assert not claim.holds


def test_cpfed_with_each_steps_own_noise_alone_is_56() -> None:
    """T=20, tau=10 at the noise that CPFed needs for its 10: 56.6, without secret batches, which it does not count."""
    method = methods.cpfed(noise=3.709, batch_size=10, local_steps=10)
    plan = plan_of(method, Rotation(16), Enrolled(16, 10, dim=100), 20)
    assert account(plan, 1e-4).epsilon == pytest.approx(56.6, abs=0.1)
    assert method.claim is not None
    ten = method.claim(replace(plan, cohort=10.0), 1e-4, method)
    assert ten is not None
    assert ten.epsilon == pytest.approx(10.0, abs=0.01)
    bare = methods.cpfed(noise=3.709, batch_size=10, local_steps=10, secure_sum=False)
    assert bare.claim is not None
    shown = bare.claim(replace(plan, cohort=10.0), 1e-4, bare)
    assert shown is not None
    assert shown.epsilon is not None
    assert shown.epsilon > 40  # ten times the rho: each model shows with its own noise alone
    assert account(plan_of(bare, Rotation(16), Enrolled(16, 10, dim=100), 20), 1e-4).epsilon == account(plan, 1e-4).epsilon


def test_participations_are_capped_and_client_sampling_amplifies_nothing() -> None:
    method = methods.dp_fed(noise=3.0)
    steps = {
        kind: plan_of(method, kind, MNIST, 45).phases[0].times
        for kind in (Poisson(10), FixedSize(10), Bounded(10, 7), Rotation(10))
    }
    assert list(steps.values()) == [450, 450, 70, 50]
    plan = plan_of(method, Rotation(10), MNIST, 45)
    lied = replace(plan, phases=(replace(plan.phases[0], sampling=PoissonSampling(0.1, 600)),), sampled=Unit.CLIENT)
    with pytest.raises(NoGuarantee, match="took part"):
        account(lied, 1e-3)
    seen = replace(plan, phases=(replace(plan.phases[0], sampling=FixedSampling(10, 600, Sampler.SERVER)),))
    with pytest.raises(NoGuarantee, match="picks the cohort"):
        account(seen, 1e-3)
    with pytest.raises(NoGuarantee, match="hypothetical"):
        account(replace(plan, population=100_000), 1e-3)
    with pytest.raises(NoGuarantee, match="local loop"):
        account(replace(plan, view=View.SECAGG), 1e-3)


def test_epsilon_grows_until_the_cap_and_repeats_count_on_top() -> None:
    plan = plan_of(methods.dp_fed(noise=3.0), Bounded(10, 3), MNIST, 45)
    figures = [spent(plan, 1e-3, rounds) for rounds in (1, 2, 3, 20, 45)]
    assert figures[0] < figures[1] < figures[2] == figures[3] == figures[4]
    again = as_charged(plan, 45, 46)
    assert (again.rounds, again.phases[0].times) == (46, 40)
    assert Phase(plan.phases[0].releases, plan.phases[0].sampling, 2, 10, 3, 1).times == 20


def test_a_budget_finds_the_noise() -> None:
    method = methods.fed_spa(batch_size=10, local_steps=300, batches="fixed")
    assert needs_noise(method)
    settled = settle_privacy(method, Rotation(10), MNIST, 45, None, 1e-3) if not needs_noise(method) else None
    assert settled is None
    noise = calibrate(plan_of(with_noise(method, 1.0), Rotation(10), MNIST, 45), 1.0, 1e-3)
    assert noise == pytest.approx(4.122, abs=0.002)
    assert is_private(method)
    assert not is_private(with_noise(method, 0.0))
    assert takes_turns(method)
    assert not takes_turns(methods.dp_fedavg())


def test_small_clients_are_not_amplified() -> None:
    small = plan_of(methods.dp_fed(noise=3.0, batch_size=10), Rotation(10), Enrolled(100, 4, dim=1), 45)
    assert not small.phases[0].sampling.amplifies
    assert small.phases[0].releases[0].bound == RecordMean(1.0, 10)


def test_what_has_no_proof_is_refused() -> None:
    @dataclass(frozen=True)
    class Mine(DpSgd):
        pass

    def refuse(method: Method, told: str) -> None:
        with pytest.raises(NoGuarantee, match=told):
            plan_of(method, Rotation(10), MNIST, 45)

    plain = methods.dp_fed(noise=1.0)
    refuse(replace(plain, local=Mine(noise=1.0)), "not the local training")
    refuse(replace(plain, local=DpSgd(noise=1.0, clip=None)), "clips")
    refuse(replace(plain, local=DpSgd(noise=1.0, mask=OwnRandK(0.5))), "send another")
    refuse(replace(plain, local=DpSgd(noise=1.0, mask=OwnRandK(0.5)), pipeline=chain(OwnRandK(0.4))), "send another")
    refuse(methods.fed_spa(mode="paper", noise=1.0), "does not bound")
    refuse(methods.cpfed(mode="paper", noise=1.0), "clips nothing")
    refuse(methods.dp_fed(noise=0.0), "adds no noise")
    for bare in (methods.fed_spa(mode="paper", noise=1.0), replace(plain, local=Mine(noise=1.0))):
        with pytest.raises(NoGuarantee, match="secure noise mode"):
            with_secure_noise(bare, Rotation(10))
    with pytest.raises(UsageError, match="protects records"):
        plan_of(plain, Rotation(10), 100, 45)
    with pytest.raises(NoGuarantee, match="no epsilon to keep"):
        settle_privacy(methods.cpfed(mode="paper"), Rotation(10), MNIST, 5, Budget(1.0), None)


def test_noise_on_the_sum_makes_it_a_client_level_method_and_both_are_refused() -> None:
    both = replace(methods.dp_fed(noise=1.0), pipeline=chain(Clip(1.0), Gaussian(1.0)))
    with pytest.raises(NoGuarantee, match="which shall be stated"):
        plan_of(both, Poisson(10), 100, 3)
    assert plan_of(replace(both, local=DpSgd(noise=0.0, clip=L2Clip(2.0))), Poisson(10), 100, 3).unit is Unit.CLIENT


def test_a_class_inherits_no_promise() -> None:
    """Kinds that were proved, and nothing that only descends from them."""

    @dataclass(frozen=True)
    class Always(Bounded):
        pass

    @dataclass(frozen=True)
    class Wide(L2Clip):
        pass

    @dataclass(frozen=True)
    class Other(OwnRandK):
        pass

    @dataclass(frozen=True)
    class Quiet(BinomialMechanism):
        pass

    plain = methods.dp_fed(noise=1.0)
    mask = Other(0.5)
    for method, cohort in (
        (plain, Always(10, 3)),
        (replace(plain, local=DpSgd(noise=1.0, clip=Wide(1.0))), Rotation(10)),
        (replace(plain, local=DpSgd(noise=1.0, mask=mask), pipeline=chain(mask)), Rotation(10)),
        (replace(methods.cpsgd(trials=2**16), pipeline=chain(Quiet(101, 0.1, 2**16))), Rotation(10)),
    ):
        with pytest.raises(NoGuarantee, match="inherits no promise"):
            plan_of(method, cohort, MNIST, 5)
    with pytest.raises(NoGuarantee, match="Take turns"):
        plan_of(plain, SecretParticipation(10), MNIST, 5)


def test_turns_are_counted_as_they_come() -> None:
    """10 of 100 clients in turns: nobody has come twice before round 11."""
    plan = plan_of(methods.dp_fed(noise=3.0, local_steps=7), Rotation(10), MNIST, 45)
    assert [plan.first(t).phases[0].times for t in (1, 10, 11, 20, 21, 45)] == [7, 7, 14, 14, 21, 35]
    assert spent(plan, 1e-3, 10) == spent(plan, 1e-3, 1) < spent(plan, 1e-3, 11)
    assert plan.first(12).phases[0].again(2).times == 21  # ten rounds, two of them drawn again


def test_steps_count_under_every_kind_of_sampling() -> None:
    release = Release(RecordMean(1.0, 10), GaussianNoise(0.3, drawn=Drawn.MESSAGE))
    kind = {"unit": Unit.RECORD, "relation": Relation.REPLACE_ONE, "view": View.MESSAGES}
    bounded = Plan((Phase((release,), BoundedParticipation(2), 9, steps=5),), 100, **kind)  # type: ignore[arg-type]
    everyone = Plan((Phase((release,), Everyone(), 9, steps=5, participations=2),), 100, **kind)  # type: ignore[arg-type]
    assert account(bounded, 1e-5).epsilon == pytest.approx(account(everyone, 1e-5).epsilon)


def test_shares_under_a_secure_sum_protect_from_the_server() -> None:
    method = methods.cpfed_output(noise=2.0)
    plan = plan_of(method, FixedSize(10), 16, 20)
    assert (plan.unit, plan.view, plan.relation, plan.honest_min) == (Unit.CLIENT, View.SECAGG, Relation.ZERO_OUT, 10)
    assert plan.noise_multiplier == pytest.approx(2.0)
    assert account(server_plan(plan), 1e-4) == account(plan, 1e-4)
    turns = plan_of(method, Rotation(5), 16, 20)  # four turns of four clients each
    assert turns.honest_min == 4
    assert account(turns, 1e-4).epsilon < account(plan, 1e-4).epsilon
    replaced = plan_of(method, Rotation(5), 16, 20, Relation.REPLACE_ONE)
    assert account(replaced, 1e-4).epsilon > account(turns, 1e-4).epsilon
    for cohort in (Poisson(5), Bounded(5, 2)):
        with pytest.raises(NoGuarantee, match="any size"):
            plan_of(method, cohort, 16, 20)
    with pytest.raises(NoGuarantee, match="everybody's turn"):
        plan_of(methods.dp_fedavg(noise=1.0), Rotation(5), 16, 20, Relation.ADD_REMOVE)
    assert plan_of(methods.dp_fedavg(noise=1.0), Rotation(5), 16, 20).relation is Relation.ZERO_OUT
    secure = with_secure_noise(method, FixedSize(10))
    assert account(plan_of(secure, FixedSize(10), 16, 20), 1e-4).epsilon == pytest.approx(account(plan, 1e-4).epsilon, rel=0.2)
