"""cpSGD: communication-efficient and differentially private distributed SGD (Agarwal, Suresh, Yu, Kumar, McMahan 2018).

    theta <- theta - (1/r) sum_i s (Q_k(lr mean_j clip_C(grad l(theta, z_j))) + Bin(m, 1/2) - m/2)

Q_k rounds each entry at random to one of k levels s apart. A message is whole numbers of log2(k + m) bits. One local step a round.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import LocalSteps, Noised, Records, ServerStep
from hush.methods.recipe import method
from hush.settings import POSITIVE, setting


@dataclass(frozen=True, kw_only=True)
class CpSgd(ServerStep, LocalSteps):
    """Settings of `cpsgd`; the coarser the grid, 2 most/(levels - 1), the fewer trials and bits it takes."""

    levels: int = setting(255, "how many levels a coordinate has in [-most, most]", "[3, 2147483648]")
    trials: int | None = setting(None, "fair coins in the noise", unset="from the budget")
    most: float = setting(0.1, "the largest coordinate", POSITIVE)
    rotate: bool = setting(False, "rotate at random before rounding")
    clip: float = Noised.redefined("clip", 1.0)
    batches: str = Records.redefined("batches", "fixed")


@method("cpsgd", CpSgd)
def cpsgd(s: CpSgd) -> Method:
    """Quantised gradients under binomial noise, protecting a client's records; one local step a round."""
    from hush.local import L2Clip
    from hush.methods.stations import record_steps, server_step
    from hush.transforms import Rotate
    from hush.transforms.quantize import BinomialMechanism

    mechanism = BinomialMechanism(s.levels, s.most, s.trials)
    pipeline = chain(Rotate(), mechanism) if s.rotate else chain(mechanism)
    return Method("cpsgd", record_steps(s, L2Clip(s.clip), s.batches), pipeline, server_step(s))
