"""How many neighbours a client has, and how many shares reconstruct a secret.

SecAgg+ (Bell, Bonawitz, Gascon, Lepoint, Raykova 2020) puts the clients on a ring in random order. Each is the neighbour of the h
before and the h after it (a Harary graph of degree k = 2 h), masks with them, and hands each a Shamir share of its two secrets,
self seed and mask key, of which t give it back. It holds no share of its own: its answer would be one more than is counted here.

c = ceil(corrupted n) clients are corrupted, before the ring is drawn, and tell the server all they hold. **Whom it does not wait
for a server may choose after it has seen the ring**; clients let no more than d = floor(dropout n) be missing in a sum.

*What shows a part.* A part of the honest clients in the sum, not all of them, lies open when each of its self seeds does, and none
of its clients is masked with an honest one in the sum outside the part. (So does a client with t corrupted neighbours.)

*"curious".* All mask with all their neighbours in the sum. Take a part that hangs together. The h places before its first client
and the h after its last, two *runs*, hold only missing clients and corrupted ones, c1 and c2 of these: **c1 + c2 >= k - d**. The
missing do not answer, so the first client's self seed has h + c1 shares at most, the last one's h + c2: **c1 + c2 >= 2 t - k**.

*"malicious".* The server may also keep letters back, so that a client masks with fewer, though with t. But one that misses the
letter of a neighbour in the sum, a *torn* one, answers nothing, and all who answer do so for one list (a quorum signs it). Those of
the part that have an outsider, honest and in the sum, for a neighbour are torn. Take a stretch of the ring between two outsiders
that holds some of the part and no outsider. If all of the part on it are torn, so are their neighbours of the part. One of them,
with b corrupted neighbours, g missing, s of the part and o others, masked with b + g + s >= t, and b + o >= t showed their share of
its self seed: b >= 2 t - k. Otherwise take the first and the last on it that are not torn. The runs before the one and after the
other hold only torn, missing and corrupted clients, and as above **c1 + c2 >= 2 t - k**.

*The chance.* There are n (n - k - 1) / 2 pairs of runs with somebody between them on both sides; those around a single client are
its neighbours. The k places of each hold a hypergeometric number of corrupted clients. `leak_bound` is the union bound. For
"curious" it is below 2^-40 in each round, also in one that breaks off. A "malicious" server may try rings, with other cohorts and
other keys of corrupted clients, as often as it can compute hashes: there it is below 2^-128 for each try, so that a ring which
serves it is no easier to find than an AES key.

*Failure.* Where d clients vanish by chance, the probability that somebody has fewer than t neighbours left is below 2^-20. It costs
a round, and no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from hush.errors import UsageError
from hush.names import pick

SECURITY_BITS = {"curious": 40, "malicious": 128}
"""The server learns more than the sum with probability below 2^-40 in a round, or 2^-128 for every ring that it tries."""
FAILURE_BITS = 20
"""A round with no more dropouts than declared fails with probability below 2^-20."""
SMALL = 64
"""Up to so many clients everybody shares with everybody."""
LEAST_CLIENTS = 3
"""Of two, each knows the other's value from the sum."""
THREATS = {
    "curious": "the server and the corrupted clients follow the protocol and pool what they see",
    "malicious": "the server may also tell each client something else, and try out graphs",
}

_LEAST_THRESHOLD = 2
"""A share of threshold 1 is the secret itself."""


@dataclass(frozen=True)
class Graph:
    """Who shares secrets with whom, in numbers."""

    degree: int
    """Neighbours of each client, itself not counted: the shares made of each secret."""
    threshold: int
    """Shares that reconstruct a secret; one fewer say nothing about it."""
    complete: bool
    """Everybody is everybody's neighbour."""


@lru_cache(maxsize=1024)
def graph_for(clients: int, corrupted: float, dropout: float, threat: str = "curious") -> Graph:
    """The sparsest graph that keeps the promises above, for a cohort of which at most these fractions are corrupted and drop out.

    The corrupted are rounded up to whole clients and the dropouts down: 0.05 of 10 are one corrupted and no dropout. In small
    cohorts, and where no degree below `clients - 1` is enough, everybody shares with everybody: it costs little there, and
    `complete_graph` says why it is safe without any probability. A sparse graph of few clients would be on a knife's edge.
    """
    pick(THREATS, threat, "threat")
    if clients < LEAST_CLIENTS:
        raise UsageError(f"Secure aggregation needs at least {LEAST_CLIENTS} clients, not {clients}.")
    for name, fraction in (("corrupted", corrupted), ("dropout", dropout)):
        if not 0 <= fraction < 1:  # NaN as well
            raise UsageError(f"{name} must lie in [0, 1), not {fraction:g}: it is a fraction of the clients.")
    if corrupted + dropout >= 1:
        raise UsageError(f"corrupted {corrupted:g} and dropout {dropout:g} leave no honest client: their sum must stay below 1.")
    bad, gone = whole_above(corrupted, clients), whole_below(dropout, clients)
    finders = [regular_graph, complete_graph] if clients > SMALL else [complete_graph]
    found = next((graph for find in finders if (graph := find(clients, bad, gone, threat)) is not None), None)
    if found is None:
        # A malicious server plays the honest holders off against each other, so that over half of all must survive, in any cohort.
        grow = "" if threat == "malicious" and corrupted + 2 * dropout >= 1 else ", or more clients"
        raise UsageError(
            f"Among {clients} clients no threshold is both safe from {bad} corrupted ({threat}) and reached after {gone} dropouts: "
            f"plan for less dropout or fewer corrupted{grow}."
        )
    return found


def regular_graph(clients: int, corrupted: int, dropped: int, threat: str) -> Graph | None:
    """The k-regular graph of least even degree k < clients - 1 that keeps the promises above.

    Its threshold is the largest that the dropouts allow: of what is to spare, all goes to privacy, since a failed round is seen.
    """
    lost = 0
    for degree in range(2, clients - 1, 2):
        while clients * tail(clients, dropped, degree, lost + 1) >= 2.0**-FAILURE_BITS:
            lost += 1  # and no fewer of more neighbours
        graph = Graph(degree, degree - lost, complete=False)
        safe = leak_bound(graph, clients, corrupted, dropped, threat) < 2.0 ** -SECURITY_BITS[threat]
        if safe and graph.threshold >= _LEAST_THRESHOLD:
            return graph
    return None


def leak_bound(graph: Graph, clients: int, corrupted: int, dropped: int, threat: str) -> float:
    """A bound on the probability, over the ring, that the server can learn more than the sum, whomever it does not wait for.

    0 where it is certain that it cannot: in a complete graph, and where the corrupted are too few to fill two runs.
    """
    if graph.complete:
        return 0.0
    degree, threshold = graph.degree, graph.threshold
    least = 2 * threshold - degree
    if threat == "curious":
        least = min(threshold, max(least, degree - dropped))
    return min(1.0, clients * (clients - degree - 1) / 2 * tail(clients, corrupted, degree, least))


def complete_graph(clients: int, corrupted: int, dropped: int, threat: str) -> Graph | None:
    """Everybody's secrets are shared among the n - 1 others: what is promised then holds for certain.

    *Enough are left.* A client whose value is in the sum may miss all d dropouts among the holders of its shares; one that dropped
    out itself misses d - 1 others. So t <= n - 1 - d serves both.

    *"curious".* The server tells everybody the same, so honest holders reveal one kind of share for each client, and only the c
    corrupted ones hold the other kind as well: the secret that must stay hidden does when c < t.

    *"malicious".* Of the n - 1 holders of a client's shares, the n - 1 - c honest ones answer for one secret and the corrupted for
    both: n - 1 + c answers at most, of which t for each secret are needed. Hence 2 t > n - 1 + c, and that implies t > c. Nor does
    it help to keep letters back: a part that is masked with nobody outside it is torn as a whole, as above.

    Honest survivors are always connected, and there are at least two of them: c + 1 <= t <= n - 1 - d.

    For "curious" t is the middle of what is feasible. Every t of that range survives d dropouts, so it costs nothing of what was
    asked for, and c and d may both be exceeded by about as much before anything goes wrong; an odd one goes to privacy, since a
    failed round is seen and repeated, and a leak is neither. For "malicious" t is over half of the holders already: the least one.

    *Where nobody may vanish* t is all holders (of a curious server; in a sparse graph as well). No sum is then opened without every
    client's own opening, and a vector whose sum is not opened cost its client nothing: see `Terms.opens_without_one`.
    """
    holders = clients - 1
    least = corrupted + 1 if threat == "curious" else (holders + corrupted) // 2 + 1
    low, high = max(least, _LEAST_THRESHOLD), holders - dropped
    if low > high:
        return None
    if threat == "malicious":
        return Graph(holders, low, complete=True)
    return Graph(holders, (low + high + 1) // 2 if dropped else high, complete=True)


def tail(clients: int, marked: int, degree: int, least: int) -> float:
    """P(X >= least), where X of `degree` clients drawn without replacement are among the `marked`.

    Good to 1e-10 for 10,000 clients, and to 1e-8 for a million: the error is that of `math.lgamma`, relative also in the far tail.
    """
    if least > min(marked, degree):
        return 0.0
    if least * clients <= marked * degree:  # not above the mean: what is left out is the tail then, and it is that of the unmarked
        return 1.0 - tail(clients, clients - marked, degree, degree - least + 1)
    log_first = _log_choose(marked, least) + _log_choose(clients - marked, degree - least) - _log_choose(clients, degree)
    # Above the mean each term is smaller than the one before; the last ones cannot matter.
    terms, x = [1.0], least
    while terms[-1] > 2.0**-60:
        terms.append(terms[-1] * (marked - x) * (degree - x) / ((x + 1) * (clients - marked - degree + x + 1)))
        x += 1
    return math.exp(log_first) * math.fsum(terms)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def exactly(fraction: float) -> Fraction:
    """0.29 as 29 hundredths, not as the binary number below it, of which 100 clients would have 28."""
    return Fraction(str(fraction))


def whole_below(fraction: float, clients: int) -> int:
    """A fraction of the clients in whole ones, rounded down."""
    return math.floor(exactly(fraction) * clients)


def whole_above(fraction: float, clients: int) -> int:
    """The same, rounded up."""
    return math.ceil(exactly(fraction) * clients)
