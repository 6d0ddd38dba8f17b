"""How long the server trains on public data for its mask: a point on which the Fed-SMP paper is ambiguous, so a setting."""

from __future__ import annotations

from dataclasses import replace

from hush.core import LocalUpdate
from hush.errors import UsageError
from hush.local.saliency import Saliency
from hush.local.sgd import Sgd
from hush.transforms import TopK


def public_top_k(ratio: float, local: Sgd, public_steps: int, by_saliency: bool = False) -> TopK:
    """Top-k by the clients' own training: `public_steps` batches (the paper's algorithm 2), or with 0 the clients' own
    epochs or steps on the public examples (the paper's section 6). By saliency: the coordinates that the loss on those examples
    depends on most, layer by layer."""
    if public_steps < 0:
        raise UsageError(f"public_steps must be at least 1, or 0 for the clients' own epochs, not {public_steps}.")
    training: LocalUpdate = replace(local, steps=public_steps, epochs=None) if public_steps else local
    if by_saliency:  # an update of which only the salient coordinates are left, so that those are the largest
        training = Saliency(training, 1 - ratio)
    return TopK(ratio, training)
