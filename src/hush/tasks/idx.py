"""The IDX format of MNIST and its relatives: a big-endian header, then unsigned bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hush.errors import DataError


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes."""
    return gzipped_idx(path, str(path))


def gzipped_idx(source: Path | IO[bytes], name: str) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file that is open already, as inside an archive; `name` is what errors call it."""
    try:
        with gzip.open(source, "rb") as f:
            raw = f.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} cannot be read ({error}): fetch it again.") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(f"{name} is not an IDX file of unsigned bytes: fetch it again.")
    axes = raw[3]
    start = 4 + 4 * axes
    if len(raw) < start:
        raise DataError(f"{name} ends inside its header: fetch it again.")
    shape = struct.unpack(f">{axes}I", raw[4:start])
    values = np.frombuffer(raw, dtype=np.uint8)[start:]  # a view: the larger sets are not copied
    if len(values) != int(np.prod(shape, dtype=np.int64)):
        raise DataError(
            f"{name} holds {len(values):,} values where its header promises {'x'.join(map(str, shape))}: fetch it again."
        )
    return values.reshape(shape)
