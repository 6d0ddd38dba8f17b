"""Find or download the files of a data set; nothing is used before its sha256 was seen."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hush.errors import DataError

Progress = Callable[[str, int, int], None]
"""(file name, bytes so far, bytes in all)."""


@dataclass(frozen=True)
class File:
    """One file of a data set."""

    name: str
    size: int | None
    """None where nobody who published it said."""
    sha256: str


def data_dir(given: Path | None = None) -> Path:
    """Where data sets live: the flag, else `HUSH_DATA`, else the user's cache."""
    return given if given is not None else named_or_cache("HUSH_DATA")


def named_or_cache(variable: str) -> Path:
    """The folder that a variable of the environment names, else Hush's in the user's cache."""
    if named := os.environ.get(variable):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hush"


def verified(folder: Path, file: File, dataset: str) -> Path:
    """The path of a file that is there and whole, or one sentence on what to do."""
    path = folder / file.name
    if not path.is_file():
        raise DataError(
            f"{path} is not there: run 'hush data fetch {dataset}', or point HUSH_DATA at a folder that holds {dataset}/."
        )
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise DataError(f"{path} has {size:,} bytes instead of {file.size:,}: delete it and run 'hush data fetch {dataset}'.")
    if sha256_of(path) != file.sha256:
        raise DataError(f"{path} is corrupted (its sha256 differs): delete it and run 'hush data fetch {dataset}'.")
    return path


def sha256_of(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def download(base: str, folder: Path, files: tuple[File, ...], dataset: str, progress: Progress | None = None) -> None:
    """Fetch what is missing. A broken download is resumed; a file gets its name only when its checksum was right."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        path = folder / file.name
        if path.is_file() and file.size in (None, path.stat().st_size) and sha256_of(path) == file.sha256:
            continue
        part = path.with_name(path.name + ".part")
        try:
            _download_one(base + file.name, part, file, progress)
        except (urllib.error.URLError, OSError) as error:
            by_hand = f"or put {file.name} (sha256 {file.sha256}) into {folder} yourself"
            raise DataError(
                f"{base}{file.name} could not be fetched ({error}): run the command again to go on, {by_hand}."
            ) from error
        if sha256_of(part) != file.sha256:
            part.unlink()
            raise DataError(f"{base}{file.name} is not the file it should be (its sha256 differs): nothing was kept.")
        os.replace(part, path)


def _download_one(url: str, part: Path, file: File, progress: Progress | None) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if file.size is not None and have >= file.size:
        part.unlink()
        have = 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        resumed = have > 0 and answer.status == 206
        done = have if resumed else 0
        with part.open("ab" if resumed else "wb") as out:
            while block := answer.read(1 << 16):
                out.write(block)
                done += len(block)
                if file.size is not None and done > file.size:
                    raise OSError(f"it is longer than {file.size:,} bytes")
                if progress is not None:
                    progress(file.name, done, file.size or done)
    if file.size is not None and done != file.size:
        raise OSError(f"it broke off after {done:,} of {file.size:,} bytes")
