"""The free mask: send the coordinates that what was already released says matter, and a few at random to find others.

Past sums are noised before they are looked at, so choosing by them is post-processing: it costs no privacy and needs no public
examples, and one mask for the whole cohort leaves the sum a sum, also a secure one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Public, Round, Server, State
from hush.random import derive, key_of, uniform
from hush.secret import Secret
from hush.settings import check_within
from hush.transforms.sparsify import ToldMask, spread

_DRAW = 0x66726565
"""The word of the draw's stream, apart from what else a round draws from its seed."""


@dataclass(frozen=True)
class FreeMask(ToldMask):
    """The k coordinates with the largest |m|, of which a share `explore` is drawn at random from all others instead.

    m <- memory m + (1 - memory) (noised sum), at the coordinates that were sent; others keep theirs. No scaling.
    """

    explore: float = 0.2
    memory: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("explore", self.explore, "(0, 1]", "without it, no other coordinate is ever tried")
        check_within("memory", self.memory, "[0, 1)")

    def init(self, dim: int) -> State:
        return {"m": torch.zeros(dim, dtype=torch.float64)}

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Tensor:
        size = state["m"].abs().to(params.device)
        count = self.kept(len(size))
        known = min(round((1 - self.explore) * count), int(torch.count_nonzero(size)))
        order = uniform(key_of(derive(rnd.seed, _DRAW), params.device), (len(size),))[0].double()
        order[size.topk(known).indices] = 2.0  # first, before all that were drawn
        return order.topk(count).indices.sort().values

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        m, where = state["m"].clone(), public.to(state["m"].device)
        m[where] = self.memory * m[where] + (1 - self.memory) * total.to(m)
        return spread(total, public, len(m)), {"m": m}
