"""Letters: what was written is what is read; whatever else comes is a bad letter, and nothing worse."""

from __future__ import annotations

import hashlib
import json
import struct
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import HushError
from hush.federation import letters
from hush.federation.letters import MOST_HEAD, MOST_PIECES, BadLetter
from hush.secagg.identity import SIGNATURE_BYTES, Identity

ME, OTHER = Identity.generate(), Identity.generate()
MAGIC = b"hush letter 1\n"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
heads = st.dictionaries(st.text(max_size=8).filter(lambda key: key != "lengths"), values, max_size=5)
pieces = st.lists(st.binary(max_size=200), max_size=6)
LETTER = letters.write(ME, {"kind": "propose", "key": ME.public.hex(), "round": 7}, [b"one", b"", b"three" * 5])


def signed(head: bytes, rest: bytes = b"", declared: int | None = None) -> bytes:
    """A letter of this owner's, with whatever in it: its signature holds."""
    body = MAGIC + struct.pack(">I", len(head) if declared is None else declared) + head + rest
    return body + ME.sign(hashlib.sha512(body).digest())


@given(heads, pieces)
def test_what_is_written_is_read(head: dict[str, Any], parts: list[bytes]) -> None:
    raw = letters.write(ME, head, parts)
    told = letters.read(raw, ME.public)
    assert told.head == head
    assert told.pieces == tuple(parts)
    assert told.name == letters.name_of(raw)


@given(st.data())
def test_a_changed_bit_is_a_bad_letter(data: st.DataObject) -> None:
    raw = bytearray(LETTER)
    place = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[place // 8] ^= 1 << place % 8
    with pytest.raises(BadLetter):
        letters.read(bytes(raw), ME.public)


def test_every_beginning_of_a_letter_is_a_bad_letter() -> None:
    for end in range(len(LETTER)):
        with pytest.raises(BadLetter):
            letters.read(LETTER[:end], ME.public)
    with pytest.raises(BadLetter):
        letters.read(LETTER + b"\0", ME.public)


def test_a_letter_of_somebody_else_is_a_bad_letter() -> None:
    with pytest.raises(BadLetter, match="not signed by whom"):
        letters.read(LETTER, OTHER.public)
    theirs = letters.write(OTHER, {"key": ME.public.hex()})
    assert letters.claimed_key(theirs) == ME.public
    with pytest.raises(BadLetter, match="not signed by whom"):
        letters.read(theirs, letters.claimed_key(theirs))


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_a_bad_letter(noise: bytes, ours: bool) -> None:
    for read in (lambda raw: letters.read(raw, ME.public), letters.claimed_key):
        with pytest.raises(BadLetter):
            read((MAGIC if ours else b"") + noise)


@given(st.binary(max_size=100) | values.map(lambda value: json.dumps(value).encode()), st.binary(max_size=50))
def test_what_is_signed_and_senseless_is_a_bad_letter(head: bytes, rest: bytes) -> None:
    with pytest.raises(BadLetter):
        letters.read(signed(head, rest), ME.public)


@pytest.mark.parametrize(
    "lengths",
    [
        [4],  # one more than there are
        [2],
        [-1, 4],
        [2**63],
        [10**400, 3 - 10**400],
        [True, 2],
        [3.0],
        ["3"],
        "3",
        {"3": 3},
        None,
        [0] * (MOST_PIECES + 1) + [3],
        [[3]],
    ],
    ids=lambda value: str(value)[:20],
)
def test_pieces_of_other_lengths_than_a_letter_says_are_a_bad_letter(lengths: Any) -> None:
    with pytest.raises(BadLetter):
        letters.read(signed(json.dumps({"kind": "x", "lengths": lengths}).encode(), b"abc"), ME.public)


@pytest.mark.parametrize("declared", [2**32 - 1, MOST_HEAD + 1, 10**6, 17])
def test_a_head_that_says_it_is_longer_than_the_letter_is_a_bad_letter(declared: int) -> None:
    with pytest.raises(BadLetter):
        letters.read(signed(b'{"lengths": []}', declared=declared), ME.public)


@pytest.mark.parametrize(
    "head", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b'{"lengths": [' + b"1" * 5000 + b"]}", b"\xff\xfe"]
)
def test_json_that_chokes_a_parser_is_a_bad_letter(head: bytes) -> None:
    with pytest.raises(BadLetter):
        letters.read(signed(head), ME.public)
    with pytest.raises(BadLetter):
        letters.claimed_key(signed(head))


def test_a_head_beyond_the_limit_is_a_bad_letter_though_it_is_signed() -> None:
    with pytest.raises(BadLetter):
        letters.read(letters.write(ME, {"long": "x" * MOST_HEAD}), ME.public)


@pytest.mark.parametrize("key", ["12", "zz" * 32, 5, None, ["00" * 32], {"a": 1}, "\N{SNOWMAN}"])
def test_a_claimed_key_is_a_key_or_no_letter(key: Any) -> None:
    raw = letters.write(ME, {"key": key})
    try:
        claimed = letters.claimed_key(raw)
    except BadLetter:
        return
    assert key == "12"
    assert claimed == b"\x12"


@pytest.mark.parametrize("value", [None, 5, True, ["a"], {}])
def test_text_is_text_and_a_number_is_a_number(value: Any) -> None:
    told = letters.read(letters.write(ME, {"it": value}), ME.public)
    with pytest.raises(BadLetter, match="says nothing of 'it'"):
        told.text("it")
    if value != 5 or value is True:
        with pytest.raises(BadLetter):
            told.number("it")
    with pytest.raises(BadLetter):
        told.text("that")


# -- tensors ---------------------------------------------------------------------------------------------------------------------

dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    kind = draw(dtypes)
    made = torch.randint(
        0, 2 if kind is torch.bool else 100, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))
    )
    made = made.to(kind)
    return made.t() if len(shape) == 2 and draw(st.booleans()) else made


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and a == b


@given(
    st.lists(tensors() | st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans(), max_size=6)
)
def test_what_is_packed_is_unpacked(held: list[Any]) -> None:
    told, parts = letters.pack(held)
    raw = letters.write(ME, {"broadcast": told}, parts)
    back = letters.read(raw, ME.public)
    found = letters.unpack(back.head["broadcast"], back.pieces)
    assert len(found) == len(held)
    assert all(same(a, b) for a, b in zip(held, found, strict=True))


def test_every_bit_of_a_model_travels() -> None:
    """Also those of NaN and of minus zero."""
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    (back,) = letters.unpack(*letters.pack([odd]))
    assert torch.equal(odd.view(torch.int32), back.view(torch.int32))


def test_what_cannot_be_sent_is_said() -> None:
    for value in ("text", torch.nn.Linear(1, 1), {}):
        with pytest.raises(HushError, match="cannot be sent"):
            letters.pack([value])


@pytest.mark.parametrize(
    "told",
    [
        [["float32", [3]]],
        [["float32", [1, 1, 1]]],
        [["float32", [2**40]]],
        [["float32", [2**70]]],
        [["float32", [-2]]],
        [["float32", [2.0]]],
        [["float32", ["2"]]],
        [["float32", 2]],
        [["float32", None]],
        [["float32"]],
        [[]],
        [[[], [2]]],
        [["float16", [4]]],
        [["complex64", [1]]],
        [["save", [2]]],
        [["int64", [2]]],
        [["float32", [2]], ["float32", [2]]],
        [],
        [1, None],
        {},
        5,
        None,
        "text",
    ],
    ids=str,
)
def test_a_piece_that_is_not_what_it_says_is_a_bad_letter(told: Any) -> None:
    with pytest.raises(BadLetter):
        letters.unpack(told, [bytes(8)])


@given(values, st.lists(st.binary(max_size=16), max_size=3))
def test_unpacking_anything_at_all_ends_in_values_or_a_bad_letter(told: Any, parts: list[bytes]) -> None:
    with suppress(BadLetter):
        letters.unpack(told, parts)


@given(
    st.lists(
        st.tuples(st.sampled_from(["float32", "bool", "uint8", "float16", "x"]), st.lists(st.integers(-2, 2**65), max_size=3)),
        max_size=2,
    ),
    st.lists(st.binary(max_size=16), max_size=3),
)
@settings(max_examples=200)
def test_shapes_of_any_size_end_in_values_or_a_bad_letter(told: list[tuple[str, list[int]]], parts: list[bytes]) -> None:
    try:
        found = letters.unpack([list(item) for item in told], parts)
    except BadLetter:
        return
    assert sum(len(part) for part in parts) == sum(t.numel() * t.element_size() for t in found)


def test_the_signature_is_over_every_byte_before_it() -> None:
    assert len(LETTER) > SIGNATURE_BYTES
    assert letters.write(ME, {"a": 1}) != letters.write(ME, {"a": 2})
    assert letters.write(ME, {"a": 1}, [b"ab", b"c"]) != letters.write(ME, {"a": 1}, [b"a", b"bc"])
