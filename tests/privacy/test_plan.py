"""The statement is derived from the objects that run, or refused with the reason and the fix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hush import Method, NoGuarantee, Poisson, Transform, chain, methods, plan_of
from hush.core import Chain, Public, Round, State
from hush.privacy.claimed import opacus_classic
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.plan import is_private, needs_noise, with_noise
from hush.secret import Secret
from hush.transforms import Clip, Gaussian, RandK

COHORT = Poisson(10)


def with_parts(*parts: Transform) -> Method:
    return replace(methods.fedavg(), pipeline=Chain(parts))


@pytest.mark.parametrize("name", [n for n in methods.METHODS if is_private(methods.build(n))])
def test_plans_of_the_private_methods(name: str) -> None:
    plan = plan_of(methods.build(name, clip=0.4, noise=1.4), COHORT, 100, 7)
    assert plan.noise_multiplier == pytest.approx(1.4)
    assert plan.sensitivity == 0.4
    assert (plan.cohort, plan.clients, plan.rounds) == (COHORT, 100, 7)
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


@pytest.mark.parametrize(("noise", "printed"), [(1.4, 1.01), (2.0, 0.58), (2.5, 0.44)])
def test_the_papers_own_figures_are_reproduced_as_claims(noise: float, printed: float) -> None:
    """Fed-SMP prints these for T=180; 2.02 at noise 1 needs 181 rounds."""
    plan = plan_of(methods.fed_smp_rand_k(noise=noise), Poisson(100), 6000, 180)
    assert opacus_classic(plan, 6000**-1.1) == pytest.approx(printed, abs=0.006)


def test_the_claim_at_noise_one() -> None:
    plan = plan_of(methods.dp_fedavg(noise=1.0), Poisson(100), 6000, 181)
    assert opacus_classic(plan, 6000**-1.1) == pytest.approx(2.02, abs=0.006)
