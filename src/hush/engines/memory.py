"""How many clients train side by side: as many as a memory setting allows, whatever the cohort."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from hush.core import LocalUpdate
from hush.engines.beside import beside
from hush.errors import UsageError
from hush.local.flat import FlatModel

_BUFFERS = 7
"""Flat vectors alive per client at the peak of a step: weights, velocity, gradient, its parts, the update, the encoded one."""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(text: str) -> int:
    """Bytes from `500MB`, `2GiB`, `1.5g`."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", text.lower())
    try:
        size = float(match[1]) * _UNITS[match[2]] if match else 0.0
    except ValueError:
        size = 0.0
    if size <= 0:
        raise UsageError(f"memory must be a size such as 2GiB or 500MB, not '{text}'.")
    return int(size)


def allowed_bytes(memory: str | None, device: torch.device) -> int:
    """As it was said; or 512 MiB on a CPU, where small chunks stay near the cache (measured: 10 ms a step at 10 clients, 14 at
    40), and 60% of a GPU, or of its part of one."""
    if memory is not None:
        return parse_bytes(memory)
    if device.type == "cuda":
        return int(0.6 * torch.cuda.get_device_properties(device).total_memory / beside().on_one_gpu)
    return 2**29


SLOTS = {"cpu": 8, "cuda": 32}
"""Where rows must not depend on neighbours: few, since the fullest slot decides how many passes a cohort takes."""
_SLOT_BATCH = 1024


def slots(learner: FlatModel, local: LocalUpdate, x: Tensor, y: Tensor, memory: int) -> int:
    """How many clients train side by side where that must not depend on clients' data, nor on how much they have."""
    like_x, like_y = (values[:1].expand(_SLOT_BATCH, *values.shape[1:]) for values in (x, y))
    return min(chunk_size(learner, local, like_x, like_y, memory), SLOTS[x.device.type])


def chunk_size(learner: FlatModel, local: LocalUpdate, x: Tensor, y: Tensor, memory: int) -> int:
    """Clients per chunk so that weights, gradients and activations of a chunk fit into `memory` bytes; or one, where that is
    faster."""
    if learner.best_alone and not local.draws_its_own:
        return 1
    batch = max(1, min(int(getattr(local, "batch_size", 32)), len(x)))
    each = _BUFFERS * learner.dim * learner.initial().element_size() + 3 * saved_bytes(learner, x[:batch], y[:batch])
    return max(1, memory // max(each, 1))


def chunks_at_once(learner: FlatModel, chunk: int, memory: str | None) -> int:
    """How many chunks, each on a core of its own, fit into the memory that was typed, or into four times that of one."""
    allowed = parse_bytes(memory) if memory is not None else 4 * allowed_bytes(None, learner.device)
    return max(1, allowed // max(1, _BUFFERS * learner.dim * learner.initial().element_size() * chunk))


def saved_bytes(learner: FlatModel, x: Tensor, y: Tensor) -> int:
    """What autograd keeps of one client's batch, measured by running it once; its parameters are counted elsewhere."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = max(seen.get(storage.data_ptr(), 0), tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        key = torch.zeros(1, dtype=torch.int64, device=x.device)
        weight = torch.ones(1, len(x), device=x.device, dtype=learner.dtype)
        learner.one_by_one().gradients(learner.initial()[None], x[None], y[None], weight, key)
    return sum(seen.values())
