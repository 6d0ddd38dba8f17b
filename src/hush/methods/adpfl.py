"""ADPFL, DPSFL's baseline: sensitivity adapted to history (Xue et al. 2024: "Differentially private federated learning with an
adaptive noise mechanism", IEEE TIFS 19).

    theta <- theta - lr (1/r) (sum_i clip_C(g_i) + N(0, C^2 z^2)),   C <- memory C + (1 - memory) factor ||denoised last average||

The paper's text is not at hand; its abstract and DPSFL say that a client estimates its sensitivity, hence its noise, from the
global models and from its own past gradients. What is taken is the first half: the global models are released under noise, so a
clip that follows them is free. A client whose *noise* follows its own gradients tells about them by how much it adds, and has no
proof: `history=local` is refused. The rule for C, its factor and memory are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.errors import NoGuarantee
from hush.methods.groups import NoiseBy, OneGradient, ServerStep
from hush.methods.recipe import method
from hush.settings import POSITIVE, SHARE, setting


@dataclass(frozen=True, kw_only=True)
class Adpfl(ServerStep, OneGradient, NoiseBy):
    """Settings of `adpfl`."""

    factor: float = setting(3.0, "the clip is so many times the norm of past noised averages", POSITIVE)
    memory: float = setting(0.9, "how slowly that norm follows", SHARE)
    history: str = setting(
        "global",
        "global; a clip that follows a client's own past (local) is refused, for it has no proof",
        choices=("global", "local"),
    )
    server: str = ServerStep.redefined("server", "momentum")
    server_lr: float = ServerStep.redefined("server_lr", 0.1)


@method("adpfl", Adpfl)
def adpfl(s: Adpfl) -> Method:
    """DPFL whose clip, and with it the noise, follows the norm of past noised averages."""
    from hush.methods.stations import local_training, noise_by, server_step
    from hush.transforms import HistoryClip

    if s.history == "local":
        raise NoGuarantee(
            "Noise that follows a client's own past gradients tells about them by how much it adds, so no epsilon holds.",
            "Leave history=global: the clip then follows what was already released under noise.",
        )
    adaptive = HistoryClip(s.clip, s.factor, s.memory, std=s.noise or 0.0, messages=s.noise_by == "messages")
    return Method("adpfl", local_training(s), chain(adaptive, *noise_by(s)), server_step(s))
