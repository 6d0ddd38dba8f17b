"""What this machine remembers of ledgers: the last entry of each, which one stood where, and which one a run was charged in.

A chain tells whether something in it was changed; only a memory outside of it tells that it was cut short, rewritten as a whole, or
replaced by an older copy. A memory that cannot be written raises `OSError` or `sqlite3.Error`: what then holds, the ledger decides.
Whoever only looks at ledgers, of anybody, leaves no trace here: `look=True`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hush.secret import state_dir

WAIT = 60.0
"""Seconds that one process waits for another's transaction."""
_TABLES = {
    "seen": "ledger TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL",
    "places": "path TEXT PRIMARY KEY, ledger TEXT NOT NULL",
    "runs": "run TEXT PRIMARY KEY, ledger TEXT NOT NULL",
}
Entry = tuple[int, str]
"""Its number and its hash."""


@contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    """Alone with it, also to read: a memory that can only be read would be found out after something was spent."""
    folder = state_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(sqlite3.connect(folder / "ledgers.sqlite", timeout=WAIT, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        for table, columns in _TABLES.items():
            db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        yield db
        db.execute("COMMIT")


@contextmanager
def _looked_at() -> Iterator[sqlite3.Connection]:
    """Nothing is made or changed; where there is no memory yet, an empty one."""
    file = state_dir() / "ledgers.sqlite"
    try:
        file.stat()
    except FileNotFoundError:
        place = ":memory:"
    else:
        place = f"{file.as_uri()}?mode=rw"  # no `ro`: what a killed process left half-written is taken back first
    with closing(sqlite3.connect(place, uri=True, timeout=WAIT, isolation_level=None)) as db:
        db.execute("BEGIN")
        yield db


def _find(db: sqlite3.Connection, table: str, key: str) -> tuple[Any, ...] | None:
    """What follows a key; a memory that is only looked at may have no such table yet."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is None:
        return None
    row = db.execute(f"SELECT * FROM {table} WHERE {_TABLES[table].split()[0]} = ?", (key,)).fetchone()
    return tuple(row[1:]) if row else None


def _last(db: sqlite3.Connection, ledger: str) -> Entry | None:
    found = _find(db, "seen", ledger)
    return (int(found[0]), str(found[1])) if found else None


def known(ledger: str, path: Path, look: bool = False) -> tuple[str | None, Entry | None]:
    """The ledger that this machine has seen at a path; and of `ledger` the last entry that it has seen."""
    with _looked_at() if look else _memory() as db:
        there = _find(db, "places", str(path.resolve()))
        return there[0] if there else None, _last(db, ledger)


def remember(ledger: str, seq: int, digest: str, path: Path | None) -> Entry | None:
    """Never backwards. What is remembered by now: something else, where a copy went on at the same time."""
    with _memory() as db:
        db.execute(
            "INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET seq = excluded.seq, hash = excluded.hash "
            "WHERE excluded.seq > seen.seq",
            (ledger, seq, digest),
        )
        if path is not None:
            db.execute("INSERT OR IGNORE INTO places VALUES (?, ?)", (str(path.resolve()), ledger))
        return _last(db, ledger)


def charged_in(run: str, look: bool = False) -> str | None:
    """The ledger that a run was first charged in on this machine."""
    with _looked_at() if look else _memory() as db:
        found = _find(db, "runs", run)
    return found[0] if found else None


def claim(run: str, ledger: str) -> None:
    """Remember that a run is charged in a ledger, if none is remembered yet."""
    with _memory() as db:
        db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?)", (run, ledger))
