"""The examples that hold the extremes of a data set: if a model takes these, it takes all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hush.tasks.clients import Examples

_POSITIONS = 256
"""Up to so many whole numbers in an input are tokens, each of which may be looked up in a table of its own."""


def extremes(pieces: Iterable[tuple[int, Examples]], ignored: int) -> tuple[Examples, Tensor]:
    """The first example, those that hold the extremes of each input, and those with the lowest and the highest label; with their
    numbers. `ignored` is the target that stands for nothing."""
    held, numbers = Examples(torch.zeros(0), torch.zeros(0)), torch.zeros(0, dtype=torch.int64)
    for first, piece in pieces:
        rows = _rows(piece, ignored)
        found, own = Examples(piece.x[rows], piece.y[rows]), first + rows
        if len(numbers):
            found, own = Examples(*map(torch.cat, zip(held, found, strict=True))), torch.cat([numbers, own])
            rows = _rows(found, ignored)
            found, own = Examples(found.x[rows], found.y[rows]), own[rows]
        held, numbers = found, own
    return held, numbers


def _rows(examples: Examples, ignored: int) -> Tensor:
    x, y = examples
    rows = [torch.zeros(1, dtype=torch.int64)]
    if x.numel():
        high = low = _comparable(x.reshape(len(x), -1))
        if high.shape[1] > _POSITIONS:  # pixels, or one long text
            high, low = high.amax(1, keepdim=True), low.amin(1, keepdim=True)
        rows += [high.argmax(0), low.argmin(0)]
    if y.numel() and not y.is_floating_point() and y.dtype is not torch.bool:
        labels = y.masked_fill(y == ignored, 0).reshape(len(y), -1)
        rows += [labels.amax(1).argmax()[None], labels.amin(1).argmin()[None]]
    found: Tensor = torch.unique(torch.cat(rows))
    return found


def _comparable(x: Tensor) -> Tensor:
    """The same values in a type that PyTorch finds the largest of; most are, and stay where they are."""
    if x.is_floating_point():
        return x.nan_to_num() if bool(torch.isnan(x).any()) else x
    return x if x.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) else x.to(torch.int64)
