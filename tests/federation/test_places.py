"""Places of coordinates: what was written is what is read, in as few bytes as are counted; nothing else is read."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hush.federation import letters, places
from hush.federation.letters import BadLetter
from hush.transforms.sparsify import mask_bits

sets = st.sets(st.integers(0, 3000), min_size=1).map(sorted)


@given(sets, st.integers(0, 100_000))
def test_what_is_written_is_read(held: list[int], more: int) -> None:
    dim = held[-1] + 1 + more
    told, pieces = letters.pack([torch.tensor(held)], dim)
    (back,) = letters.unpack(told, pieces, dim)
    assert back.dtype == torch.int64
    assert back.tolist() == held
    assert len(pieces[0]) <= -(-mask_bits(len(held), dim) // 8)


@given(sets)
def test_there_is_one_way_to_write_them(held: list[int]) -> None:
    end, raw = places.write(torch.tensor(held))
    for other in (raw + b"\0", raw[:-1]):
        with pytest.raises(ValueError, match="length"):
            places.read(other, len(held), end, end)
    for count, last in ((len(held) + 1, end), (len(held), end + 1), (0, end), (-1, end), (len(held), 0)):
        with suppress(ValueError):
            assert places.read(raw, count, last, 4000).tolist() != held
    with pytest.raises(ValueError, match="no such places"):
        places.read(raw, len(held), end, end - 1)


@given(st.binary(max_size=40), st.integers(-1, 400), st.integers(-1, 400))
def test_whatever_is_read_is_ascending_and_would_be_written_so(raw: bytes, count: int, end: int) -> None:
    with suppress(ValueError):
        held = places.read(raw, count, end, 300)
        assert len(held) == count
        assert held.tolist() == sorted(set(held.tolist()))
        assert held[-1] == end - 1 < 300


@pytest.mark.parametrize("held", [[3, 2], [1, 1], [-1, 2], [0, 9], []])
def test_other_numbers_stay_numbers(held: list[int]) -> None:
    value = torch.tensor(held, dtype=torch.int64)
    told, pieces = letters.pack([value], 9)
    assert told == [["int64", [len(held)]]]
    assert torch.equal(letters.unpack(told, pieces)[0], value)


@pytest.mark.parametrize("shape", [[1, 2**40], [1], [1, 2, 3], ["1", 2], [1.0, 2.0], [None, 2], [True, 2**70], 5, [2, 1]])
def test_places_of_another_shape_are_a_bad_letter(shape: object) -> None:
    with pytest.raises(BadLetter):
        letters.unpack([["places", shape]], [b"\2\0\0"], 100)
