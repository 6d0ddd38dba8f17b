"""What a round costs as cohorts grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from hush.benchmarks.cohorts import fit
from hush.cli.app import app


def test_a_line_is_found_and_what_is_off_it_is_told() -> None:
    straight = fit([50, 100, 200], [1.5, 2.0, 3.0])
    assert (straight.fixed_s, straight.client_s, straight.straight_from) == (pytest.approx(1), pytest.approx(0.01), 50)
    assert straight.deviation < 1e-9
    full_later = fit([10, 50, 100, 1000, 2000, 4000], [9.0, 1.0, 2.0, 20.0, 40.0, 80.0])
    assert full_later.straight_from == 50
    assert full_later.deviation > 0.2
    assert fit([1, 10, 100], [1.0, 1000.0, 1.0]).straight_from is None


def test_it_is_measured_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = [
        "bench",
        "cohort",
        "--model",
        "fed-spa-mnist-cnn",
        "--clients",
        "3",
        "--clients",
        "2",
        "--rounds",
        "1",
        "--device",
        "cpu",
    ]
    assert not app([*typed, "--plot", str(tmp_path / "cost.svg")], standalone_mode=False)
    assert "21,840" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "cost.svg").read_text()
