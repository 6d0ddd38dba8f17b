"""The data sets that Hush knows by name: source, checksums, licence, and sensible settings for each."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.names import pick
from hush.tasks.fetch import File, verified
from hush.tasks.idx import read_idx
from hush.tasks.task import Examples


@dataclass(frozen=True)
class DataSet:
    """One entry of the catalogue."""

    name: str
    title: str
    licence: str
    citation: str
    source: str
    files: tuple[File, ...]
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    load: Callable[[Path], tuple[Examples, Examples]] = field(repr=False)
    model: str
    clients: int
    cohort: float
    rounds: int
    validation: int
    public: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Local training that works on this data set; `hush.methods` has its own defaults for everything else."""

    @property
    def bundled(self) -> bool:
        return not self.files

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def _digits(folder: Path) -> tuple[Examples, Examples]:
    """1,797 handwritten digits of 8 x 8 pixels, bundled. The split is fixed: 1,500 to train on, 297 to test."""
    raw = resources.files("hush.tasks").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(io.StringIO(gzip.decompress(raw).decode()), delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    x = torch.from_numpy(table[:, :-1] / 16.0).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    return Examples(x[:1500], y[:1500]), Examples(x[1500:], y[1500:])


def _idx(name: str, mean: float, std: float) -> Callable[[Path], tuple[Examples, Examples]]:
    """A loader of the four MNIST-like files, standardised by the published mean and deviation of the training pixels."""

    def load(folder: Path) -> tuple[Examples, Examples]:
        entry = CATALOGUE[name]
        paths = {file.name: verified(folder / name, file, name) for file in entry.files}

        def part(prefix: str) -> Examples:
            x = torch.from_numpy(read_idx(paths[f"{prefix}-images-idx3-ubyte.gz"]).copy())
            y = torch.from_numpy(read_idx(paths[f"{prefix}-labels-idx1-ubyte.gz"]).copy())
            return Examples(_standardise(x[:, None], mean, std), y.long())

        return part("train"), part("t10k")

    return load


def _standardise(x: Tensor, mean: float, std: float) -> Tensor:
    return x.float().div_(255.0).sub_(mean).div_(std)


_MNIST_TRAINING = {"lr": 0.125, "lr_decay": 0.99, "momentum": 0.5, "batch_size": 10, "local_epochs": 10}
"""Fed-SMP's settings for Fashion-MNIST, which serve MNIST too."""


def _mnist_like(
    name: str, title: str, licence: str, citation: str, source: str, mean: float, std: float, files: tuple[File, ...]
) -> DataSet:
    """60,000 images of 28 x 28 to train on and 10,000 to test, ten classes, with Fed-SMP's model and settings."""
    return DataSet(
        name=name,
        title=title,
        licence=licence,
        citation=citation,
        source=source,
        files=files,
        train=60000,
        test=10000,
        shape=(1, 28, 28),
        classes=10,
        load=_idx(name, mean, std),
        model="fed-smp-cnn",
        clients=6000,
        cohort=100,
        rounds=180,
        validation=5000,
        public=1000,
        settings=_MNIST_TRAINING,
    )


CATALOGUE: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DataSet(
            name="digits",
            title="handwritten digits, 8 x 8, bundled",
            licence="CC BY 4.0",
            citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (as bundled by scikit-learn)",
            source="bundled",
            files=(),
            train=1500,
            test=297,
            shape=(1, 8, 8),
            classes=10,
            load=_digits,
            model="mlp",
            clients=400,
            cohort=100,
            rounds=60,
            validation=150,
            public=150,
            settings={"lr": 0.1, "batch_size": 4, "local_epochs": 5, "momentum": 0.5, "public_steps": 40},
        ),
        _mnist_like(
            "fashion-mnist",
            "articles of clothing, 28 x 28",
            "MIT",
            "Xiao, Rasul, Vollgraf, Fashion-MNIST, 2017",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            0.2860,
            0.3530,
            (
                File("train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                File("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                File("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                File("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ),
        ),
        _mnist_like(
            "mnist",
            "handwritten digits, 28 x 28",
            "CC BY-SA 3.0",
            "LeCun, Cortes, Burges, The MNIST database of handwritten digits, 1998",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            0.1307,
            0.3081,
            (
                File("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                File("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                File("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                File("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
    )
}


def dataset(name: str) -> DataSet:
    """An entry by name."""
    return pick(CATALOGUE, name, "data set")
