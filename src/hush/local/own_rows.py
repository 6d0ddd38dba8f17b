"""What a client computes depends on that client alone: its dropout, and its embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hush.random import COIN, coins, fold

DROPOUT_KINDS = {F.dropout: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class OwnRows(TorchFunctionMode):
    """What a client computes depends on that client alone.

    Dropout draws its masks from the client's key, the step and the layer: the same alone and in a cohort. An index beyond an
    embedding gives NaN, and so no contribution: vmap would look it up in the next client's table without a word.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            return guarded_embedding(*args, **kwargs)
        if func not in DROPOUT_KINDS:
            return func(*args, **kwargs)
        self.calls += 1
        return _dropout(fold(self.key, self.calls), DROPOUT_KINDS[func], *args, **kwargs)


def guarded_embedding(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`F.embedding`, NaN where the index is beyond the table."""
    known = (input >= 0) & (input < weight.shape[0])
    rows = F.embedding(torch.where(known, input, 0), weight, *args, **kwargs)
    return torch.where(known[..., None], rows, torch.nan)


def _dropout(key: Tensor, spatial: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0.0:
        return input
    # dropout2d and its relatives drop whole channels: [batch, channels, *spatial]
    shape = (*input.shape[: input.dim() - spatial], *([1] * spatial))
    return input * kept(key, shape, p, input.dtype)


def kept(keys: Tensor, shape: tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """`[..., *shape]` for `[...]` keys: zero with the chance p, and elsewhere what keeps the mean."""
    share = round((1.0 - p) / COIN) * COIN  # the chance that the coins really have
    return coins(keys, shape, share).to(dtype) * (1.0 / share if share else 0.0)
