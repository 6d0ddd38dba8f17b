"""Whole numbers modulo 2^bits in exactly so many bits each: the upper planes of all entries after the lower ones.

24 bits are all entries' low 16 bits, then all their high 8: packing is a cast and not a shuffle. What is left below 8 bits goes in
planes of single bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.unsignedinteger]
LARGEST_BITS = 64
_BLOCK = 1 << 15
"""Entries worked on at a time."""


def kind_of(bits: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned integers that hold `bits`: they wrap around at a multiple of 2^bits by themselves."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= bits)}")


def reduced(vector: npt.NDArray[np.integer], bits: int) -> Vector:
    """Any whole numbers as their representatives from 0 to 2^bits - 1, in an array of their own."""
    kind = kind_of(bits)
    own = vector.astype(kind)  # modulo 2^(8 size): a cast of integers drops the upper bits
    if bits < 8 * kind.itemsize:
        np.bitwise_and(own, kind.type(2**bits - 1), out=own)
    return own


def signed(vector: Vector, bits: int) -> npt.NDArray[np.int64]:
    """The representatives around zero, from -2^(bits-1) on: what sums of negative numbers are to be read as."""
    shift = np.int64(64 - bits)
    return vector.astype(np.uint64).view(np.int64) << shift >> shift  # the second shift repeats the sign


def packed_bytes(entries: int, bits: int) -> int:
    """The length of `pack`'s answer."""
    return sum(-(-entries * width // 8) for width, _ in _planes(bits))


def pack(vector: Vector, bits: int) -> list[memoryview]:
    """The lowest `bits` bits of each entry, plane by plane: what is to be sent one after the other."""
    return [_plane(vector, width, shift).data.cast("B") for width, shift in _planes(bits) if len(vector)]


def _plane(vector: Vector, width: int, shift: int) -> npt.NDArray[np.unsignedinteger]:
    if width >= 8:
        plane = np.empty(len(vector), dtype=f"<u{width // 8}")
        for begin in range(0, len(vector), _BLOCK):  # what one step leaves is in the cache at the next
            part = vector[begin : begin + _BLOCK]
            plane[begin : begin + _BLOCK] = part >> part.dtype.type(shift) if shift else part
        return plane
    return np.packbits((vector >> vector.dtype.type(shift) & vector.dtype.type(1)).astype(np.uint8), bitorder="little")


def unpack(data: bytes | memoryview, entries: int, bits: int) -> Vector:
    """The inverse of `pack`, all planes in one."""
    vector = np.zeros(entries, dtype=kind_of(bits))
    add_packed(vector, data, bits)
    return vector


def add_packed(total: Vector, data: bytes | memoryview, bits: int) -> None:
    """Adds packed entries to `total` in place, without unpacking them first."""
    if len(data) != packed_bytes(len(total), bits):
        raise ValueError(f"{len(total):,} entries of {bits} bits take {packed_bytes(len(total), bits):,} bytes, not {len(data):,}")
    place = 0
    planes: list[tuple[Vector, int]] = []
    for width, shift in _planes(bits):
        size = -(-len(total) * width // 8)
        raw = np.frombuffer(data, dtype=np.uint8, count=size, offset=place)
        plane = raw.view(f"<u{width // 8}") if width >= 8 else np.unpackbits(raw, count=len(total), bitorder="little")
        planes.append((plane, shift))
        place += size
    for begin in range(0, len(total), _BLOCK):
        part = total[begin : begin + _BLOCK]
        for plane, shift in planes:
            own = plane[begin : begin + _BLOCK]
            if shift:
                own = own.astype(part.dtype)
                np.left_shift(own, part.dtype.type(shift), out=own)
            np.add(part, own, out=part, casting="same_kind")


def _planes(bits: int) -> Iterator[tuple[int, int]]:
    """(width, lowest bit) of each plane."""
    if not 1 <= bits <= LARGEST_BITS:
        raise ValueError(f"entries have from 1 to {LARGEST_BITS} bits, not {bits}")
    shift = 0
    for width in (64, 32, 16, 8):
        if bits - shift >= width:
            yield width, shift
            shift += width
    for bit in range(shift, bits):
        yield 1, bit
