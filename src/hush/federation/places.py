"""Places of coordinates as bytes: a bitmap, or the places one after another in as many bits as the last one needs; whichever is
shorter. Nobody has to be told which: it follows from how many there are and where they end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def are_places(value: Tensor, most: int) -> bool:
    """Whether these are places, ascending, of coordinates below `most`: `write` can shorten them."""
    if value.dtype != torch.int64 or value.dim() != 1 or not len(value):
        return False
    return bool(value[0] >= 0) and bool(value[-1] < most) and bool((value[1:] > value[:-1]).all())


def write(places: Tensor) -> tuple[int, bytes]:
    """Where the places end, and their bytes."""
    held = places.cpu().numpy()
    end = int(held[-1]) + 1
    if end <= len(held) * _width(end):
        whole = np.zeros(end, dtype=np.uint8)
        whole[held] = 1
        return end, np.packbits(whole, bitorder="little").tobytes()
    planes = held[:, None] >> np.arange(_width(end)) & 1
    return end, np.packbits(planes.astype(np.uint8), axis=None, bitorder="little").tobytes()


def read(raw: bytes, count: int, end: int, most: int) -> Tensor:
    """The inverse, of places below `most`; `ValueError` for whatever `write` does not write."""
    if type(count) is not int or type(end) is not int or not 0 < count <= end <= most:
        raise ValueError("no such places")
    as_bitmap = end <= count * _width(end)
    bits = end if as_bitmap else count * _width(end)
    if len(raw) != -(-bits // 8):
        raise ValueError("places of another length")
    single = np.unpackbits(np.frombuffer(raw, dtype=np.uint8), count=bits, bitorder="little")
    if as_bitmap:
        held = np.flatnonzero(single)
    else:
        held = single.reshape(count, -1).astype(np.int64) @ (np.int64(1) << np.arange(_width(end)))
    if len(held) != count or held[-1] != end - 1 or (held[1:] <= held[:-1]).any():
        raise ValueError("these are no ascending places")
    return torch.from_numpy(held.astype(np.int64, copy=False))


def _width(end: int) -> int:
    return max(1, (end - 1).bit_length())
