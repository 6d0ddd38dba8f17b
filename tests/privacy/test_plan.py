"""The statement is derived from the objects that run, or refused with the reason and the fix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hush import Bounded, FixedSize, Method, NoGuarantee, Poisson, Transform, account, chain, methods, plan_of
from hush.cohort import SecretParticipation
from hush.core import Chain, Public, Round, State
from hush.privacy.bounds import Bit, L2Ball
from hush.privacy.claimed import claimed_by_dp_fedavg, claimed_by_fed_smp
from hush.privacy.client_plan import server_plan
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.plan import needs_noise, with_noise, with_secure_noise
from hush.privacy.theorems import Claim
from hush.privacy.vocabulary import PoissonSampling, SkellamNoise
from hush.secret import Secret
from hush.transforms import Clip, ExactNoise, Gaussian, RandK

COHORT = Poisson(10)


def with_parts(*parts: Transform) -> Method:
    return replace(methods.fedavg(), pipeline=Chain(parts))


@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp-rand-k", "fed-smp-top-k"])
def test_plans_of_the_private_methods(name: str) -> None:
    plan = plan_of(methods.build(name, clip=0.4, noise=1.4), COHORT, 100, 7)
    assert plan.noise_multiplier == pytest.approx(1.4)
    (phase,) = plan.phases
    assert phase.releases[0].bound == L2Ball(0.4)
    assert phase.releases[0].noise.std == pytest.approx(0.56)
    assert phase.releases[0].noise.on == ("every entry" if name == "dp-fedavg" else "public mask")
    assert (phase.sampling, plan.population, plan.rounds) == (PoissonSampling(0.1, 100), 100, 7)
    assert (plan.unit, plan.relation, plan.view) == (Unit.CLIENT, Relation.ADD_REMOVE, View.RELEASED)
    assert plan.assumptions


@pytest.mark.parametrize("name", ["fedavg", "fedavg-rand-k", "fedavg-top-k"])
def test_no_noise_no_number(name: str) -> None:
    with pytest.raises(NoGuarantee) as refusal:
        plan_of(methods.build(name), COHORT, 100, 7)
    assert "adds no noise" in refusal.value.reason
    assert "Choose a private method" in refusal.value.fix


def test_noise_without_a_bound_is_refused_however_it_was_assembled() -> None:
    noise = Gaussian(1.0, sensitivity=1.0)  # as if typed by hand
    with pytest.raises(NoGuarantee, match="covers no bound"):
        plan_of(with_parts(noise), COHORT, 100, 7)
    with pytest.raises(NoGuarantee, match="covers no bound"):
        plan_of(with_parts(Clip(1.0), RandK(0.5), noise), COHORT, 100, 7)


def test_a_sensitivity_typed_by_hand_does_not_lower_epsilon() -> None:
    """The plan compares the noise that really runs with the bound that really holds."""
    lied = with_parts(Clip(1.0), Gaussian(1.0, sensitivity=0.1))
    assert plan_of(lied, COHORT, 100, 7).noise_multiplier == pytest.approx(0.1)


def test_a_clip_before_scaling_or_after_the_noise_is_refused() -> None:
    with pytest.raises(NoGuarantee, match="stands after the noise"):
        plan_of(with_parts(Clip(1.0), Gaussian(1.0, 1.0), RandK(0.5)), COHORT, 100, 7)
    with pytest.raises(NoGuarantee, match="2 times"):
        plan_of(with_parts(Clip(1.0), Gaussian(1.0, 1.0), Gaussian(1.0, 1.0)), COHORT, 100, 7)


def test_a_users_transform_must_state_its_bound() -> None:
    @dataclass(frozen=True)
    class Double(Transform):
        def encode(self, x: torch.Tensor, rnd: Round, keys: torch.Tensor, public: Public) -> torch.Tensor:
            return 2 * x

    @dataclass(frozen=True)
    class Subtle(Transform):
        """Changes nothing on the client, and undoes the noise on the server."""

        def decode(
            self, total: torch.Tensor, state: State, rnd: Round, public: Public, secret: Secret
        ) -> tuple[torch.Tensor, State]:
            return total * 0, state

    with pytest.raises(NoGuarantee, match="Double changes the updates"):
        plan_of(with_parts(Clip(1.0), Double(), Gaussian(1.0, 1.0)), COHORT, 100, 7)
    with pytest.raises(NoGuarantee, match="Subtle stands after"):
        plan_of(with_parts(Clip(1.0), Gaussian(1.0, 1.0), Subtle()), COHORT, 100, 7)
    # before the noise it is post-processing of the noised sum, and harmless
    plan_of(with_parts(Subtle(), Clip(1.0), Gaussian(1.0, 1.0)), COHORT, 100, 7)


def test_what_replaces_the_proved_parts_is_refused() -> None:
    class Quiet(Gaussian):
        def decode(
            self, total: torch.Tensor, state: State, rnd: Round, public: Public, secret: Secret
        ) -> tuple[torch.Tensor, State]:
            return total, state

    class Leaky(Method):
        def finish(self, params: torch.Tensor, total: torch.Tensor, *rest: object) -> tuple[torch.Tensor, State]:  # type: ignore[override]
            return params - total, {}

    with pytest.raises(NoGuarantee, match="Quiet is not the noise"):
        plan_of(with_parts(Clip(1.0), Quiet(1.0, 1.0)), COHORT, 100, 7)
    private = methods.dp_fedavg(noise=1.0)
    leaky = Leaky("leaky", private.local, private.pipeline, private.server)
    with pytest.raises(NoGuarantee, match="overrides finish"):
        plan_of(leaky, COHORT, 100, 7)


def test_noise_is_filled_in_once() -> None:
    method = methods.fed_smp_rand_k(clip=0.5)
    assert needs_noise(method)
    ready = with_noise(method, 2.0)
    assert not needs_noise(ready)
    assert ready.pipeline.parts[-1] == Gaussian(2.0, 0.5)
    assert chain(*ready.pipeline.parts) == ready.pipeline


def shown(claim: Claim | None) -> float:
    assert claim is not None
    assert claim.epsilon is not None
    return claim.epsilon


@pytest.mark.parametrize(("noise", "printed"), [(1.4, 1.01), (2.0, 0.58), (2.5, 0.44)])
def test_the_papers_own_figures_are_reproduced_as_claims(noise: float, printed: float) -> None:
    """Fed-SMP prints these for T=180; 2.02 at noise 1 needs 181 rounds."""
    plan = plan_of(methods.fed_smp_rand_k(noise=noise), Poisson(100), 6000, 180)
    assert shown(claimed_by_fed_smp(plan, 6000**-1.1)) == pytest.approx(printed, abs=0.006)


def test_the_claim_at_noise_one() -> None:
    plan = plan_of(methods.dp_fedavg(noise=1.0), Poisson(100), 6000, 181)
    assert shown(claimed_by_dp_fedavg(plan, 6000**-1.1)) == pytest.approx(2.02, abs=0.006)


def test_a_claim_shows_its_own_conditions_as_met_or_violated() -> None:
    poisson = claimed_by_dp_fedavg(plan_of(methods.dp_fedavg(noise=1.4), Poisson(100), 6000, 180), 1e-5)
    fixed = claimed_by_dp_fedavg(plan_of(methods.dp_fedavg(noise=1.4), FixedSize(100), 6000, 180), 1e-5)
    assert poisson is not None
    assert fixed is not None
    assert poisson.holds
    assert not fixed.holds
    paper = claimed_by_fed_smp(plan_of(methods.fed_smp_rand_k(noise=1.4), FixedSize(100), 6000, 180), 6000**-1.1)
    assert paper is not None
    assert len([c for c in paper.conditions if not c.met]) >= 2  # its sampling, and the cap on alpha
    assert claimed_by_fed_smp(plan_of(methods.fed_smp_rand_k(noise=1.4), Bounded(100, 3), 6000, 180), 1e-5) is None


def test_secret_participation_is_proved_against_the_server_too() -> None:
    plan = plan_of(methods.dp_fedavg(noise=1.4), SecretParticipation(100), 6000, 180)
    assert (plan.relation, plan.honest_min) == (Relation.ZERO_OUT, 6000)
    server = server_plan(plan)
    assert server.view is View.SECAGG
    delta = 6000**-1.1
    assert account(server, delta).epsilon == pytest.approx(account(plan, delta).epsilon)
    assert account(plan, delta).epsilon == pytest.approx(0.6303, abs=1e-3)
    for cohort in (Poisson(100), FixedSize(100), Bounded(100, 3)):
        with pytest.raises(NoGuarantee):
            account(server_plan(plan_of(methods.dp_fedavg(noise=1.4), cohort, 6000, 180)), delta)
    lossy = plan_of(methods.dp_fedavg(noise=1.4), SecretParticipation(100), 6000, 180, dropout=0.2)
    assert lossy.honest_min == 4614  # six standard deviations below 4,800
    assert lossy.noise_multiplier == pytest.approx(1.4)


def test_an_adaptive_clip_pays_for_its_bit() -> None:
    fixed = plan_of(methods.dp_fedavg(noise=1.0), COHORT, 100, 7)
    adaptive = plan_of(methods.dp_fedavg(noise=1.0, clip_quantile=0.5), COHORT, 100, 7)
    update, bit = adaptive.phases[0].releases
    assert isinstance(update.bound, L2Ball)
    assert update.bound.adaptive
    assert update.bound.norm == pytest.approx(1.0)
    assert bit.bound == Bit(0.2)
    assert adaptive.noise_multiplier == pytest.approx(1.0)  # of both together
    assert update.noise.std > fixed.phases[0].releases[0].noise.std  # so the update's own noise is larger
    assert account(adaptive, 1e-3).epsilon == pytest.approx(account(fixed, 1e-3).epsilon, rel=1e-6)


def test_exact_noise_has_the_same_plan_as_the_gaussian_it_rounds() -> None:
    method = methods.fed_smp_rand_k(noise=1.4, clip=0.4)
    fast = plan_of(method, COHORT, 100, 7)
    secure = plan_of(with_secure_noise(method, COHORT), COHORT, 100, 7)
    assert secure.secure
    assert not fast.secure
    assert account(secure, 1e-3).epsilon == pytest.approx(account(fast, 1e-3).epsilon, rel=1e-9)
    assert secure.assumptions[-1] != fast.assumptions[-1]
    shares = with_secure_noise(method, SecretParticipation(10))
    assert isinstance(plan_of(shares, SecretParticipation(10), 100, 7).phases[0].releases[0].noise, SkellamNoise)
    with pytest.raises(NoGuarantee, match="do not add up"):
        plan_of(with_secure_noise(method, COHORT), SecretParticipation(10), 100, 7)
    with pytest.raises(NoGuarantee, match="not checked in integers"):
        plan_of(with_parts(Clip(1.0), ExactNoise(1.0, 1.0)), COHORT, 100, 7)
