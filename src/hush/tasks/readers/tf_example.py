"""TensorFlow's `tf.train.Example`, from the wire format of protobuf: the little of it that these messages need.

* Example: field 1, the Features.
* Features: field 1, once for each feature, is a pair of its name (1) and its Feature (2).
* Feature: one list, of bytes (1), of floats (2) or of whole numbers (3).
* List: field 1 for each value, or for all numbers of the list together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Feature = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_NAME, _VALUE = (1, _BYTES), (2, _BYTES)


def parse_example(message: bytes) -> dict[str, Feature]:
    """The features by name. What is no such message is a ValueError."""
    found: dict[str, Feature] = {}
    for features in _values(message, _BYTES):
        for entry in _values(features, _BYTES):
            parts = {(number, kind): value for number, kind, value in _fields(entry)}
            if parts.keys() != {_NAME, _VALUE}:
                raise ValueError("a feature is not a name and a value")
            found[parts[_NAME].decode()] = _feature(parts[_VALUE])
    return found


def _feature(message: bytes) -> Feature:
    match list(_fields(message)):  # 2 is the kind _BYTES
        case [(1, 2, texts)]:
            return list(_values(texts, _BYTES))
        case [(2, 2, floats)]:  # joined, numbers that come one by one are what packed ones are
            return np.frombuffer(b"".join(_values(floats, _BYTES, _FOUR)), dtype="<f4").astype(np.float32, copy=False)
        case [(3, 2, integers)]:
            return _integers(b"".join(_values(integers, _BYTES, _VARINT)))
    raise ValueError("a feature is not one list of bytes, floats or whole numbers")


def _integers(packed: bytes) -> NDArray[np.int64]:
    numbers, at = [], 0
    while at < len(packed):
        number, at = _varint(packed, at)
        numbers.append(number)
    return np.array(numbers, dtype=np.uint64).view(np.int64)  # negative ones are two's complements


def _values(message: bytes, *kinds: int) -> Iterator[bytes]:
    """Every value of field 1. Other fields are of versions to come: protobuf passes over them."""
    for number, kind, value in _fields(message):
        if number == 1:
            if kind not in kinds:
                raise ValueError("a field has a type that is not its own")
            yield value


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(number, kind, value) of each field; a number stays the bytes that it is written in."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, end = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            end = at + size
        elif kind in (_EIGHT, _FOUR):
            end = at + (8 if kind == _EIGHT else 4)
        else:
            raise ValueError("a field has a type that does not exist")
        if not 0 < number < 1 << 29:
            raise ValueError("a field has a number that does not exist")
        if end > len(message):
            raise ValueError("a field breaks off")
        yield number, kind, message[at:end]
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, seven bits in a byte and the lowest first; and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number breaks off")
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128 and number < 1 << 64:
            return number, at
    raise ValueError("a number has more than 64 bits")
