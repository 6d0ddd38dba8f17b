"""Graph sizes against the source's own values, exact integers and scipy; small graphs against all placements of the corrupted."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from hush.errors import UsageError
from hush.secagg.parameters import THREATS, Graph, complete_graph, graph_for, log_cut, regular_graph, tail, worst_case

# (corrupted, dropout, threat) -> {clients: (degree, threshold)}; for two of them the source has (16, 6) and (22, 11): not over half
TABLE = {
    (0.05, 0.1, "curious"): {100: (22, 12), 500: (32, 17), 1000: (36, 19), 5000: (40, 21)},
    (0.1, 0.1, "curious"): {100: (22, 12), 500: (42, 24), 1000: (48, 27), 5000: (52, 30)},
    (0.2, 0.2, "curious"): {100: (40, 21), 500: (88, 48), 1000: (98, 54), 5000: (118, 64)},
    (0.1, 0.1, "malicious"): {100: (32, 22), 500: (82, 57), 1000: (96, 67), 5000: (116, 81)},
}
# Every feasible value of graph_parameter_finder_test.cc (google-parfait/federated-compute), for 10, 100, ..., 10^6 clients; None
# where it has none. Its class NONE repeats the rows of the curious server with nobody corrupted.
SOURCE = {
    (0.45, 0.45, "curious"): (None, (92, 46), (822, 417), (3494, 1771), (5508, 2788), (6240, 3156)),
    (0.33, 0.33, "curious"): ((8, 4), (68, 34), (286, 150), (422, 221), (480, 251), (518, 270)),
    (0.3, 0.3, "malicious"): (None, (92, 62), (872, 584), (4822, 3230), (9388, 6286), (11136, 7454)),
    (0.05, 0.33, "curious"): ((4, 2), (28, 6), (72, 24), (86, 29), (96, 32), (102, 34)),
    (0.05, 0.33, "malicious"): ((8, 5), (72, 39), (398, 223), (746, 420), (882, 496), (970, 545)),
    (0.33, 0.05, "curious"): ((4, 4), (34, 29), (78, 60), (92, 70), (102, 77), (110, 83)),
    (0.33, 0.05, "malicious"): ((4, 4), (42, 37), (132, 109), (178, 146), (196, 160), (212, 173)),
    (0.05, 0.05, "curious"): ((2, 2), (12, 6), (30, 17), (34, 20), (36, 21), (38, 22)),
    (0.05, 0.05, "malicious"): ((2, 2), (16, 11), (52, 37), (62, 44), (68, 48), (74, 52)),
    (0.33, 0.0, "curious"): ((4, 4), (26, 25), (38, 36), (42, 40), (46, 44), (50, 47)),
    (0.33, 0.0, "malicious"): ((4, 4), (26, 26), (38, 37), (42, 41), (46, 45), (50, 49)),
    (0.0, 0.33, "curious"): ((4, 2), (26, 2), (38, 2), (42, 2), (46, 2), (50, 2)),
    (0.0, 0.33, "malicious"): ((8, 5), (68, 35), (228, 115), (326, 164), (372, 187), (410, 206)),
    (0.0, 0.0, "curious"): ((2, 2),) * 6,
    (0.0, 0.0, "malicious"): ((2, 2),) * 6,
}
# Of 10 clients 3 drop out and none is corrupted: one of 4 neighbours is all that is sure to be left. The source finds that enough,
# and then raises the threshold to 2; the client's own share, which it does not count, fills the gap. Here there is no such share.
CORRECTED = {(10, 0.05, 0.33, "curious"): (6, 2), (10, 0.0, 0.33, "curious"): (6, 2)}

fractions = st.floats(0, 0.95)
threats = st.sampled_from(sorted(THREATS))


def sizes(found: Graph) -> tuple[int, int]:
    return found.degree, found.threshold


def exact_tail(clients: int, marked: int, degree: int, least: int) -> Fraction:
    ways = sum(math.comb(marked, x) * math.comb(clients - marked, degree - x) for x in range(max(least, 0), degree + 1))
    return Fraction(ways, math.comb(clients, degree))


def ring_neighbours(place: int, clients: int, degree: int) -> list[int]:
    return [(place + step) % clients for step in range(-degree // 2, degree // 2 + 1) if step]


@pytest.mark.parametrize(("setting", "clients"), [(setting, n) for setting, row in TABLE.items() for n in row])
def test_the_table(setting: tuple[float, float, str], clients: int) -> None:
    found = graph_for(clients, *setting)
    assert sizes(found) == TABLE[setting][clients]
    assert not found.complete


@pytest.mark.parametrize("setting", SOURCE)
def test_the_values_of_the_source(setting: tuple[float, float, str]) -> None:
    for power, expected in enumerate(SOURCE[setting], start=1):
        if expected is not None:
            bad, gone, threat = setting
            lost = (int(10**power * fraction + 1e-9) for fraction in (bad, gone))
            found = regular_graph(10**power, *lost, threat, over_half=False)
            assert found is not None
            assert sizes(found) == CORRECTED.get((10**power, *setting), expected)
            assert not found.complete


def test_where_the_source_is_corrected_its_threshold_is_not_reached() -> None:
    """The source's own criterion, with the threshold that it returns."""
    for clients, *_ in CORRECTED:
        assert exact_tail(clients, 3, 4, 4 - 2 + 1) > Fraction(1, 2**20 * clients)
        assert exact_tail(clients, 3, 6, 6 - 2 + 1) == 0


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


@given(st.integers(3, 200), st.data())
def test_the_worst_case_is_the_least_that_will_do(clients: int, data: st.DataObject) -> None:
    marked, degree = data.draw(st.integers(0, clients)), data.draw(st.integers(1, clients - 1))
    probability = 2.0 ** -data.draw(st.integers(5, 60))
    worst = worst_case(clients, marked, degree, probability)
    assert exact_tail(clients, marked, degree, worst + 1) < probability
    assert worst == 0 or exact_tail(clients, marked, degree, worst) >= probability


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 60), fractions, fractions, threats)
def test_the_degree_is_the_least_that_exact_integers_allow(clients: int, corrupted: float, dropout: float, threat: str) -> None:
    """Degree by degree and threshold by threshold, in whole numbers: the search skips nothing that would do."""
    bad, gone = int(corrupted * clients), int(dropout * clients)
    assume(bad + gone < clients)

    def holds(degree: int, threshold: int) -> bool:
        cut = Fraction(clients * (clients - degree - 1), 2) * Fraction(math.comb(bad + gone, degree), math.comb(clients, degree))
        needed = threshold if threat == "curious" else 2 * threshold - degree
        leak = clients * exact_tail(clients, bad, degree, needed)
        failure = clients * exact_tail(clients, gone, degree, degree - threshold + 1)
        return cut < Fraction(1, 2**41) and leak < Fraction(1, 2**41) and failure < Fraction(1, 2**20)

    every = ((k, t) for k in range(2, clients - 1, 2) for t in range(2, k + 1) if holds(k, t))
    found = regular_graph(clients, bad, gone, threat, over_half=False)
    every = list(every)
    assert (sizes(found) if found else None) == next(iter(every), None)
    found = regular_graph(clients, bad, gone, threat)
    assert (sizes(found) if found else None) == next(((k, t) for k, t in every if 2 * t > k), None)


@pytest.mark.parametrize(("clients", "degree"), [(7, 2), (9, 4), (11, 4), (12, 4), (12, 6)])
def test_a_cut_is_no_more_likely_than_the_bound(clients: int, degree: int) -> None:
    """Over all placements: the survivors of the ring are connected, or the bound has counted it."""
    for removed in range(clients - 1):
        cuts = 0
        for lost in combinations(range(clients), removed):
            left = set(range(clients)) - set(lost)
            seen, todo = set(), [min(left)]
            while todo:
                place = todo.pop()
                if place not in seen:
                    seen.add(place)
                    todo += [near for near in ring_neighbours(place, clients, degree) if near in left]
            cuts += seen != left
        bound = math.exp(log_cut(clients, removed, degree)) * math.comb(clients, removed)
        assert cuts <= bound * (1 + 1e-9)
        assert (cuts == 0) == (bound == 0)


@pytest.mark.parametrize(("clients", "degree", "corrupted"), [(9, 4, 3), (11, 6, 4), (12, 4, 5)])
def test_the_union_bound_counts_every_honest_client(clients: int, degree: int, corrupted: int) -> None:
    """A client is not its own neighbour, yet all clients are the population: over the places of the ring that is a bound."""
    for least in range(1, degree + 1):
        hit = 0
        for placed in combinations(range(clients), corrupted):
            bad = set(placed)
            hit += any(
                len(bad.intersection(ring_neighbours(place, clients, degree))) >= least
                for place in range(clients)
                if place not in bad
            )
        assert hit / math.comb(clients, corrupted) <= clients * tail(clients, corrupted, degree, least) * (1 + 1e-9)


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
                assert found.threshold == (safe[len(safe) // 2] if threat == "curious" else safe[0])
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
