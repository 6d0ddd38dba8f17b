"""A person is not a row: patients with 1 to 50 visits, protected as patients: python examples/own_persons.py"""

import numpy as np
import torch

import hush

rng = np.random.default_rng(0)
visits = np.repeat(np.arange(2000), rng.integers(1, 51, 2000))  # whose each row is
age = rng.normal(size=len(visits))
table = {"hospital": visits % 4, "patient_id": visits, "age": age, "readmitted": (age > 0.3).astype(int)}

columns = hush.Columns(client="hospital", target="readmitted", person="patient_id")
task = hush.Task(
    model=torch.nn.Linear(1, 2),
    clients=columns.clients(table),
    test=(held := torch.randn(500, 1), (held[:, 0] > 0.3).long()),
    person_rows=5,  # of a patient with more visits five count
)
result = hush.simulate(
    hush.methods.dp_sgd(lr=1.0, batch_size=50),
    task,
    rounds=20,
    cohort=4,
    privacy=hush.Budget(epsilon=4),
)
print(result.sentence())
for line in result.guarantee.assumptions:
    print(f"  if {line}")
