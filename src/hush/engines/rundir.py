"""A run on disk: every file is whole or absent, whatever kills the process.

    config.json  rounds.jsonl  diagnostics.jsonl  checkpoint.safetensors  model.safetensors  result.json  certificate.json
    ledger.sqlite (what was charged, round by round)  run.json (the run's name, its secret, and a digest of settings and data)

`run.json` and `checkpoint.safetensors` are readable by their owner alone, and deleted when the run is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hush.errors import DataError, HushError

CHECKPOINT = "checkpoint.safetensors"
IDENTITY = "run.json"
LEDGER = "ledger.sqlite"


class DiskError(HushError):
    """The disk refused; what was written before is whole."""


class RunDir:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path  # made by the first file: a run that is refused leaves nothing behind

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    @property
    def started(self) -> bool:
        names = ("result.json", CHECKPOINT, IDENTITY, "config.json", "rounds.jsonl", LEDGER)
        return any((self.path / name).is_file() for name in names)

    def write_bytes(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """All of it under its name, or nothing: a draft is flushed to the disk and then renamed."""
        draft = self.path / f".{name}.draft"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.replace(draft, self.path / name)
            _flush_folder(self.path)
        except OSError as error:
            if self.path.is_dir():
                draft.unlink(missing_ok=True)
            raise DiskError(f"{self.path / name} cannot be written: {error.strerror}. What was saved before is intact.") from error

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def digest(self, name: str) -> str:
        """SHA-256 of a file."""
        return hashlib.sha256((self.path / name).read_bytes()).hexdigest()

    def write_json(self, name: str, value: Any, mode: int = 0o644) -> None:
        self.write_bytes(name, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode(), mode)

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, str], mode: int = 0o644) -> None:
        self.write_bytes(name, tensors_as_bytes(tensors, meta), mode)

    def read_json(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text(), object_pairs_hook=_each_key_once, parse_constant=_no_number)
        except FileNotFoundError:
            raise DataError(f"{self.path} holds no run: {name} is not there.") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}.") from error

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """The tensors and their notes, or None where there is no such file."""
        from safetensors import SafetensorError, safe_open

        path = self.path / name
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as f:
                return {key: f.get_tensor(key) for key in list(f.keys())}, f.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} is damaged ({error}): delete the folder and start the run again.") from error

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, allow_nan=False) + "\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / name).open("a") as f:
                f.write(line)
                f.flush()
                os.fsync(f.fileno())  # on the disk before the checkpoint that counts on it
        except OSError as error:
            raise DiskError(f"{self.path / name} cannot be written: {error.strerror}. What was saved before is intact.") from error

    def read_rounds(self, name: str, rounds: int) -> list[dict[str, Any]]:
        """The records of the first `rounds` rounds."""
        path = self.path / name
        kept = []
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("round", rounds + 1) <= rounds:
                kept.append(record)
        return kept

    def keep_rounds(self, name: str, rounds: int) -> list[dict[str, Any]]:
        """The same; later or half-written ones are what a killed round left, and are dropped."""
        kept = self.read_rounds(name, rounds)
        if self.has(name):
            self.write_bytes(name, "".join(json.dumps(r) + "\n" for r in kept).encode())
        return kept

    @property
    def secrets(self) -> list[Path]:
        """What a run needs only to go on; and drafts, which hold as much, and which only a process that was killed leaves."""
        kept = [self.path / name for name in (CHECKPOINT, IDENTITY)]
        return [path for path in (*kept, *sorted(self.path.glob(".*.draft"))) if path.is_file()]

    def forget_secrets(self) -> None:
        """Of a run that is complete."""
        for path in self.secrets:
            path.unlink(missing_ok=True)


def tensors_as_bytes(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> bytes:
    """A file of tensors, before it is one."""
    import safetensors.torch

    whole = {key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    return safetensors.torch.save(whole, dict(meta))


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that stands there twice, readers would see one value and programs another."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' stands there twice")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _flush_folder(path: Path) -> None:
    """A name that the disk does not hold yet could be lost: a secret whose noise was released, say."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
