"""Shamir's secret sharing of 32 bytes over the prime field of 2^256 + 297: any `threshold` shares give the secret, fewer nothing.

A share is the value at x of a random polynomial of degree threshold - 1 whose constant term is the secret; x is public, small and
not zero. Python's own integers do it: the libraries at hand share 16 bytes at a time in a field of 2^128, a hundred times slower.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, places: Sequence[int]) -> list[bytes]:
    """A share of `secret` for each of `places`, in their order."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes")
    if not 1 <= threshold <= len(places):
        raise ValueError(f"{len(places)} shares cannot have a threshold of {threshold}")
    if len(set(places)) != len(places) or not all(0 < x < 2**64 for x in places):
        raise ValueError("shares lie at distinct places from 1 on")
    rising = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(rising, x).to_bytes(SHARE_BYTES, "big") for x in places]


def _value(rising: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(rising):
        value = (value * x + coefficient) % PRIME
    return value


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of exactly `threshold` true shares, by place. False ones give something else, or `ValueError`."""
    places = tuple(sorted(shares))
    values = [int.from_bytes(shares[x], "big") for x in places]
    if not all(value < PRIME for value in values):
        raise ValueError("a share is not a number of the field")
    secret = sum(weight * value for weight, value in zip(_lagrange(places), values, strict=True)) % PRIME
    if secret >= 2**256:
        raise ValueError("these shares are not of a secret of 32 bytes")
    return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=4096)
def _lagrange(places: tuple[int, ...]) -> tuple[int, ...]:
    """What each share counts for at x = 0: the product of x_j / (x_j - x_i) over the others."""
    whole = prod(places)
    return tuple(whole * pow(x * prod(y - x for y in places if y != x), -1, PRIME) % PRIME for x in places)
