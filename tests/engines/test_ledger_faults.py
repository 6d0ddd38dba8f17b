"""SIGKILL at any moment: what is on disk never says less than what was drawn. `make soak` does it fifty times."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hush.certify import verify_run
from hush.privacy.ledger import Ledger
from tests.faults import ROUNDS, Child


def charged(child: Child) -> dict[str, int]:
    """Charges of each run on the shared ledger."""
    book = Ledger(child.ledger)
    counts = {run: s.charges for pool in book.populations.values() for run, s in pool.runs.items()}
    book.close()
    return counts


def survive(child: Child, chance: random.Random, kills: int) -> dict[str, object]:
    """Kill, look, kill again, finish; every look must find at least as many charges as draws."""
    before = charged(child) if child.ledger.is_file() else {}
    for _ in range(kills):
        child.kill_somewhere(chance)
        now = charged(child)
        new = sum(now.values()) - sum(before.values())
        drawn = child.draws() if child.mode == "secure" else list(dict.fromkeys(child.draws()))
        assert new >= len(drawn), (child.mode, new, len(drawn))
    result = child.finish()
    new = sum(charged(child).values()) - sum(before.values())
    drawn = child.draws() if child.mode == "secure" else list(dict.fromkeys(child.draws()))
    assert new >= len(drawn)
    assert result["rounds_charged"] == new
    return result


@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_killed_runs_never_under_count(tmp_path: Path, mode: str) -> None:
    chance = random.Random(mode)
    ledger = tmp_path / "shared.db"
    child = Child(tmp_path / "run", ledger, mode, 0)
    result = survive(child, chance, kills=3)
    whole = Child(tmp_path / "whole", tmp_path / "other.db", mode, 0).finish()
    if mode == "fast":  # the very same run, to the last bit
        for key in ("epsilon", "rounds_charged", "test_loss", "test_accuracy", "run_id", "train_loss"):
            assert result[key] == whole[key]
        assert (tmp_path / "run" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
        assert result["rounds_charged"] == ROUNDS
    else:  # an interrupted round is drawn anew, and charged again
        assert int(str(result["rounds_charged"])) >= len(child.draws()) >= ROUNDS
        assert float(str(result["epsilon"])) >= float(str(whole["epsilon"]))
        assert result["test_loss"] != whole["test_loss"]
    certificate, checks = verify_run(tmp_path / "run")
    assert all(check.passed is not False for check in checks), checks
    assert certificate["rounds_charged"] == result["rounds_charged"]
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["population"]["runs"] == 1
