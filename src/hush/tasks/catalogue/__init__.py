"""The data sets that Hush knows by name."""

from __future__ import annotations

from pathlib import Path

from hush.errors import UsageError
from hush.names import DESCRIPTION, pick
from hush.plugins import installed
from hush.tasks.catalogue.images import CIFAR10, CIFAR100, DIGITS, EMNIST, FASHION_MNIST, MNIST, SVHN
from hush.tasks.catalogue.people import ADULT, FEMNIST, SHAKESPEARE, SHAKESPEARE_TFF
from hush.tasks.dataset import DataSet
from hush.tasks.own import own_dataset

_ENTRIES = (DIGITS, FASHION_MNIST, MNIST, SVHN, CIFAR10, CIFAR100, EMNIST, FEMNIST, SHAKESPEARE, SHAKESPEARE_TFF, ADULT)
CATALOGUE: dict[str, DataSet] = {entry.name: entry for entry in _ENTRIES}


def every_dataset() -> dict[str, DataSet]:
    """Hush's own, and those that installed packages offer as `hush.data`."""
    return CATALOGUE | {name: found.value for name, found in installed("hush.data").items()}


def dataset(name: str) -> DataSet:
    """An entry by name; a .toml file, or a folder that holds `data.toml`, describes a data set of one's own."""
    if name.endswith((".csv", ".parquet", ".safetensors", ".arrow", ".npy")):
        raise UsageError(f"{name} is a table: describe it in a .toml file (docs/own-task.md shows one) and give that.")
    if name.endswith(".toml"):
        return own_dataset(Path(name))
    known = every_dataset()
    if name not in known and Path(name).is_dir():
        if not (Path(name) / DESCRIPTION).is_file():
            raise UsageError(f"{name} is a folder without {DESCRIPTION}, which says what is in it (docs/own-task.md shows one).")
        return own_dataset(Path(name) / DESCRIPTION)
    return pick(known, name, "data set")
