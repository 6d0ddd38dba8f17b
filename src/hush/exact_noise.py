"""Integer noise from a cryptographic stream: exact to a total variation distance of 2^-100 per draw, and fast.

Four symmetric laws that fall in |k|, all drawn by the same sampler from the keystream of AES-256:

* `RoundedGaussian`: round(N(0, std^2)). Integer data plus this is round(data + N), so every guarantee of the continuous Gaussian
  mechanism holds for it, as post-processing.
* `DiscreteGaussian`: P(k) ~ exp(-k^2 / (2 std^2)) (Canonne, Kamath, Steinke 2020).
* `Skellam`: the difference of two Poisson(std^2 / 2); sums of Skellam noise are Skellam (Agarwal, Kairouz, Liu 2021).
* `CentredBinomial`: the heads of `trials` fair coins, less half of them (Agarwal, Suresh, Yu, Kumar, McMahan 2018).

The sampler inverts a table of cumulative probabilities held in 128 bits. A draw compares 64 random bits, and reads 64 more in the
rare case that these equal the upper half of a threshold. For a large `std` a cell of the table is not one integer but a run of
2^j of them under a flat envelope, as high as the law is at the end nearest zero; a uniform one of the run is accepted with the
ratio of P(k) to that height. Nearly always the coin is below the lowest ratio of the run; else the ratio is computed in floats,
and where their error could matter, in 256 bits.

Where the 2^-100 comes from: at most 2^12 thresholds rounded to 2^-128, tails of 2^-128 left out, ratios settled with 168 random
bits or more, everything else computed to over 160 bits. It is the distance for ideal random words; that AES-CTR cannot be told
from them is the usual assumption. A guarantee of the exact law therefore holds with n (1 + e^epsilon) 2^-100 added to its delta
for n draws. The time a draw takes depends on what is drawn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from mpmath.ctx_mp import MPContext

from hush.errors import UsageError

SMALLEST_STD = 1e-6
"""Below this there is no noise worth the name."""
LARGEST_STD = 1e9
"""Up to here the word that names an integer of a run has 40 bits or more left for the coin."""

_TAIL_BITS = 129
"""Each of the two tails that a table leaves out holds less than 2^-129."""
_GUIDE_BITS = 16
_DOUBT = 2.0**-32
"""Coins this close to a float ratio are settled in 256 bits. The error of the ratios is below 2^-40: no logarithm that they come
from exceeds 2^8, so a unit in the last place is 2^-45 or less."""
_BLOCK = 1 << 16
"""Draws made at a time, so that what one step leaves is still in the cache at the next."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)

_mp = MPContext()  # of its own: the precision of `mpmath.mp` is the user's
_mp.prec = 256

_FLOATS = (float, np.sqrt, np.arcsinh, np.log)
_LONG = (_mp.mpf, _mp.sqrt, _mp.asinh, _mp.log)


class KeyStream:
    """The AES-256-CTR keystream of a key, from counter zero: **a key must serve one stream only**."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise UsageError(f"a keystream needs a key of 32 bytes, not {len(key)}.")
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> np.ndarray:
        """The next `count` words of the stream, as uint64."""
        words = np.zeros(count, dtype="<u8")
        raw = words.view(np.uint8).data
        self._cipher.update_into(raw, raw)
        return words.astype(np.uint64, copy=False)


@dataclass(frozen=True)
class IntegerNoise(ABC):
    """A symmetric law on the integers that falls in |k|; a subclass says which."""

    std: float

    def __post_init__(self) -> None:
        if not SMALLEST_STD <= self.std <= LARGEST_STD:
            raise UsageError(f"the std of integer noise must be from {SMALLEST_STD:g} to {LARGEST_STD:g}, not {self.std}.")
        object.__setattr__(self, "std", float(self.std))  # a numpy float32 would square in float32

    def draw(self, stream: KeyStream, count: int) -> np.ndarray:
        """`count` independent draws, as int64."""
        table = _table(self, _run_bits(self.std))
        draws = np.empty(count, dtype=np.int64)
        for start in range(0, count, _BLOCK):
            table.fill(stream, draws[start : start + _BLOCK])
        return draws

    def pmf(self, k: int) -> float:
        """P(k)."""
        return float(self.masses([abs(k)])[0])

    def radius(self, bits: int) -> int:
        """The smallest R for which `log_tail` proves P(X > R) < 2^-bits."""
        return bisect_left(range(1 << 40), True, key=lambda r: self.log_tail(r + 1) < -bits * math.log(2))

    @abstractmethod
    def masses(self, points: list[int]) -> list[Any]:
        """P(k) for each k >= 0 in `points`, as mpmath numbers with over 160 correct bits."""

    @abstractmethod
    def log_ratio(self, k: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        """log(P(k) / P(anchor)) in float64, to 2^-40, for 0 <= anchor <= k in one run of the table of a std of 128 or more."""

    @abstractmethod
    def log_tail(self, k: int) -> float:
        """An upper bound of log P(X >= k), k >= 1, that falls in k."""


class RoundedGaussian(IntegerNoise):
    """round(N(0, std^2)): P(k) = Phi((k + 1/2) / std) - Phi((k - 1/2) / std)."""

    def masses(self, points: list[int]) -> list[Any]:
        unit = 2 * _mp.mpf(self.std) * _mp.sqrt(2)
        beyond = {odd: _mp.erfc(odd / unit) / 2 for k in points for odd in (2 * k - 1, 2 * k + 1)}  # P(N > odd / 2)
        return [beyond[2 * k - 1] - beyond[2 * k + 1] for k in points]

    def log_ratio(self, k: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        return np.asarray(_log_gaussian_ratio(k, anchor, self.std) + np.log(self._spread(k) / self._spread(anchor)))

    def log_tail(self, k: int) -> float:
        return -(((k - 0.5) / self.std) ** 2) / 2

    def _spread(self, k: np.ndarray) -> np.ndarray:
        """The mean of exp(-(2kt + t^2) / (2 std^2)) for |t| <= 1/2: P(k) is this times the density at k. Nearly constant in t."""
        spread = np.zeros(k.shape)
        for t, weight in zip(_NODES / 2, _WEIGHTS / 2, strict=True):
            spread += weight * np.exp(-(2 * t * k + t * t) / (2 * self.std * self.std))
        return spread


class DiscreteGaussian(IntegerNoise):
    """P(k) ~ exp(-k^2 / (2 std^2)); below a `std` of about 1 the standard deviation is smaller than that."""

    def masses(self, points: list[int]) -> list[Any]:
        total = self._total()
        return [self._weight(k) / total for k in points]

    def log_ratio(self, k: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        return _log_gaussian_ratio(k, anchor, self.std)

    def log_tail(self, k: int) -> float:
        return -((k / self.std) ** 2) / 2  # it is subgaussian with std^2

    def _weight(self, k: int) -> Any:
        return _mp.exp(-(k * k) / (2 * _mp.mpf(self.std) ** 2))

    def _total(self) -> Any:
        if self.std >= 4:  # by Poisson summation: the other terms are below 2^-450
            return self.std * _mp.sqrt(2 * _mp.pi)
        return 1 + 2 * sum(self._weight(k) for k in range(1, self.radius(300) + 1))


class Skellam(IntegerNoise):
    """The difference of two Poisson(std^2 / 2): P(k) = exp(-v) I_k(v) with v = std^2."""

    def masses(self, points: list[int]) -> list[Any]:
        v = _mp.mpf(self.std) ** 2
        if v < 2**14:
            masses = _scaled_bessel(v, max(self.radius(300), *points))
            return [masses[k] for k in points]
        terms = 2 + math.ceil(160 / math.log2(v))
        return [_mp.exp(_log_scaled_bessel(_mp.mpf(k), v, terms, _LONG)) for k in points]

    def log_ratio(self, k: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        logs = [_log_scaled_bessel(place.astype(np.float64), self.std * self.std, 5, _FLOATS) for place in (k, anchor)]
        return np.asarray(logs[0] - logs[1])

    def log_tail(self, k: int) -> float:
        v = self.std * self.std  # Chernoff's bound, at its best exponent asinh(k / v)
        return k * k / (math.hypot(k, v) + v) - k * math.asinh(k / v)


@dataclass(frozen=True, init=False)
class CentredBinomial(IntegerNoise):
    """Binomial(trials, 1/2) - trials/2 for an even number of trials: P(k) = C(trials, trials/2 + k) / 2^trials."""

    trials: int

    def __init__(self, trials: int) -> None:
        if not 2 <= trials <= 4 * LARGEST_STD**2 or trials != int(trials) or trials % 2:
            raise UsageError(f"trials must be an even whole number from 2 to {4 * LARGEST_STD**2:g}, not {trials}.")
        object.__setattr__(self, "trials", int(trials))
        object.__setattr__(self, "std", math.sqrt(trials) / 2)

    def masses(self, points: list[int]) -> list[Any]:
        half = self.trials // 2  # no logarithm of a factorial exceeds 2^68, so that over 180 of their 256 bits are left
        total = _mp.loggamma(self.trials + 1) - self.trials * _mp.ln2
        logs = [total - _mp.loggamma(half + k + 1) - _mp.loggamma(half - k + 1) if k <= half else -_mp.inf for k in points]
        return [_mp.exp(value) for value in logs]

    def log_ratio(self, k: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        return np.asarray(self._log_fall(anchor) - self._log_fall(k))

    def log_tail(self, k: int) -> float:
        return -2.0 * k * k / self.trials if 2 * k <= self.trials else -math.inf  # Hoeffding

    def _log_fall(self, k: np.ndarray) -> np.ndarray:
        """log(P(0) / P(k)) but for a constant, by Stirling's series, whose next term is below 2^-50 from a std of 128 on.

        With n = trials/2 and x = k/n, (n + k) log(1 + x) + (n - k) log(1 - x) = n (x^2 / 1 + x^4 / 6 + x^6 / 15 + ..): summed so,
        nothing cancels. x is below 1/16 there, and the ninth term below 2^-60.
        """
        half = self.trials / 2
        square = (k / half) ** 2
        series = half * square * _horner([1 / (j * (2 * j - 1)) for j in range(1, 9)], square)
        return np.asarray(series + np.log1p(-square) / 2 + (1 / (half + k) + 1 / (half - k)) / 12)


def _log_gaussian_ratio(k: np.ndarray, anchor: np.ndarray, std: float) -> np.ndarray:
    return np.asarray((anchor - k) * (anchor + k) / (2 * std * std))  # the product is an exact int64


def _scaled_bessel(v: Any, last: int) -> list[Any]:
    """exp(-v) I_k(v) for k = 0 .. last by Miller's downward recurrence; it starts from anything, and the sum over all k is 1."""
    values = [_mp.zero, _mp.one]
    for k in range(last, 0, -1):
        values.append(values[-2] + 2 * k / v * values[-1])
    values = values[:0:-1]
    total = values[0] + 2 * sum(values[1:])
    return [value / total for value in values]


def _log_scaled_bessel(k: Any, v: Any, terms: int, arithmetic: tuple[Callable[[Any], Any], ...]) -> Any:
    """log(exp(-v) I_k(v)) for v >= 2^14 by Debye's expansion (DLMF 10.41.3), in floats or in mpmath's numbers.

    U_j(p) / k^j is written as w^-j times a polynomial in p^2 = (k / w)^2, with w^2 = k^2 + v^2, so that k = 0 is like any other.
    """
    number, sqrt, asinh, log = arithmetic
    w = sqrt(k * k + v * v)
    square = (k / w) * (k / w)
    series = _horner([_horner(row, square) for row in _debye_polynomials(terms, number)], 1 / w)
    return k * k / (w + v) - k * asinh(k / v) - log(2 * number(_mp.pi) * w) / 2 + log(series)


def _horner(coefficients: list[Any], x: Any) -> Any:
    value = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value


@cache
def _debye_polynomials(terms: int, number: Callable[[Any], Any]) -> list[list[Any]]:
    """Row j holds the coefficients of p^j, p^(j+2), .. p^(3j) in U_j(p), by the recurrence DLMF 10.41.9."""
    rows = [[Fraction(1)]]
    for j in range(terms - 1):
        row = [Fraction(0)] * (j + 2)
        for i, c in enumerate(rows[-1]):
            power = j + 2 * i
            row[i] += c * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            row[i + 1] -= c * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        rows.append(row)
    return [[number(c.numerator) / c.denominator for c in row] for row in rows]


def _run_bits(std: float) -> int:
    """log2 of the integers in a cell: runs of std/128 to std/64, single integers below a std of 128."""
    return max(0, math.floor(math.log2(std / 64)))


@dataclass(frozen=True, eq=False)
class _Table:
    noise: IntegerNoise
    bits: int
    first: int  # cell c holds the 2^bits integers from (first + c) 2^bits on
    high: np.ndarray  # the thresholds between cells, in units of 2^-128: the upper 64 bits, and
    low: np.ndarray  # the lower 64
    guide: np.ndarray  # the cell that the leading 16 bits of a word determine, or -1 where a threshold begins with them
    anchors: np.ndarray  # the height of a cell's envelope is P(anchor): no |k| in the cell is below its anchor
    sure: np.ndarray  # words below this accept whatever integer of the cell they name

    def fill(self, stream: KeyStream, draws: np.ndarray) -> None:
        """Fills `draws`; what is rejected is drawn again."""
        draws[:], rejected = self._propose(stream, draws.size)
        while rejected.size:
            draws[rejected], again = self._propose(stream, rejected.size)
            rejected = rejected[again]

    def _propose(self, stream: KeyStream, count: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` integers, and the places of those that are rejected."""
        cells = self._cells(stream, count)
        if self.bits == 0:
            return cells + self.first, np.empty(0, dtype=np.intp)
        words = stream.words(count)  # the low bits say which integer of the run; the others are the coin
        k = ((cells + self.first) << self.bits) + (words & np.uint64((1 << self.bits) - 1)).view(np.int64)
        unsure = np.flatnonzero(words >= self.sure.take(cells))
        accepted = self._accepts(stream, np.abs(k[unsure]), self.anchors[cells[unsure]], words[unsure] >> np.uint64(self.bits))
        return k, unsure[~accepted]

    def _cells(self, stream: KeyStream, count: int) -> np.ndarray:
        """`count` cells, each drawn with its probability."""
        words = stream.words(count)
        cells = self.guide.take((words >> np.uint64(64 - _GUIDE_BITS)).view(np.int64))
        unclear = np.flatnonzero(cells < 0)
        cells[unclear] = self._search(stream, words[unclear])
        return cells

    def _search(self, stream: KeyStream, words: np.ndarray) -> np.ndarray:
        """How many thresholds are at most the 128-bit number that begins with each word."""
        cells = np.searchsorted(self.high, words, side="left")
        ends = np.searchsorted(self.high, words, side="right")
        for i in np.flatnonzero(cells < ends):  # the next 64 bits decide
            cells[i] += np.searchsorted(self.low[cells[i] : ends[i]], stream.words(1)[0], side="right")
        return cells

    def _accepts(self, stream: KeyStream, k: np.ndarray, anchor: np.ndarray, coins: np.ndarray) -> np.ndarray:
        """Whether each coin falls below its ratio P(k) / P(anchor)."""
        excess = coins * 2.0 ** (self.bits - 64) - np.exp(self.noise.log_ratio(k, anchor))
        accepted = np.asarray(excess < 0)
        for i in np.flatnonzero(np.abs(excess) < _DOUBT):
            accepted[i] = self._settle(stream, int(k[i]), int(anchor[i]), int(coins[i]))
        return accepted

    def _settle(self, stream: KeyStream, k: int, anchor: int, coin: int) -> bool:
        """The same for one coin, continued by 128 bits."""
        upper, lower = (int(word) for word in stream.words(2))
        mass, height = self.noise.masses([k, anchor])
        return bool(_mp.ldexp((coin << 128) + (upper << 64) + lower, self.bits - 64 - 128) * height < mass)


@lru_cache(maxsize=32)
def _table(noise: IntegerNoise, bits: int) -> _Table:
    last = noise.radius(_TAIL_BITS) >> bits
    cells = range(-last, last + 1) if bits == 0 else range(-last - 1, last + 1)
    steps = [abs(c) if bits == 0 else min(abs(c), abs(c + 1)) for c in cells]  # anchors, in runs: equal on both sides of zero
    masses = noise.masses([step << bits for step in range(last + 2)])
    sure = [max(0, int(_mp.ldexp(after / mass - _DOUBT, 64))) for mass, after in pairwise(masses)]
    high, low = _thresholds([int(_mp.ldexp(masses[step], 192 + bits)) for step in steps])
    anchors = np.array(steps, dtype=np.int64) << bits
    return _Table(noise, bits, cells[0], high, low, _guide(high), anchors, np.array(sure, dtype=np.uint64)[steps])


def _thresholds(weights: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The inner edges of cells with these weights, where all of them together are 2^128: upper and lower words."""
    edges = list(accumulate(weights))
    scaled = [(edge << 128) // edges[-1] for edge in edges[:-1]]
    low = [edge & ((1 << 64) - 1) for edge in scaled]
    return np.array([edge >> 64 for edge in scaled], dtype=np.uint64), np.array(low, dtype=np.uint64)


def _guide(high: np.ndarray) -> np.ndarray:
    starts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
    cells = np.searchsorted(high, starts, side="left")
    ends = np.searchsorted(high, starts + np.uint64((1 << (64 - _GUIDE_BITS)) - 1), side="right")
    return np.where(cells == ends, cells, -1)
