"""The paper's setting on a small machine: `make soak`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_papers_setting_runs_on_two_cores_within_six_gibibytes(tmp_path: Path) -> None:
    """The CNN, 6,000 clients, a cohort of 100; one round of one epoch here, three with the defaults in the docs."""
    if not os.environ.get("HUSH_DATA"):
        pytest.skip("HUSH_DATA does not point at the real data sets")
    real_data = Path(os.environ["HUSH_DATA"]).resolve()
    flags = "--data fashion-mnist --clients 6000 --cohort 100 --rounds 1 --noise 1.4 --set ratio=0.005 --set local_epochs=1"
    script = (
        "import resource, sys; sys.argv = ['hush', *sys.argv[1:]]\nfrom hush.cli import main\ntry: main()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    words = [*flags.split(), "--set", "public_steps=3", "--data-dir", str(real_data), "--out", "r", "--json"]
    command = [sys.executable, "-c", script, "run", "fed-smp-top-k", *words]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["parameters"] == 1_663_370
    assert result["uplink_bytes_per_client"] == pytest.approx(8317 * 4 / 60)
    assert int(done.stderr.split()[-1]) < 6 * 2**20  # kibibytes
