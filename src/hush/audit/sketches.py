"""DPSFL as it is written, under attack by clients that show what its clip does not bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hush.audit.findings import DELTA, Attack, Audit, found
from hush.audit.statistics import EPS, against_profile
from hush.cohort import FixedSize
from hush.core import Method, Round
from hush.privacy.accountant import account, profile
from hush.privacy.attack import trade_off
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
    secret, present, absent = Secret.fresh(), [], []
    for index in range(-(-2 * victims // _VICTIMS)):
        members = torch.rand(_VICTIMS) < 0.5
        noised, _ = noise.decode(rows[members].sum(0), {}, replace(rnd, index=index), None, secret)
        scores = rows @ noised
        present.append(scores[members].numpy())
        absent.append(scores[~members].numpy())
    there, away = np.concatenate(present), np.concatenate(absent)
    finding = against_profile(there, away, profile(plan, EPS), DELTA)
    longest = float(rows.norm(dim=1).mean()) / clip
    told = f"margin {finding.margin:+.3f}; above 0 falsifies the claim; these sketches are {longest:.2f} times as long as the clip"
    attack: Attack = found(
        "clients that fill a counter",
        account(plan, DELTA).epsilon,
        lambda r: trade_off(plan, r),
        DELTA,
        there,
        away,
        finding.epsilon,
        finding.margin <= 0,
        told,
    )
    return Audit(method.name, "FixedSize", plan.noise_multiplier, (), (attack,))


def filled_counters(hashes: Hashes, count: int) -> Tensor:
    """`[count, dim]` vectors of norm 1, each on the coordinates of one of the fullest counters of the first row."""
    fullest = hashes.loads[0].argsort(descending=True, stable=True)[: -(-count // hashes.lanes)].tolist()
    lanes = hashes.lanes
    stacked = torch.stack([along_counter(hashes, 0, fullest[victim // lanes], victim % lanes) for victim in range(count)])
    unit: Tensor = stacked / stacked.norm(dim=1, keepdim=True)
    return unit
