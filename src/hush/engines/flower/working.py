"""Where one process of Hush's keeps what Flower needs: a temporary folder, which the next process removes if this one is killed.

It lies with the temporary ones, where another user may be let in and a socket's path stays short (108 bytes). Which one it is
stands in its owner's folder.
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
import tempfile
from pathlib import Path

from hush.errors import UsageError


class WorkingFolder:
    """One folder, `path`, for one process at a time; `kind` is client or server, `owner` the folder with its keys."""

    def __init__(self, kind: str, owner: Path) -> None:
        self._note = owner / f"{kind}.tmp"
        self._held = self._note.open("a+")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._held.close()
            raise UsageError(f"Another hush {kind} runs for {owner} already: end it first.") from None
        self._held.seek(0)
        left = Path(self._held.read().strip())
        if left.name.startswith(f"hush-{kind}-"):
            shutil.rmtree(left, ignore_errors=True)
        self.path = Path(tempfile.gettempdir()) / f"hush-{kind}-{secrets.token_hex(4)}"
        self._held.truncate(0)
        self._held.write(f"{self.path}\n")
        self._held.flush()  # before it is there
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._note.unlink(missing_ok=True)
        self._held.close()
