"""CPFed: communication-efficient and privacy-preserving federated learning (Hu, Guo, Gong), algorithm 1.

    theta_i <- theta_i - lr (sum_j clip_C(grad l(theta_i, z_j)) + N(0, C^2 z^2)) / B,   tau times;   theta <- (1/r) sum_i theta_i

The paper counts the noise of all r clients, under a secure sum, and multiplies by r/n; neither is proved (`docs/privacy.md`). What
is proved is what each step's own noise covers, and that holds whether the sum is secure or not. `mode=paper` clips nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

from hush.core import Method, chain
from hush.local.as_written import CpfedAsWritten
from hush.methods.common import RecordCommon, as_written, clip_rule, local_dp_sgd, server_step
from hush.privacy.claimed import claimed_by_cpfed


def cpfed(
    clip: float = 1.0,
    noise: float | None = None,
    mode: str = "proved",
    secure_sum: bool = True,
    clip_per: str = "l2",
    batches: str = "poisson",
    **common: Unpack[RecordCommon],
) -> Method:
    """Noisy local steps and an average, protecting a client's records; `secure_sum` changes what the paper claims."""
    local = local_dp_sgd(clip_rule(clip, clip_per), noise, batches, None, **common)
    if as_written(mode):
        local = CpfedAsWritten.of(local, clip)
    return Method("cpfed", local, chain(), server_step(**common), claim=partial(claimed_by_cpfed, secure_sum=secure_sum))
