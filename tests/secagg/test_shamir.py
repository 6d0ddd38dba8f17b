"""Shamir's sharing: any threshold of shares gives the secret, and one fewer leaves every secret possible."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hush.secagg import shamir
from hush.secagg.shamir import PRIME, SECRET_BYTES, SHARE_BYTES, combine, split

secrets_of_32 = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)


def interpolate(points: dict[int, int], x: int) -> int:
    """The value at x of the polynomial through some points: written anew, and naively, so as to check the other one."""
    total = 0
    for i, y in points.items():
        term = y
        for j in points:
            if j != i:
                term = term * (x - j) * pow(i - j, PRIME - 2, PRIME) % PRIME
        total += term
    return total % PRIME


def test_the_modulus_is_a_prime_above_every_secret() -> None:
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (*range(2, 60), *(int.from_bytes(os.urandom(30), "big") + 2 for _ in range(20))):  # Miller and Rabin
        x = pow(base, odd, PRIME)
        assert x in (1, PRIME - 1) or any(pow(x, 2**i, PRIME) == PRIME - 1 for i in range(1, twos)), base
    assert 2**256 <= PRIME < 2 ** (8 * SHARE_BYTES)


@given(secrets_of_32, st.integers(1, 5), st.integers(0, 3), st.data())
@example(bytes(32), 3, 2, None)
@example(b"\xff" * 32, 2, 2, None)
@example(bytes(31) + b"\1", 3, 1, None)
@settings(max_examples=40, deadline=None)
def test_every_subset_of_threshold_shares_gives_the_secret(
    secret: bytes, threshold: int, more: int, data: st.DataObject | None
) -> None:
    count = threshold + more
    places = (
        data.draw(st.lists(st.integers(1, 5000), min_size=count, max_size=count, unique=True))
        if data
        else list(range(1, count + 1))
    )
    shares = dict(zip(places, split(secret, threshold, places), strict=True))
    for chosen in combinations(places, threshold):
        assert combine({x: shares[x] for x in chosen}) == secret


@given(secrets_of_32, secrets_of_32, st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_one_share_fewer_leaves_every_secret_possible(secret: bytes, other: bytes, threshold: int) -> None:
    """For any secret whatsoever there is exactly one polynomial through threshold - 1 given shares: they say nothing."""
    places = list(range(1, threshold + 1))
    shares = dict(zip(places, split(secret, threshold, places), strict=True))
    known = {x: int.from_bytes(shares[x], "big") for x in places[:-1]}
    last = interpolate({0: int.from_bytes(other, "big"), **known}, places[-1])
    forged = {x: value.to_bytes(SHARE_BYTES, "big") for x, value in {**known, places[-1]: last}.items()}
    assert combine(forged) == other


def test_shares_of_one_secret_are_drawn_anew_each_time() -> None:
    seen = {share for _ in range(50) for share in split(bytes(32), 3, [1, 2, 3])}
    assert len(seen) == 150


def test_the_top_bytes_of_a_share_are_uniform_for_a_secret_of_zeros() -> None:
    counts = [0] * 16
    for _ in range(1600):
        counts[split(bytes(32), 2, [1, 2])[0][1] >> 4] += 1  # the first byte is the 257th bit, nearly always zero
    chi = sum((count - 100) ** 2 / 100 for count in counts)
    assert chi < 70  # 15 degrees of freedom: beyond it less than once in a hundred million


def test_a_vector_computed_by_hand_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """f(x) = 7 + 5 x + 3 x^2: 15, 29, 49."""
    drawn = iter([5, 3])
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda _: next(drawn))
    secret = (7).to_bytes(32, "big")
    shares = split(secret, 3, [1, 2, 3])
    assert [int.from_bytes(share, "big") for share in shares] == [15, 29, 49]
    assert combine(dict(zip((1, 2, 3), shares, strict=True))) == secret


def test_a_precomputed_vector_of_large_numbers_is_met() -> None:
    """Shares that anyone can compute from f(x) = s + a x: the format of old messages must not change unseen."""
    secret, slope = int.from_bytes(bytes(range(32)), "big"), PRIME - 12345
    shares = {x: ((secret + slope * x) % PRIME).to_bytes(33, "big") for x in (1, 4000)}
    assert combine(shares) == bytes(range(32))


@pytest.mark.parametrize(("threshold", "places"), [(0, [1, 2]), (-1, [1, 2]), (3, [1, 2]), (1, [])])
def test_a_threshold_that_no_shares_can_have_is_refused(threshold: int, places: list[int]) -> None:
    with pytest.raises(ValueError, match="threshold"):
        split(bytes(32), threshold, places)


@pytest.mark.parametrize("places", [[0, 1], [1, 1], [-1, 2], [1, 2**64]])
def test_places_that_would_give_the_secret_away_or_collide_are_refused(places: list[int]) -> None:
    with pytest.raises(ValueError, match="places"):
        split(bytes(32), 2, places)


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        split(bytes(length), 2, [1, 2, 3])


@given(secrets_of_32, st.integers(0, 2), st.binary(min_size=33, max_size=33))
@settings(max_examples=60, deadline=None)
def test_a_false_share_gives_another_secret_or_an_error_and_nothing_else(secret: bytes, which: int, false: bytes) -> None:
    shares = dict(zip((1, 2, 3), split(secret, 3, (1, 2, 3)), strict=True))
    if int.from_bytes(shares[which + 1], "big") == int.from_bytes(false, "big"):
        return
    shares[which + 1] = false
    with suppress(ValueError):
        assert combine(shares) != secret


def test_a_share_beyond_the_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="field"):
        combine({1: PRIME.to_bytes(33, "big"), 2: bytes(33)})
