"""`--jobs N`: the same runs, side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.test_cli import hush

FAST = ["--rounds", "2", "--clients", "30", "--cohort", "10"]


@pytest.mark.filterwarnings("ignore:In some rounds")
def test_side_by_side_is_the_same_and_one_that_fails_stops_no_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wild = [*FAST, "--set", "lr=1e30", "--noise", "1", "--noise-seed", "1"]
    code, out, err = hush(capsys, "compare", "fedavg", "dp-fedavg", *wild, "--jobs", "2", "--out", str(tmp_path / "two"))
    assert (code, "dp-fedavg" in out) == (2, True)
    assert "hush: 1 of 2 runs failed, and the others are kept. fedavg: The model became NaN or infinite in round 1 of 2" in err
    assert err.rstrip().endswith(f"Go on with: hush run --resume {tmp_path / 'two'}")
    assert hush(capsys, "run", "dp-fedavg", *wild, "--out", str(tmp_path / "one"))[0] == 0
    beside, alone = (load_file(tmp_path / name / "model.safetensors") for name in ("two/dp-fedavg", "one"))
    assert all(torch.equal(beside[name], value) for name, value in alone.items())
    assert (tmp_path / "two" / "dp-fedavg" / "report.html").is_file()


def test_what_jobs_cannot_do_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ["compare", "dp-fedavg", "fed-smp-rand-k", *FAST, "--noise", "1", "--out", str(tmp_path / "out")]
    assert "jobs must be at least 1, not 0" in hush(capsys, *both, "--jobs", "0")[2]
    assert "leave --jobs out" in hush(capsys, *both, "--jobs", "2", "--ledger", str(tmp_path / "ledger.db"))[2]
    assert "leave --jobs out" in hush(capsys, "tune", "dp-fedavg", "--jobs", "2", "--ledger", str(tmp_path / "ledger.db"))[2]
    assert not (tmp_path / "out").exists()
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    assert "torchrun is for hush run and hush compare" in hush(capsys, "tune", "dp-fedavg")[2]
