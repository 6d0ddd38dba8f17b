"""`hush tune` as a user types it."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hush.tuning import study

from .test_cli import hush

FAST = ["fed-smp-rand-k", "--rounds", "3", "--clients", "40", "--cohort", "40", "--model", "logistic", "--epsilon", "4"]
KEYS = {
    *("method", "data", "trials", "completed", "pruned", "failed", "best", "best_validation_accuracy", "epsilon", "delta"),
    *("tuning_privacy", "tuning_epsilon", "history"),
}


def test_tune_prints_one_json_object_and_its_best_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    code, out, _ = hush(capsys, "tune", *FAST, "--trials", "3", "--set", "momentum=0.5", "--no-pruning", "--out", place, "--json")
    assert code == 0
    value = json.loads(out)
    assert set(value) >= KEYS
    assert (value["trials"], value["completed"], value["pruned"], value["failed"]) == (3, 3, 0, 0)
    assert set(value["best"]) == {"lr", "clip", "server_lr", "ratio"}
    assert value["best_validation_accuracy"] == max(trial["validation_accuracy"] for trial in value["history"])
    assert value["tuning_privacy"].startswith("not accounted: 3 trials saw the clients' data")
    assert value["tuning_epsilon"] is None
    assert {"number", "settings", "validation_accuracy", "state", "seconds"} <= set(value["history"][0])
    assert json.loads((tmp_path / "t" / "tune.json").read_text())["best"] == value["best"]
    assert (tmp_path / "t" / "tune.png").stat().st_size > 5000

    best = tomllib.loads((tmp_path / "t" / "best.toml").read_text())
    assert best["set"] == {"momentum": 0.5} | value["best"]
    assert (best["rounds"], best["cohort"], best["epsilon"]) == (3, 40, 4.0)
    code, out, _ = hush(capsys, "run", "--config", str(tmp_path / "t" / "best.toml"), "--out", str(tmp_path / "r"), "--json")
    assert code == 0
    run = json.loads(out)
    assert (run["epsilon"], run["delta"], run["clip"]) == (value["epsilon"], value["delta"], value["best"]["clip"])
    certificate = json.loads((tmp_path / "r" / "certificate.json").read_text())
    assert certificate["configuration"]["local"]["lr"] == value["best"]["lr"]


def test_an_interrupted_search_says_what_it_found_and_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, train = 0, study.train

    def pull_the_plug(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return train(*args, **more)

    monkeypatch.setattr(study, "train", pull_the_plug)
    command = ["tune", *FAST, "--trials", "4", "--search", "lr=0.01:1:log", "--out", str(tmp_path / "t")]
    code, _, err = hush(capsys, *command)
    assert code == 130
    assert "Interrupted after 2 of 4 trials. The best so far: " in err
    assert f"hush tune --resume {tmp_path / 't'}" in err
    code, out, _ = hush(capsys, *command)  # the same command goes on
    assert code == 0
    assert calls == 5
    assert "Run the best: hush run --config" in out
    assert "Privacy of the tuning: not accounted" in out
    code, out, _ = hush(capsys, "tune", "--resume", str(tmp_path / "t"), "--trials", "5", "--json")
    assert code == 0
    assert calls == 6
    assert json.loads(out)["trials"] == 5
    code, _, err = hush(capsys, *command[:-4], "--search", "lr=0.01:2:log", "--out", str(tmp_path / "t"))
    assert code == 2
    assert "another search" in err
    code, _, err = hush(capsys, "tune", "--resume", str(tmp_path / "t"), "--accounted")
    assert code == 2


def test_trials_on_public_examples_touch_no_client(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seen = []
    train = study.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "train", lambda run, **more: seen.append(run) or train(run, **more))  # type: ignore[func-returns-value]
        flags = ["--clients", "200", "--cohort", "10", "--public", "300", "--tuning-data", "public", "--epsilon", "4"]
        setting = ["fed-smp-top-k", "--model", "logistic", "--rounds", "2", "--sampling", "bounded", *flags]
        code, out, err = hush(capsys, "tune", *setting, "--trials", "2", "--out", str(tmp_path / "t"), "--json")
    assert code == 0, err
    value = json.loads(out)
    assert value["tuning_privacy"].startswith("public: 2 trials")
    assert value["tuning_epsilon"] == 0
    assert value["epsilon"] == pytest.approx(4, rel=1e-2)  # of the run that follows, on the clients
    for run in seen:
        assert sum(len(part.x) for part in (run.data.train, run.data.validation, run.data.server.public)) <= 300
        assert run.config.ledger is None
    best = tomllib.loads((tmp_path / "t" / "best.toml").read_text())
    assert best["public"] == 300  # the run after it must not train on what was chosen by


def test_accounted_trials_have_a_number_and_a_ledger_counts_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    book = str(tmp_path / "people.db")
    code, _, err = hush(
        capsys, "ledger", "create", book, "--population", "digits", "--clients", "40", "--epsilon", "50", "--delta", "0.01"
    )
    assert code == 0, err
    command = ["tune", *FAST, "--delta", "0.01", "--trials", "2", "--no-pruning", "--search", "lr=0.01:1:log", "--ledger", book]
    code, out, err = hush(capsys, *command, "--out", str(tmp_path / "t"), "--json")
    assert code == 0, err
    value = json.loads(out)
    code, out, _ = hush(capsys, "ledger", "show", book, "--json")
    assert json.loads(out)["populations"][0]["epsilon"] == pytest.approx(value["tuning_epsilon"], rel=1e-3)
    assert value["tuning_privacy"].endswith("people.db")
    assert 4 < value["tuning_epsilon"] < 8


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["fed-smp-rand-k", "--noise", "1"], "give --epsilon, not the noise"),
        ([*FAST, "--seeds", "2"], "one seed"),
        (["fedavg-rand-k", "--accounted"], "adds no noise"),
        ([*FAST, "--accounted", "--tuning-data", "public"], "leave --accounted out"),
        ([*FAST, "--tuning-data", "publik"], "did you mean 'public'"),
        ([*FAST, "--tuning-data", "public"], "public examples make"),
        ([*FAST, "--validation", "0"], "validation"),
        ([*FAST, "--trials", "0"], "at least 1"),
        ([*FAST, "--evaluation", "clients", "--accounted"], "clients' own"),
        ([*FAST, "--search", "lr=-2,-1", "--trials", "2"], "None of the 2 trials came to an end. The first: "),
        (["--resume", "nowhere"], "no run directory"),
    ],
)
def test_refusals(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hush(capsys, "tune", *flags)
    assert code == 2
    assert why in err
    assert not out


def test_without_optuna(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = hush(capsys, "tune", *FAST, "--out", str(tmp_path / "t"))
    assert code == 2
    assert "pip install 'hush-fl[tune]'" in err
    assert not (tmp_path / "t").exists()


def test_a_search_that_was_refused_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for _ in range(2):  # the second try is refused for the same reason, and not for a folder
        code, _, err = hush(capsys, "tune", "dp-fedavg", "--search", "nope=1:2", "--out", str(tmp_path / "t"))
        assert code == 2
        assert "no setting of dp-fedavg to search" in err
        assert not (tmp_path / "t").exists()
