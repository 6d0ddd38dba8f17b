"""DP-FedAvg: learning differentially private recurrent language models (McMahan et al. 2018).

    theta <- theta - (1/r) (sum_i clip_C(theta - theta_i) + N(0, C^2 z^2 I)),   r the expected cohort

With `blur` and `sparsity` it is BLUR+LUS (Cheng, Wang, Zhang, Cheng 2022), whose names are `dp-fedavg+blur`, `+lus`, `+blur+lus`:
updates are kept within C while they are trained, and all but their most salient coordinates are dropped, before they are clipped.
Cohorts are Poisson and the divisor is a constant: dividing by who came, as that paper does, shows the cohort's size.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.errors import NoGuarantee
from hush.methods.groups import Clipped, Masked, ServerStep
from hush.methods.recipe import method
from hush.settings import setting


@dataclass(frozen=True, kw_only=True)
class DpFedAvg(ServerStep, Masked, Clipped):
    """Settings of `dp-fedavg`."""

    noise_on: str = setting("all", "all: noise on the kept coordinates alone is refused, for it has no proof")


@method("dp-fedavg", DpFedAvg)
def dp_fedavg(s: DpFedAvg) -> Method:
    """Clip every client's update, sum, add noise. `noise=None` is calibrated from the budget."""
    from hush.methods.stations import clipping, local_training, masking, server_step
    from hush.privacy.claimed import claimed_by_blur_lus, claimed_by_dp_fedavg
    from hush.transforms import Gaussian

    if s.noise_on != "all":
        raise NoGuarantee(
            "Which coordinates a client kept is private, and noise on those alone would publish it: epsilon is infinite.",
            "Leave noise_on=all, or take a mask that is public (mask=rand-k, top-k, saliency or free), which also saves bytes.",
        )
    pipeline = chain(*masking(s), clipping(s), Gaussian(s.noise))
    claim = claimed_by_blur_lus if s.blur or s.sparsity else claimed_by_dp_fedavg
    return Method("dp-fedavg", local_training(s), pipeline, server_step(s), claim=claim)
