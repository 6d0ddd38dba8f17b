"""A torch Dataset for each client, regression, and a test set that each client keeps: python examples/own_datasets.py"""

import torch
from torch.utils.data import Dataset

import hush


class House(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Readings of one house: temperature, sun and hour in, power out."""

    def __init__(self, number: int, readings: int, year: int) -> None:
        g = torch.Generator().manual_seed(10_000 * year + number)
        self.x = torch.rand(readings, 3, generator=g)
        bias = 0.1 * torch.randn(1, generator=g)
        noise = 0.05 * torch.randn(readings, generator=g)
        self.y = (self.x @ torch.tensor([1.5, -0.8, 0.3]) + bias + noise)[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


task = hush.Task(
    model=torch.nn.Linear(3, 1),
    clients=[House(i, 5 + i % 40, year=1) for i in range(300)],  # unequal clients are the rule
    test=[House(i, 4, year=2) for i in range(300)],  # a list: each client's own
    loss=torch.nn.MSELoss(),
    metrics=("rmse", "mae"),
)
result = hush.simulate(
    hush.methods.dp_fedavg(lr=0.3, clip=0.5, local_epochs=2),
    task,
    rounds=40,
    cohort=60,
    privacy=hush.Budget(epsilon=4),
)
print(result.sentence())
print(result.test_metrics, result.per_client)
