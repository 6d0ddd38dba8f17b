"""Numbers that cannot be meant get one sentence, before anything is trained or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hush
from hush import UsageError, methods
from hush.privacy.accountant import REPORTED_STEP, account, calibrate, spent
from hush.privacy.bounds import L2Ball
from hush.privacy.ledger import Ledger
from hush.privacy.vocabulary import FixedSampling, GaussianNoise, Phase, Plan, PoissonSampling, Release, Sampling
from hush.server import Adam, Average, FedSpaAdam, Momentum
from tests.conftest import make_task

NAN, HUGE = float("nan"), 10**20


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("dp-fedavg", {"lr": "fast"}, "lr must be a number"),
        ("dp-fedavg", {"lr": 1e308}, "lr must be a positive number"),
        ("dp-fedavg", {"lr": NAN}, "lr must be a positive number"),
        ("dp-fedavg", {"batch_size": HUGE}, "batch_size must be"),
        ("dp-fedavg", {"local_steps": HUGE}, "local_steps must be"),
        ("dp-fedavg", {"local_epochs": HUGE}, "local_epochs must be"),
        ("dp-fed", {"local_steps": HUGE}, "steps must be"),
        ("dp-fed", {"lr": 1e308}, "lr must be"),
        ("dp-fed", {"noise": 1e300}, "noise must be"),
        ("dp-fedavg", {"noise": 1e300}, "noise must be a positive number"),
        ("dp-fedavg", {"noise": 1e-300}, "noise must be a positive number"),
        ("dp-fedavg", {"clip": 1e300}, "clip must be a positive number"),
        ("dp-fedavg", {"prox": NAN}, "prox must be a number"),
        ("dp-fedavg", {"server_lr": NAN}, "server_lr must be"),
        ("dp-fedavg", {"server_lr": -1.0}, "server_lr must be"),
        ("dp-fedavg+momentum", {"server_momentum": 5.0}, "server_momentum must lie"),
        ("dp-fedavg+adam", {"kappa": -1.0}, "kappa must be"),
        ("dp-fedavg+adam", {"server_beta2": 7.0}, "server_beta2 must lie"),
    ],
)
def test_settings_that_cannot_be_meant(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        methods.build(name, **settings)


@pytest.mark.parametrize("server", [Average, Momentum, Adam, FedSpaAdam])
def test_a_server_steps_forward(server: Callable[..., Any]) -> None:
    for lr in (0.0, -1.0, NAN, 1e40):
        with pytest.raises(UsageError, match="server_lr"):
            server(lr=lr)


def test_budgets_are_numbers() -> None:
    with pytest.raises(UsageError, match="epsilon must be a positive number"):
        hush.Budget(epsilon="4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "ours"), [("learning_rate", "lr"), ("epochs", "local_epochs"), ("max_grad_norm", "clip"), ("sigma", "noise")]
)
def test_what_other_libraries_call_it(theirs: str, ours: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{ours}'"):
        methods.build("dp-fedavg", **{theirs: 1})


def plan(noise: float, sampling: Sampling, population: int, rounds: int) -> Plan:
    return Plan((Phase((Release(L2Ball(1.0), GaussianNoise(noise)),), sampling, rounds),), population)


def test_rounds_and_clients_that_nobody_has() -> None:
    for population, rounds in ((10**16, 5), (1000, 10**8)):
        with pytest.raises(UsageError, match="must be at most"):
            plan(1.0, PoissonSampling(1e-3, population), population, rounds)


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_who_is_hardly_ever_drawn_still_spends_something(kind: str) -> None:
    """At a rate of 1e-15 one minus the rate is next to one in floating point, and the loss is not nothing."""
    many, delta = 10**15, 1e-17 if kind == "poisson" else 1e-13
    seldom: Sampling = PoissonSampling(1 / many, many) if kind == "poisson" else FixedSampling(1, many)
    often: Sampling = PoissonSampling(1e-10, many) if kind == "poisson" else FixedSampling(10**5, many)
    least = account(plan(1.4, seldom, many, 5), delta).epsilon
    assert 0 < least <= account(plan(1.4, often, many, 5), delta).epsilon


@pytest.mark.parametrize("epsilon", [0.002, 0.01, 0.08, 0.5])
def test_the_least_noise_is_the_least_also_for_small_epsilons(epsilon: float) -> None:
    """A hundredth less noise would spend more than asked for, and all of the rounds fit."""
    sampling, delta = PoissonSampling(100 / 6000, 6000), 7e-5
    noise = calibrate(plan(1.0, sampling, 6000, 180), epsilon, delta)
    found = plan(noise, sampling, 6000, 180)
    assert account(found, delta).epsilon <= epsilon
    assert spent(plan(0.97 * noise, sampling, 6000, 180), delta, 180, REPORTED_STEP) > epsilon
    from hush.privacy.accountant import rounds_within

    assert rounds_within(found, epsilon, delta) == 180


@pytest.mark.filterwarnings("ignore:This very run was charged before")
def test_what_is_said_of_a_run_is_said_at_its_populations_delta(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "people.db")
    book.set_budget("own", size=12, epsilon=50.0, delta=1e-3)
    book.close()
    task = make_task(sizes=(4,) * 12)
    how = {"rounds": 2, "cohort": 4, "ledger": tmp_path / "people.db"}
    assert hush.simulate(methods.dp_fedavg(noise=1.0), task, **how).delta == 1e-3  # type: ignore[arg-type]
    assert hush.simulate(methods.dp_fedavg(noise=1.0), task, **how, delta=1e-2).delta == 1e-2  # type: ignore[arg-type]
