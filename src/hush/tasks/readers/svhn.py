"""Street View House Numbers, cropped digits, from its three MATLAB files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hush.tasks.raw import Raw
from hush.tasks.readers.damaged import damaged, reading
from hush.tasks.task import Examples

TRAIN = ("train_32x32.mat", "extra_32x32.mat")
TEST = "test_32x32.mat"


def read_svhn(paths: Mapping[str, Path]) -> Raw:
    """Train and extra together are trained on, in this order; a file writes the digit 0 as 10."""
    return Raw(_examples([paths[name] for name in TRAIN]), _examples([paths[TEST]]))


def _examples(files: list[Path]) -> Examples:
    """Of several files, each put into its place as it is read: the larger sets are in memory twice for a moment only."""
    counts = [_count(path) for path in files]
    x = torch.empty((sum(counts), 3, 32, 32), dtype=torch.uint8)
    y = torch.empty(sum(counts), dtype=torch.int64)
    start = 0
    for path, count in zip(files, counts, strict=True):
        part = slice(start, start + count)
        y[part] = torch.from_numpy(_digits(path, count))
        x.numpy()[part] = _variable(path, "X").transpose(3, 2, 0, 1)  # MATLAB counts the images last
        start += count
    return Examples(x, y)


def _count(path: Path) -> int:
    """How many images a file promises, without reading them."""
    from scipy.io import whosmat

    with reading(path, Exception):  # scipy's parser answers a damaged file with errors of many kinds
        held = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    shape, kind = held.get("X", ((), ""))
    if kind != "uint8" or len(shape) != 4 or shape[:3] != (32, 32, 3):
        raise damaged(f"{path} holds no images of 32 x 32 x 3 bytes")
    return int(shape[3])


def _digits(path: Path, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    y = _variable(path, "y").ravel()
    if len(y) != count:
        raise damaged(f"{path} holds {count:,} images and {len(y):,} labels")
    if (wrong := np.flatnonzero((y < 1) | (y > 10))).size:
        raise damaged(f"{path} gives image {wrong[0]:,} the label {y[wrong[0]]}, which is not one of 1 to 10")
    return y.astype(np.int64) % 10


def _variable(path: Path, name: str) -> np.ndarray[Any, Any]:
    from scipy.io import loadmat

    with reading(path, Exception):
        held = loadmat(path, variable_names=[name])
    if name not in held:
        raise damaged(f"{path} holds no variable {name}")
    return np.asarray(held[name])
