"""cpSGD: communication-efficient and differentially private distributed SGD (Agarwal, Suresh, Yu, Kumar, McMahan 2018).

    theta <- theta - (1/r) sum_i s (Q_k(lr mean_j clip_C(grad l(theta, z_j))) + Bin(m, 1/2) - m/2)

Q_k rounds each entry at random to one of k levels s apart. A message is whole numbers of log2(k + m) bits. One local step a round.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.methods.common import RecordCommon, StepCommon, clip_rule, local_dp_sgd, server_step
from hush.transforms.quantize import BinomialMechanism
from hush.transforms.rotate import Rotate


def cpsgd(
    levels: int = 255,
    trials: int | None = None,
    most: float = 0.1,
    rotate: bool = False,
    clip: float = 1.0,
    batches: str = "fixed",
    **common: Unpack[StepCommon],
) -> Method:
    """Quantised gradients under binomial noise, protecting a client's records; one local step a round.

    `trials=None` is found from the budget. The coarser the grid, 2 most/(levels - 1), the fewer trials and bits it takes.
    """
    settings: RecordCommon = {**common, "local_steps": 1}
    local = local_dp_sgd(clip_rule(clip, "l2"), 0.0, batches, None, **settings)
    mechanism = BinomialMechanism(levels, most, trials)
    pipeline = chain(Rotate(), mechanism) if rotate else chain(mechanism)
    return Method("cpsgd", local, pipeline, server_step(**settings))
