"""What this machine remembers of ledgers: the last entry of each, and which one stood where.

A chain tells whether something in it was changed; only a memory outside of it tells that it was cut short, rewritten as a whole, or
replaced by an older copy. A memory that cannot be written raises `OSError` or `sqlite3.Error`: what then holds, the ledger decides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hush.secret import state_dir

_WAIT = 60.0
"""Seconds that one process waits for another's transaction."""


@contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    """Alone with it, also to read: a memory that can only be read would be found out after something was spent."""
    folder = state_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(sqlite3.connect(folder / "ledgers.sqlite", timeout=_WAIT, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE IF NOT EXISTS seen (ledger TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL)")
        db.execute("CREATE TABLE IF NOT EXISTS places (path TEXT PRIMARY KEY, ledger TEXT NOT NULL)")
        yield db
        db.execute("COMMIT")


def known(ledger: str, path: Path) -> tuple[str | None, tuple[int, str] | None]:
    """The ledger that this machine has seen at a path; and of `ledger` the last entry that it has seen, its number and hash."""
    with _memory() as db:
        there = db.execute("SELECT ledger FROM places WHERE path = ?", (str(path.resolve()),)).fetchone()
        last = db.execute("SELECT seq, hash FROM seen WHERE ledger = ?", (ledger,)).fetchone()
    return there[0] if there else None, (int(last[0]), str(last[1])) if last else None


def remember(ledger: str, seq: int, digest: str, path: Path | None) -> None:
    """Never backwards."""
    with _memory() as db:
        db.execute(
            "INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET seq = excluded.seq, hash = excluded.hash "
            "WHERE excluded.seq > seen.seq",
            (ledger, seq, digest),
        )
        if path is not None:
            db.execute("INSERT OR IGNORE INTO places VALUES (?, ?)", (str(path.resolve()), ledger))
