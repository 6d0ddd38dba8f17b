"""CIFAR-10 and CIFAR-100 in their binary versions: records of label bytes, then 1,024 red, green and blue bytes."""

from __future__ import annotations

import lzma
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from hush.tasks.raw import Raw
from hush.tasks.readers.archive import tar_members
from hush.tasks.readers.damaged import damaged, reading
from hush.tasks.task import Examples

CIFAR10 = "cifar-10-binary.tar.gz"
CIFAR100 = "cifar-100-binary.tar.gz"
TRAIN10 = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST10 = "test_batch.bin"
PIXELS = 3 * 32 * 32


def read_cifar10(paths: Mapping[str, Path], *, records: int = 10_000) -> Raw:
    """From the archive, or from its six files, plain or each compressed with xz; every one holds `records` images."""
    names = (*TRAIN10, TEST10)
    if CIFAR10 in paths:
        *train, test = _members(paths[CIFAR10], {f"cifar-10-batches-bin/{name}": records for name in names}, labels=1, classes=10)
    else:
        size = records * (1 + PIXELS)
        with ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as threads:  # lzma lets other threads run
            contents = threads.map(lambda name: _content(paths, name, size), names)
            *train, test = (_examples(*content, records=records, labels=1, classes=10) for content in contents)
    x, y = zip(*train, strict=True)
    return Raw(Examples(torch.cat(x), torch.cat(y)), test)


def read_cifar100(paths: Mapping[str, Path], *, train: int = 50_000, test: int = 10_000) -> Raw:
    """From the archive, with the 100 fine labels; of the two label bytes the first is one of 20 coarse labels."""
    inside = {"cifar-100-binary/train.bin": train, "cifar-100-binary/test.bin": test}
    trained, tested = _members(paths[CIFAR100], inside, labels=2, classes=100)
    return Raw(trained, tested)


def _members(path: Path, records: Mapping[str, int], labels: int, classes: int) -> list[Examples]:
    """Of each of the archive's files that are named, with how many images it holds."""
    parts = {
        member: _examples(f"{member} of {path}", content.getvalue(), records=records[member], labels=labels, classes=classes)
        for member, content in tar_members(path, records)
    }
    return [parts[member] for member in records]


def _content(paths: Mapping[str, Path], name: str, size: int) -> tuple[str, bytes]:
    """What to call a file in errors, and what is in it."""
    path = paths.get(f"{name}.xz") or paths[name]
    opened = lzma.open if path.name.endswith(".xz") else Path.open
    with reading(path, OSError, EOFError, lzma.LZMAError), opened(path, "rb") as f:
        return str(path), f.read(size + 1)  # one byte more than right is enough to see that it is wrong


def _examples(name: str, content: bytes, *, records: int, labels: int, classes: int) -> Examples:
    """The images of a file, and of their `labels` label bytes the last."""
    size = records * (labels + PIXELS)
    if len(content) != size:
        held = f"{len(content):,}" if len(content) < size else "more"
        raise damaged(f"{name} holds {held} bytes instead of {size:,}")
    table = np.frombuffer(content, dtype=np.uint8).reshape(records, -1)
    y = table[:, labels - 1]
    if (wrong := np.flatnonzero(y >= classes)).size:
        raise damaged(f"{name} gives record {wrong[0]:,} the label {y[wrong[0]]}, which is not one of 0 to {classes - 1}")
    x = table[:, labels:].copy().reshape(records, 3, 32, 32)
    return Examples(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))
