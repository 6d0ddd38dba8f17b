"""Masks: AES in counter mode, to the letter of NIST's vectors, wherever the work is cut."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.secagg import masks
from hush.secagg.keys import RoundKeys, pair_seed, self_seed
from hush.secagg.masks import add_masks
from hush.secagg.unmask import take_masks
from tests.secagg.drive import identities

# SP 800-38A, F.5.5 CTR-AES256.Encrypt
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = int.from_bytes(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"), "big")
NIST_STREAM = bytes.fromhex(
    "0bdf7df1591716335e9a8b15c860c502"
    "5a6e699d536119065433863c8f657b94"
    "1bc12c9c01610d5d0d8bd6a3378eca62"
    "2956e1c8693536b1bee99c73a31576b6"
)
"""The output blocks there: the keystream itself."""


def mask_of(seed: bytes, entries: int, dtype: str = "<u4", start: int = 0) -> np.ndarray:
    vector = np.zeros(entries, dtype=dtype)
    add_masks(vector, [seed], [], start)
    return vector


def test_the_keystream_is_that_of_nists_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` sets the counter, and NIST's begins at f0f1...: too far for any vector, so the counter is moved, and nothing else."""

    def moved(counter: bytes) -> CTR:
        return CTR((int.from_bytes(counter, "big") + NIST_COUNTER).to_bytes(16, "big"))

    monkeypatch.setattr(masks, "modes", SimpleNamespace(CTR=moved))
    for dtype in ("<u1", "<u2", "<u4", "<u8"):
        got = mask_of(NIST_KEY, 64 // np.dtype(dtype).itemsize, dtype)
        assert got.tobytes() == NIST_STREAM


def test_the_keystream_of_aes_128_is_that_of_nists_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """SP 800-38A, F.5.1 CTR-AES128.Encrypt, its output blocks: what masks are made of."""

    def moved(counter: bytes) -> CTR:
        return CTR((int.from_bytes(counter, "big") + NIST_COUNTER).to_bytes(16, "big"))

    monkeypatch.setattr(masks, "modes", SimpleNamespace(CTR=moved))
    stream = "ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae6a2cc3787889374fbeb4c81b17ba6c44"
    got = mask_of(bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"), 12)
    assert got.tobytes().hex() == stream


def test_a_block_of_the_keystream_is_aes_of_its_place() -> None:
    """FIPS 197, C.3: AES-256 of one block, which is reached through `start`."""
    key = bytes(range(32))
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    start = int.from_bytes(block, "big")
    got = np.zeros(16, dtype=np.uint8)
    add_masks(got, [key], [], start * 16)
    assert got.tobytes() == bytes.fromhex("8ea2b7ca516745bfeafc49904b496089")


def test_no_masks_change_nothing() -> None:
    vector = np.arange(100, dtype="<u4")
    add_masks(vector, [], [])
    assert (vector == np.arange(100)).all()


@given(st.integers(0, 70_000), st.sampled_from(["<u1", "<u2", "<u4", "<u8"]), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_opposite_masks_cancel(entries: int, dtype: str, plus: int, minus: int) -> None:
    seeds = [os.urandom(32) for _ in range(plus + minus)]
    vector = np.arange(entries).astype(dtype)
    before = vector.copy()
    add_masks(vector, seeds[:plus], seeds[plus:])
    add_masks(vector, seeds[plus:], seeds[:plus])
    assert (vector == before).all()


def test_a_mask_is_the_same_each_time_and_another_for_another_seed() -> None:
    one, other = os.urandom(32), os.urandom(32)
    assert (mask_of(one, 1000) == mask_of(one, 1000)).all()
    assert (mask_of(one, 1000) == mask_of(other, 1000)).mean() < 0.01


@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u4", "<u8"])
def test_pieces_of_any_size_give_the_same_mask(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, whole = os.urandom(32), mask_of(NIST_KEY, 5000, dtype)
    other = mask_of(seed, 5000, dtype)
    for piece in (64, 1024, 4096):
        monkeypatch.setattr(masks, "_PIECE", piece)
        monkeypatch.setattr(masks, "_ZEROS", bytes(piece))
        assert (mask_of(NIST_KEY, 5000, dtype) == whole).all()
        assert (mask_of(seed, 5000, dtype) == other).all()


@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u4", "<u8"])
def test_a_part_of_a_mask_is_the_tail_of_the_whole(dtype: str) -> None:
    seed, step = os.urandom(32), 16 // np.dtype(dtype).itemsize
    whole = mask_of(seed, 140_000, dtype)  # more than a piece
    for block in (0, 1, 7, 8192, 8193):
        start = block * step
        assert (mask_of(seed, 140_000 - start, dtype, start) == whole[start:]).all()


def test_a_part_that_begins_inside_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="whole block"):
        mask_of(os.urandom(32), 10, "<u4", 3)


def test_a_keystream_repeats_no_block() -> None:
    blocks = mask_of(os.urandom(32), 1 << 19, "<u4").tobytes()
    assert len({blocks[i : i + 16] for i in range(0, len(blocks), 16)}) == len(blocks) // 16


@pytest.mark.parametrize("dtype", ["<u1", "<u4", "<u8"])
@pytest.mark.parametrize("entries", [1, 5, 1003])
def test_two_processes_take_off_what_one_would(dtype: str, entries: int) -> None:
    plus, minus = [os.urandom(32) for _ in range(3)], [os.urandom(32) for _ in range(2)]
    one = np.arange(entries).astype(dtype)
    two, truth = one.copy(), one.copy()
    take_masks(one, plus, minus, workers=1)
    take_masks(two, plus, minus, workers=2)
    assert (one == two).all()
    add_masks(one, plus, minus)
    assert (one == truth).all()


def test_masks_differ_by_session_pair_and_purpose() -> None:
    """Whatever differs between two uses of one shared secret gives another seed."""
    identity = identities(3)[1]
    mine, theirs = RoundKeys(identity, b"", 0, 0), RoundKeys(identity, b"", 1, 0)
    pair, back = mine.meet(theirs.signed), theirs.meet(mine.signed)
    assert pair.seed(b"a", 0, 1) == pair.seed(b"a", 1, 0) == back.seed(b"a", 0, 1)
    recovered = pair_seed(mine.mask_secret(), b"a", 1, 0, theirs.signed.mask)
    assert recovered == pair.seed(b"a", 0, 1)
    secret = mine.mask_secret()
    seeds = {pair.seed(b"a", 0, 1), pair.seed(b"b", 0, 1), pair.seed(b"a", 0, 2), pair.seed(b"a", 2, 1)}
    seeds |= {self_seed(secret, b"a", 0), self_seed(secret, b"b", 0), self_seed(secret, b"a", 1)}
    assert len(seeds) == 7
