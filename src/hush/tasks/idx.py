"""The IDX format of MNIST and its relatives: a big-endian header, then unsigned bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hush.errors import DataError


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes."""
    try:
        with gzip.open(path, "rb") as f:
            raw = f.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again.") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an IDX file of unsigned bytes: fetch it again.")
    axes = raw[3]
    if len(raw) < 4 + 4 * axes:
        raise DataError(f"{path} ends inside its header: fetch it again.")
    shape = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
    body = raw[4 + 4 * axes :]
    if len(body) != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{path} holds {len(body):,} values where its header promises {'x'.join(map(str, shape))}: fetch it again.")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
