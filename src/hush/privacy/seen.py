"""What this machine remembers of ledgers: the last entry of each, and which one stood where.

A chain tells whether something in it was changed; only a memory outside of it tells that it was cut short, rewritten as a whole, or
replaced by an older copy.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hush.secret import state_dir

_WAIT = 60.0
"""Seconds that one process waits for another's transaction."""


def _memory() -> sqlite3.Connection:
    folder = state_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    db = sqlite3.connect(folder / "ledgers.sqlite", timeout=_WAIT, isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS seen (ledger TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL)")
    db.execute("CREATE TABLE IF NOT EXISTS places (path TEXT PRIMARY KEY, ledger TEXT NOT NULL)")
    return db


def ledger_at(path: Path) -> str | None:
    """The ledger that this machine has seen at a path."""
    try:
        db = _memory()
        row = db.execute("SELECT ledger FROM places WHERE path = ?", (str(path.resolve()),)).fetchone()
        db.close()
    except (sqlite3.Error, OSError):
        return None
    return str(row[0]) if row else None


def last_entry(ledger: str) -> tuple[int, str] | None:
    """The last entry of a ledger that this machine has seen: its number and hash."""
    try:
        db = _memory()
        row = db.execute("SELECT seq, hash FROM seen WHERE ledger = ?", (ledger,)).fetchone()
        db.close()
    except (sqlite3.Error, OSError):
        return None
    return (int(row[0]), str(row[1])) if row else None


def remember(ledger: str, seq: int, digest: str, path: Path | None) -> None:
    """Never backwards. A machine without a place to remember still has the chain."""
    try:
        db = _memory()
        db.execute(
            "INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET seq = excluded.seq, hash = excluded.hash "
            "WHERE excluded.seq > seen.seq",
            (ledger, seq, digest),
        )
        if path is not None:
            db.execute("INSERT OR IGNORE INTO places VALUES (?, ?)", (str(path.resolve()), ledger))
        db.close()
    except (sqlite3.Error, OSError):
        pass
