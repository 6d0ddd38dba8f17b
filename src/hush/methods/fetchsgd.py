"""FetchSGD: communication-efficient federated learning with sketching (Rothchild et al. 2020), algorithm 1.

    S <- (1/r) sum_i sketch(g_i),   S_u <- rho S_u + S,   S_e <- S_e + lr S_u
    Delta <- top-k(unsketch(S_e)),   S_e <- S_e - sketch(Delta),   theta <- theta - Delta

g_i is one stochastic gradient. Momentum and error feedback live in the sketch, at the server, so clients keep nothing.
"""

from __future__ import annotations

from hush.core import Method, chain
from hush.methods.groups import Sketched
from hush.methods.recipe import method


class FetchSgd(Sketched):
    """Settings of `fetchsgd`."""


@method("fetchsgd", FetchSgd)
def fetchsgd(s: FetchSgd) -> Method:
    """Sketches of gradients, heavy coordinates found in their sum; no noise, no privacy."""
    from hush.methods.stations import count_sketch, sketched_gradient
    from hush.server import Average

    return Method("fetchsgd", sketched_gradient(s), chain(count_sketch(s)), Average())
