"""Fed-SPA: federated learning with sparsification-amplified privacy and adaptive optimization (Hu, Gong, Guo 2021), algorithm 1.

    theta_i <- theta_i - lr (1/p) (sum_j clip_C(m_i * grad l(theta_i, z_j)) + N(0, C^2 z^2) on m_i) / B,   tau times, fresh records
    theta <- theta - lr_g u / (sqrt(v) + kappa),   u, v from the mean of theta - theta_i by equations (6)

m_i is the client's own random mask of k = p d coordinates for the round. In the paper the *unmasked* gradient is clipped, which
does not bound what a record adds to the coordinates that are sent: `mode=paper` runs that, with a claim and without a number. Here
the masked gradient of every record is clipped, so epsilon is the same for every p; what falls is the noise's energy, and the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import FoundClip, Ratio, ServerStep
from hush.methods.recipe import method


@dataclass(frozen=True, kw_only=True)
class FedSpa(ServerStep, Ratio, FoundClip):
    """Settings of `fed-spa`."""

    server: str = ServerStep.redefined("server", "fed-spa")


@method("fed-spa", FedSpa)
def fed_spa(s: FedSpa) -> Method:
    """Noisy steps on a client's own random coordinates, protecting its records; an adaptive server."""
    from hush.local.as_written import FedSpaAsWritten
    from hush.methods.stations import local_dp_sgd, server_step
    from hush.privacy.claimed import claimed_by_fed_spa
    from hush.transforms.own_mask import OwnRandK

    mask = OwnRandK(s.ratio)
    local = local_dp_sgd(s, s.local_steps, mask, as_written=FedSpaAsWritten)
    return Method("fed-spa", local, chain(mask), server_step(s), claim=claimed_by_fed_spa)
