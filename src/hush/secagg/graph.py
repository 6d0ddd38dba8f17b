"""Who is whose neighbour: a circle in random order, each connected to the nearest `degree / 2` on either side (a Harary graph).

The order is drawn from a hash of everybody's signed keys, so that each client can draw it, too, and no server chooses it.
"""

from __future__ import annotations

import hashlib


def neighbours_of(seed: bytes, clients: int, degree: int, only: int | None = None) -> dict[int, tuple[int, ...]]:
    """Each one's neighbours, ascending, by position in the cohort; or of one client `only`.

    A degree of clients - 1 is the complete graph.
    """
    asked = range(clients) if only is None else (only,)
    if degree >= clients - 1:
        return {i: tuple(j for j in range(clients) if j != i) for i in asked}
    if degree < 2 or degree % 2:
        raise ValueError(f"no circle has the degree {degree}")
    stream = hashlib.shake_256(b"hush secagg graph" + seed).digest(16 * clients)
    order = sorted(range(clients), key=lambda i: stream[16 * i : 16 * i + 16])  # 128 random bits each: a random permutation
    reach = [step for step in range(-degree // 2, degree // 2 + 1) if step]
    places = enumerate(order) if only is None else [(order.index(only), only)]
    return {who: tuple(sorted(order[(place + step) % clients] for step in reach)) for place, who in places}
