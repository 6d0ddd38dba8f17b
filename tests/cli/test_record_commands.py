"""Records on the command line: epsilon, run, certify, audit, ledger, compare."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from hush.certify import _asked, _settings
from tests.cli.test_cli import hush

FEW = ["--rounds", "4", "--set", "local_steps=2"]


def test_epsilon_and_calibrate_of_records(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--unit", "record", "--records", "600", "--batch", "10", "--local-steps", "300", "--rounds", "45", "--delta", "1e-3"]
    code, out, _ = hush(capsys, "calibrate", "--epsilon", "1", *flags, "--participations", "5", "--batches", "fixed", "--json")
    assert code == 0
    value = json.loads(out)
    assert value["noise_multiplier"] == pytest.approx(4.122, abs=0.002)
    assert (value["unit"], value["relation"], value["view"]) == ("record", "replace-one", "messages")
    assert (value["steps"], value["participations"]) == (1500, 5)
    assert value["epsilon_server"] == value["epsilon"] <= 1.0
    code, out, err = hush(capsys, "epsilon", "--noise", "4.122", *flags, "--cohort", "10", "--clients", "100", "--batches", "fixed")
    assert code == 0
    assert "eps=0.999" in out or "eps=1.00" in out
    assert "5 of 45 rounds" in out
    assert "amplifies nothing" not in err
    assert "delta is not below 1/60,000" in err  # of all clients' records, not of the smallest client's
    code, _, err = hush(capsys, "epsilon", "--noise", "4", *flags, "--cohort", "10", "--clients", "100", "--sampling", "poisson")
    assert code == 0
    assert "amplifies nothing for a record" in err
    code, out, _ = hush(capsys, "epsilon", "--noise", "4", *flags, "--relation", "zero-out", "--participations", "5")
    assert "zero-out" in out
    code, _, err = hush(capsys, "epsilon", "--noise", "4", *flags, "--relation", "add-remove", "--participations", "5")
    assert code == 2
    assert "cannot be hidden" in err


def test_a_run_is_certified_for_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "r")
    assert hush(capsys, "run", "fed-spa", *FEW, "--epsilon", "3", "--out", folder)[0] == 0
    certificate = json.loads((tmp_path / "r" / "certificate.json").read_text())
    assert certificate["guarantee"]["unit"] == "record"
    assert certificate["guarantee"]["epsilon"] <= 3.0
    assert certificate["server_guarantee"] == certificate["guarantee"]
    assert certificate["claim"]["source"] == "Fed-SPA, Theorem 1"
    page = (tmp_path / "r" / "certificate.html").read_text()
    assert "one record of one client" in page
    assert "at the client that holds the fewest" in page
    code, out, _ = hush(capsys, "certify", folder)
    assert code == 0, out
    asked = _asked(tmp_path / "r", "fed-spa")
    assert _settings(asked, certificate, None).passed
    for key, value in (("steps", 1), ("participations", 9), ("period", 9)):  # a plan of something else than what ran
        forged = copy.deepcopy(certificate)
        forged["plan"]["phases"][0][key] = value
        assert not _settings(asked, forged, None).passed, key
    forged = certificate | {"plan": certificate["plan"] | {"total": 2}}  # a delta is large for many records
    assert not _settings(asked, forged, None).passed
    certificate["noise_multiplier"] *= 2
    (tmp_path / "r" / "certificate.json").write_text(json.dumps(certificate))
    assert hush(capsys, "certify", folder)[0] == 2


def test_a_papers_own_words_are_certified_as_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "r"
    code, out, _ = hush(capsys, "run", "cpfed", *FEW, "--noise", "1", "--set", "mode=paper", "--out", str(folder))
    assert code == 0
    assert "no privacy guarantee" in out
    page = (folder / "certificate.html").read_text()
    assert "clips nothing" in page
    assert "CPFed, Theorem 1" in page
    result = json.loads((folder / "result.json").read_text())
    assert result["epsilon"] is None
    assert result["claimed_epsilon"] > 0
    assert "clips nothing" in result["no_guarantee"]
    code, _, err = hush(capsys, "run", "cpfed", *FEW, "--epsilon", "1", "--set", "mode=paper", "--out", str(tmp_path / "no"))
    assert code == 2
    assert "Or give --noise" in err


def test_a_comparison_shares_the_clients_and_names_the_units(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = hush(capsys, "compare", "dp-fedavg", "dp-sgd", "--rounds", "2", "--noise", "2", "--out", str(tmp_path / "c"))
    assert code == 0
    assert "of a" in out
    assert "record" in out
    code, out, _ = hush(capsys, "compare", "dp-fedavg", "dp-sgd", "--rounds", "2", "--noise", "2", "--dry-run", "--json")
    assert {row["clients"] for row in json.loads(out)["methods"]} == {20}


def test_ledgers_keep_records_apart_from_clients(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    book = str(tmp_path / "l.sqlite")
    code, out, _ = hush(
        capsys, "ledger", "create", book, "--population", "digits", "--unit", "record", "--records", "67", "--epsilon", "2",
        "--delta", "1e-4",
    )  # fmt: skip
    assert code == 0, out
    run = ["run", "dp-sgd", "--rounds", "6", "--noise", "2", "--ledger", book, "--population", "digits"]
    assert hush(capsys, *run, "--out", str(tmp_path / "a"))[0] == 0
    shown = json.loads(hush(capsys, "ledger", "show", book, "--json")[1])["populations"][0]
    assert shown["unit"] == "record"
    assert 0 < shown["epsilon"] <= 2
    code, _, err = hush(capsys, "run", "dp-fedavg", "--noise", "2", "--rounds", "2", "--ledger", book, "--population", "digits")
    assert code == 2
    assert "do not add up" in err


def test_methods_say_whom_they_protect(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row["unit"] for row in json.loads(hush(capsys, "methods", "--json")[1])["methods"]}
    assert (rows["fedavg"], rows["dp-fedavg"], rows["fed-spa"], rows["cpsgd"]) == (None, "client", "record", "record")


def test_audit_of_a_papers_words_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--set", "mode=paper", "--set", "ratio=0.05", "--no-training", "--out", str(tmp_path / "a")]
    code, out, _ = hush(capsys, "audit", "fed-spa", *flags)
    assert code == 2
    assert "breaks its paper's claim" in out
    assert (tmp_path / "a" / "audit.png").is_file()


def test_a_sum_that_has_no_room_for_what_clients_read_is_spoken_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It would wrap around, and nobody see it."""
    flags = ["run", "dp-sgd", "--secure", "--rounds", "1", "--clients", "5", "--cohort", "5", "--noise", "1", "--delta", "1e-3"]
    few = hush(capsys, *flags, "--set", "rate=0.5", "--set", "batch_size=3", "--out", str(tmp_path / "few"))[2]
    told = re.search(r"reads about (\d+) records a step, .*room for 3 of each.*--set batch_size=(\d+), with an lr", few)
    assert told is not None
    assert told[1] == told[2]
    enough = hush(capsys, *flags, "--set", "rate=0.5", "--set", f"batch_size={told[1]}", "--out", str(tmp_path / "enough"))[2]
    assert "has room for" not in enough
