"""Packed entries: exactly so many bits each, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.secagg.packing import Vector, add_packed, kind_of, pack, packed_bytes, reduced, signed, unpack

bits_of = st.integers(1, 64)


def packed(vector: Vector, bits: int) -> bytes:
    """As it lies in a message."""
    return b"".join(pack(vector, bits))


@given(bits_of, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
@settings(max_examples=200, deadline=None)
def test_what_is_packed_comes_back_modulo_two_to_the_bits(bits: int, values: list[int]) -> None:
    vector = reduced(np.array(values, dtype=np.int64), bits)
    data = packed(vector, bits)
    assert len(data) == packed_bytes(len(values), bits)
    assert [int(v) for v in unpack(data, len(values), bits)] == [v % 2**bits for v in values]


@pytest.mark.parametrize("bits", range(1, 13))
def test_every_value_of_a_small_modulus_comes_back(bits: int) -> None:
    values = np.arange(2**bits, dtype=np.int64)
    assert (unpack(packed(reduced(values, bits), bits), len(values), bits) == values).all()


@pytest.mark.parametrize("bits", range(1, 65))
def test_the_wire_carries_no_more_than_the_bits_need(bits: int) -> None:
    """Whole planes are rounded up to bytes: at most seven bytes more in all."""
    for entries in (1, 7, 8, 9, 1000):
        assert entries * bits / 8 <= packed_bytes(entries, bits) <= entries * bits / 8 + 7


def test_twenty_four_bits_are_three_bytes() -> None:
    assert packed_bytes(1_000_000, 24) == 3_000_000
    assert packed(np.array([0x030201, 0x060504], dtype="<u4"), 24) == bytes([1, 2, 4, 5, 3, 6])


@given(bits_of, st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_adding_packed_entries_adds_them(bits: int, pairs: list[tuple[int, int]]) -> None:
    one, two = (reduced(np.array([pair[i] for pair in pairs], dtype=np.uint64), bits) for i in range(2))
    total = one.copy()
    add_packed(total, memoryview(packed(two, bits)), bits)
    assert [int(v) for v in reduced(total, bits)] == [(a + b) % 2**bits for a, b in pairs]


@pytest.mark.parametrize("bits", [1, 5, 8, 11, 16, 24, 33, 64])
@pytest.mark.parametrize("off", [-1, 1, 100])
def test_data_of_another_length_is_refused(bits: int, off: int) -> None:
    size = packed_bytes(10, bits)
    with pytest.raises(ValueError, match="entries"):
        unpack(bytes(max(0, size + off)), 10, bits)


@pytest.mark.parametrize("bits", [0, -1, 65])
def test_no_entry_has_this_many_bits(bits: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        packed_bytes(10, bits)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_integers_of_any_kind_are_reduced_and_left_alone(dtype: str) -> None:
    given_ = np.array([0, 1, 5, 100], dtype=dtype)
    if given_.dtype.kind == "i":
        given_ = np.concatenate([given_, -given_])
    before = given_.copy()
    for bits in (1, 3, 8, 13, 24, 40, 64):
        own = reduced(given_, bits)
        assert [int(v) for v in own] == [int(v) % 2**bits for v in given_]
        assert own.dtype == kind_of(bits)
        own[:] = 1
        assert (given_ == before).all()


def test_bytes_that_do_not_lie_at_even_addresses_are_read() -> None:
    vector = np.arange(9, dtype="<u4") * 1000
    data = b"x" + packed(vector, 24)
    assert (unpack(memoryview(data)[1:], 9, 24) == vector).all()


@pytest.mark.parametrize("bits", [7, 8, 12, 24, 31, 32, 48, 64])
def test_vectors_longer_than_any_block_come_back(bits: int) -> None:
    """Long ones are worked through in pieces; their seams must not show."""
    rng = np.random.default_rng(bits)
    for entries in (4095, 65_536, 140_001):
        vector = reduced(rng.integers(0, 2**63, entries, dtype=np.uint64) * np.uint64(2), bits)
        total = vector.copy()
        add_packed(total, packed(vector, bits), bits)
        assert (unpack(packed(vector, bits), entries, bits) == vector).all()
        assert (reduced(total, bits) == reduced(vector + vector, bits)).all()


def test_packing_leaves_the_vector_alone_and_keeps_nothing_of_it() -> None:
    """What is sent must not change when the vector does."""
    vector = np.arange(50, dtype="<u4")
    pieces = pack(vector, 32)
    before = b"".join(pieces)
    vector[:] = 0
    assert b"".join(pieces) == before


@pytest.mark.parametrize("bits", range(2, 65))
def test_sums_are_read_around_zero_for_every_number_of_bits(bits: int) -> None:
    half = 2 ** (bits - 1)
    numbers = np.array([0, 1, -1, half - 1, -half], dtype=np.int64)
    assert signed(reduced(numbers, bits), bits).tolist() == numbers.tolist()
