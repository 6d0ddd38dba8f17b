"""What clients draw by themselves: which of their records a step reads, and the noise on what they send.

Each client has a secret of its own, in a federation one that nobody else ever sees. A draw depends on the client, the round and
what it is for, never on who else is there: a cohort, a chunk and a lone client draw the same, and so does a run that was killed and
resumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hush.secret import Secret

if TYPE_CHECKING:
    from hush.exact_noise import IntegerNoise

_AHEAD = 1 << 19
"""Normal draws that a client makes at once on a GPU: few launches, and no more than memory for a few steps."""


@dataclass(frozen=True)
class OwnSecrets:
    """One secret for each of some clients."""

    secrets: tuple[Secret, ...]

    @staticmethod
    def simulated(secret: Secret, ids: Sequence[int]) -> OwnSecrets:
        """In simulation all of them come from the run's secret; a real client draws its own from `os.urandom`."""
        own = secret.part("clients")
        return OwnSecrets(tuple(own.part(f"client {i}") for i in ids))

    def __len__(self) -> int:
        return len(self.secrets)

    def pick(self, order: Sequence[int]) -> OwnSecrets:
        """Those of some of the clients, in this order."""
        return OwnSecrets(tuple(self.secrets[i] for i in order))

    def words(self, label: str, index: int) -> OwnWords:
        """The stream `label` of round `index` of each client."""
        return OwnWords(self.keys(label, index))

    def keys(self, label: str, index: int) -> tuple[bytes, ...]:
        """A key of each client for one purpose in one round."""
        return tuple(s.stream(f"own {label}", index, 32) for s in self.secrets)

    def normals(self, label: str, index: int, entries: int, like: Tensor) -> OwnNormals:
        """Standard normal draws, `entries` at a time for each client, on the device and in the precision of `like`."""
        return OwnNormals(self.keys(label, index), entries, like)

    def integers(self, label: str, index: int, noise: IntegerNoise, entries: int) -> OwnIntegers:
        """Exact draws of `noise`, `entries` at a time for each client."""
        return OwnIntegers(self, f"exact {label} {noise!r}", index, noise, entries)


class OwnWords:
    """One AES-256-CTR keystream a client."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        from hush.exact_noise import KeyStream

        self.streams = [KeyStream(key) for key in keys]

    def take(self, client: int, count: int) -> np.ndarray:
        """The next `count` 64-bit words of one client."""
        return self.streams[client].words(count)


class OwnNormals:
    """N(0, 1), `[clients, entries]` at every call: floating-point draws (`fast` noise), from AES on a CPU, Philox on a GPU."""

    def __init__(self, keys: tuple[bytes, ...], entries: int, like: Tensor) -> None:
        self.entries, self.like = entries, like
        self.on_gpu = like.device.type == "cuda"
        self.waiting: Tensor | None = None
        self.next = 0
        if self.on_gpu:
            self.generators = [torch.Generator(device=like.device) for _ in keys]
            for generator, key in zip(self.generators, keys, strict=True):
                generator.manual_seed(int.from_bytes(key[:8], "big"))
        else:
            self.words = OwnWords(keys)
            self.clients = range(len(keys))

    def draw(self) -> Tensor:
        """The next step's noise."""
        if not self.on_gpu:
            rows = [_box_muller(self.words.take(c, (self.entries + 1) // 2), self.entries, self.like.dtype) for c in self.clients]
            return torch.stack(rows) if rows else self.like.new_zeros(0, self.entries)
        if self.waiting is None or self.next == self.waiting.shape[1]:
            ahead, self.next = max(1, _AHEAD // max(1, self.entries)), 0  # a function of the entries alone: the same in any chunk
            draws = [
                torch.randn(ahead, self.entries, generator=g, device=self.like.device, dtype=self.like.dtype)
                for g in self.generators
            ]
            self.waiting = torch.stack(draws) if draws else self.like.new_zeros(0, ahead, self.entries)
        self.next += 1
        return self.waiting[:, self.next - 1]


@dataclass
class OwnIntegers:
    """Whole numbers, `[clients, entries]` at every call, drawn exactly from AES: every step has keys of its own."""

    own: OwnSecrets
    label: str
    index: int
    noise: IntegerNoise
    entries: int
    step: int = 0

    def draw(self) -> Tensor:
        """The next step's noise."""
        from hush.exact_noise import KeyStream

        keys = self.own.keys(f"{self.label} step {self.step}", self.index)
        self.step += 1
        drawn = np.empty((len(keys), self.entries), dtype=np.int64)
        for row, key in zip(drawn, keys, strict=True):
            row[:] = self.noise.draw(KeyStream(key), self.entries)
        return torch.from_numpy(drawn)


def _box_muller(words: np.ndarray, count: int, dtype: torch.dtype) -> Tensor:
    """Two normal draws of each word: 40 bits for the radius, which reach 7.4 standard deviations, and 24 for the angle."""
    radius = torch.from_numpy(((words >> np.uint64(24)).astype(np.float64) + 1.0) * 2.0**-40).to(dtype)
    angle = torch.from_numpy((words & np.uint64(0xFFFFFF)).astype(np.float64)).to(dtype) * (2.0 * math.pi * 2.0**-24)
    radius = radius.log_().mul_(-2.0).clamp_min_(0.0).sqrt_()
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]
