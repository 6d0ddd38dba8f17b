"""DPSFL: federated learning with differentially private sketches (AAAI 2026), algorithms 1 and 2.

    S <- (1/r) (sum_i clip_C(sketch(g_i)) + N(0, C^2 z^2)),   then the server of FetchSGD

The paper clips the gradient and takes sqrt(rows) C for the norm of its sketch; coordinates collide, so that is no bound, and it
counts one round of many. Here the *sketch* is clipped, so that its sensitivity is C, and rounds are composed. `clip_in=gradient`
clips before and pays for the largest norm that these hashes allow; `clip_in=paper` runs the paper, with a claim and no number.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import NoiseBy, Sketched
from hush.methods.recipe import method
from hush.settings import setting


@dataclass(frozen=True, kw_only=True)
class Dpsfl(Sketched, NoiseBy):
    """Settings of `dpsfl`."""

    clip_in: str = setting(
        "sketch",
        "clip the sketch; the gradient, at the price of a sketch's largest norm; or as the paper, without a number",
        choices=("sketch", "gradient", "paper"),
    )


@method("dpsfl", Dpsfl)
def dpsfl(s: Dpsfl) -> Method:
    """FetchSGD whose sketches are clipped and noised."""
    from hush.methods.stations import count_sketch, noise_by, sketched_gradient
    from hush.privacy.claimed import claimed_by_dpsfl
    from hush.server import Average
    from hush.transforms import Clip

    sketch = count_sketch(s, as_written=s.clip_in == "paper")
    bounded = (sketch, Clip(s.clip)) if s.clip_in == "sketch" else (Clip(s.clip), sketch)
    return Method("dpsfl", sketched_gradient(s), chain(*bounded, *noise_by(s)), Average(), claim=claimed_by_dpsfl)
