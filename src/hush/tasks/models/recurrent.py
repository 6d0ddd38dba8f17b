"""The character models of Shakespeare's plays: what comes next after 80 characters, or after each of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hush.errors import UsageError
from hush.tasks.models.lstm import Lstm
from hush.tasks.models.shapes import times

_CHARACTERS = 80


def char_lstm(shape: torch.Size, classes: int) -> nn.Module:
    """LEAF's LSTM for the next character: 8-d embedding, 2 layers of 256 (819,920 parameters at 80 tokens)."""
    _require_text("char-lstm", shape)
    return CharLstm(tokens=classes, every=False)


def char_lstm_every(shape: torch.Size, classes: int) -> nn.Module:
    """TFF's LSTM for the character after each of 80: 8-d embedding, 2 layers of 256 (822,570 parameters at 90 tokens)."""
    _require_text("char-lstm-every", shape)
    return CharLstm(tokens=classes, every=True)


class CharLstm(nn.Module):
    """Character codes `[n, length]` to logits of the next, `[n, tokens]`, or of `every` position's next, `[n, tokens, length]`."""

    def __init__(self, tokens: int, every: bool, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = Lstm(embedding, hidden, layers)
        self.dense = nn.Linear(hidden, tokens)
        self.every = every

    def forward(self, codes: Tensor) -> Tensor:
        states = self.lstm(self.embedding(codes.long()))
        if not self.every:
            return self.dense(states[:, -1])  # type: ignore[no-any-return]
        logits: Tensor = self.dense(states.flatten(0, 1))  # flat: one product for each client under vmap
        return logits.reshape(*codes.shape, -1).transpose(1, 2)


def _require_text(model: str, shape: torch.Size) -> None:
    if tuple(shape) != (_CHARACTERS,):
        raise UsageError(f"{model} reads the codes of {_CHARACTERS} characters, not {times(shape)}: choose logistic or mlp.")
