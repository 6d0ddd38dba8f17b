from __future__ import annotations

import ast
import hashlib
import math
import sys
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from hush import exact_noise
from hush.errors import UsageError
from hush.exact_noise import CentredBinomial, DiscreteGaussian, IntegerNoise, KeyStream, RoundedGaussian, Skellam

KINDS = [RoundedGaussian, DiscreteGaussian, Skellam]
ONES = 2**64 - 1
MILLION = 1_000_000
all_kinds = pytest.mark.parametrize("kind", KINDS)


def stream_for(*name: object) -> KeyStream:
    return KeyStream(hashlib.sha256(repr(name).encode()).digest())


class Replay(KeyStream):
    """Answers with the words it was given, and then with `rest`."""

    def __init__(self, *words: int, rest: int = 0) -> None:
        self.left, self.rest = list(words), rest

    def words(self, count: int) -> np.ndarray:
        head, self.left = self.left[:count], self.left[count:]
        return np.array(head + [self.rest] * (count - len(head)), dtype=np.uint64)


def reference(kind: type[IntegerNoise], std: float, k: np.ndarray) -> np.ndarray:
    """P(k) by scipy, in float64."""
    if kind is Skellam and std < 10_000:
        return special.ive(k, std * std)
    if kind is DiscreteGaussian:
        weights = np.exp(-((k / std) ** 2) / 2)
        return weights / weights.sum()
    # Skellam's kurtosis differs from a Gaussian's by 1 / std^2, which a million draws cannot see at std 10,000
    return stats.norm.cdf((k + 0.5) / std) - stats.norm.cdf((k - 0.5) / std)


def fit(draws: np.ndarray, kind: type[IntegerNoise], std: float) -> float:
    """The p-value of a chi-square test in up to 100 bins of about equal probability."""
    reach = int(9 * std) + 40
    p = reference(kind, std, np.arange(-reach, reach + 1))
    middles = (np.cumsum(p) - p / 2) / p.sum()
    bins = np.unique(np.minimum(middles * 100, 99).astype(int), return_inverse=True)[1]
    expected = np.bincount(bins, weights=p) / p.sum() * draws.size
    observed = np.bincount(bins[np.clip(draws + reach, 0, 2 * reach)], minlength=expected.size)
    return float(stats.chisquare(observed, expected).pvalue)


def test_the_keystream_is_aes_256_in_counter_mode() -> None:
    # the blocks of counters 0, 1, 2 under the zero key: H, the tag of case 13 and the ciphertext of case 14 of the GCM paper
    known = "dc95c078a2408989ad48a21492842087" "530f8afbc74536b9a963b4f1c4cb738b" "cea7403d4d606b6e074ec5d3baf39d18"  # fmt: skip
    words = KeyStream(bytes(32)).words(6)
    assert words.dtype == np.uint64
    assert words.astype("<u8").tobytes().hex() == known


def test_the_keystream_does_not_depend_on_how_it_is_read() -> None:
    whole, parts = stream_for("chunks").words(1000), stream_for("chunks")
    assert np.array_equal(whole, np.concatenate([parts.words(n) for n in (1, 2, 0, 3, 500, 7, 487)]))


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(UsageError, match="32 bytes, not 16"):
        KeyStream(bytes(16))


@all_kinds
@pytest.mark.parametrize("std", [0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-7, 2e9])
def test_a_std_that_cannot_be_is_refused(kind: type[IntegerNoise], std: float) -> None:
    with pytest.raises(UsageError, match="std of integer noise"):
        kind(std)


@all_kinds
@pytest.mark.parametrize("std", [0.05, 0.7, 3, 50])
def test_probabilities_sum_to_one_and_agree_with_scipy(kind: type[IntegerNoise], std: float) -> None:
    noise = kind(std)
    k = np.arange(noise.radius(129) + 1)
    p = noise.masses(k.tolist())
    assert abs(p[0] + 2 * sum(p[1:]) - 1) < 2.0**-125
    both = np.concatenate([-k[:0:-1], k])
    assert np.allclose(np.array(p, dtype=float), reference(kind, std, both)[k.size - 1 :], rtol=1e-9, atol=1e-14)
    assert noise.pmf(-1) == noise.pmf(1) == float(p[1]) if k.size > 1 else noise.pmf(0) == 1.0


@pytest.mark.parametrize("std", [0.7, 3, 50, 1000])
def test_skellam_agrees_with_scipys_skellam(std: float) -> None:
    k = int(1.3 * std)
    assert Skellam(std).pmf(k) == pytest.approx(stats.skellam.pmf(k, std**2 / 2, std**2 / 2), rel=1e-9)


@pytest.mark.parametrize(
    ("std", "k"), [(127, 0), (127, 800), (128, 0), (128, 1), (128, 700), (128, 1700), (300, 250), (1000, 4000)]
)
def test_bessel_functions_agree_with_mpmath(std: int, k: int) -> None:
    with mpmath.workprec(256):
        truth = mpmath.besseli(k, std * std) * mpmath.exp(-std * std)
        assert abs(mpmath.make_mpf(Skellam(std).masses([k])[0]._mpf_) / truth - 1) < 2.0**-170


@all_kinds
@pytest.mark.parametrize("std", [0.05, 0.7, 50, 1000, 1e7])
def test_the_cells_of_a_table_have_their_probabilities_to_2_to_the_minus_110(kind: type[IntegerNoise], std: float) -> None:
    table = exact_noise._table(kind(std), exact_noise._run_bits(std))
    assert table.anchors.size <= 2**12
    assert table.first << table.bits <= -table.noise.radius(129)
    assert (table.first + table.anchors.size) << table.bits > table.noise.radius(129)
    edges = [0, *((int(h) << 64) + int(low) for h, low in zip(table.high, table.low, strict=True)), 2**128]
    steps = sorted(set(table.anchors.tolist()))
    mass = dict(zip(steps, table.noise.masses(steps), strict=True))
    envelope = [mass[a] for a in table.anchors.tolist()]
    cells = [(right - left) * exact_noise._mp.mpf(2) ** -128 for left, right in pairwise(edges)]
    total = sum(envelope)
    assert sum(abs(cell - e / total) for cell, e in zip(cells, envelope, strict=True)) < 2.0**-110


@all_kinds
@pytest.mark.parametrize("std", [128, 1000, 80_000, 1e7, 1e9])
def test_float_ratios_and_quick_accepts_are_right(kind: type[IntegerNoise], std: float) -> None:
    table = exact_noise._table(kind(std), exact_noise._run_bits(std))
    run = 1 << table.bits
    cells = np.linspace(0, table.anchors.size - 1, 12).astype(int)
    for cell, offset in zip(cells.tolist(), np.linspace(0, run - 1, 12).astype(int).tolist(), strict=True):
        k, anchor = abs(((table.first + cell) << table.bits) + offset), int(table.anchors[cell])
        assert 0 <= k - anchor <= run
        mass, height, lowest = table.noise.masses([k, anchor, anchor + run])
        logarithm = float(table.noise.log_ratio(np.array([k]), np.array([anchor]))[0])
        assert abs(exact_noise._mp.exp(logarithm) - mass / height) < 2.0**-41
        assert int(table.sure[cell]) < lowest / height * 2**64 < int(table.sure[cell]) + 2**33
        for shift in (-(2.0**-31), 2.0**-31):  # too far from the ratio to be settled, and on the right side of it
            coin = int((mass / height + shift) * 2 ** (64 - table.bits))
            verdict = table._accepts(Replay(), np.array([k]), np.array([anchor]), np.array([coin], dtype=np.uint64))
            assert verdict.tolist() == [shift < 0]


@all_kinds
@pytest.mark.parametrize("std", [0.7, 3, 50, 1000, 80_000])
def test_draws_have_their_law_and_not_one_five_percent_wider_or_narrower(kind: type[IntegerNoise], std: float) -> None:
    draws = kind(std).draw(stream_for("law", kind.__name__, std), MILLION)
    assert draws.dtype == np.int64
    assert fit(draws, kind, std) > 1e-3
    assert fit(draws, kind, 1.05 * std) < 1e-6
    assert fit(draws, kind, 0.95 * std) < 1e-6


@all_kinds
def test_mean_and_variance_of_wide_noise(kind: type[IntegerNoise]) -> None:
    draws = kind(1e6).draw(stream_for("moments", kind.__name__), MILLION)
    assert abs(draws.mean()) < 4e3
    assert abs(draws.var() / 1e12 - 1) < 4 * (2 / MILLION) ** 0.5
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4e-3


@all_kinds
@pytest.mark.parametrize("bits", [2, 7])
def test_single_integers_and_runs_give_the_same_law(kind: type[IntegerNoise], bits: int) -> None:
    samples = np.empty((2, MILLION // 2), dtype=np.int64)
    for row, cell_bits in zip(samples, (0, bits), strict=True):  # runs of 128 reject one draw in six
        exact_noise._table(kind(300), cell_bits).fill(stream_for("levels", kind.__name__, cell_bits), row)
        assert fit(row, kind, 300) > 1e-3
    counts = [np.histogram(row, bins=np.arange(-900.5, 901, 20))[0] for row in samples]
    assert stats.chi2_contingency(counts).pvalue > 1e-3


def test_the_same_key_repeats_and_another_does_not() -> None:
    for std in (2, 5000):
        draws = [Skellam(std).draw(KeyStream(bytes([byte]) * 32), 100_000) for byte in (1, 1, 2)]
        assert np.array_equal(draws[0], draws[1])
        assert abs(np.corrcoef(draws[0], draws[2])[0, 1]) < 0.02
    assert Skellam(2).draw(stream_for("none"), 0).size == 0


def test_laws_of_one_std_do_not_share_a_table() -> None:
    assert RoundedGaussian(2) != DiscreteGaussian(2)
    assert exact_noise._table(RoundedGaussian(2), 0) is exact_noise._table(RoundedGaussian(2.0), 0)
    assert exact_noise._table(RoundedGaussian(2), 0) is not exact_noise._table(DiscreteGaussian(2), 0)


def test_a_numpy_float32_is_taken_at_its_value() -> None:
    assert type(Skellam(np.float32(1000.1)).std) is float


@all_kinds
def test_a_tie_with_a_threshold_is_decided_by_the_next_word(kind: type[IntegerNoise]) -> None:
    table = exact_noise._table(kind(3), 0)
    for i in range(table.high.size // 4, table.high.size * 3 // 4):
        high, low = int(table.high[i]), int(table.low[i])
        below = i + table.first
        assert kind(3).draw(Replay(high, low - 1), 1).tolist() == [below]
        assert kind(3).draw(Replay(high, low), 1).tolist() == [below + 1]
        assert kind(3).draw(Replay(high - 1), 1).tolist() == [below]
        assert kind(3).draw(Replay(high + 1), 1).tolist() == [below + 1]


def test_the_guide_leaves_open_what_leading_bits_cannot_decide() -> None:
    step = 1 << 48
    high = np.array([0, step - 1, 3 * step, 5 * step + 7], dtype=np.uint64)
    guide = exact_noise._guide(high)
    assert guide[:7].tolist() == [-1, 2, 2, -1, 3, -1, 4]
    assert (guide[6:] == 4).all()


@all_kinds
def test_a_coin_too_close_to_its_ratio_is_settled_by_further_words(kind: type[IntegerNoise]) -> None:
    noise = kind(1000)
    table = exact_noise._table(noise, 3)
    cell, offset = 900 - table.first, 5
    anchor, k = 900 * 8, 900 * 8 + offset
    mass, height = noise.masses([k, anchor])
    coin = int(mass / height * 2**61)  # the ratio lies between this coin and the next
    first, second = int(table.high[cell]) - 1, (coin << 3) + offset
    zero = [2**63, 0]  # what a rejected draw is replaced by: the first integer of the cell in the middle
    assert noise.draw(Replay(first, second, 0, 0), 1).tolist() == [k]
    assert noise.draw(Replay(first, second, ONES, ONES, *zero), 1).tolist() == [0]
    beyond = int((mass / height * 2**61 - coin) * 2**64)
    assert noise.draw(Replay(first, second, beyond, 0), 1).tolist() == [k]
    assert noise.draw(Replay(first, second, beyond + 1, 0, *zero), 1).tolist() == [0]


@all_kinds
@pytest.mark.parametrize("std", [0.001, 0.05, 1, 100, 1000, 1e7])
def test_the_ends_of_the_support_can_be_drawn(kind: type[IntegerNoise], std: float) -> None:
    noise = kind(std)
    reach = noise.radius(129)
    run = 1 << exact_noise._run_bits(std)
    least = noise.draw(Replay(rest=0), 3)
    most = noise.draw(Replay(ONES, ONES, 2**63), 1)  # the third word is a coin that any run accepts
    assert -reach - run <= least.min() <= least.max() <= min(0, -0.97 * reach + 1)
    assert max(0, 0.99 * reach - run) <= most[0] <= reach + run


def test_tails_are_long_enough() -> None:
    assert 2 * stats.norm.logsf((RoundedGaussian(10).radius(129) + 0.5) / 10) < -128 * np.log(2)
    for std in (0.05, 1, 10):  # Skellam's tails are heavier: std 0.05 reaches beyond 200 of its deviations
        reach = Skellam(std).radius(129)
        beyond = Skellam(std).masses(list(range(reach + 1, reach + 300)))
        assert 2 * sum(beyond) < 2.0**-128
    assert Skellam(0.05).radius(129) > 200 * 0.05


@pytest.mark.parametrize("trials", [2, 6, 100, 178, 1024])
def test_binomial_masses_are_those_of_fair_coins(trials: int) -> None:
    masses = CentredBinomial(trials).masses(list(range(trials // 2 + 2)))
    for k, mass in enumerate(masses):
        exact = exact_noise._mp.mpf(math.comb(trials, trials // 2 + k)) / exact_noise._mp.mpf(2) ** trials
        assert abs(mass - exact) <= exact * 2.0**-170
    assert abs(masses[0] + 2 * sum(masses[1:]) - 1) < 2.0**-165
    assert CentredBinomial(trials).std == math.sqrt(trials) / 2


@pytest.mark.parametrize("trials", [2**16, 2**20 - 2, 2**40, 4 * 10**18])
def test_binomial_ratios_and_tables_are_right(trials: int) -> None:
    noise = CentredBinomial(trials)
    bits = exact_noise._run_bits(noise.std)
    table = exact_noise._table(noise, bits)
    assert table.anchors.size <= 2**12
    for place in np.linspace(0, noise.radius(129) >> bits, 15).astype(int).tolist():
        anchor = place << bits
        k = anchor + (1 << bits)
        mass, height = noise.masses([k, anchor])
        logarithm = float(noise.log_ratio(np.array([k]), np.array([anchor]))[0])
        assert abs(exact_noise._mp.exp(logarithm) - mass / height) < 2.0**-41
    if trials < 2**21:
        k = int(noise.std)
        assert noise.pmf(k) == pytest.approx(stats.binom.pmf(trials // 2 + k, trials, 0.5), rel=1e-9)


@pytest.mark.parametrize("trials", [2, 4, 50, 180, 2**10, 2**16, 2**20])
def test_binomial_tails_are_proved_and_long_enough(trials: int) -> None:
    noise = CentredBinomial(trials)
    assert noise.radius(129) <= trials // 2
    for k in np.unique(np.linspace(1, trials // 2, 50).astype(int)).tolist():
        assert noise.log_tail(k) >= stats.binom.logsf(trials // 2 + k - 1, trials, 0.5) - 1e-9
    assert noise.log_tail(trials // 2 + 1) == -math.inf


@pytest.mark.parametrize("trials", [2, 6, 100, 2**13, 2**16, 2**20, 2**34])
def test_binomial_draws_have_their_law_and_not_one_five_percent_wider(trials: int) -> None:
    def p_value(coins: int) -> float:
        inner = stats.binom.ppf(np.linspace(0, 1, 61)[1:-1], coins, 0.5) - coins // 2
        edges = np.unique(
            np.concatenate([[-math.inf], inner[inner < coins // 2], [math.inf]])
        )  # cells end in integers, which belong to them
        expected = np.diff(stats.binom.cdf(edges + coins // 2, coins, 0.5)) * draws.size
        observed = np.bincount(np.searchsorted(edges, draws, side="left") - 1, minlength=expected.size)
        return float(stats.chisquare(observed, expected).pvalue) if (expected > 0).all() else 0.0

    draws = CentredBinomial(trials).draw(stream_for("binomial", trials), MILLION)
    assert np.abs(draws).max() <= trials // 2
    assert p_value(trials) > 1e-3
    if trials >= 20:
        assert p_value(2 * round(trials * 1.05**2 / 2)) < 1e-6
        assert p_value(2 * round(trials * 0.95**2 / 2)) < 1e-6
    assert CentredBinomial(trials) == CentredBinomial(trials) != CentredBinomial(trials + 2)


@pytest.mark.parametrize("trials", [0, 1, 3, -2, 2.5, float("nan"), 5e18])
def test_coins_that_cannot_be_are_refused(trials: int) -> None:
    with pytest.raises(UsageError, match="even whole number"):
        CentredBinomial(trials)


def test_nothing_but_the_keystream_is_random() -> None:
    tree = ast.parse(Path(exact_noise.__file__).read_text())
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    outside = {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names)
    assert outside == {"cryptography", "hush", "mpmath", "numpy"}
    assert not modules & {"random", "secrets", "os", "uuid", "time"}
    assert {module for module in modules if module.startswith("hush")} == {"hush.errors"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"random", "rand", "default_rng", "urandom", "RandomState", "Generator"}


def test_global_seeds_do_not_reach_the_noise() -> None:
    draws = []
    for seed in (0, 1):
        np.random.seed(seed)
        state = np.random.get_state()[1].copy()
        draws.append(RoundedGaussian(1000).draw(stream_for("seed"), 1000))
        assert np.array_equal(state, np.random.get_state()[1])
    assert np.array_equal(*draws)
