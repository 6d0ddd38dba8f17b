"""How many neighbours a client has, and how many shares reconstruct a secret (Bell, Bonawitz, Gascon, Lepoint, Raykova 2020).

SecAgg+ puts the clients on a ring in random order; each is the neighbour of the degree / 2 before and after it (a Harary graph),
masks with its neighbours, and hands each of them a Shamir share of its two secrets, self seed and mask key. The bounds are those of
`fcp/secagg/server/graph_parameter_finder.cc` in google-parfait/federated-compute.

**A client is not its own neighbour.** The source's finder counts in the same way; its graph then has a self-loop on top
(`secagg_server.cc`: "We add 1 to the computed degree to account for a self-edge"), and its clients keep and reveal a share of their
own self seed. Here no client may hold a share of its own secrets: a malicious server tells a victim that it lives, and the victim's
own answer is one more than 2 t > degree + corrupted allows for; where that sum is odd, it is the one that was missing.

Let c = ceil(corrupted n) clients be corrupted and d = floor(dropout n) drop out, both chosen before the ring is drawn. Of the k
neighbours of a place on the ring a hypergeometric number then belongs to such a group, and a union bound over the n places holds
the probability of these events in a k-regular graph

* below 2^-41: the honest survivors are not connected through each other, so that the sum of a part of them shows. It takes two
  runs of k / 2 consecutive clients that are all corrupted or gone;
* below 2^-41: an honest client has too many corrupted neighbours. For "curious" that is t, who reconstruct its secrets by
  themselves. For "malicious" it is 2 t - k: a server that tells some neighbours that the client lives, and others that it died,
  gets an answer from each honest one and two from each corrupted one, and needs t for either secret;
* below 2^-20: a client has fewer than t neighbours left, and the round fails, with nothing lost but the round.

The first two together are below 2^-40. **The threshold is over half of the degree**, which the source does not ask for against a
curious server. Without it a server need not lie: it does not wait for two runs of k / 2 clients, and opens the sum of the arc
between them, with the noise of few. With it the client beside such a run has too few neighbours left, and refuses.

"malicious" is the source's "semi-malicious": the ring is drawn honestly, as it is when it follows from a hash of all signed keys.
What the source does not say: such a server picks the dropouts after it has seen the ring, and then the first bound says nothing.
The threshold still does. The honest client next to a run has k / 2 neighbours on its other side, so its self seed stays hidden
unless the run holds t - k / 2 corrupted ones that answer; a cut takes two such runs, with 2 t - k corrupted among their k places.
As all clients answer for the same list of survivors (a quorum of the whole cohort signs it), this has probability below
(n - k - 1) / 2 * 2^-41, whoever is dropped: 2^-32 for a thousand clients.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from hush.errors import UsageError
from hush.names import pick

SECURITY_BITS = 40
"""The server learns more than the sum with probability below 2^-40."""
FAILURE_BITS = 20
"""A round with no more dropouts than declared fails with probability below 2^-20."""
SMALL = 64
"""Up to so many clients everybody shares with everybody."""
LEAST_CLIENTS = 3
"""Of two, each knows the other's value from the sum."""
THREATS = {
    "curious": "the server and the corrupted clients follow the protocol and pool what they see",
    "malicious": "the server may also tell each client something else; the graph is drawn honestly",
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


def regular_graph(clients: int, corrupted: int, dropped: int, threat: str, over_half: bool = True) -> Graph | None:
    """The k-regular graph of least even degree k < clients - 1 that keeps the module's three bounds, with its least threshold.

    `over_half=False` is the source's, whose threshold for a curious server may be half of the degree or less.
    """
    security = 2.0 ** -(SECURITY_BITS + 1) / clients  # half for the cut, half for the shares, and that for each client
    failure = 2.0**-FAILURE_BITS / clients
    degrees = range(2, clients - 1, 2)
    # more neighbours make a cut less likely, so all from the first on pass
    first = bisect_left(degrees, True, key=lambda k: log_cut(clients, corrupted + dropped, k) < -(SECURITY_BITS + 1) * math.log(2))
    degree = 2 + 2 * first
    while degree < clients - 1:
        low = _least_threshold(degree, worst_case(clients, corrupted, degree, security), threat)
        low = max(low, degree // 2 + 1) if over_half else low
        high = degree - worst_case(clients, dropped, degree, failure)
        if low <= high:
            return Graph(degree, low, complete=False)
        # A neighbour more is at most a survivor more and never lowers `low`, so nothing is skipped that would have done.
        degree += low - high + (low - high) % 2
    return None


def complete_graph(clients: int, corrupted: int, dropped: int, threat: str) -> Graph | None:
    """Everybody's secrets are shared among the n - 1 others: what is promised then holds for certain.

    *Enough are left.* A client whose value is in the sum may miss all d dropouts among the holders of its shares; one that dropped
    out itself misses d - 1 others. So t <= n - 1 - d serves both.

    *"curious".* The server tells everybody the same, so honest holders reveal one kind of share for each client, and only the c
    corrupted ones hold the other kind as well: the secret that must stay hidden does when c < t.

    *"malicious".* Of the n - 1 holders of a client's shares, the n - 1 - c honest ones answer for one secret and the corrupted for
    both: n - 1 + c answers at most, of which t for each secret are needed. Hence 2 t > n - 1 + c, and that implies t > c.

    Honest survivors are always connected, and there are at least two of them: c + 1 <= t <= n - 1 - d.

    For "curious" t is the middle of what is feasible. Every t of that range survives d dropouts, so it costs nothing of what was
    asked for, and c and d may both be exceeded by about as much before anything goes wrong; an odd one goes to privacy, since a
    failed round is seen and repeated, and a leak is neither. For "malicious" t is over half of the holders already: the least one.
    """
    holders = clients - 1
    low, high = _least_threshold(holders, corrupted, threat), holders - dropped
    if low > high:
        return None
    return Graph(holders, (low + high + 1) // 2 if threat == "curious" else low, complete=True)


def log_cut(clients: int, removed: int, degree: int) -> float:
    """Log of a bound on the probability that the ring falls apart when `removed` clients, independent of it, are taken out.

    A cut takes two runs of degree / 2 removed clients with somebody between them on both sides: n (n - k - 1) / 2 pairs of runs,
    and a given set of k places is removed with probability C(removed, k) / C(n, k).
    """
    if degree > removed:
        return -math.inf
    pairs = math.log(clients) + math.log(clients - degree - 1) - math.log(2)
    return pairs + _log_choose(removed, degree) - _log_choose(clients, degree)


def worst_case(clients: int, marked: int, degree: int, probability: float) -> int:
    """The least m such that a place on the ring has more than m marked neighbours with less than this probability."""
    return bisect_left(range(min(marked, degree)), True, key=lambda m: tail(clients, marked, degree, m + 1) < probability)


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


def _least_threshold(holders: int, corrupted: int, threat: str) -> int:
    """The least t that this many corrupted ones among the holders of a secret's shares cannot get around."""
    least = corrupted + 1 if threat == "curious" else (holders + corrupted) // 2 + 1
    return max(least, _LEAST_THRESHOLD)


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
