"""A model of rows as a model of persons: an example is all rows of one person, and its loss is the mean of theirs.

So a person has one gradient, whatever path finds it, and it is clipped once. Persons have different numbers of rows: what is
missing repeats a row of the same person under a target that stands for nothing.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from hush.errors import UsageError
from hush.local.flat import FlatModel, Loss


class RowByRow(nn.Module):
    """A model of rows on `[persons, rows, ...]`; the answers are `[persons, ..., rows]`, as those of a text are for its tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """What the model answers to every row by itself."""
        answers: Tensor = self.model(x.flatten(0, 1))
        return answers.reshape(*x.shape[:2], *answers.shape[1:]).movedim(1, -1)


def of_persons(learner: FlatModel) -> FlatModel:
    """The same weights, trained on persons; what it trained is a state dict of the model of rows."""
    loss = partial(mean_over_rows, learner.loss, learner.ignored)
    persons = FlatModel(RowByRow(learner.module), loss, learner.device, learner.dtype, learner.ignored)
    persons.whole, persons.memory = learner, learner.memory
    return persons


def no_row(y: Tensor, ignored: int) -> Tensor:
    """The target that makes a row count for nothing, shaped as the targets `y`: no number, or the one that losses ignore."""
    if y.dtype is torch.bool:
        raise UsageError("The targets are truth values, which leave none for a row that is not there: make them numbers.")
    return torch.full_like(y, torch.nan if y.is_floating_point() else ignored)


def mean_over_rows(loss: Loss, ignored: int, outputs: Tensor, targets: Tensor) -> Tensor:
    """One value per person: the mean over its rows that count, of `[persons, ..., rows]` outputs and targets."""
    outputs, targets = outputs.movedim(-1, 1), targets.movedim(-1, 1)
    missing = torch.isnan(targets) if targets.is_floating_point() else targets == ignored
    counts = ~missing.flatten(2).all(2) if targets.dim() > 2 else ~missing
    shape = counts.reshape(*counts.shape, *([1] * (targets.dim() - 2)))
    known = torch.where(shape, targets, targets[:, :1])  # the person's first row: a loss of the user's own knows no target for none
    losses = loss(outputs.flatten(0, 1), known.flatten(0, 1))
    each = torch.where(counts, losses.reshape(*counts.shape, -1).mean(2), 0.0)
    return each.sum(1) / counts.sum(1).clamp_min(1)
