"""DPSFL as it is written, under attack by clients that show what its clip does not bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hush.audit.findings import Audit, Scored, against_plan, told_apart
from hush.cohort import FixedSize
from hush.core import Method, Round
from hush.privacy.guarantee import Relation
from hush.privacy.plan import plan_of
from hush.random import keys_of
from hush.secret import Secret
from hush.sketch import Hashes
from hush.sketch.norm import along_counter
from hush.transforms import Clip, Noise
from hush.transforms.sketch import SketchAsWritten

_DIM, _VICTIMS = 8192, 64
"""A small model, and so many clients that each fill a counter of their own."""


def is_as_written(method: Method) -> bool:
    """Whether a paper's own sketch shall be attacked."""
    return any(isinstance(part, SketchAsWritten) for part in method.pipeline.parts)


def audit_as_written(method: Method, victims: int = 20_000) -> Audit:
    """Clients that fill a counter: their gradients are within the clip and their sketches longer than the paper says."""
    sized = method.sized(_DIM)
    part = next(part for part in sized.pipeline.parts if isinstance(part, SketchAsWritten))
    noise = next(part for part in sized.pipeline.parts if isinstance(part, Noise))
    clip = next(part.norm for part in sized.pipeline.parts if isinstance(part, Clip))
    plan = plan_of(sized, FixedSize(_VICTIMS), _VICTIMS, 1, Relation.ZERO_OUT, as_written=True)
    rnd, dim = Round(0, 0, float(_VICTIMS)), _DIM
    hashes = part.hashes(rnd, dim, torch.device("cpu"))
    gradients = 10 * clip * filled_counters(hashes, _VICTIMS)
    public = (None,) * len(sized.pipeline.parts)
    rows = sized.pipeline.encode(gradients, rnd, keys_of(0, torch.arange(_VICTIMS)), public)
    secret = Secret.fresh()

    def played() -> Iterator[Scored]:
        for index in range(-(-2 * victims // _VICTIMS)):
            members = torch.rand(_VICTIMS) < 0.5
            noised, _ = noise.decode(rows[members].sum(0), {}, replace(rnd, index=index), None, secret)
            yield rows @ noised, members

    longest = float(rows.norm(dim=1).mean()) / clip
    more = f"; these sketches are {longest:.2f} times as long as the clip"
    attack = against_plan("clients that fill a counter", plan, told_apart(played()), more)
    return Audit(method.name, "FixedSize", plan.noise_multiplier, (), (attack,))


def filled_counters(hashes: Hashes, count: int) -> Tensor:
    """`[count, dim]` vectors of norm 1, each on the coordinates of one of the fullest counters of the first row."""
    fullest = hashes.loads[0].argsort(descending=True, stable=True)[: -(-count // hashes.lanes)].tolist()
    lanes = hashes.lanes
    stacked = torch.stack([along_counter(hashes, 0, fullest[victim // lanes], victim % lanes) for victim in range(count)])
    unit: Tensor = stacked / stacked.norm(dim=1, keepdim=True)
    return unit
