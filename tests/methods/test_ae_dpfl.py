from __future__ import annotations

import math

import pytest

import hush
from hush import Budget, NoGuarantee, UsageError, methods
from hush.privacy import vocabulary as say
from hush.secret import Secret
from tests.conftest import make_task

SECRET = Secret(b"k" * 32)


def test_the_plan_is_a_gaussian_on_a_message_of_norm_sqrt_q() -> None:
    method = methods.ae_dpfl(noise=3.0).fitted(150, 10)
    plan = hush.plan_of(method, hush.Bounded(400, 1), 400, 1)
    (release,) = plan.phases[0].releases
    assert release.bound.norm == math.sqrt(150)  # type: ignore[union-attr]
    assert release.noise.std == 3.0 * math.sqrt(150)
    assert plan.side_data is say.SideData.PUBLIC
    usual = hush.plan_of(methods.dp_fedavg(clip=1.0, noise=3.0), hush.Bounded(400, 1), 400, 1)
    assert hush.account(plan, 1e-5).epsilon == pytest.approx(hush.account(usual, 1e-5).epsilon, rel=1e-9)


def test_the_noise_that_runs_is_that_of_the_fitted_votes() -> None:
    result = hush.simulate(methods.ae_dpfl(), make_task(), rounds=2, cohort=3, privacy=Budget(8.0))
    assert result.guarantee is not None
    assert result.guarantee.epsilon <= 8.0
    run = hush.engines.simulation.set_up(methods.ae_dpfl(noise=1.5), make_task(), rounds=1, cohort=3)
    votes, noise = run.method.pipeline.parts
    assert (votes.queries, votes.classes) == (20, 3)  # type: ignore[attr-defined]
    assert noise.std == 1.5 * math.sqrt(20)  # type: ignore[attr-defined]


def test_one_vote_of_everybody_teaches_the_digits() -> None:
    task = hush.load_task("digits", clients=200, public=150, seed=0)
    method = methods.ae_dpfl(lr=0.1, momentum=0.5, batch_size=4, local_epochs=30)
    result = hush.simulate(method, task, rounds=1, cohort=hush.Bounded(200, 1), privacy=Budget(8.0))
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.5  # by chance 0.1


def test_exact_noise_goes_with_votes() -> None:
    result = hush.simulate(methods.ae_dpfl(noise=1.0), make_task(), rounds=1, cohort=3, noise_mode="secure")
    assert result.guarantee is not None


def test_what_does_not_go_with_votes_is_refused() -> None:
    with pytest.raises(UsageError, match="none"):
        hush.simulate(methods.ae_dpfl(noise=1.0), make_task(public=None), rounds=1, cohort=3)
    with pytest.raises(UsageError, match="No update is clipped"):
        methods.ae_dpfl(noise=1.0, blur=0.1)
    with pytest.raises(NoGuarantee, match="cannot be read back"):
        hush.audit.audit(methods.ae_dpfl(noise=1.0))
