"""Next-token prediction over short texts, padded, judged by perplexity: python examples/own_text.py"""

import torch
from torch import nn

import hush
from hush.tasks.models import Lstm

WORDS = "abcdefghijklmnopqrstuvwxyz .?"
TEXTS = ("the cat sat on the mat.", "who is there?", "an apple a day.", "to be or not to be.")
UNSEEN = ("the mat is there.", "who sat on the apple?", "to be a cat or not.")  # of no client


def codes(text: str, length: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters in, the next ones out; padding is -100, which no loss and no metric counts."""
    numbers = torch.tensor([WORDS.index(c) for c in text])
    x, y = torch.zeros(length, dtype=torch.int64), torch.full((length,), -100)
    x[: len(numbers) - 1], y[: len(numbers) - 1] = numbers[:-1], numbers[1:]
    return x, y


class Speaker(nn.Module):
    """An LSTM that vectorises over clients, where torch.nn.LSTM does not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.read = nn.Embedding(len(WORDS), 8), Lstm(8, 32, 1), nn.Linear(32, len(WORDS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self.lstm(self.embed(x))).movedim(-1, 1)  # PyTorch's layout: [texts, tokens, positions]


people = [[TEXTS[i % 4], TEXTS[(i * 7 + 1) % 4]] for i in range(200)]
pairs = [[codes(text) for text in texts] for texts in people]
task = hush.Task(
    model=Speaker(),
    clients=[(torch.stack([x for x, _ in own]), torch.stack([y for _, y in own])) for own in pairs],
    test=(torch.stack([codes(text)[0] for text in UNSEEN]), torch.stack([codes(text)[1] for text in UNSEEN])),
)
result = hush.simulate(
    hush.methods.dp_fedavg(lr=2.0, clip=1.0, batch_size=2, local_epochs=3),
    task,
    rounds=40,
    cohort=100,
    privacy=hush.Budget(epsilon=8),
)
print(result.sentence(), f"perplexity {result.test_metrics['perplexity']:.1f} of {len(WORDS)}")
