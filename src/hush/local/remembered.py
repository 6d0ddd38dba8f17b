"""What a model or a loss keeps outside its buffers: numbers, lists, frozen weights. If training changes it, clients meet there."""

from __future__ import annotations

import hashlib
from collections import deque
from functools import partial

import torch
from torch import Tensor, nn


def remembered(value: object, depth: int = 4) -> str:
    """Numbers, words, tensors and what is made of them, in words that can be compared later; other things by their kind."""
    if isinstance(value, Tensor):
        return _digest(value)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    inside: list[tuple[str, object]] = []
    if isinstance(value, nn.Module):
        inside += [(name, p) for name, p in value.named_parameters() if not p.requires_grad]
        inside += [
            (name, _own(module)) for name, module in value.named_modules() if not type(module).__module__.startswith("torch.")
        ]
    elif isinstance(value, dict):
        inside += [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple | deque | set | frozenset):
        inside += [("", item) for item in value]
    elif isinstance(value, partial):
        inside += [("", part) for part in (value.func, *value.args)] + list(value.keywords.items())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inside += _own(value).items()
    told = [f"{name}={remembered(item, depth - 1)}" for name, item in inside] if depth else []
    return f"{type(value).__qualname__}({', '.join(sorted(told) if isinstance(value, set | frozenset) else told)})"


def _own(value: object) -> dict[str, object]:
    """An object's attributes, but for what PyTorch keeps of a module itself."""
    left_out = ("training", "_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs")
    return {key: item for key, item in vars(value).items() if key not in left_out and "_hook" not in key}


def _digest(value: Tensor) -> str:
    try:
        raw = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    except RuntimeError:  # what vmap left behind
        return "unreadable"
    return hashlib.sha256(raw.data).hexdigest()
