"""EMNIST by class: digits, capital and small letters, 62 classes, from NIST's archive of gzipped IDX files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from hush.errors import DataError
from hush.tasks.idx import gzipped_idx
from hush.tasks.raw import Raw
from hush.tasks.task import Examples

ARCHIVE = "gzip.zip"
CLASSES = 62


def read_emnist(paths: Mapping[str, Path]) -> Raw:
    """Labels 0 to 9 are the digits, 10 to 35 the capital letters, 36 to 61 the small ones."""
    path = paths[ARCHIVE]
    try:
        with zipfile.ZipFile(path) as archive:
            return Raw(_examples(path, archive, "train"), _examples(path, archive, "test"))
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again.") from error


def _examples(path: Path, archive: zipfile.ZipFile, part: str) -> Examples:
    x = _array(path, archive, f"gzip/emnist-byclass-{part}-images-idx3-ubyte.gz")
    y = _array(path, archive, f"gzip/emnist-byclass-{part}-labels-idx1-ubyte.gz")
    if x.shape != (len(x), 28, 28) or y.shape != (len(x),):
        raise DataError(f"{path} holds {part} images of {x.shape} and labels of {y.shape}: fetch it again.")
    if (wrong := np.flatnonzero(y >= CLASSES)).size:
        raise DataError(
            f"{path} gives {part} image {wrong[0]:,} the label {y[wrong[0]]}, not one of 0 to {CLASSES - 1}: fetch it again."
        )
    upright = x.transpose(0, 2, 1).copy()  # the file holds every image with rows and columns exchanged
    return Examples(torch.from_numpy(upright[:, None]), torch.from_numpy(y.astype(np.int64)))


def _array(path: Path, archive: zipfile.ZipFile, member: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    if member not in archive.namelist():
        raise DataError(f"{path} does not hold {member}: fetch it again.")
    with archive.open(member) as f:
        return gzipped_idx(f, f"{member} of {path}")
