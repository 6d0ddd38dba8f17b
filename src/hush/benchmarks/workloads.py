"""What every simulator is timed on: a model, a cohort, steps, on drawn data. The same computation is asked of everybody."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Clients of equal size, each `steps` batches of `batch` a round; clip and Gaussian noise on the sum."""

    name: str
    title: str
    model: str
    """One of the catalogue's (`hush models`); dropout, where it has any, is taken out for everybody."""
    shape: tuple[int, ...]
    classes: int = 10
    cohort: int
    steps: int
    batch: int = 10
    momentum: float = 0.0
    lr: float = 0.05
    clip: float = 0.4
    noise: float = 1.0
    on_cpu: tuple[int, int] | None = None
    """Cohort and steps where a processor alone would take minutes for a round."""

    @property
    def samples(self) -> int:
        return self.steps * self.batch

    @property
    def population(self) -> int:
        return self.cohort + min(self.cohort, 100)

    @property
    def is_text(self) -> bool:
        return len(self.shape) == 1

    def on(self, device: str) -> Workload:
        """The same, of a size that fits the device."""
        if device != "cpu" or self.on_cpu is None:
            return self
        cohort, steps = self.on_cpu
        return dataclasses.replace(self, cohort=cohort, steps=steps)

    def says(self) -> str:
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"{self.title}: {self.cohort} clients x {self.steps} steps x batch {self.batch}{momentum}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def of(told: dict[str, Any]) -> Workload:
        return Workload(**told | {"shape": tuple(told["shape"])})


_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
WORKLOADS = {
    one.name: one
    for one in (
        Workload(name="fed-smp", title="Fed-SMP's CNN", model="fed-smp-cnn", shape=_GREY, cohort=100, steps=10, momentum=0.5),
        Workload(name="fed-smp-50", title="Fed-SMP's CNN", model="fed-smp-cnn", shape=_GREY, cohort=50, steps=5),
        Workload(name="cifar", title="pfl-research's CIFAR-10 CNN", model="afo-cnn", shape=_COLOUR, cohort=50, steps=5),
        Workload(
            name="shakespeare",
            title="Shakespeare's LSTM",
            model="char-lstm",
            shape=(80,),
            classes=80,
            cohort=50,
            steps=5,
            on_cpu=(10, 2),
        ),
        Workload(name="resnet18", title="ResNet-18", model="resnet18", shape=_COLOUR, cohort=50, steps=2, on_cpu=(4, 1)),
        Workload(name="digits", title="a perceptron on digits", model="mlp", shape=(1, 8, 8), cohort=100, steps=10, batch=4),
    )
}
"""By name. `fed-smp` is Fed-SMP's experiment on Fashion-MNIST, `cifar` that of pfl-research on CIFAR-10."""
FOR = {
    "cpu": ("fed-smp-50", "cifar", "shakespeare", "resnet18", "digits"),
    "cuda": ("fed-smp", "fed-smp-50", "cifar", "shakespeare", "resnet18"),
}
"""Which are timed where nothing is said."""
