"""Fifty killed runs on one shared ledger, and a run of the command line that is killed twice: `make soak`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.cli.test_cli import kill_twice_and_compare
from tests.engines.test_ledger_faults import survive
from tests.faults import Child

from hush.certify import verify_run
from hush.privacy.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore:.*is new in")
ROUNDS = 120
RUNS = 25
"""For each kind of noise."""


@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_fifty_killed_runs_on_one_ledger(tmp_path: Path, mode: str) -> None:
    ledger, chance = tmp_path / "shared.db", random.Random(f"soak {mode}")
    expected, repeated = 0, 0
    for seed in range(RUNS):
        child = Child(tmp_path / f"run{seed}", ledger, mode, seed, ROUNDS)
        result = survive(child, chance, kills=chance.randrange(1, 4))
        expected += int(str(result["rounds_charged"]))
        repeated += int(str(result["rounds_charged"])) - int(str(result["rounds"]))
        _, checks, *_ = verify_run(child.out)
        assert all(check.passed is not False for check in checks), checks
    book = Ledger(ledger)
    pool = book.populations["people"]
    assert len(pool.runs) == RUNS
    assert sum(run.charges for run in pool.runs.values()) == expected
    assert repeated == 0 if mode == "fast" else repeated >= 1
    print(f"\n{mode}: {RUNS} runs, {expected} rounds charged, {repeated} of them again, epsilon {pool.spent(1e-3):.2f}")


def test_sigkill_in_any_round_resumes_to_the_identical_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rounds", "30", "--clients", "300", "--cohort", "60", "--noise", "2", "--set", "average_iterates=0.7"]
    kill_twice_and_compare(tmp_path, capsys, flags, kills=(2, 13))
