"""Randomness that privacy rests on: who takes part, and the noise.

Everything here comes from a 32-byte key and SHAKE-256, by label and round, so a run that was killed draws the same cohorts and
the same noise when it is resumed, and no state has to be carried. Every run with a guarantee draws a key of its own from
`os.urandom`, and keeps it in its folder, for its owner alone, until it is complete: no other run ever has it. A run without a
guarantee may repeat: its key follows from a seed.

The Gaussian draws are floats (`fast` noise): good for research, and every guarantee that rests on them says so.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hush.errors import UsageError
from hush.random import digest


@dataclass(frozen=True)
class Secret:
    """A key that must not be published before the noise it made has stopped mattering, which is never."""

    key: bytes = field(repr=False)

    @staticmethod
    def fresh() -> Secret:
        """A key nobody can repeat."""
        return Secret(os.urandom(32))

    @staticmethod
    def of_seed(*seeds: int) -> Secret:
        """A key that anybody can repeat who knows the seeds: for runs without a guarantee."""
        return Secret(hashlib.sha256(f"noise of the seeds {seeds}".encode()).digest())

    def stream(self, label: str, index: int, length: int) -> bytes:
        """`length` bytes of the stream `label` in round `index`."""
        name = label.encode() + index.to_bytes(8, "big")
        return hashlib.shake_256(len(name).to_bytes(2, "big") + name + self.key).digest(length)

    def coins(self, label: str, index: int, count: int) -> Tensor:
        """`count` uniform float64 in [0, 1) with 53 random bits."""
        raw = np.frombuffer(self.stream(label, index, 8 * count), dtype=">u8").astype(np.uint64)
        return torch.from_numpy((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def part(self, name: str) -> Secret:
        """A key of its own for one part of the pipeline: no part can repeat another's draws."""
        return Secret(hmac.new(self.key, b"part " + name.encode(), hashlib.sha256).digest())

    def mark(self, label: str, index: int, x: Tensor) -> str:
        """A name of `x` under this key: another tensor has another, and without the key it tells nothing."""
        raw = self.stream(f"digest {label}", index, 16)
        if x.device.type == "cuda":  # summed up there: it need not travel
            told = str(digest(x, (int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:], "big"))))
        else:
            told = hashlib.blake2b(x.detach().contiguous().numpy().data, key=raw).hexdigest()
        return self.stream(f"mark {label} {told}", index, 8).hex()

    def noise(self, index: int, like: Tensor, std: float) -> Tensor:
        """N(0, std^2) for each entry of a sum such as `like`, for round `index`, on its device and in its precision."""
        name = f"noise {std.hex()}"
        if like.device.type == "cuda":  # Philox takes all 64 bits of its seed
            generator = torch.Generator(device=like.device)
            generator.manual_seed(int.from_bytes(self.stream(name, index, 8), "big"))
            return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype) * std
        # torch's CPU generator keeps 32 bits of its seed, few enough to try them all: Box and Muller on SHAKE's own bits
        half = (like.numel() + 1) // 2
        radius, angle = self.coins(name, index, 2 * half).reshape(2, half)
        radius = (-2.0 * torch.log1p(-radius)).sqrt_()
        angle = angle * (2.0 * math.pi)
        normal = torch.cat([radius * angle.cos(), radius * angle.sin()])[: like.numel()]
        return (normal * std).to(like.dtype).reshape(like.shape)


def state_dir() -> Path:
    """Where Hush keeps what belongs to this machine: `HUSH_HOME`, or the user's state folder."""
    if home := os.environ.get("HUSH_HOME"):
        if not Path(home).is_absolute():  # every working folder would remember ledgers of its own
            raise UsageError(f"HUSH_HOME must be an absolute path, not '{home}': a machine has one memory, wherever you stand.")
        return Path(home)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "hush"
