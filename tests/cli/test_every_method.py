"""`hush run NAME` with nothing else: every name of `hush methods`, and every part after a '+', as a command and in Python."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hush as library
from hush import methods
from hush.cli import runs
from hush.config import DEFAULT_EPSILON, RunConfig
from hush.engines.run import Run
from hush.engines.simulation import train
from hush.experiment import resolve
from hush.privacy.plan import is_private
from hush.report import page
from hush.transforms import AdaptiveClip, Clip, HistoryClip
from tests.cli.test_cli import hush
from tests.conftest import make_task

PARTS = [name for part in methods.PARTS if (name := f"dp-fedavg+{part}") not in methods.names()]


@pytest.mark.parametrize("name", methods.names())
def test_a_name_runs_with_nothing_else(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set up as it is typed, with all its rounds; of which the first is trained, and the rest cut off."""

    def one_round(run: Run, **more: Any) -> library.Result:
        return train(replace(run, rounds=1), **more)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "train", one_round)
    monkeypatch.setattr(page, "_pictures", lambda *_: "")  # of one round there is nothing to draw, and it takes longest
    code, out, err = hush(capsys, "run", name)
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert (result["method"], result["rounds"]) == (name, 1)
    private = is_private(methods.build(name))
    assert (result["epsilon"] is not None) == private
    assert ("no privacy guarantee" in out) != private
    if private:
        assert 0 < result["epsilon"] <= DEFAULT_EPSILON


@pytest.mark.parametrize("name", [*methods.names(), *PARTS])
def test_a_name_runs_from_python(name: str) -> None:
    method = methods.build(name)
    budget = library.Budget(1.0) if is_private(method) else None
    result = library.simulate(method, make_task(sizes=(12,) * 20), rounds=1, cohort=20, privacy=budget)
    assert result.method == name
    assert (result.epsilon is None) == (budget is None)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_set_up_with_nothing_else(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hush(capsys, "run", name, "--dry-run", "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["epsilon"] <= DEFAULT_EPSILON


@pytest.mark.parametrize("base", methods.METHODS)
def test_every_part_goes_with_every_method_that_has_its_setting(base: str) -> None:
    for part, says in methods.PARTS.items():
        name = f"{base}+{part}"
        if says.settings.keys() <= methods.settings_of(base).keys():
            clips = any(isinstance(one, Clip | AdaptiveClip | HistoryClip) for one in methods.build(base).pipeline.parts)
            more = {} if part != "blur" or clips else {"blur_limit": 1.0}  # where no update is clipped, BLUR asks what to keep to
            assert resolve(RunConfig(method=name, set=more)).method.name == name


def test_the_command_itself_runs(tmp_path: Path) -> None:
    """The entry point, in a process of its own and with all its rounds."""
    done = subprocess.run([Path(sys.executable).with_name("hush"), "run", "fedavg"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no privacy guarantee" in done.stdout
