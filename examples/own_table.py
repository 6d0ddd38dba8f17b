"""A table with a client column, classification, AUC: python examples/own_table.py (any data frame works in place of the dict)"""

import numpy as np
import torch

import hush

rng = np.random.default_rng(0)


def visits(rows: int) -> dict[str, np.ndarray]:
    age, ward = rng.normal(size=rows), rng.choice(["A", "B", "C"], rows)
    ill = (age + 1.5 * (ward == "C") + 0.5 * rng.normal(size=rows) > 0.7).astype(int)
    return {"hospital": rng.integers(0, 200, rows), "ward": ward, "age": age, "readmitted": ill}


columns = hush.Columns(
    client="hospital",
    target="readmitted",
    categories={"ward": ["A", "B", "C"]},  # known to everybody, not taken from the patients
)
train = visits(5000)
task = hush.Task(
    model=torch.nn.Linear(columns.width(train), 2),
    clients=columns.clients(train),
    test=columns.examples(visits(1000)),
    metrics=("auc", "macro_f1"),
)
result = hush.simulate(
    hush.methods.dp_fedavg(lr=0.5, clip=0.5),
    task,
    rounds=30,
    cohort=40,
    privacy=hush.Budget(epsilon=4),
)
print(result.sentence())
print(result.test_metrics)
