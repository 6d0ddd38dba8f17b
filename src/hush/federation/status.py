"""What a server does just now, for whoever asks: `hush federation status`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hush.federation.folders import write_text


class Status:
    """`status.json` in the server's folder."""

    def __init__(self, folder: Path) -> None:
        self._path, self._told = folder / "status.json", {"doing": "waiting for clients"}

    def clients(self, told: dict[str, Any]) -> None:
        """Everybody's standing."""
        self._write(told)

    def doing(self, what: str) -> None:
        """The last thing that happened."""
        self._write({"doing": what})

    def ledger(self, file: Path, delta: float | None) -> None:
        """Where what was spent is counted, and the delta that clients were told it at."""
        self._write({"ledger": str(file.resolve()), "delta": delta})

    def _write(self, told: dict[str, Any]) -> None:
        self._told = self._told | told | {"time": time.time()}
        write_text(self._path, json.dumps(self._told, indent=2) + "\n")
