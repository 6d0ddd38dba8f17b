"""DPSFL: federated learning with differentially private sketches (AAAI 2026), algorithms 1 and 2.

    S <- (1/r) (sum_i clip_C(sketch(g_i)) + N(0, C^2 z^2)),   then the server of FetchSGD

The paper clips the gradient and takes sqrt(rows) C for the norm of its sketch; coordinates collide, so that is no bound, and it
counts one round of many. Here the *sketch* is clipped, so that its sensitivity is C, and rounds are composed. `clip_in=gradient`
clips before and pays for the largest norm that these hashes allow; `clip_in=paper` runs the paper, with a claim and no number.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.sketched import Sketched, count_sketch, noise_of, sketched_gradient
from hush.names import pick
from hush.privacy.claimed import claimed_by_dpsfl
from hush.server import Average
from hush.transforms import Clip


def dpsfl(
    clip: float = 1.5,
    noise: float | None = None,
    clip_in: str = "sketch",
    noise_by: str = "server",
    **common: Unpack[Sketched],
) -> Method:
    """FetchSGD whose sketches are clipped and noised."""
    where = pick({"sketch": False, "gradient": True, "paper": True}, clip_in, "clip_in")
    sketch = count_sketch(as_written=clip_in == "paper", **common)
    bounded = (Clip(clip), sketch) if where else (sketch, Clip(clip))
    pipeline = chain(*bounded, *noise_of(noise, noise_by))
    return Method("dpsfl", sketched_gradient(**common), pipeline, Average(), claim=claimed_by_dpsfl)
