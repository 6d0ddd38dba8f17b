"""What was read from files that take long to decode is kept, so that the next run starts at once.

One safetensors file for each data set, under `HUSH_CACHE`, else the user's cache. Nothing depends on it: a file that is
damaged is made anew, and where none can be written there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from hush.tasks.fetch import File, named_or_cache
from hush.tasks.raw import Raw
from hush.tasks.task import Examples
from hush.version import __version__


def keep_decoded(name: str, files: Sequence[File], read: Callable[[], Raw]) -> Raw:
    """What `read` gives, or gave before for the same name, files and version of Hush.

    Settings of the reader that change what it gives belong into the name.
    """
    try:
        key = hashlib.sha256("\n".join([__version__, *(file.sha256 for file in files)]).encode()).hexdigest()[:16]
        path = cache_dir() / "decoded" / f"{name}-{key}.safetensors"
    except RuntimeError:  # a user without a home
        return read()
    if (kept := _kept(path)) is not None:
        return kept
    raw = read()
    _keep(path, raw)
    return raw


def cache_dir() -> Path:
    """Where things are kept that can be made again: `HUSH_CACHE`, or the user's cache."""
    return named_or_cache("HUSH_CACHE")


def _kept(path: Path) -> Raw | None:
    """What an earlier run kept, or None where that is not there or not whole."""
    from safetensors import safe_open

    try:
        if not ours(path):
            return None
        with safe_open(path, framework="pt") as f:
            tensors = {key: f.get_tensor(key) for key in list(f.keys())}
            notes = f.metadata()
        if notes["sha256"] != _digest(tensors, notes["names"]):
            return None
        return Raw(
            Examples(tensors["train.x"], tensors["train.y"]),
            Examples(tensors["test.x"], tensors["test.y"]),
            tensors.get("owner"),
            tensors.get("test_owner"),
            tuple(json.loads(notes["names"])),
        )
    except Exception:  # whatever is wrong with it, the files themselves are still there
        return None


def ours(path: Path) -> bool:
    """Whether nobody else could have written it: its checksum is its own word."""
    if not hasattr(os, "getuid"):  # Windows keeps a user's cache to the user
        return True
    about = [place.stat() for place in (path, path.parent)]
    return all(place.st_uid == os.getuid() and not place.st_mode & 0o022 for place in about)


def _keep(path: Path, raw: Raw) -> None:
    import safetensors.torch

    parts = {
        "train.x": raw.train.x,
        "train.y": raw.train.y,
        "test.x": raw.test.x,
        "test.y": raw.test.y,
        "owner": raw.owner,
        "test_owner": raw.test_owner,
    }
    tensors = {key: value.contiguous() for key, value in parts.items() if value is not None}
    names = json.dumps(raw.names)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.draft")  # one for each process and thread
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        safetensors.torch.save_file(tensors, draft, {"sha256": _digest(tensors, names), "names": names})
        draft.chmod(0o600)
        os.replace(draft, path)
    except Exception:  # no room, no right to write: then the next run reads the files again
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _digest(tensors: dict[str, Tensor], names: str) -> str:
    """SHA-256 over everything that is kept."""
    whole = hashlib.sha256(names.encode())
    for key in sorted(tensors):
        value = tensors[key]
        whole.update(f"\n{key} {value.dtype} {list(value.shape)}\n".encode())
        whole.update(value.numpy().reshape(-1).data)
    return whole.hexdigest()
