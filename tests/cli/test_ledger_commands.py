"""Shared ledgers on the command line: a memory that is not there is said, and nothing but ledgers is written to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import hush as library
from hush.privacy.ledger import UNPROTECTED, Ledger, LedgerError
from tests.cli.test_cli import FAST, hush
from tests.conftest import make_task

CREATE = ["--population", "digits", "--clients", "60", "--epsilon", "40"]
FREE = "--no-rollback-protection"


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A ledger that this machine has seen, and then a machine that cannot remember any: not even root can write below a file."""
    path = str(tmp_path / "people.db")
    assert hush(capsys, "ledger", "create", path, *CREATE)[0] == 0
    (tmp_path / "no-home").touch()
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "no-home"))
    return path


def test_a_budget_is_not_spent_twice_where_nothing_is_remembered(
    book: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(book, tmp_path / "backup.db")
    flags = [*FAST, "--noise", "2", "--ledger"]
    for command in (["run", "dp-fedavg"], ["compare", "dp-fedavg", "fed-smp-rand-k"], ["tune", "dp-fedavg", "--trials", "1"]):
        for place in (book, str(tmp_path / "backup.db")):
            asked = [flag for flag in flags if command[0] != "tune" or flag not in ("--noise", "2")]
            out = tmp_path / f"{command[0]}-{Path(place).name}"
            code, _, err = hush(capsys, *command, *asked, place, "--out", str(out))
            assert (code, err.count("would pass unseen")) == (2, 1), err
            assert command[0] == "tune" or not out.exists()
    assert Ledger(book, rollback_protection=False).entries == 2  # nothing was charged


def test_going_on_without_a_memory_is_typed_and_on_the_certificate(
    book: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    code, _, err = hush(capsys, "run", "dp-fedavg", *FAST, "--noise", "2", "--ledger", book, FREE, "--out", str(folder))
    assert code == 0, err
    for file in ("result.json", "certificate.json"):
        assert UNPROTECTED in json.loads((folder / file).read_text())["caveats"]
    assert UNPROTECTED in (folder / "certificate.html").read_text()
    code, out, _ = hush(capsys, "certify", str(folder))
    assert code in (0, 1), out
    assert "cannot keep what this machine has seen of ledgers" in out
    code, _, err = hush(capsys, "run", "dp-fedavg", *FAST, "--noise", "2", FREE, "--out", str(tmp_path / "no"))
    assert code == 2
    assert "give the ledger, too" in err


def test_ledger_commands_say_what_they_could_not_check(book: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["show", book], ["verify", book], ["create", book, *CREATE, "--change"]):
        code, _, err = hush(capsys, "ledger", *command)
        assert (code, err.count("would pass unseen")) == (2, 1), err
        code, _, err = hush(capsys, "ledger", *command, FREE, "--json")
        assert code == 0, err
        assert "was not checked" in err
    assert json.loads(hush(capsys, "ledger", "verify", book, FREE, "--json")[1])["rollback_checked"] is False


def test_from_python(book: str) -> None:
    method, task = library.methods.dp_fedavg(noise=2.0), make_task()
    with pytest.raises(LedgerError, match="would pass unseen"):
        library.simulate(method, task, rounds=1, cohort=2, ledger=book + "-new")
    typed = library.Ledger(book + "-new", rollback_protection=False)
    with pytest.warns(UserWarning, match="is new in"):
        result = library.simulate(method, task, rounds=1, cohort=2, ledger=typed)
    again = library.simulate(method, task, rounds=1, cohort=2, ledger=book + "-new", rollback_protection=False)
    assert UNPROTECTED in result.caveats
    assert UNPROTECTED in again.caveats


def test_an_empty_file_and_a_strangers_stay_as_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "r"
    assert hush(capsys, "run", "dp-fedavg", *FAST, "--noise", "2", "--out", str(folder))[0] == 0
    for content, told in ((b"", "There is no ledger"), (b"a", "is not a ledger that can be used")):
        path = tmp_path / f"{len(content)}.db"
        path.write_bytes(content)
        for command in (
            ["ledger", "show", str(path)],
            ["ledger", "verify", str(path)],
            ["certify", str(folder), "--ledger", str(path)],
        ):
            code, out, err = hush(capsys, *command)
            assert code in (1, 2)
            assert told in err or command[0] == "certify", out + err
        assert path.read_bytes() == content
    code, _, err = hush(capsys, "run", "dp-fedavg", *FAST, "--ledger", str(path), "--out", str(tmp_path / "no"))
    assert (code, path.read_bytes()) == (2, b"a")
    assert "is not a ledger that can be used" in err


def test_a_folder_that_holds_a_ledger_is_no_run_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run that is refused takes its folder away: what others keep there must not go with it."""
    book = tmp_path / "ledger.sqlite"
    assert hush(capsys, "ledger", "create", str(book), *CREATE)[0] == 0
    for command in (["run", "dp-fedavg"], ["compare", "dp-fedavg", "fed-smp-rand-k"], ["tune", "dp-fedavg"]):
        code, _, err = hush(capsys, *command, *FAST, "--ledger", str(book), "--population", "wrong", "--out", str(tmp_path))
        assert code == 2
        assert "choose another --out" in err or "or another --out" in err
        assert book.is_file()
