"""Processes of one command on one machine: which GPU is whose, and how many share it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Beside:
    """This process among those of its command on this machine."""

    place: int = 0
    count: int = 1

    @staticmethod
    def of_torchrun() -> Beside:
        """As torchrun tells it; alone where it tells nothing."""
        return Beside(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    @property
    def gpu(self) -> int:
        return self.place % max(1, torch.cuda.device_count())

    @property
    def on_one_gpu(self) -> int:
        """How many processes share a GPU, where it is shared by most."""
        return -(-self.count // max(1, torch.cuda.device_count()))


_beside = Beside.of_torchrun()


def beside() -> Beside:
    """This process among its like."""
    return _beside


def take_place(place: int, count: int) -> None:
    """Say that this process is one of `count` of a command that began them itself."""
    global _beside  # noqa: PLW0603
    _beside = Beside(place, count)
