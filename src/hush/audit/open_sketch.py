"""A sketch that can be read back: for audits, which compare what was sent with what was released."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hush.core import Method, Public, Round, State
from hush.errors import NoGuarantee
from hush.secret import Secret
from hush.sketch import Hashes
from hush.sketch.tables import transposed, turn_back
from hush.transforms import CountSketch
from hush.transforms.sparsify import spread


@dataclass(frozen=True)
class OpenSketch(CountSketch):
    """The same for clients; the server reads from the table the coordinates that share no counter with each other.

    What it does with a noised table besides, the search for heavy coordinates and the error feedback, rests on no secret.
    """

    @staticmethod
    def of(part: CountSketch) -> OpenSketch:
        return OpenSketch(**{f.name: getattr(part, f.name) for f in fields(CountSketch)})

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        hashes = self.hashes(rnd, int(state["dim"]), total.device)
        where = apart(hashes)
        return spread(transposed(total, hashes)[where], where, hashes.dim), state

    def readable(self, dim: int, rnd: Round) -> Tensor:
        """One where a coordinate is read."""
        where = apart(self.hashes(rnd, dim, torch.device("cpu")))
        return spread(torch.ones(len(where), dtype=torch.float64), where, dim)


def apart(hashes: Hashes) -> Tensor:
    """Coordinates of which no two meet in any row: the first of those that come to each counter, if first in every row."""
    place = torch.arange(hashes.tiles, device=hashes.home.device)
    alone = torch.ones(hashes.tiles, dtype=torch.bool, device=place.device)
    for row in range(hashes.rows):
        first = torch.full((hashes.homes,), hashes.tiles, device=place.device).scatter_reduce_(
            0, hashes.home[row].long(), place, "amin"
        )
        alone &= first[hashes.home[row].long()] == place
    tiles = alone[:, None].expand(-1, hashes.lanes).double()
    return torch.nonzero(turn_back(tiles.clone(), hashes)).flatten()


def opened(method: Method) -> Method:
    """The method with sketches that can be read."""
    parts = method.pipeline.parts
    if not any(isinstance(part, CountSketch) for part in parts):
        return method
    for part in parts:
        if isinstance(part, CountSketch) and type(part) not in (CountSketch, OpenSketch):
            raise NoGuarantee(f"{type(part).__name__} is not the sketch that an audit can read back.", "Use CountSketch itself.")
    return method.with_pipeline(*(OpenSketch.of(part) if isinstance(part, CountSketch) else part for part in parts))
