"""Masks: the keystream of AES in counter mode, added to or taken from a vector of whole numbers modulo 2^bits.

A vector of unsigned integers is worked through in pieces that stay in the cache, and each piece meets all masks before the next.
Nothing here loops over entries: the speed is that of AES.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hush.secagg.packing import Vector

_PIECE = 1 << 17
"""Bytes: a piece of the vector and one of the keystream fit the second-level cache of one core together."""
_ZEROS = bytes(_PIECE)
BLOCK = 16


def add_masks(vector: Vector, plus: Sequence[bytes], minus: Sequence[bytes], start: int = 0) -> None:
    """Adds the masks of the seeds in `plus` to `vector` in place, and takes those in `minus` from it.

    A seed is a key of AES **that serves one mask only**. `start` is where `vector` begins in the whole, in entries, so that
    several processes can each work on a part; it must be at a whole block of AES.
    """
    first, rest = divmod(start * vector.itemsize, BLOCK)
    if rest:
        raise ValueError("a part of a mask begins at a whole block")
    counter = first.to_bytes(BLOCK, "big")
    streams = [(Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor(), True) for seed in plus]
    streams += [(Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor(), False) for seed in minus]
    room = bytearray(_PIECE + BLOCK)  # what the cipher writes into must be longer than what it writes
    mask = np.frombuffer(room, dtype=vector.dtype, count=_PIECE // vector.itemsize)
    for begin in range(0, len(vector), len(mask)):
        piece = vector[begin : begin + len(mask)]
        zeros, drawn = (_ZEROS, mask) if len(piece) == len(mask) else (_ZEROS[: piece.nbytes], mask[: len(piece)])
        for stream, positive in streams:
            stream.update_into(zeros, room)
            if positive:
                np.add(piece, drawn, out=piece)
            else:
                np.subtract(piece, drawn, out=piece)
