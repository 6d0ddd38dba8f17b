"""Who holds which example. Every partition is deterministic by its seed and uses each example once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hush.errors import UsageError

Index = NDArray[np.int64]


def partition(spec: str, labels: Index, clients: int, seed: int) -> list[Index]:
    """The rows of each client, by a spec such as `iid` or `dirichlet:0.3`."""
    name, _, argument = spec.partition(":")
    if clients < 1 or clients > len(labels):
        raise UsageError(f"{len(labels):,} training examples cannot be split over {clients:,} clients.")
    rng = np.random.default_rng(seed)
    if name == "iid" and not argument:
        return iid(len(labels), clients, rng)
    if name == "dirichlet":
        try:
            alpha = float(argument)
        except ValueError:
            alpha = -1.0
        if not 0 < alpha < float("inf"):
            raise UsageError(f"dirichlet needs a positive number, as in dirichlet:0.5, not '{argument}'.")
        return dirichlet(labels, clients, alpha, rng)
    raise UsageError(f"There is no partition '{spec}'; known: iid, dirichlet:ALPHA.")


def iid(examples: int, clients: int, rng: np.random.Generator) -> list[Index]:
    """Shuffle and deal out evenly: sizes differ by one at most."""
    return [np.sort(part) for part in np.array_split(rng.permutation(examples), clients)]


def dirichlet(labels: Index, clients: int, alpha: float, rng: np.random.Generator) -> list[Index]:
    """Equal sizes, unequal labels: each client's label mix is a draw of Dirichlet(alpha) (Hsu, Qi, Brown 2019).

    A client draws its examples label by label from what is left, so that every example is used exactly once.
    """
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == c)).tolist() for c in range(classes)]
    mixes = rng.dirichlet(np.full(classes, alpha), size=clients)
    sizes = [len(part) for part in np.array_split(np.arange(len(labels)), clients)]
    parts = []
    for mix, size in zip(mixes, sizes, strict=True):
        rows: list[int] = []
        while len(rows) < size:
            left = np.array([len(pool) for pool in pools])
            wanted = np.where(left > 0, mix + 1e-12, 0.0)
            counts = np.minimum(rng.multinomial(size - len(rows), wanted / wanted.sum()), left)
            for pool, count in zip(pools, counts, strict=True):
                rows += [pool.pop() for _ in range(count)]
        parts.append(np.sort(np.array(rows, dtype=np.int64)))
    return parts
