"""A task of the catalogue: data set, partition, model, one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hush.errors import UsageError
from hush.random import derive
from hush.tasks.catalogue import dataset
from hush.tasks.fetch import data_dir
from hush.tasks.models import build_model
from hush.tasks.partition import partition
from hush.tasks.task import Clients, Examples, Task


def load_task(
    data: str = "digits",
    model: str | None = None,
    *,
    clients: int | None = None,
    split: str = "iid",
    validation: int | None = None,
    public: int = 0,
    seed: int = 0,
    folder: Path | None = None,
) -> Task:
    """`data` split over `clients`, with `validation` and `public` examples taken out of the training set *first*.

    Public examples belong to no client: a mask made from them costs no privacy.
    """
    entry = dataset(data)
    held = entry.validation if validation is None else validation
    if held < 0 or public < 0 or held + public >= entry.train:
        raise UsageError(
            f"{data} has {entry.train:,} training examples: {held:,} for validation and {public:,} public are too many."
        )
    module = build_model(model or entry.model, torch.Size(entry.shape), entry.classes, derive(seed, 11))
    train, test = entry.load(data_dir(folder))
    order = torch.from_numpy(np.random.default_rng(derive(seed, 12)).permutation(len(train.x)))

    def take(rows: torch.Tensor) -> Examples:
        return Examples(train.x[rows], train.y[rows])

    rest = order[held + public :]
    parts = partition(split, train.y[rest].numpy(), clients or entry.clients, derive(seed, 13))
    rows = rest[torch.from_numpy(np.concatenate(parts))]
    return Task(
        model=module,
        clients=Clients(train.x[rows], train.y[rows], torch.tensor([len(part) for part in parts])),
        test=test,
        validation=take(order[:held]) if held else None,
        public=take(order[held : held + public]) if public else None,
        name=data,
        notes=(f"partition: {split}",),
        model_name=model or entry.model,
    )
