"""Secure aggregation for long: 2,000 random rounds, 100,000 mutated messages: `make soak`."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from tests.secagg.drive import Case, cases, check
from tests.secagg.test_fuzz import run

ENDS: Counter[str] = Counter()


def test_two_thousand_random_rounds_end_with_the_exact_sum_or_a_reason() -> None:
    """Any cohort from 3 to 60, any threat, any drop sets, any vectors and bits."""

    @given(cases(largest=60))
    @settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def every(case: Case) -> None:
        ENDS["sum" if check(case) == "sum" else "abort"] += 1

    every()
    print(dict(ENDS))
    assert ENDS.total() >= 2000
    assert min(ENDS["sum"], ENDS["abort"]) > 200, "both ends are met often"


def test_a_hundred_thousand_mutated_messages_do_no_harm() -> None:
    run(100_000, seed=10_000, batch=5000)
