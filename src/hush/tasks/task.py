"""A task: one model, many clients' data, a loss. A user's own takes five lines."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hush.core import Shard
from hush.errors import UsageError
from hush.local.flat import FlatModel, Loss


class Examples(NamedTuple):
    """Inputs and targets, row by row."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Clients:
    """Every client's examples in one tensor, client after client."""

    x: Tensor
    y: Tensor
    sizes: Tensor

    def __post_init__(self) -> None:
        if isinstance(self.sizes, list | tuple):
            object.__setattr__(self, "sizes", torch.tensor(self.sizes))
        if not all(isinstance(t, Tensor) for t in (self.x, self.y, self.sizes)):
            raise UsageError("Clients are made of torch tensors: convert arrays with torch.from_numpy.")
        if len(self.x) != len(self.y) or int(self.sizes.sum()) != len(self.x) or bool((self.sizes < 0).any()):
            raise UsageError(
                f"{len(self.x)} inputs, {len(self.y)} targets and clients' sizes of {int(self.sizes.sum())} in all differ."
            )

    @staticmethod
    def of(parts: Sequence[tuple[Tensor, Tensor]]) -> Clients:
        """From one (inputs, targets) pair for each client."""
        if not parts:
            raise UsageError("A task needs at least one client.")
        for i, (x, y) in enumerate(parts):
            if not isinstance(x, Tensor) or not isinstance(y, Tensor):
                raise UsageError(f"Client {i} is not a pair of torch tensors: convert arrays with torch.from_numpy.")
            if len(x) != len(y):
                raise UsageError(f"Client {i} has {len(x)} inputs and {len(y)} targets.")
        return Clients(
            torch.cat([x for x, _ in parts]),
            torch.cat([y for _, y in parts]),
            torch.tensor([len(x) for x, _ in parts]),
        )

    @property
    def count(self) -> int:
        return len(self.sizes)

    def shard(self, ids: Tensor) -> Shard:
        """The clients `ids`, reading the same tensors: nothing is copied."""
        starts = torch.cumsum(self.sizes, 0) - self.sizes
        ids = ids.to(self.sizes.device)
        return Shard(self.x, self.y, starts[ids], self.sizes[ids])


@dataclass(frozen=True)
class Task:
    """What is learned, from whom, and how it is judged.

        task = hush.Task(
            model=torch.nn.Linear(20, 2),
            clients=[(x0, y0), (x1, y1), ...],
            test=(x, y),
        )

    `loss(outputs, targets)` gives one value per example (default: cross-entropy). `public` are examples that belong to no
    client: top-k takes its mask from them.
    """

    model: nn.Module
    clients: Clients | Sequence[tuple[Tensor, Tensor]]
    test: Examples | tuple[Tensor, Tensor] | None = None
    validation: Examples | tuple[Tensor, Tensor] | None = None
    public: Examples | tuple[Tensor, Tensor] | None = None
    loss: Loss | nn.Module | None = None
    name: str = "own"
    model_name: str = "own"
    notes: tuple[str, ...] = field(default=())

    @property
    def train(self) -> Clients:
        return self.clients if isinstance(self.clients, Clients) else Clients.of(self.clients)

    def per_example_loss(self) -> Loss:
        """The user's loss, made to answer per example where PyTorch's own modules can."""
        if self.loss is None:
            return _cross_entropy
        if isinstance(self.loss, nn.Module) and hasattr(self.loss, "reduction"):
            each = copy.copy(self.loss)
            setattr(each, "reduction", "none")  # noqa: B010  # nn.Module types its attributes as tensors
            return each
        return self.loss

    def learner(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> FlatModel:
        """The model as functions of flat weights, on a device."""
        return FlatModel(self.model, self.per_example_loss(), device, dtype)

    def placed(self, part: str, device: torch.device | str, dtype: torch.dtype) -> Examples | None:
        """One of `test`, `validation`, `public`, on the device."""
        pair = getattr(self, part)
        return None if pair is None else Examples(*_place(pair[0], pair[1], device, dtype))

    def placed_train(self, device: torch.device | str, dtype: torch.dtype) -> Clients:
        train = self.train
        return Clients(*_place(train.x, train.y, device, dtype), train.sizes.to(device))

    def refuse_clients_examples(self) -> None:
        """What a mask is made from and figures are published of must belong to no client: it is used without noise."""
        ours = [self.placed(part, "cpu", torch.float32) for part in ("public", "validation", "test")]
        held: set[bytes] | None = None
        for part, examples in zip(("public", "validation", "test"), ours, strict=True):
            if examples is None:
                continue
            if held is None:
                held = {row.numpy().tobytes() for row in self.placed_train("cpu", torch.float32).x}
            rows = {row.numpy().tobytes() for row in examples.x}
            if 2 * len(rows & held) > len(rows):
                raise UsageError(
                    f"{len(rows & held)} of {len(rows)} {part} examples belong to clients, and are used without noise: "
                    "take them out of the clients' data first."
                )


def whole(examples: Examples) -> Shard:
    """All examples as the data of one client: how the server trains on public data."""
    device = examples.x.device
    return Shard(*examples, torch.zeros(1, dtype=torch.int64, device=device), torch.tensor([len(examples.x)], device=device))


def _place(x: Tensor, y: Tensor, device: torch.device | str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    labels = y.dtype if y.dtype is torch.bool else torch.int64  # PyTorch's losses take no other whole numbers
    return (
        x.to(device, dtype if x.is_floating_point() else x.dtype),
        y.to(device, dtype if y.is_floating_point() else labels),
    )


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")
