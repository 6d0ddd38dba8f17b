"""MNIST and Fashion-MNIST: four gzipped IDX files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from hush.errors import DataError
from hush.tasks.clients import Examples
from hush.tasks.idx import read_idx
from hush.tasks.raw import Raw


def read_mnist(paths: Mapping[str, Path]) -> Raw:
    """Images `[n, 1, 28, 28]` as bytes, and their labels."""
    return Raw(_part(paths, "train"), _part(paths, "t10k"))


def _part(paths: Mapping[str, Path], prefix: str) -> Examples:
    images, labels = (paths[f"{prefix}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1"))
    x, y = torch.from_numpy(read_idx(images).copy()), torch.from_numpy(read_idx(labels).copy()).long()
    if x.dim() != 3 or y.dim() != 1 or len(x) != len(y):
        raise DataError(f"{images} and {labels.name} do not hold as many images as labels: fetch them again.")
    return Examples(x[:, None], y)
