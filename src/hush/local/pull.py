"""What holds a client's weights near the model that it received: FedProx's pull, everywhere, and BLUR's, outside of the clip alone.

    prox: (prox/2) ||w - w_t||^2                        (Li et al. 2020)
    BLUR: (blur/2) max(0, ||w - w_t||^2 - S^2)          (Cheng, Wang, Zhang, Cheng 2022, equation 8)

An update that stays within S passes the clip to S as it is. Both are functions of the client's own weights, added to its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hush.checks import HUGE
from hush.errors import UsageError
from hush.settings import check_within


def check_steps(lr: float, momentum: float, decay: float, prox: float, blur: float, limit: float | None) -> None:
    """Refuse steps that lead nowhere, and a pull that pushes."""
    check_within("momentum", momentum, "[0, 1)")
    if not decay > 0:
        raise UsageError("lr_decay must be positive.")
    if not (0 <= prox < HUGE and 0 <= blur < HUGE):
        raise UsageError("prox and blur must be numbers, and must not be negative.")
    if blur * lr >= 1:  # then one step leaps over the model received, and from 2 on ever farther away
        raise UsageError(f"blur times lr must be below 1, not {blur * lr:g}: a step would pull past the model received.")
    if limit is not None and not limit > 0:
        raise UsageError(f"blur_limit must be positive, not {limit:g}.")


def pull_back(gradient: Tensor, away: Tensor, prox: float, blur: float, limit: float | None) -> Tensor:
    """`gradient[clients, d]` with the pull's own added, for weights that lie `away` from those received.

    `limit=None`: nothing clips what is trained here (a server that trains for a mask), so BLUR has nothing to keep within.
    """
    if blur and limit is not None:
        outside = torch.linalg.vector_norm(away, dim=1, keepdim=True) > limit
        return gradient.add_(torch.where(outside, prox + blur, prox) * away)
    return gradient.add_(prox * away) if prox else gradient
