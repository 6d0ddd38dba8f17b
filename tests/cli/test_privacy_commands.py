"""`hush ledger`, `hush audit`, and runs that share a ledger, as a user types them."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from hush.audit.findings import Scene
from hush.transforms import Gaussian
from tests.cli.test_cli import FAST, hush

SHARED = ["--population", "people"]


def test_a_budget_shared_by_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    book = str(tmp_path / "l.db")
    code, out, _ = hush(capsys, "ledger", "create", book, "--population", "people", "--clients", "60", "--epsilon", "1")
    assert code == 0
    assert "may spend epsilon 1" in out
    run = ["run", "dp-fedavg", *FAST, "--noise", "2.5", "--set", "local_epochs=1", "--ledger", book, *SHARED]
    spent = []
    for i in range(2):
        code, out, _ = hush(capsys, *run, "--seed", str(i), "--out", str(tmp_path / f"r{i}"), "--json")
        assert code == 0
        spent.append(json.loads(out))
    assert spent[0]["epsilon"] == pytest.approx(spent[1]["epsilon"])
    assert spent[1]["population"]["runs"] == 2
    assert spent[0]["epsilon"] < spent[1]["population"]["epsilon"] < 2 * spent[0]["epsilon"] + 0.01
    more = ["--rounds", "200", "--eval-every", "200", "--seed", "9"]
    code, out, _ = hush(capsys, *run, *more, "--out", str(tmp_path / "long"), "--json")
    long = json.loads(out)
    assert code == 0
    assert 0 < long["rounds"] < 200
    assert "would be exceeded" in long["stopped"]
    assert long["population"]["epsilon"] <= 1
    code, _, err = hush(capsys, *run, "--seed", "10", "--out", str(tmp_path / "none"))
    assert code == 2
    assert "Not one round fits" in err
    code, out, _ = hush(capsys, "ledger", "show", book, "--json")
    (row,) = json.loads(out)["populations"]
    assert row["epsilon"] <= 1 < row["epsilon_adaptive"] + 1
    assert len(row["runs"]) == 3
    code, out, _ = hush(capsys, "ledger", "show", book)
    assert "people" in out
    code, out, _ = hush(capsys, "ledger", "verify", book, "--head", long["population"]["ledger_head"])
    assert code == 0
    assert "is whole" in out
    code, _, err = hush(capsys, "ledger", "verify", book, "--head", "0" * 64)
    assert code == 2
    assert "does not contain" in err
    with sqlite3.connect(book) as db:
        db.execute("DELETE FROM entries WHERE seq = 4")
    db.close()
    for what in ("verify", "show"):
        code, _, err = hush(capsys, "ledger", what, book)
        assert code == 2
        assert "tampered" in err


def test_a_ledger_is_not_bypassed_by_a_typo_or_a_method_without_noise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    book = str(tmp_path / "l.db")
    hush(capsys, "ledger", "create", book, "--population", "patients", "--clients", "60", "--epsilon", "6")
    for flags, told in (
        (["dp-fedavg", "--noise", "2", "--population", "patient"], "patients"),
        (["dp-fedavg", "--noise", "2"], "population"),
        (["fedavg", "--population", "patients"], "without noise"),
    ):
        code, _, err = hush(capsys, "run", *flags, *FAST, "--ledger", book, "--out", str(tmp_path / "r"))
        assert code == 2
        assert told in err
        assert not (tmp_path / "r").exists()  # what was refused leaves nothing behind
    code, _, err = hush(capsys, "run", "dp-fedavg", *FAST, "--ledger", str(tmp_path / "no" / "l.db"), "--out", str(tmp_path / "r"))
    assert code == 2
    assert "There is no folder" in err
    code, _, err = hush(capsys, "ledger", "create", book, "--population", " ", "--clients", "6", "--epsilon", "6")
    assert code == 2
    code, out, _ = hush(
        capsys, "ledger", "create", book, "--population", "others", "--clients", "60", "--epsilon", "6", "--adaptive"
    )
    assert "however runs are chosen" in out
    flags = ["--noise", "2", "--population", "others", "--ledger", book, "--out", str(tmp_path / "a"), "--json"]
    _, out, _ = hush(capsys, "run", "dp-fedavg", *FAST, *flags)
    together = json.loads(out)["population"]
    assert together["adaptive"]
    assert together["epsilon"] <= together["epsilon_adaptive"] <= 6
    assert "however the runs were chosen" in (tmp_path / "a" / "certificate.html").read_text()
    _, out, _ = hush(capsys, "ledger", "create", book, "--population", "patients", "--clients", "60", "--epsilon", "7", "--change")
    assert "may spend epsilon 7" in out
    code, _, err = hush(capsys, "ledger", "verify", book, "--head", "deadbeef")
    assert (code, "whole hash" in err) == (2, True)


def test_the_cap_of_bounded_participation_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    setting = ["--noise", "1.4", "--cohort", "100", "--clients", "6000", "--rounds", "180", "--sampling", "bounded"]
    _, out, err = hush(capsys, "epsilon", *setting)
    assert "at most 1 participations" in out
    assert "last for about 60 of 180 rounds" in err
    _, out, err = hush(capsys, "epsilon", *setting, "--participations", "6", "--json")
    assert json.loads(out)["participations"] == 6
    assert not err
    flags = ["--noise", "2", "--sampling", "bounded", "--participations", "3", "--out", str(tmp_path / "r")]
    hush(capsys, "run", "dp-fedavg", *FAST, *flags)
    assert "no client more than 3 times in all" in (tmp_path / "r" / "certificate.html").read_text()


def test_a_ledger_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = hush(capsys, "ledger", "verify", str(tmp_path / "no.db"))
    assert (code, (tmp_path / "no.db").exists()) == (2, False)
    assert "There is no ledger" in err
    code, _, err = hush(capsys, "run", "dp-fedavg", *FAST, *SHARED)
    assert code == 2
    assert "--ledger" in err or "ledger=" in err


def test_a_copied_run_cannot_be_resumed_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Secure noise: two copies that go on would release more than either says."""
    import hush as library
    from tests.conftest import make_task

    def go(out: Path, stop_after: int | None) -> None:
        def on_round(record: dict[str, object]) -> None:
            if record["round"] == stop_after:
                raise KeyboardInterrupt

        library.simulate(
            library.methods.dp_fedavg(noise=1.0),
            make_task(sizes=(3,) * 20),
            rounds=6,
            cohort=5,
            noise_mode="secure",
            out=out,
            resume=True,
            on_round=on_round,
        )

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "a", 3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    go(tmp_path / "a", None)
    with pytest.raises(library.HushError, match="older copy"):
        go(tmp_path / "b", None)
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["rounds_charged"] == 6  # it was stopped between rounds, so nothing was drawn twice


def test_secret_participation_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    setting = ["--noise", "1.4", "--cohort", "100", "--clients", "6000", "--rounds", "180", "--sampling", "secret"]
    _, out, _ = hush(capsys, "epsilon", *setting, "--json")
    answer = json.loads(out)
    assert answer["epsilon_server"] == pytest.approx(answer["epsilon"])
    assert answer["relation"] == "zero-out"
    assert answer["noise_multiplier"] == pytest.approx(1.4)
    _, out, _ = hush(capsys, "epsilon", *setting)
    assert "against the server" in out
    for mode in ("fast", "secure"):
        flags = ["--sampling", "secret", "--noise", "1.5", "--noise-mode", mode, "--out", str(tmp_path / mode), "--json"]
        _, out, _ = hush(capsys, "run", "dp-fedavg", *FAST, *flags)
        result = json.loads(out)
        assert result["epsilon_server"] == pytest.approx(result["epsilon"])
        assert result["noise_mode"] == mode
        message = result["parameters"] * 4
        assert result["uplink_bytes_per_client"] == result["rounds"] * message  # everybody sends, in every round


def test_a_careless_delta_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = hush(capsys, "epsilon", "--noise", "1", "--cohort", "10", "--clients", "100", "--rounds", "5", "--delta", "0.01")
    assert "permits publishing one" in err


def test_few_clients_are_recommended_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before anything is trained, with what to type; and the delta of few is not the guess that one of them is published."""
    few = ["--clients", "5", "--cohort", "2", "--rounds", "1", "--model", "logistic", "--noise", "1", "--json"]
    out = str(tmp_path / "r")
    for more in (["--dry-run"], ["--out", out]):
        code, said, err = hush(capsys, "run", "dp-fedavg", *few, *more)
        assert code == 0
        assert json.loads(said)["delta"] == 0.01
        assert "hush run fed-spa" in err
    assert err.index("hush run fed-spa") < err.index("dp-fedavg")  # which is its bar
    _, _, err = hush(capsys, "run", "dp-sgd", *few, "--dry-run")
    assert "fed-spa" not in err


def smaller_audits(monkeypatch: pytest.MonkeyPatch, *scenes: Scene) -> None:
    """`make soak` has whole ones."""
    # the package's name `audit` is the function, so the module is asked for by its path
    module = importlib.import_module("hush.audit.audit")
    monkeypatch.setattr(module, "SCENES", scenes)
    monkeypatch.setattr(module, "_ENTRIES", 1_000_000)


def test_audit(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller_audits(monkeypatch, Scene(2, 1.0, 6000), Scene(10, 0.3, 3000))
    code, out, _ = hush(capsys, "audit", "dp-fedavg", "--no-training", "--out", str(tmp_path / "a"))
    assert code == 0
    assert "passes" in out
    assert (tmp_path / "a" / "audit.png").stat().st_size > 10_000
    report = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert report["passed"]
    code, _, err = hush(capsys, "audit", "fedavg", "--out", str(tmp_path / "b"))
    assert code == 2
    assert "claims nothing" in err


def test_the_audit_of_a_run_takes_its_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hush(capsys, "run", "fed-smp-rand-k", *FAST, "--epsilon", "2", "--sampling", "fixed", "--out", str(tmp_path / "r"), "--json")
    noise = json.loads((tmp_path / "r" / "result.json").read_text())["noise_multiplier"]
    right = Gaussian.decode

    def quiet(self, total, state, rnd, public, secret):  # type: ignore[no-untyped-def]
        noised, state = right(self, total, state, rnd, public, secret)
        return total + (noised - total) / 2, state

    monkeypatch.setattr(Gaussian, "decode", quiet)
    smaller_audits(monkeypatch, Scene(1, 1.0, 2000))
    code, out, _ = hush(capsys, "audit", str(tmp_path / "r"), "--no-training", "--json")
    report = json.loads(out)
    assert code == 2
    assert not report["passed"]
    assert report["noise_multiplier"] == pytest.approx(noise)
    assert report["cohort"] == "FixedSize"
    assert (tmp_path / "r" / "audit.json").is_file()
