"""Figures against the reference table: never below what an attack attains, at most 1% above the best proved bound."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hush import Bounded, Budget, FixedSize, NoGuarantee, Plan, Poisson, UsageError, account, calibrate
from hush.cohort import Cohort
from hush.privacy.accountant import QUICK_STEP, rounds_within, spent
from hush.privacy.guarantee import Relation, Unit, View, at_least, default_delta

DELTA = 6000**-1.1
PAPER = Plan(1.4, 1.0, Poisson(100), 6000, 180)


def reference() -> list[object]:
    """The Gaussian rows of the table, one case for each (case, sampling, relation)."""
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    with (Path(__file__).parent / "reference.csv").open() as f:
        for row in csv.DictReader(f):
            if "gaussian sum" in row["mechanism"] and row["sampling"] in ("poisson", "fixed_size_wor"):
                groups.setdefault((row["case_id"], row["sampling"], row["relation"]), []).append(row)
    cases = []
    for key, rows in groups.items():
        lower = max((float(r["epsilon"]) for r in rows if r["kind"] == "lower"), default=0.0)
        upper = min((float(r["epsilon"]) for r in rows if r["kind"] == "upper" and "pld" in r["method"]), default=math.inf)
        if lower > 0 or upper < math.inf:
            cases.append(pytest.param(rows[0], lower, upper, id="-".join(key)))
    assert len(cases) > 40
    return cases


@pytest.mark.parametrize(("row", "lower", "upper"), reference())
def test_reference_table(row: dict[str, str], lower: float, upper: float) -> None:
    clients = int(float(row["n"])) if row["n"] else 1_000_000
    size = float(row["r"]) if row["r"] else float(row["q"]) * clients
    cohort = Poisson(size) if row["sampling"] == "poisson" else FixedSize(round(size))
    relation = Relation(row["relation"].replace("_", "-"))
    plan = Plan(float(row["sigma"]), 1.0, cohort, clients, int(row["T"]), relation)
    epsilon = account(plan, float(row["delta"])).epsilon
    assert epsilon >= lower
    assert epsilon <= 1.01 * upper


@pytest.mark.parametrize(
    ("cohort", "low", "high"), [(Poisson(100), 0.62, 0.635), (FixedSize(100), 3.20, 3.23), (Bounded(100, 12), 11.5, 12.0)]
)
def test_fed_smp_setting(cohort: Cohort, low: float, high: float) -> None:
    assert low <= account(replace(PAPER, cohort=cohort), DELTA).epsilon <= high


def test_bounded_participation_is_the_exact_gaussian() -> None:
    one_round = account(replace(PAPER, cohort=Bounded(100, 1)), DELTA).epsilon
    assert one_round == pytest.approx(2.63, abs=0.01)  # what one participation costs without amplification
    swapped = account(replace(PAPER, cohort=Bounded(100, 1), relation=Relation.REPLACE_ONE), DELTA).epsilon
    assert swapped == pytest.approx(account(replace(PAPER, cohort=Bounded(100, 1), noise_multiplier=0.7), DELTA).epsilon)
    assert spent(replace(PAPER, cohort=Bounded(100, 5)), DELTA, 2) < spent(replace(PAPER, cohort=Bounded(100, 5)), DELTA, 9)


@pytest.mark.parametrize("cohort", [Poisson(100), FixedSize(100), Bounded(100, 3)])
@pytest.mark.parametrize("target", [0.5, 1.01, 8.0])
def test_calibrate_is_the_inverse_of_epsilon(cohort: Cohort, target: float) -> None:
    noise = calibrate(replace(PAPER, cohort=cohort), target, DELTA)
    at = account(replace(PAPER, cohort=cohort, noise_multiplier=noise), DELTA).epsilon
    assert 0.985 * target <= at <= target


def test_epsilon_grows_with_rounds_and_rate_and_falls_with_noise() -> None:
    assert spent(PAPER, DELTA, 10) < spent(PAPER, DELTA, 100)
    assert spent(PAPER, DELTA, 10) < spent(replace(PAPER, cohort=Poisson(200)), DELTA, 10)
    assert spent(PAPER, DELTA, 10) > spent(replace(PAPER, noise_multiplier=2.0), DELTA, 10)
    assert spent(PAPER, DELTA, 0) == 0.0
    # a coarser grid may only over-state
    assert spent(PAPER, DELTA, 180, QUICK_STEP) >= account(PAPER, DELTA).epsilon - 1e-9


def test_relations_are_ordered() -> None:
    """Replacing a client is at least as revealing as removing one, and fixed-size zero-out is bounded by it."""
    figures = {r: account(replace(PAPER, cohort=FixedSize(100), relation=r), DELTA).epsilon for r in Relation}
    assert figures[Relation.ADD_REMOVE] <= figures[Relation.REPLACE_ONE] == figures[Relation.ZERO_OUT]
    assert account(replace(PAPER, relation=Relation.REPLACE_ONE), DELTA).epsilon > account(PAPER, DELTA).epsilon
    assert account(replace(PAPER, relation=Relation.ZERO_OUT), DELTA).epsilon == account(PAPER, DELTA).epsilon


def test_a_budget_is_never_exceeded() -> None:
    allowed = rounds_within(PAPER, 0.3, DELTA)
    assert 0 < allowed < 180
    assert spent(PAPER, DELTA, allowed) <= 0.3 < spent(PAPER, DELTA, allowed + 1)
    assert rounds_within(PAPER, 5.0, DELTA) == 180
    assert rounds_within(PAPER, 1e-6, DELTA) == 0


def test_bad_values_are_refused() -> None:
    for delta in (0.0, 1.0, -1.0, 2.0):
        with pytest.raises(UsageError):
            account(PAPER, delta)
    for noise in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError):
            replace(PAPER, noise_multiplier=noise)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError):
            Budget(epsilon)
        with pytest.raises(UsageError):
            calibrate(PAPER, epsilon, DELTA)
    with pytest.raises(NoGuarantee):
        calibrate(PAPER, 1e-9, 1e-12)

    class Unknown(Cohort):
        pass

    with pytest.raises(NoGuarantee, match="no proved accounting"):
        account(replace(PAPER, cohort=Unknown(100)), DELTA)


def test_views_and_units_that_are_not_proved_are_refused() -> None:
    for change in ({"view": View.SECAGG}, {"view": View.MESSAGES}, {"unit": Unit.RECORD}):
        with pytest.raises(NoGuarantee):
            account(replace(PAPER, **change), DELTA)  # type: ignore[arg-type]


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("noise", [0.2, 0.07, 0.05, 0.01])
def test_hardly_any_noise_is_a_large_number_or_a_refusal(relation: Relation, noise: float) -> None:
    plan = Plan(noise, 1.0, FixedSize(100), 6000, 1, relation)
    try:
        epsilon = account(plan, DELTA).epsilon
    except NoGuarantee:
        epsilon = math.inf
    assert epsilon > 50


def test_half_a_participation_does_not_exist() -> None:
    with pytest.raises(UsageError, match="whole number"):
        replace(PAPER, cohort=Bounded(100, 1.9))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="whole number"):
        replace(PAPER, rounds=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(7.989, 3, "7.99"), (7.981, 3, "7.99"), (3.2142, 3, "3.22"), (0.02354, 3, "0.0236"), (12.41, 3, "12.5"), (123.4, 3, "124"),
     (1.3732e-3, 2, "0.0014"), (6.98e-5, 2, "7.0e-05"), (1e-5, 2, "1.0e-05"), (2.0, 3, "2.00"), (0.0, 3, "0"), (1234.5, 3, "1240")],
)  # fmt: skip
def test_printed_figures_are_rounded_up(value: float, digits: int, text: str) -> None:
    assert at_least(value, digits) == text
    assert float(text) >= value * (1 - 1e-9)


def test_default_delta_is_below_one_over_n() -> None:
    assert default_delta(6000) == pytest.approx(6.982864657e-05)
    assert all(default_delta(n) < 1 / n for n in (2, 100, 10**6))
