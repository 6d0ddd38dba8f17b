"""The algebra of a count sketch, and what its hashes promise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import UsageError
from hush.sketch import fullest_counter, hashes_of, largest_norm, sketch, unsketch, whole_tiles, worst_vector
from hush.sketch.hashes import Hashes
from hush.sketch.tables import middle, transposed, turn, turn_back

CPU = torch.device("cpu")
SMALL, TILED = (60, 500), (2048, 30_001)
"""(cols, dim): hashed coordinate by coordinate, and by tiles of 16, the last of which is not full."""


def hashes(shape: tuple[int, int], rows: int = 5, seed: int = 3) -> Hashes:
    return hashes_of(seed, rows, shape[0], shape[1], CPU)


def where_each_lands(h: Hashes) -> tuple[torch.Tensor, torch.Tensor]:
    """`[rows, dim]`: the counter and the sign of every coordinate, read off one at a time."""
    numbers = turn(torch.arange(1, h.dim + 1, dtype=torch.float64), h).long() - 1
    cell = torch.empty(h.rows, h.dim, dtype=torch.int64)
    sign = torch.empty(h.rows, h.dim, dtype=torch.float64)
    for row in range(h.rows):
        shift = torch.tensor(h.shifts(row))[h.turn[row]]
        for lane in range(h.lanes):
            real = numbers[:, lane] >= 0
            cell[row, numbers[real, lane]] = (h.home[row].long() * h.lanes + (lane + shift) % h.lanes)[real]
            sign[row, numbers[real, lane]] = h.sign[row, real].double()
    return cell, sign


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [SMALL, TILED])
def test_counters_are_signed_sums_of_what_lands_on_them(shape: tuple[int, int]) -> None:
    h, x = hashes(shape), normals(3, shape[1])
    cell, sign = where_each_lands(h)
    table = torch.zeros(3, h.rows, h.cols, dtype=torch.float64)
    for row in range(h.rows):
        table[:, row].index_add_(1, cell[row], x * sign[row])
    assert torch.allclose(sketch(x, h), table.reshape(3, -1) / math.sqrt(h.rows), atol=1e-12)


@pytest.mark.parametrize("shape", [SMALL, TILED])
@settings(max_examples=25, deadline=None)
@given(scale=st.floats(-1e3, 1e3), seed=st.integers(0, 2**31), rows=st.integers(1, 6))
def test_sketches_add_up(shape: tuple[int, int], scale: float, seed: int, rows: int) -> None:
    h, (a, b) = hashes(shape, rows, seed % 3), normals(2, 1, shape[1], seed=seed)
    assert torch.allclose(sketch(a + scale * b, h), sketch(a, h) + scale * sketch(b, h), atol=1e-9 * (1 + abs(scale)))


@pytest.mark.parametrize("shape", [SMALL, TILED])
def test_a_cohort_a_lone_client_and_low_precision_give_the_same(shape: tuple[int, int]) -> None:
    h, x = hashes(shape), normals(4, shape[1]).float()
    together = sketch(x, h)
    assert torch.equal(together, torch.cat([sketch(x[i : i + 1], h) for i in range(4)]))
    assert torch.equal(sketch(x.half(), h), sketch(x.half().float(), h))
    assert sketch(x[:0], h).shape == (0, h.rows * h.cols)


@pytest.mark.parametrize("shape", [SMALL, TILED])
def test_the_transpose_is_the_transpose(shape: tuple[int, int]) -> None:
    h, x, y = hashes(shape), normals(shape[1]), normals(5 * shape[0], seed=1)
    assert torch.isclose(sketch(x[None], h)[0] @ y, x @ transposed(y, h))
    assert torch.equal(turn_back(turn(x, h).clone(), h), x)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(1, 8), rows=st.sampled_from([3, 5, 7]))
def test_few_coordinates_in_a_wide_sketch_come_back_exactly(seed: int, k: int, rows: int) -> None:
    """A majority of rows without a collision suffices; at 4,096 columns a pair meets in a row once in 4,096 times."""
    h = hashes_of(seed % 50, rows, 4096, 20_000, CPU)
    g = torch.Generator().manual_seed(seed)
    x = torch.zeros(20_000, dtype=torch.float64)
    x[torch.randperm(20_000, generator=g)[:k]] = torch.randn(k, generator=g, dtype=torch.float64) * 100
    found = unsketch(sketch(x[None], h)[0], h)
    kept = x != 0
    assert torch.allclose(found[kept], x[kept], rtol=1e-12)


@pytest.mark.parametrize("shape", [(61, 400), (2048, 20_000)])
def test_an_estimate_is_unbiased_with_the_variance_of_the_theory(shape: tuple[int, int]) -> None:
    """Over the hashes, x_i is estimated with mean x_i and variance (||x||^2 - x_i^2) / cols, also where heavy coordinates lie
    sixteen apart, where a careless tiling would make them share lanes; half or twice that variance is rejected."""
    cols, dim = shape
    x = torch.zeros(dim, dtype=torch.float64)
    x[::16] = 1.0
    errors = []
    for seed in range(400):
        h = hashes_of(1000 + seed, 1, cols, dim, CPU)
        errors.append((unsketch(sketch(x[None], h)[0], h) - x)[:320:16])
    error = torch.stack(errors)
    expected = float(x.square().sum() - 1) / cols
    ratio = float(error.square().mean()) / expected
    assert 0.75 < ratio < 1.3  # twenty estimates of one sketch are correlated; half and twice are far outside
    assert abs(float(error.mean())) < 5 * math.sqrt(expected / 400)


def test_two_coordinates_meet_as_often_as_chance_says_and_neighbours_never() -> None:
    cols, dim, seeds = 1024, 4096, 600
    met = {16: 0, 17: 0, 2048: 0, 1: 0}
    for seed in range(seeds):
        cell, _ = where_each_lands(hashes_of(seed, 5, cols, dim, CPU))
        for gap in met:
            first = torch.arange(0, 16) if gap > 1 else torch.arange(0, 15)
            met[gap] += int((cell[:, first] == cell[:, first + gap]).sum())
    assert met.pop(1) == 0
    for gap, count in met.items():
        expected = seeds * 5 * 16 / cols
        # lanes that meet do so all at once, sixteen pairs together: a spread of four times Poisson's
        assert abs(count - expected) < 6 * 4 * math.sqrt(expected), gap


@pytest.mark.parametrize(("cols", "dim"), [(2816, 21_840), (1696, 21_840), (12_896, 100_000), (200, 2_500)])
def test_error_feedback_does_not_blow_up_what_it_carries_over(cols: int, dim: int) -> None:
    """The server of FetchSGD under noise, k a tenth of a row as in the papers, rows of a level of 3 and of 5.

    Where coordinates form families that meet in no row, the top k gather in one of them, and this grows by half a round.
    """
    h, g = hashes_of(5, 5, cols, dim, CPU), torch.Generator().manual_seed(cols)
    table = torch.zeros(5 * cols)
    norms = []
    for _ in range(200):
        table = table + sketch(torch.randn(1, dim, generator=g) / math.sqrt(dim), h)[0]
        found = unsketch(table, h)
        where = found.abs().topk(cols // 10).indices
        table = table - sketch(torch.zeros(1, dim).index_copy_(1, where, found[None, where]), h)[0]
        norms.append(float(table.norm()))
    assert max(norms) < 20  # of inputs of norm 1; it would be millions


def test_every_two_families_of_lanes_meet_in_some_row() -> None:
    """Coordinates that are turned alike still meet others of every lane."""
    h = hashes(TILED)
    cell, _ = where_each_lands(h)
    lane, phase = cell % h.lanes, torch.empty(h.dim, dtype=torch.int64)
    numbers = turn(torch.arange(1, h.dim + 1, dtype=torch.float64), h).long() - 1
    for column in range(h.lanes):
        phase[numbers[numbers[:, column] >= 0, column]] = column
    reached = {(int(p), int(q)) for row in lane for p, q in torch.stack([phase, row]).unique(dim=1).T}
    assert {(p, (p + s) % 16) for p in range(16) for s in (0, 1, 2, 3, 4, 8, 12)} == reached


def test_heavy_coordinates_are_found_as_the_theory_says() -> None:
    """x_i^2 >= tau ||x||^2 in rows of 32 / tau counters: by Chebyshev a row is off by half of x_i once in eight times at most."""
    dim, heavy, tau = 20_000, 20, 1 / 40
    cols = whole_tiles(round(32 / tau))
    found = 0
    for seed in range(20):
        x = normals(dim, seed=seed)
        x *= math.sqrt(0.5) / x.norm()
        where = torch.randperm(dim, generator=torch.Generator().manual_seed(seed))[:heavy]
        x[where] = math.sqrt(0.5 / heavy)
        h = hashes_of(seed, 9, cols, dim, CPU)
        top = unsketch(sketch(x[None], h)[0], h).abs().topk(heavy).indices
        found += len(set(top.tolist()) & set(where.tolist()))
    # 4 / (tau cols) = 1/8 for a row; a median of nine is off where five rows are
    wrong = sum(math.comb(9, j) * 0.125**j * 0.875 ** (9 - j) for j in range(5, 10))
    assert found >= (1 - wrong) * 20 * heavy - 3 * math.sqrt(20 * heavy * wrong)


def test_a_table_has_the_norm_of_its_vector_on_average() -> None:
    x = normals(1, 5000)
    ratios = torch.tensor([float(sketch(x, hashes_of(s, 5, 1024, 5000, CPU)).norm() / x.norm()) ** 2 for s in range(100)])
    assert abs(float(ratios.mean()) - 1) < 5 * float(ratios.std()) / 10
    assert float(ratios.std()) < 0.1


@pytest.mark.parametrize("shape", [SMALL, TILED])
def test_no_vector_exceeds_the_proved_norm_and_one_exceeds_the_papers(shape: tuple[int, int]) -> None:
    h = hashes(shape)
    proved = largest_norm(h)
    worst, reached = worst_vector(h)
    for x in (worst, fullest_counter(h), *normals(20, shape[1])):
        assert float(sketch(x[None] / x.norm(), h).norm()) <= proved
    assert 1.2 < reached <= proved  # the paper's sqrt(rows) is 1 for rows that are scaled
    full = float(sketch(fullest_counter(h)[None], h).norm())
    assert full >= math.sqrt(int(h.largest_loads.max()) / h.rows)
    assert reached >= full - 1e-9


def test_one_coordinate_keeps_its_norm() -> None:
    h = hashes(TILED)
    x = torch.zeros(4, h.dim, dtype=torch.float64)
    x[torch.arange(4), torch.tensor([0, 17, 12_345, h.dim - 1])] = 1.0
    assert torch.allclose(sketch(x, h).norm(dim=1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("count", range(1, 9))
def test_medians(count: int) -> None:
    values = normals(count, 50, seed=count)
    ordered = values.sort(dim=0).values
    assert torch.allclose(middle(values), (ordered[(count - 1) // 2] + ordered[count // 2]) / 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a GPU")
@pytest.mark.parametrize("shape", [(1024, 5000), (1040, 3001), (2048, 30_001)])
def test_the_kernel_adds_up_what_the_loop_adds_up(shape: tuple[int, int]) -> None:
    x = normals(3, shape[1]).float()
    here, there = hashes(shape), hashes_of(3, 5, shape[0], shape[1], torch.device("cuda"))
    assert all(torch.equal(getattr(here, name), getattr(there, name).cpu()) for name in ("home", "turn", "sign", "turned"))
    table = sketch(x.cuda(), there)
    assert torch.allclose(table.cpu(), sketch(x, here), atol=1e-5)
    assert torch.equal(table, sketch(x.cuda(), there))  # no atomics: the same every time


def test_hashes_are_pure_functions_of_the_seed() -> None:
    a, b, c = (hashes_of.__wrapped__(s, 3, 1024, 9000, CPU) for s in (1, 1, 2))
    assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("home", "turn", "sign", "turned"))
    assert not torch.equal(a.home, c.home)
    assert len({tuple(row.tolist()) for row in a.home}) == 3
    with pytest.raises(UsageError, match="whole tiles"):
        hashes_of(0, 3, 1030, 9000, CPU)
