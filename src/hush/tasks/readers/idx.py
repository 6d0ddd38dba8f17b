"""The IDX format of MNIST and its relatives: gzipped, a big-endian header, then unsigned bytes."""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from hush.errors import DataError
from hush.tasks.clients import Examples
from hush.tasks.raw import Raw
from hush.tasks.readers.damaged import damaged, reading

EMNIST_CLASSES = 62


def read_mnist(paths: Mapping[str, Path]) -> Raw:
    """MNIST and Fashion-MNIST, four files: images `[n, 1, 28, 28]` as bytes, and their labels."""

    def part(prefix: str) -> Examples:
        images, labels = (paths[f"{prefix}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1"))
        x, y = torch.from_numpy(read_idx(images).copy()), torch.from_numpy(read_idx(labels).copy()).long()
        if x.dim() != 3 or y.dim() != 1 or len(x) != len(y):
            raise DataError(f"{images} and {labels.name} do not hold as many images as labels: fetch them again.")
        return Examples(x[:, None], y)

    return Raw(part("train"), part("t10k"))


def read_emnist(paths: Mapping[str, Path]) -> Raw:
    """EMNIST by class, from NIST's archive: labels 0 to 9 are digits, 10 to 35 capital letters, 36 to 61 small ones."""
    path = paths["gzip.zip"]

    def part(archive: zipfile.ZipFile, name: str) -> Examples:
        x, y = (_member(path, archive, f"gzip/emnist-byclass-{name}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
        if x.shape != (len(x), 28, 28) or y.shape != (len(x),):
            raise damaged(f"{path} holds {name} images of {x.shape} and labels of {y.shape}")
        if (wrong := np.flatnonzero(y >= EMNIST_CLASSES)).size:
            raise damaged(f"{path} gives {name} image {wrong[0]:,} the label {y[wrong[0]]}, not one of 0 to {EMNIST_CLASSES - 1}")
        upright = x.transpose(0, 2, 1).copy()  # the file holds every image with rows and columns exchanged
        return Examples(torch.from_numpy(upright[:, None]), torch.from_numpy(y.astype(np.int64)))

    with reading(path, OSError, EOFError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return Raw(part(archive, "train"), part(archive, "test"))


def _member(path: Path, archive: zipfile.ZipFile, member: str) -> NDArray[np.uint8]:
    if member not in archive.namelist():
        raise damaged(f"{path} does not hold {member}")
    with archive.open(member) as f:
        return read_idx(f, f"{member} of {path}")


def read_idx(source: Path | IO[bytes], name: str = "") -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes; one that is open already, as inside an archive, gets a name for errors."""
    name = name or str(source)
    with reading(name, OSError, EOFError, zlib.error), gzip.open(source, "rb") as f:
        raw = f.read()
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise damaged(f"{name} is not an IDX file of unsigned bytes")
    axes = raw[3]
    start = 4 + 4 * axes
    if len(raw) < start:
        raise damaged(f"{name} ends inside its header")
    shape = struct.unpack(f">{axes}I", raw[4:start])
    values = np.frombuffer(raw, dtype=np.uint8)[start:]  # a view: the larger sets are not copied
    if len(values) != int(np.prod(shape, dtype=np.int64)):
        raise damaged(f"{name} holds {len(values):,} values where its header promises {'x'.join(map(str, shape))}")
    return values.reshape(shape)
