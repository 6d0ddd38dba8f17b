"""CPFed with its noise where a secure sum can be proved to help: on the final update, once.

    theta <- theta - (1/r) (sum_i clip_C(theta - theta_i) + N(0, C^2 z^2)),   the noise in shares of the r clients

A bound on whole clients, and so on their records, too: a replaced record can turn a clipped update around, with no 1/B.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import LocalTraining, Noised, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class CpfedOutput(ServerStep, Noised, LocalTraining):
    """Settings of `cpfed-output`."""


@method("cpfed-output", CpfedOutput)
def cpfed_output(s: CpfedOutput) -> Method:
    """Clip the final update and noise it once, in shares, under a secure sum."""
    from hush.methods.stations import local_training, server_step
    from hush.transforms import Clip, Gaussian

    return Method("cpfed-output", local_training(s), chain(Clip(s.clip), Gaussian(s.noise, shares=True)), server_step(s))
