"""Graph sizes against exact integers and scipy; the rule behind them against every placement on small rings, and many on large."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from hush.errors import UsageError
from hush.secagg import Terms
from hush.secagg.parameters import (
    SECURITY_BITS,
    THREATS,
    Graph,
    complete_graph,
    graph_for,
    leak_bound,
    regular_graph,
    tail,
    whole_above,
    whole_below,
)
from tests.secagg.drive import cuts_that_open

# (corrupted, dropout, threat) -> {clients: (degree, threshold)}
TABLE = {
    (0.05, 0.05, "curious"): {100: (12, 7), 300: (30, 20), 500: (46, 33), 1000: (54, 39), 5000: (64, 46)},
    (0.05, 0.1, "curious"): {100: (16, 7), 300: (46, 29), 500: (66, 44), 1000: (80, 54), 5000: (98, 66)},
    (0.1, 0.1, "curious"): {100: (22, 12), 300: (56, 37), 500: (84, 59), 1000: (102, 72), 5000: (126, 89)},
    (0.2, 0.2, "curious"): {100: (42, 23), 300: (112, 70), 500: (172, 112), 1000: (314, 215), 5000: (474, 325)},
    (0.1, 0.1, "malicious"): {100: (32, 22), 300: (76, 54), 500: (110, 81), 1000: (146, 109), 5000: (194, 145)},
}
# What the rule of google-parfait/federated-compute gives where also 2 t > degree, and what clients used before: with such graphs a
# server that does not wait for two runs opens the sum between them, for corrupted clients inside the runs answer.
OPEN = {
    (300, 0.1, 0.1): Graph(36, 21, complete=False),
    (500, 0.1, 0.1): Graph(42, 24, complete=False),
    (1000, 0.05, 0.05): Graph(30, 17, complete=False),
    (1000, 0.2, 0.2): Graph(98, 54, complete=False),
}

fractions = st.floats(0, 0.95)
threats = st.sampled_from(sorted(THREATS))


def sizes(found: Graph) -> tuple[int, int]:
    return found.degree, found.threshold


def exact_tail(clients: int, marked: int, degree: int, least: int) -> Fraction:
    ways = sum(math.comb(marked, x) * math.comb(clients - marked, degree - x) for x in range(max(least, 0), degree + 1))
    return Fraction(ways, math.comb(clients, degree))


@pytest.mark.parametrize(("setting", "clients"), [(setting, n) for setting, row in TABLE.items() for n in row])
def test_the_table(setting: tuple[float, float, str], clients: int) -> None:
    found = graph_for(clients, *setting)
    assert sizes(found) == TABLE[setting][clients]
    assert not found.complete


@pytest.mark.parametrize("clients", [3, 10, 187, 1489, 10_000])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.33, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("reach", [0.02, 0.3, 0.9])
def test_tails_are_those_of_scipy(clients: int, share: float, reach: float) -> None:
    marked, degree = int(share * clients), max(1, int(reach * clients))
    centre, step = marked * degree // clients, max(1, round(math.sqrt(degree) / 3))
    for least in range(centre - 12 * step, centre + 12 * step + 1, step):
        expected = float(stats.hypergeom.sf(least - 1, clients, marked, degree))
        if expected == 0 or expected > 1e-200:  # below, scipy underflows term by term
            assert tail(clients, marked, degree, least) == pytest.approx(expected, rel=1e-9, abs=0)


@given(st.integers(3, 300), st.data())
def test_tails_are_exact_however_far_out(clients: int, data: st.DataObject) -> None:
    marked, degree = data.draw(st.integers(0, clients)), data.draw(st.integers(1, clients - 1))
    least = data.draw(st.integers(-1, degree + 1))
    assert tail(clients, marked, degree, least) == pytest.approx(
        float(exact_tail(clients, marked, degree, least)), rel=1e-11, abs=0
    )


def fewest_helpers(graph: Graph, dropped: int, threat: str) -> int:
    """The fewest corrupted clients in two runs with which something opens, tried one by one: the arc between them, or, around a
    single client, the secret that must stay hidden."""
    half, t = graph.degree // 2, graph.threshold
    both = [(a, b) for a, b in product(range(half + 1), repeat=2) if min(a, b) >= t - half]  # shares beside either run
    arcs = [a + b for a, b in both if threat == "malicious" or graph.degree - a - b <= dropped]
    alone = [x for x in range(graph.degree + 1) if (x >= t if threat == "curious" else graph.degree - x + 2 * x >= 2 * t)]
    return min([*arcs, *alone, graph.degree + 1])


def exact_leak(graph: Graph, clients: int, corrupted: int, dropped: int, threat: str) -> Fraction:
    """The union bound over all pairs of runs, in whole numbers."""
    pairs = sum(clients for _ in range(clients - graph.degree - 1))  # where one begins, and how many lie between: each twice
    return Fraction(pairs, 2) * exact_tail(clients, corrupted, graph.degree, fewest_helpers(graph, dropped, threat))


@settings(max_examples=100, deadline=None)
@given(st.integers(65, 1500), st.sampled_from([0, 0.01, 0.05, 0.1, 0.2, 0.3]), st.sampled_from([0, 0.05, 0.1, 0.2, 0.3]), threats)
def test_the_chance_of_a_leak_is_below_what_is_promised(clients: int, corrupted: float, dropout: float, threat: str) -> None:
    try:
        found = graph_for(clients, corrupted, dropout, threat)
    except UsageError:
        return
    bad, gone = whole_above(corrupted, clients), whole_below(dropout, clients)
    stated = leak_bound(found, clients, bad, gone, threat)
    if found.complete:
        assert stated == 0
        return
    true = exact_leak(found, clients, bad, gone, threat)
    assert true < Fraction(1, 2 ** {"curious": 40, "malicious": 128}[threat])
    assert stated == pytest.approx(float(true), rel=1e-9, abs=0)
    assert clients * exact_tail(clients, gone, found.degree, found.degree - found.threshold + 1) < Fraction(1, 2**20)


def test_terms_state_the_chance() -> None:
    assert Terms(4, threat="malicious", smallest=1000).leak(1000) == leak_bound(Graph(146, 109, False), 1000, 100, 100, "malicious")
    assert Terms(4, smallest=500).leak(500) == leak_bound(Graph(84, 59, False), 500, 50, 50, "curious")
    assert 2**-41 < Terms(4, smallest=500).leak(500) < 2**-40
    assert Terms(4, smallest=60).leak(60) == 0


def test_a_graph_that_is_too_sparse_is_said_to_leak() -> None:
    for (clients, corrupted, dropout), graph in OPEN.items():
        bad, gone = whole_above(corrupted, clients), whole_below(dropout, clients)
        assert leak_bound(graph, clients, bad, gone, "curious") > 0.5
    assert leak_bound(Graph(20, 10, complete=False), 100, 0, 20, "curious") == 1  # not even corrupted clients are needed


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 60), fractions, fractions, threats)
def test_the_degree_is_the_least_that_exact_integers_allow(clients: int, corrupted: float, dropout: float, threat: str) -> None:
    """Degree by degree and threshold by threshold, in whole numbers: no other threshold would do at a smaller degree."""
    bad, gone = int(corrupted * clients), int(dropout * clients)
    assume(bad + gone < clients)

    def holds(graph: Graph) -> bool:
        failure = clients * exact_tail(clients, gone, graph.degree, graph.degree - graph.threshold + 1)
        bits = SECURITY_BITS[threat]
        return failure < Fraction(1, 2**20) and exact_leak(graph, clients, bad, gone, threat) < Fraction(1, 2**bits)

    every = [graph for k in range(2, clients - 1, 2) for t in range(2, k + 1) if holds(graph := Graph(k, t, complete=False))]
    found = regular_graph(clients, bad, gone, threat)
    if found is None:
        assert not every
        return
    assert found.degree == every[0].degree
    assert found.threshold == max(graph.threshold for graph in every if graph.degree == found.degree)


@pytest.mark.parametrize(("clients", "degree"), [(9, 4), (10, 4), (10, 6)])
def test_on_small_rings_nothing_opens_without_the_corrupted_that_are_counted(clients: int, degree: int) -> None:
    """Every way to place outsiders, a part, missing and corrupted clients: the largest threshold with which the part opens."""
    outside, part, missing, corrupted = range(4)
    half = degree // 2
    ring = np.array(list(product(range(4), repeat=clients - 1)), dtype=np.int8)
    ring = np.hstack([np.zeros((len(ring), 1), dtype=np.int8), ring])  # by symmetry the first is an outsider
    ring = ring[(ring == part).any(1)]

    def around(which: np.ndarray) -> np.ndarray:
        return sum(np.roll(which, step, 1).astype(int) for step in range(-half, half + 1) if step)

    def largest(shares: np.ndarray) -> np.ndarray:
        return np.where(ring == part, shares, clients).min(1)  # each of the part must get so many

    is_part, torn = ring == part, (ring == part) & (around(ring == outside) > 0)
    run = sum(np.roll(ring == corrupted, -step, 1).astype(int) for step in range(half))
    pairs = [run + np.roll(run, -half - size, 1) for size in range(1, clients - degree)]
    helpers = np.max(pairs, axis=(0, 2))

    masked = around(ring != outside)
    shown = around((ring == outside) | (ring == corrupted) | (is_part & ~torn))
    threshold = largest(np.minimum(masked, shown))
    assert (helpers >= 2 * threshold - degree).all()
    assert ((helpers == 2 * threshold - degree) & torn.any(1) & (threshold > half)).any()  # letters kept back do serve

    cut = ~torn.any(1)  # with letters delivered as they should be
    threshold = largest(around(is_part | (ring == corrupted)))
    needed = np.maximum(2 * threshold - degree, degree - (ring == missing).sum(1))
    assert (helpers >= needed)[cut].all()
    assert (helpers == needed)[cut].any()


@pytest.mark.parametrize("setting", OPEN, ids=str)
def test_on_no_ring_can_two_runs_be_left_out_so_that_an_arc_opens(setting: tuple[int, float, float]) -> None:
    """Corrupted clients on random places, and all pairs of runs. With the graphs of before there was such a pair on every ring."""
    clients, corrupted, dropout = setting
    rng = np.random.default_rng(clients)
    found = graph_for(clients, corrupted, dropout)
    missing, marked = whole_below(dropout, clients), np.arange(clients) < whole_above(corrupted, clients)
    for _ in range(20):
        ring = rng.permutation(marked)
        assert not any(cuts_that_open(ring, found, missing))
        assert any(cuts_that_open(ring, OPEN[setting], missing))


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 3000), fractions, fractions, threats)
def test_what_is_found_makes_sense(clients: int, corrupted: float, dropout: float, threat: str) -> None:
    assume(corrupted + dropout < 1)
    try:
        found = graph_for(clients, corrupted, dropout, threat)
    except UsageError:
        return
    assert 2 <= found.threshold <= found.degree
    if found.complete:
        assert found.degree == clients - 1
    else:
        assert found.degree % 2 == 0
        assert found.degree < clients - 1
    if threat == "malicious":
        assert 2 * found.threshold > found.degree


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 400), st.data(), threats)
def test_more_to_fear_never_takes_fewer_neighbours(clients: int, data: st.DataObject, threat: str) -> None:
    bad = data.draw(st.integers(0, clients - 3))
    gone = data.draw(st.integers(0, clients - 3 - bad))

    def degree(bad: int, gone: int, threat: str) -> float:
        found = regular_graph(clients, bad, gone, threat) or complete_graph(clients, bad, gone, threat)
        return found.degree if found else math.inf

    here = degree(bad, gone, threat)
    assert degree(bad + 1, gone, threat) >= here
    assert degree(bad, gone + 1, threat) >= here
    assert degree(bad, gone, "malicious") >= here or threat == "malicious"


@pytest.mark.parametrize("threat", sorted(THREATS))
def test_the_complete_graph_keeps_its_inequalities(threat: str) -> None:
    feasible = 0
    for clients in range(3, 61):
        for bad in range(clients):
            for gone in range(clients - bad):
                holders = clients - 1
                safe = [
                    t
                    for t in range(2, holders + 1)
                    if bad < t and t <= holders - gone and (threat == "curious" or 2 * t > holders - bad + 2 * bad)
                ]
                found = complete_graph(clients, bad, gone, threat)
                if found is None:
                    assert not safe
                    continue
                feasible += 1
                assert found.complete
                assert found.degree == holders
                middle = safe[len(safe) // 2] if gone else holders  # where nobody may vanish, everybody must open
                assert found.threshold == (middle if threat == "curious" else safe[0])
                assert clients - bad - gone >= 2
    assert feasible > 1000


def test_small_cohorts_are_complete() -> None:
    assert graph_for(3, 0.0, 0.0) == Graph(2, 2, complete=True)
    assert graph_for(4, 0.0, 0.3) == Graph(3, 2, complete=True)
    assert graph_for(5, 0.2, 0.2) == Graph(4, 3, complete=True)
    assert graph_for(5, 0.2, 0.2, "malicious") == Graph(4, 3, complete=True)
    assert graph_for(10, 0.3, 0.3) == Graph(9, 5, complete=True)
    assert all(graph_for(n, 0.1, 0.1).complete for n in range(3, 65))
    assert not graph_for(65, 0.1, 0.1).complete
    assert graph_for(5, 0.05, 0.0).threshold > 1  # one of five may be corrupted
    assert graph_for(10, 0.5, 0.3) == Graph(9, 6, complete=True)
    assert graph_for(20, 0.2, 0.35, "malicious") == Graph(19, 12, complete=True)


def test_fractions_of_whole_clients_lose_none_to_rounding() -> None:
    assert math.floor(0.29 * 100) == 28
    assert graph_for(100, 0.29, 0.0) == regular_graph(100, 29, 0, "curious")
    assert graph_for(100, 0.0, 0.29) == regular_graph(100, 0, 29, "curious")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ((1000, 0.33, 0.34, "malicious"), "less dropout or fewer corrupted[.]"),  # as in the source
        ((10, 0.1, 0.44, "malicious"), "less dropout or fewer corrupted, or more clients[.]"),
        ((10, 0.5, 0.4), "less dropout or fewer corrupted, or more clients[.]"),
        ((3, 0.0, 0.34), "more clients"),
        ((1000, 0.5, 0.5), "below 1"),
        ((1000, 0.5, 0.5, "malicious"), "below 1"),
        ((1000, 0.1, 1.0), "dropout must lie in"),
        ((1000, 0.1, -1.0), "dropout must lie in"),
        ((1000, 1.0, 0.0), "corrupted must lie in"),
        ((1000, math.nan, 0.0), "corrupted must lie in"),
        ((0, 0.1, 0.1), "at least 3 clients"),
        ((2, 0.0, 0.0), "at least 3 clients"),
        ((100, 0.1, 0.1, "Malicious"), "did you mean 'malicious'"),
        ((100, 0.1, 0.1, "none"), "known: curious, malicious"),
    ],
)
def test_what_cannot_be_is_refused(setting: tuple[int, float, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        graph_for(*setting)


def test_ten_thousand_clients_at_the_edge_of_what_is_possible() -> None:
    assert graph_for(10_000, 0.5, 0.49) == regular_graph(10_000, 5000, 4900, "curious")
    with pytest.raises(UsageError):
        graph_for(10_000, 0.2, 0.4, "malicious")
