"""Your own model and data, privately, in a few lines: python examples/own_task.py"""

import torch

import hush

generator = torch.Generator().manual_seed(0)
truth = torch.randn(20, 2, generator=generator)


def person() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(12, 20, generator=generator)
    return x, (x @ truth).argmax(1)


task = hush.Task(
    model=torch.nn.Linear(20, 2),
    clients=[person() for _ in range(500)],
    test=person(),
)
result = hush.simulate(
    hush.methods.fed_smp_rand_k(ratio=0.5, clip=0.5, lr=0.5),
    task,
    rounds=40,
    cohort=50,
    privacy=hush.Budget(epsilon=4),
)
print(result.sentence())
