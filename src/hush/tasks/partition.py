"""Who holds which example. Every partition is deterministic by its seed and uses each example once.

A spec names how labels are dealt, and optionally how sizes differ: `iid`, `dirichlet:0.1`, `shards:2`, `natural`,
`iid+lognormal:1`, `dirichlet:0.3+zipf:1.2`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hush.errors import UsageError

Index = NDArray[np.int64]
NO_NATURE = "This data set has no clients by nature: choose iid, dirichlet:ALPHA or shards:K."
KNOWN = "iid, dirichlet:ALPHA, shards:K, natural, or one of the first two with +lognormal:SIGMA or +zipf:A for unequal sizes"


def partition(spec: str, labels: Index, clients: int, seed: int, owner: Index | None = None) -> list[Index]:
    """The rows of each client, by a spec such as `iid`, `dirichlet:0.3`, `shards:2`, `natural` or `iid+lognormal:1`.

    `owner` says whose each example is, where a data set has clients by nature.
    """
    name, argument, size_name, size_argument = parse(spec)
    rng = np.random.default_rng(seed)
    if name == "natural":
        return natural(owner, clients, rng)
    if clients < 1 or clients > len(labels):
        raise UsageError(f"{len(labels):,} training examples cannot be split over {clients:,} clients.")
    sizes = _shares(_weights(size_name, size_argument, clients, rng), len(labels))
    if name == "iid":
        return iid(sizes, rng)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(f"{name} goes by labels, and these targets are not one whole number each: choose iid or natural.")
    labels = np.unique(labels, return_inverse=True)[1]  # whatever numbers they are
    if name == "shards":
        return shards(labels, clients, int(argument), rng)
    return dirichlet(labels, sizes, argument, rng)


def parse(spec: str) -> tuple[str, float, str, float]:
    """How labels are dealt, and sizes: (name, number, name, number), or one sentence on what is wrong."""
    left, plus, right = spec.partition("+")
    if not plus and left.partition(":")[0] in ("lognormal", "zipf"):
        left, plus, right = "iid", "+", left
    name, argument = _number(left, spec, {"iid": None, "natural": None, "dirichlet": 0.5, "shards": 2})
    sizes, scale = _number(right, spec, {"lognormal": 1.0, "zipf": 1.2}) if plus else ("equal", 0.0)
    if plus and name in ("shards", "natural"):
        raise UsageError(f"{name} decides the sizes itself: leave '+{right}' out.")
    if name == "shards" and argument != int(argument):
        raise UsageError(f"shards takes a whole number, as in shards:2, not '{argument:g}'.")
    return name, argument, sizes, scale


def _number(text: str, spec: str, known: dict[str, float | None]) -> tuple[str, float]:
    name, colon, argument = text.partition(":")
    if name not in known:
        raise UsageError(f"There is no partition '{spec}'; known: {KNOWN}.")
    example = known[name]
    if example is None:
        if colon:
            raise UsageError(f"{name} takes no number: there is no partition '{spec}'.")
        return name, 0.0
    try:
        value = float(argument)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} needs a positive number, as in {name}:{example:g}, not '{argument}'.")
    return name, value


def iid(sizes: Index, rng: np.random.Generator) -> list[Index]:
    """Shuffle and deal out."""
    return [np.sort(part) for part in np.split(rng.permutation(int(sizes.sum())), np.cumsum(sizes)[:-1])]


def dirichlet(labels: Index, sizes: Index, alpha: float, rng: np.random.Generator) -> list[Index]:
    """Each client's label mix is a draw of Dirichlet(alpha) (Hsu, Qi, Brown 2019); its size is given.

    The draws are fitted to the labels that there are (iterative proportional fitting), all clients at once: dealt one after
    another, the last would get what is left over instead of their mix.
    """
    totals = np.bincount(labels)
    mixes = rng.dirichlet(np.full(len(totals), alpha), size=len(sizes))
    counts = _whole(_fitted(mixes, sizes, totals), sizes, totals)
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(len(totals))]
    cuts = [np.split(pool, np.cumsum(counts[:-1, c])) for c, pool in enumerate(pools)]
    return [np.sort(np.concatenate([cut[i] for cut in cuts])) for i in range(len(sizes))]


def _fitted(mixes: NDArray[np.float64], sizes: Index, totals: Index) -> NDArray[np.float64]:
    """The table nearest to the mixes whose rows add up to the sizes and whose columns to the labels' totals."""
    table = np.nan_to_num(mixes, nan=1.0 / len(totals)) + 1e-9
    for _ in range(200):
        table *= (sizes / table.sum(1))[:, None]
        table *= totals / table.sum(0)
    return table


def _whole(table: NDArray[np.float64], sizes: Index, totals: Index) -> Index:
    """Whole numbers near the table with exactly these sums."""
    counts = np.minimum(np.floor(table).astype(np.int64), sizes[:, None])
    for over in np.flatnonzero(counts.sum(1) > sizes):  # where the fitting had not come to its end
        while counts[over].sum() > sizes[over]:
            counts[over, counts[over].argmax()] -= 1
    left = totals - counts.sum(0)
    for i in range(len(sizes)):
        for c in np.argsort(counts[i] - table[i], kind="stable"):  # the label that lost most by rounding first
            if counts[i].sum() < sizes[i] and left[c] > 0:
                counts[i, c] += 1
                left[c] -= 1
        while counts[i].sum() < sizes[i]:
            richest = int(left.argmax())
            more = min(int(left[richest]), int(sizes[i] - counts[i].sum()))
            counts[i, richest] += more
            left[richest] -= more
    return counts


def shards(labels: Index, clients: int, each: int, rng: np.random.Generator) -> list[Index]:
    """Sort by label, cut into equal shards, deal `each` client so many: few labels each (McMahan et al. 2017)."""
    if clients * each > len(labels):
        raise UsageError(f"{len(labels):,} training examples cannot be cut into {clients * each:,} shards.")
    by_label = rng.permutation(len(labels))
    by_label = by_label[np.argsort(labels[by_label], kind="stable")]
    pieces = np.array_split(by_label, clients * each)
    dealt = rng.permutation(clients * each).reshape(clients, each)
    return [np.sort(np.concatenate([pieces[i] for i in own])) for own in dealt]


def natural(owner: Index | None, clients: int, rng: np.random.Generator) -> list[Index]:
    """Each to its owner; with fewer clients than owners, that many of them at random."""
    if owner is None:
        raise UsageError(NO_NATURE)
    order = np.argsort(owner, kind="stable")
    whose, first = np.unique(owner[order], return_index=True)
    if clients < 1 or clients > len(whose):
        raise UsageError(f"{len(whose):,} clients by nature cannot make {clients:,}.")
    parts = np.split(order, first[1:])
    if clients == len(whose):
        return parts
    return [parts[i] for i in np.sort(rng.permutation(len(whose))[:clients])]


def _weights(name: str, number: float, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How large clients are beside each other."""
    if name == "lognormal":
        exponents = number * rng.standard_normal(clients)
        return np.asarray(np.exp(exponents - exponents.max()), dtype=np.float64)
    # zipf: the r-th largest client holds a share of r^-number
    return rng.permutation(np.arange(1, clients + 1) ** -number) if name == "zipf" else np.ones(clients)


def _shares(weights: NDArray[np.float64], examples: int) -> Index:
    """Whole numbers in these proportions, at least one each, that add up."""
    exact = weights / weights.sum() * (examples - len(weights))
    sizes = np.floor(exact).astype(np.int64)
    rest = int(examples - len(weights) - sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1
    return np.asarray(sizes + 1, dtype=np.int64)
