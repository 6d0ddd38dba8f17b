"""Layers, steps and sums of a whole cohort in one launch each, on a GPU: Triton's kernels, and the rules by which vmap finds them.

HUSH_KERNELS=0 in the environment turns them off; docs/figures.md has what was measured.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch


def kernels_for(device: torch.device) -> bool:
    """Whether there are any for this device, and they are wanted."""
    return device.type == "cuda" and _wanted()


@cache
def _wanted() -> bool:
    """Triton comes with PyTorch for GPUs."""
    return os.environ.get("HUSH_KERNELS") != "0" and find_spec("triton") is not None
