"""ADPFL, DPSFL's baseline: sensitivity adapted to history (Xue et al. 2024: "Differentially private federated learning with an
adaptive noise mechanism", IEEE TIFS 19).

    theta <- theta - lr (1/r) (sum_i clip_C(g_i) + N(0, C^2 z^2)),   C <- memory C + (1 - memory) factor ||denoised last average||

The paper's text is not at hand; its abstract and DPSFL say that a client estimates its sensitivity, hence its noise, from the
global models and from its own past gradients. What is taken is the first half: the global models are released under noise, so a
clip that follows them is free. A client whose *noise* follows its own gradients tells about them by how much it adds, and has no
proof: `history=local` is refused. The rule for C, its factor and memory are ours.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.errors import NoGuarantee
from hush.methods.common import Common, server_step
from hush.methods.sketched import noise_of, one_gradient
from hush.names import pick
from hush.transforms import HistoryClip


def adpfl(
    clip: float = 1.5,
    noise: float | None = None,
    factor: float = 3.0,
    memory: float = 0.9,
    history: str = "global",
    noise_by: str = "server",
    **common: Unpack[Common],
) -> Method:
    """DPFL whose clip, and with it the noise, follows the norm of past noised averages."""
    if pick({"global": False, "local": True}, history, "history"):
        raise NoGuarantee(
            "Noise that follows a client's own past gradients tells about them by how much it adds, so no epsilon holds.",
            "Leave history=global: the clip then follows what was already released under noise.",
        )
    adaptive = HistoryClip(clip, factor, memory, std=noise or 0.0, messages=noise_by == "messages")
    pipeline = chain(adaptive, *noise_of(noise, noise_by))
    settings: Common = {"server": "momentum", "server_lr": 0.1, **common}
    return Method("adpfl", one_gradient(**common), pipeline, server_step(**settings))
