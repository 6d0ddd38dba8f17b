"""What was spent is on disk before it is spent, adds up across runs, and cannot be edited unseen."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hush import Bounded, FixedSize, NoGuarantee, Plan, Poisson, UsageError, methods, plan_of
from hush.cohort import Cohort, SecretParticipation
from hush.privacy import ledger as ledger_module
from hush.privacy import seen
from hush.privacy.accountant import spent
from hush.privacy.guarantee import Relation
from hush.privacy.ledger import BudgetSpent, Ledger, LedgerError, RunAccount, _link
from hush.privacy.plan import with_secure_noise
from hush.privacy.population import filter_order

DELTA = 1e-3


def plan(noise: float = 1.0, cohort: Cohort | None = None, rounds: int = 100, clients: int = 100) -> Plan:
    return plan_of(methods.dp_fedavg(noise=noise), cohort or Poisson(10), clients, rounds)


def pay(account: RunAccount, rounds: int, first: int = 0, attempt: str = "") -> None:
    for index in range(first, first + rounds):
        account.charge(index, attempt)


def test_a_charge_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    account = book.open_run("a", "people", plan())
    pay(account, 3)
    with sqlite3.connect(tmp_path / "l.db") as other:
        kinds = [k for (k,) in other.execute("SELECT kind FROM entries ORDER BY seq")]
    assert kinds == ["open", "population", "charge", "charge", "charge"]
    again = Ledger(tmp_path / "l.db")
    assert again.populations["people"].runs["a"].charges == 3
    assert again.populations["people"].spent(DELTA) == pytest.approx(spent(plan(), DELTA, 3))


def test_the_same_draw_is_charged_once_and_a_new_one_again(tmp_path: Path) -> None:
    account = Ledger(tmp_path / "l.db").open_run("a", "people", plan())
    pay(account, 3)
    pay(account, 3)  # fast noise, resumed: the very same noise
    assert account.charges == 3
    pay(account, 2, first=3, attempt="x")
    pay(account, 1, first=4, attempt="y")  # secure noise, interrupted in round 4 and drawn anew
    assert account.charges == 6
    pool = account.ledger.populations["people"]
    assert pool.runs["a"].rounds == {0, 1, 2, 3, 4}
    assert pool.spent(DELTA) == pytest.approx(spent(plan(), DELTA, 6))


def test_runs_on_the_same_people_add_up(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    pay(book.open_run("a", "people", plan(1.0)), 5)
    pay(book.open_run("b", "people", plan(2.0)), 5)
    pay(book.open_run("c", "others", plan(1.0)), 50)
    both = book.populations["people"].spent(DELTA)
    assert spent(plan(1.0), DELTA, 5) < both < spent(plan(1.0), DELTA, 10)


def test_a_budget_is_enforced_across_runs(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    book.set_budget("people", 100, 3.0, DELTA)
    first = book.open_run("a", "people", plan())
    most = first.rounds_left(1000)
    assert 2 < most < 1000
    assert spent(plan(), DELTA, most) <= 3.0 < spent(plan(), DELTA, most + 1)
    pay(first, most - 1)
    second = book.open_run("b", "people", plan())
    pay(second, 1)
    for account, index in ((second, 1), (first, most - 1)):
        with pytest.raises(BudgetSpent, match="'people', epsilon 3"):
            account.charge(index, "")
    assert book.populations["people"].spent(DELTA) <= 3.0
    assert second.rounds_left(10) == 0
    assert first.charges == most - 1  # what was refused left nothing behind
    pay(first, 1)  # a round that was paid for may be repeated
    with pytest.raises(UsageError, match="--change"):
        book.set_budget("people", 100, 4.0, DELTA)
    book.set_budget("people", 100, 4.0, DELTA, change=True)
    pay(second, 1, first=1)
    with pytest.raises(UsageError, match="before the first round"):
        book.set_budget("people", 100, 4.0, DELTA, adaptive=True, change=True)


def test_an_adaptive_budget_is_stricter(tmp_path: Path) -> None:
    """It holds however later runs were chosen, so it cannot count as tightly."""
    book = Ledger(tmp_path / "l.db")
    book.set_budget("people", 100, 3.0, DELTA, adaptive=True)
    book.set_budget("others", 100, 3.0, DELTA)
    strict = book.open_run("a", "people", plan()).rounds_left(1000)
    loose = book.open_run("a", "others", plan()).rounds_left(1000)
    assert 1 < strict < loose
    pay(book.open_run("a", "people", plan()), strict)
    pool = book.populations["people"]
    assert pool.spent(DELTA) <= pool.filtered() <= 3.0
    assert filter_order(1.0, 1e-6) > filter_order(8.0, 1e-6) >= 2
    replaced = plan_of(methods.dp_fedavg(noise=1.0), FixedSize(10), 100, 5, Relation.REPLACE_ONE)
    book.set_budget("third", 100, 3.0, DELTA, Relation.REPLACE_ONE, adaptive=True)
    third = book.open_run("a", "third", replaced)
    with pytest.raises(NoGuarantee):  # no Renyi bound is known for this
        third.charge(0, "")


def test_bounded_participation_counts_repeats(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    account = book.open_run("a", "people", plan(cohort=Bounded(10, 2)))
    pay(account, 10, attempt="x")
    before = book.populations["people"].spent(DELTA)
    pay(account, 1, first=9, attempt="y")
    book.set_budget("people", 100, book.populations["people"].spent(DELTA) * 1.001, DELTA)
    with pytest.raises(BudgetSpent):  # again, it would be a fourth participation
        pay(account, 1, first=9, attempt="z")
    pay(account, 1, first=10, attempt="z")  # while a new round is covered by the cap
    three = spent(plan(cohort=Bounded(10, 3)), DELTA, 10)
    assert before == pytest.approx(spent(plan(cohort=Bounded(10, 2)), DELTA, 10))
    assert book.populations["people"].spent(DELTA) == pytest.approx(three)


def test_shares_are_counted_as_what_they_add_up_to(tmp_path: Path) -> None:
    cohort = SecretParticipation(10)
    shares = plan_of(with_secure_noise(methods.dp_fedavg(noise=1.0), cohort), cohort, 100, 20)
    book = Ledger(tmp_path / "l.db")
    pay(book.open_run("a", "people", shares), 5)
    assert book.populations["people"].spent(DELTA) == pytest.approx(spent(shares, DELTA, 5))


@pytest.mark.parametrize(
    "other", [plan(clients=200), plan_of(methods.dp_fedavg(noise=1.0), Poisson(10), 100, 5, Relation.ZERO_OUT)]
)
def test_runs_on_other_terms_do_not_add_up(tmp_path: Path, other: Plan) -> None:
    book = Ledger(tmp_path / "l.db")
    book.open_run("a", "people", plan())
    with pytest.raises(NoGuarantee, match="do not add up"):
        book.open_run("b", "people", other)
    with pytest.raises(UsageError, match="cannot change"):
        book.set_budget("people", 200, 1.0, DELTA)


def test_a_run_cannot_change_its_plan(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    pay(book.open_run("a", "people", plan(50.0)), 1)
    with pytest.raises(LedgerError, match="another plan"):
        book.open_run("a", "people", plan(0.5))


def test_a_copy_that_is_open_at_the_same_time_is_found_out(tmp_path: Path) -> None:
    shutil.copy(filled(tmp_path / "l.db"), tmp_path / "copy.db")
    original = Ledger(tmp_path / "l.db").open_run("b", "people", plan())
    copy = Ledger(tmp_path / "copy.db").open_run("b", "people", plan())
    original.charge(0, "")
    with pytest.raises(LedgerError):
        pay(copy, 3)
    assert copy.charges <= 1


def test_of_two_copies_that_charge_at_the_same_moment_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both looked at the memory before either wrote to it."""
    shutil.copy(filled(tmp_path / "l.db"), tmp_path / "copy.db")
    original = Ledger(tmp_path / "l.db", own=True).open_run("b", "people", plan())
    copy = Ledger(tmp_path / "copy.db", own=True).open_run("b", "people", plan())
    known = seen.known

    def at_the_same_moment(*asked: Any) -> Any:
        monkeypatch.setattr(seen, "known", known)
        found = known(*asked)
        original.charge(0, "")
        return found

    monkeypatch.setattr(seen, "known", at_the_same_moment)
    with pytest.raises(LedgerError, match="not the one this machine has seen"):
        copy.charge(0, "x")
    assert original.charges == 1


@pytest.mark.parametrize("name", ["People", "people ", " PEOPLE", "peo ple", "\N{FULLWIDTH LATIN SMALL LETTER P}eople"])
def test_the_same_people_have_one_budget(tmp_path: Path, name: str) -> None:
    """Under a name that reads alike they would have a second."""
    book = Ledger(tmp_path / "l.db")
    book.set_budget("people", 100, 3.0, DELTA)
    if name.strip() == "people":
        with pytest.raises(UsageError, match="has a budget of epsilon 3 already"):
            book.set_budget(name, 100, 3.0, DELTA)
        assert book.open_run("a", name, plan()).population == "people"
    else:
        for call in (lambda: book.set_budget(name, 100, 3.0, DELTA), lambda: book.open_run("a", name, plan())):
            with pytest.raises(UsageError, match="knows the population 'people', which reads like"):
                call()
    assert list(book.populations) == ["people"]


def test_a_ledger_that_is_looked_at_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "l.db")
    older = path.read_bytes()
    pay(Ledger(path).open_run("a", "people", plan()), 2, first=6)
    (tmp_path / "older.db").write_bytes(older)
    with pytest.raises(LedgerError, match="older copy"):  # it is held against what is remembered
        Ledger(tmp_path / "older.db", look=True)
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    book = Ledger(tmp_path / "older.db", look=True)
    assert book.populations["people"].runs["a"].charges == 6
    for call in (lambda: pay(book.open_run("a", "people", plan()), 1, first=6), lambda: book.set_budget("x", 9, 1.0, DELTA)):
        with pytest.raises(LedgerError, match="to be looked at alone"):
            call()
    book.close()
    assert (tmp_path / "older.db").read_bytes() == older
    assert not (tmp_path / "home").exists()
    with pytest.raises(LedgerError, match="There is no ledger"):
        Ledger(tmp_path / "none.db", look=True)
    assert not (tmp_path / "none.db").exists()


def test_a_ledger_that_goes_on_while_it_is_looked_at_is_not_taken_for_an_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may charge a round after the looker read the entries and before it asks what was seen of them."""
    path = filled(tmp_path / "l.db")
    known, owner = seen.known, Ledger(path)

    def asked_later(*given: Any) -> Any:
        monkeypatch.setattr(seen, "known", known)
        pay(owner.open_run("a", "people", plan()), 1, first=6)
        return known(*given)

    monkeypatch.setattr(seen, "known", asked_later)
    assert Ledger(path, look=True).populations["people"].runs["a"].charges == 7


def test_bad_budgets(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    for epsilon, delta, size in ((0.0, DELTA, 9), (1.0, 0.0, 9), (1.0, 1.0, 9), (float("nan"), DELTA, 9), (1.0, DELTA, 0)):
        with pytest.raises(UsageError):
            book.set_budget("people", size, epsilon, delta)


CHILD = """
import sys
from hush import Poisson, methods, plan_of
from hush.privacy.ledger import BudgetSpent, Ledger
account = Ledger(sys.argv[1]).open_run(sys.argv[2], "people", plan_of(methods.dp_fedavg(noise=1.0), Poisson(10), 100, 100))
paid = 0
try:
    for index in range(1000):
        account.charge(index, "")
        paid += 1
except BudgetSpent:
    print(paid)
"""


def test_two_processes_cannot_spend_the_same_budget(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.db")
    book.set_budget("people", 100, 3.0, DELTA)
    most = book.open_run("alone", "people", plan()).rounds_left(1000)
    arguments = [sys.executable, "-c", CHILD, str(tmp_path / "l.db")]
    children = [subprocess.Popen([*arguments, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    paid = [int(child.communicate(timeout=120)[0]) for child in children]
    assert sum(paid) == most
    again = Ledger(tmp_path / "l.db")
    assert again.populations["people"].spent(DELTA) <= 3.0
    assert [again.populations["people"].runs[name].charges for name in "ab" if name in again.populations["people"].runs] == [
        n for n in paid if n
    ]


def filled(path: Path) -> Path:
    book = Ledger(path)
    pay(book.open_run("a", "people", plan()), 6)
    book.close()
    return path


def change(path: Path, *commands: str) -> None:
    with sqlite3.connect(path) as db:
        for command in commands:
            db.execute(command)
    db.close()


@pytest.mark.parametrize(
    ("commands", "told"),
    [
        (["UPDATE entries SET body = replace(body, '\"round\": 3', '\"round\": 2') WHERE seq = 6"], "entry 6 is not what it was"),
        (["UPDATE entries SET hash = 'x' WHERE seq = 4"], "entry 4 is not what it was"),
        (["DELETE FROM entries WHERE seq = 5"], "entry 5 is missing"),
        (["DELETE FROM entries WHERE seq > 6"], "cut short"),
        (["DELETE FROM entries"], "does not begin as ledgers do"),
        (["UPDATE entries SET seq = 99 WHERE seq = 3", "UPDATE entries SET seq = 3 WHERE seq = 4"], "tampered"),
    ],
)
def test_tampering_is_found(tmp_path: Path, commands: list[str], told: str) -> None:
    path = filled(tmp_path / "l.db")
    change(path, *commands)
    with pytest.raises(LedgerError, match=told):
        Ledger(path)


def test_a_chain_rewritten_as_a_whole_is_found_by_memory(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT seq, kind, body FROM entries ORDER BY seq").fetchall()
        previous = "0" * 64
        for seq, kind, body in rows:
            forged = body.replace('"clients": 100', '"clients": 100').replace('"std": 1.0', '"std": 9.0')
            previous = _link(previous, seq, kind, forged)
            db.execute("UPDATE entries SET body = ?, hash = ? WHERE seq = ?", (forged, previous, seq))
    db.close()
    with pytest.raises(LedgerError, match="not the one this machine has seen"):
        Ledger(path)


def test_an_older_copy_cannot_be_spent_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    shutil.copy(path, tmp_path / "backup.db")
    book = Ledger(path)
    pay(book.open_run("a", "people", plan()), 2, first=6)
    book.close()
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(tmp_path / "backup.db")


def test_a_ledger_that_was_deleted_is_missed(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    path.unlink()
    with pytest.raises(LedgerError, match="would be forgotten"):
        Ledger(path)
    own = tmp_path / "own.db"
    Ledger(own, own=True).close()
    own.unlink()
    Ledger(own, own=True).close()  # a run's own goes with its folder


def lose_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file where a folder should be: nobody can write there, not even root."""
    (tmp_path / "no-home").write_text("")
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "no-home" / "below"))


def test_a_machine_that_cannot_remember_refuses_a_shared_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "l.db")
    shutil.copy(path, tmp_path / "backup.db")
    lose_memory(monkeypatch, tmp_path)
    for place in (path, tmp_path / "backup.db", tmp_path / "new.db"):
        with pytest.raises(LedgerError, match=r"an older copy .* would pass unseen: .*HUSH_HOME.*--no-rollback-protection"):
            Ledger(place)
    own = Ledger(tmp_path / "own.db", own=True)  # a run's own may go without
    pay(own.open_run("a", "people", plan()), 2)
    assert own.no_memory is None
    typed = Ledger(path, rollback_protection=False)
    pay(typed.open_run("b", "people", plan()), 2)
    assert typed.entries == 10
    assert typed.no_memory is not None


def test_memory_counts_also_where_it_need_not_be_there(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    shutil.copy(path, tmp_path / "backup.db")
    book = Ledger(path, rollback_protection=False)
    pay(book.open_run("a", "people", plan()), 2, first=6)
    assert book.no_memory is None
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(tmp_path / "backup.db", rollback_protection=False)


@pytest.mark.parametrize("gone", ["the folder", "the file", "its last write"])
def test_a_memory_that_vanishes_between_charges_stops_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HUSH_HOME", str(home))
    book = Ledger(tmp_path / "l.db")
    account = book.open_run("a", "people", plan())
    pay(account, 1)
    if gone == "the folder":
        home.rename(tmp_path / "elsewhere")
        home.write_text("")
    elif gone == "the file":
        (home / "ledgers.sqlite").write_bytes(b"no longer a database" * 100)
    else:
        monkeypatch.setattr(seen, "remember", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
    for call in (
        lambda: account.charge(1, ""),
        lambda: account.rounds_left(5),
        lambda: book.open_run("b", "people", plan()),
        lambda: book.set_budget("others", 100, 1.0, DELTA),
    ):
        with pytest.raises(LedgerError, match="would pass unseen"):
            call()
    # what was refused before it was written cost nothing; what could not be remembered afterwards is paid for, and was not drawn
    assert account.charges == (2 if gone == "its last write" else 1)


def a_database(path: Path, *commands: str) -> bytes:
    change(path, *commands)
    return path.read_bytes()


OTHERS = {
    "one byte": lambda path: b"a",
    "text": lambda path: b"not a database at all, but long enough to be read as one" * 30,
    "a broken header": lambda path: b"SQLite format 3\x00" + b"\xff" * 500,
    "another program's": lambda path: a_database(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"),
    "another program's, WAL": lambda path: a_database(path, "PRAGMA journal_mode=WAL", "CREATE TABLE t (a)"),
    "a database without tables": lambda path: a_database(path, "PRAGMA user_version=3"),
    "a table of our name": lambda path: a_database(path, "CREATE TABLE entries (seq INTEGER PRIMARY KEY, kind, body, hash)"),
    "a row too wide": lambda path: a_database(
        path, "CREATE TABLE entries (seq INTEGER PRIMARY KEY, a, b, c, d)", "INSERT INTO entries VALUES (1, 'open', 2, 3, 4)"
    ),
    "a ledger cut short": lambda path: filled(path).read_bytes()[:-4096],
    "a ledger's first bytes": lambda path: filled(path).read_bytes()[:100],
    "a ledger without its last byte": lambda path: filled(path).read_bytes()[:-1],
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_ledger_is_refused_and_left_as_it_is(tmp_path: Path, kind: str, own: bool) -> None:
    path = tmp_path / "folder" / "l.db"
    path.parent.mkdir()
    content = OTHERS[kind](path)
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"is not a ledger that can be used|has been tampered with"):
            Ledger(path, own=own)
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["l.db"]


def test_a_folder_and_a_device_are_no_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(LedgerError, match="is not a ledger that can be used: it is not a file"):
            Ledger(place)
    monkeypatch.chdir(tmp_path)
    Ledger(":memory:").close()  # a file's name like any other
    assert (tmp_path / ":memory:").is_file()


def test_an_empty_file_becomes_a_ledger_unless_its_entries_are_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    path.touch()
    book = Ledger(path)
    pay(book.open_run("a", "people", plan()), 2)
    beside = (tmp_path / "l.db-wal").read_bytes()
    assert beside
    (tmp_path / "cut.db").touch()
    (tmp_path / "cut.db-wal").write_bytes(beside)
    with pytest.raises(LedgerError, match="still holds what was written"):
        Ledger(tmp_path / "cut.db")
    assert (tmp_path / "cut.db-wal").read_bytes() == beside


KILLED = """
import os, signal, sqlite3, sys
from hush.privacy import ledger
right = ledger.Ledger._append
def append(self, *entry):
    right(self, *entry)
    self._db.execute("PRAGMA cache_spill=1"), self._db.execute("PRAGMA cache_size=1")
    self._db.execute("CREATE TABLE many AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 999) "
                     "SELECT randomblob(900) FROM n")  # more than the cache holds: it goes to the file before the commit
    os.kill(os.getpid(), signal.SIGKILL)
ledger.Ledger._append = append
ledger.Ledger(sys.argv[1])
"""


def test_a_ledger_whose_making_was_killed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert path.stat().st_size
    assert (tmp_path / "l.db-journal").is_file()
    book = Ledger(path)
    assert book.entries == 1
    assert book.contains(book.head)


def test_a_ledger_that_was_killed_is_read_with_what_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    book = Ledger(path)
    pay(book.open_run("a", "people", plan()), 3)
    for end in ("", "-wal"):  # as SIGKILL leaves them, without the index of the second
        shutil.copy(f"{path}{end}", tmp_path / f"killed.db{end}")
    assert Ledger(tmp_path / "killed.db").entries == 5


def test_a_ledger_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "l.db")
    monkeypatch.setattr(ledger_module, "_WAIT", 0.1)
    account = Ledger(path).open_run("b", "people", plan())
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")  # another process that never ends
        with pytest.raises(LedgerError, match=r"cannot be written: database is locked\."):
            account.charge(0, "")
        other.execute("ROLLBACK")
    other.close()
    account.charge(0, "")  # and nothing was lost


def test_entries_tell_what_they_are(tmp_path: Path) -> None:
    path = filled(tmp_path / "l.db")
    with sqlite3.connect(path) as db:
        body = json.loads(db.execute("SELECT body FROM entries WHERE seq = 3").fetchone()[0])
    assert body["population"] == "people"
    assert body["phase"]["sampling"] == {"kind": "PoissonSampling", "rate": 0.1, "population": 100, "by": "server"}
    assert Ledger(path).contains(Ledger(path).head)
    assert not Ledger(path).contains("0" * 64)
