"""Layers, steps and sums of a whole cohort in one launch each, on a GPU, by Triton.

HUSH_KERNELS=0 in the environment turns them off; docs/figures.md has what was measured.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib.util import find_spec

import torch


def kernels_for(device: torch.device) -> bool:
    """Whether there are any for this device, and they are wanted."""
    return device.type == "cuda" and os.environ.get("HUSH_KERNELS") != "0" and _work_on(device)


@cache
def _work_on(device: torch.device) -> bool:
    """Triton comes with PyTorch for NVIDIA's cards, and compiles at a first call: for that it asks for a C compiler and headers."""
    if torch.version.cuda is None or find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from hush.kernels.rows import norms

        norms(torch.ones(1, 1, device=device))
    except Exception as error:  # a compiler fails in many ways; PyTorch's own arithmetic needs none
        why = str(error).strip().split("\n")[0][:160]
        warnings.warn(
            f"Triton compiles no kernels here ({why}), so a cohort trains by PyTorch's, several times slower: install a C compiler "
            "and Python's headers (gcc and python3-dev), or set HUSH_KERNELS=0.",
            stacklevel=2,
        )
        return False
    return True
