"""CPFed with its noise where a secure sum can be proved to help: on the final update, once.

    theta <- theta - (1/r) (sum_i clip_C(theta - theta_i) + N(0, C^2 z^2)),   the noise in shares of the r clients

A bound on whole clients, and so on their records, too: a replaced record can turn a clipped update around, with no 1/B.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import Common, local_training, server_step
from hush.transforms import Clip, Gaussian


def cpfed_output(clip: float = 1.0, noise: float | None = None, **common: Unpack[Common]) -> Method:
    """Clip the final update and noise it once, in shares, under a secure sum."""
    pipeline = chain(Clip(clip), Gaussian(noise, shares=True))
    return Method("cpfed-output", local_training(**common), pipeline, server_step(**common))
