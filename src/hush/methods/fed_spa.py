"""Fed-SPA: federated learning with sparsification-amplified privacy and adaptive optimization (Hu, Gong, Guo 2021), algorithm 1.

    theta_i <- theta_i - lr (1/p) (sum_j clip_C(m_i * grad l(theta_i, z_j)) + N(0, C^2 z^2) on m_i) / B,   tau times, fresh records
    theta <- theta - lr_g u / (sqrt(v) + kappa),   u, v from the mean of theta - theta_i by equations (6)

m_i is the client's own random mask of k = p d coordinates for the round. In the paper the *unmasked* gradient is clipped, which
does not bound what a record adds to the coordinates that are sent: `mode=paper` runs that, with a claim and without a number. Here
the masked gradient of every record is clipped, so epsilon is the same for every p; what falls is the noise's energy, and the bytes.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.local.as_written import FedSpaAsWritten
from hush.methods.common import RecordCommon, as_written, clip_rule, local_dp_sgd, server_step
from hush.privacy.claimed import claimed_by_fed_spa
from hush.transforms.own_mask import OwnRandK


def fed_spa(
    ratio: float = 0.1,
    clip: float | None = None,
    noise: float | None = None,
    mode: str = "proved",
    clip_per: str = "l2",
    batches: str = "poisson",
    **common: Unpack[RecordCommon],
) -> Method:
    """Noisy steps on a client's own random coordinates, protecting its records; an adaptive server."""
    mask = OwnRandK(ratio)
    local = local_dp_sgd(clip_rule(clip if clip is not None else 1.0, clip_per), noise, batches, mask, **common)
    if as_written(mode):
        local = FedSpaAsWritten.of(local, clip)
    settings: RecordCommon = {"server": "fed-spa", **common}
    return Method("fed-spa", local, chain(mask), server_step(**settings), claim=claimed_by_fed_spa)
