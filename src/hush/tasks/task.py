"""A task: one model, many clients' data, a loss. A user's own takes five lines."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hush.errors import UsageError
from hush.local.flat import IGNORED, FlatModel, Loss
from hush.random import row_marks
from hush.tasks.clients import Clients, Examples, Part, whole
from hush.tasks.metrics import Metric, Metrics, named, usual

__all__ = ["Clients", "Examples", "Task", "whole"]

_POSITIONS = 256
"""Up to so many whole numbers in an input are tokens, each of which may be looked up in a table of its own."""

Held = Examples | tuple[Tensor, Tensor] | Clients | Sequence[Part] | Mapping[Any, Part]
"""Examples that nobody trains on: of no client (a pair), or each client's own (as `Task.clients`)."""


@dataclass(frozen=True)
class Task:
    """What is learned, from whom, and how it is judged.

        task = hush.Task(
            model=torch.nn.Linear(20, 2),
            clients=[(x0, y0), (x1, y1), ...],
            test=(x, y),
        )

    `clients` are pairs of tensors, `torch.utils.data.Dataset`s, or `hush.Columns(...).clients(frame)`. `loss(outputs, targets)`
    gives one value per example (default: cross-entropy). `metrics` are names (auc, macro_f1, perplexity, rmse, mae) or functions
    of all outputs and targets. `test` and `validation` are a pair, or a list of pairs where each client holds its own part.
    `public` are examples that belong to no client: top-k takes its mask from them.
    """

    model: nn.Module
    clients: Clients | Sequence[Part] | Mapping[Any, Part]
    test: Held | None = None
    validation: Held | None = None
    public: Examples | tuple[Tensor, Tensor] | None = None
    loss: Loss | nn.Module | None = None
    metrics: Metrics | None = None
    name: str = "own"
    model_name: str = "own"
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.metrics is not None:
            named(self.metrics)
        if not isinstance(self.clients, Clients):  # read once, whatever they come as
            object.__setattr__(self, "clients", Clients.of(self.clients))
        for part in ("test", "validation"):
            held = getattr(self, part)
            if held is not None and not isinstance(held, Clients):
                object.__setattr__(self, part, Examples(*held) if _is_pair(held) else Clients.of(held))

    @property
    def train(self) -> Clients:
        assert isinstance(self.clients, Clients)
        return self.clients

    def measures(self) -> dict[str, Metric]:
        """What is reported besides loss and accuracy: the user's metrics, or the usual ones for such targets."""
        return usual(self.train.y) if self.metrics is None else named(self.metrics)

    def belongs_to_clients(self, part: str) -> bool:
        """Whether `test` or `validation` are the clients' own: figures of them are then un-noised views of clients."""
        return isinstance(getattr(self, part), Clients)

    def per_example_loss(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Loss:
        """The user's loss, made to answer per example where PyTorch's own modules can."""
        loss = nn.CrossEntropyLoss() if self.loss is None else self.loss
        if not isinstance(loss, nn.Module) or not hasattr(loss, "reduction"):
            return loss
        each = copy.deepcopy(loss).to(device, dtype)
        setattr(each, "reduction", "none")  # noqa: B010  # nn.Module types its attributes as tensors
        return partial(_mean_over_targets, each, self.ignored) if self.is_cross_entropy else each

    @property
    def is_cross_entropy(self) -> bool:
        return self.loss is None or isinstance(self.loss, nn.CrossEntropyLoss)

    @property
    def ignored(self) -> int:
        """The target that stands for nothing."""
        return self.loss.ignore_index if isinstance(self.loss, nn.CrossEntropyLoss) else IGNORED

    def learner(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> FlatModel:
        """The model as functions of flat weights, on a device."""
        return FlatModel(self.model, self.per_example_loss(device, dtype), device, dtype, self.ignored)

    def placed(self, part: str, device: torch.device | str, dtype: torch.dtype) -> Examples | None:
        """One of `test`, `validation`, `public`, on the device."""
        held = getattr(self, part)
        if held is None:
            return None
        x, y = (held.x, held.y) if isinstance(held, Clients) else held
        return Examples(*_place(x, y, device, dtype))

    def placed_train(self, device: torch.device | str, dtype: torch.dtype) -> Clients:
        train = self.train
        return Clients(*_place(train.x, train.y, device, dtype), train.sizes.to(device))

    def refuse_clients_examples(self) -> None:
        """What a mask is made from and figures are published of must not be what clients train on: it is used without noise."""
        marks: Tensor | None = None
        for part in ("public", "validation", "test"):
            examples = self.placed(part, "cpu", torch.float32)
            if examples is None or not len(examples.x):
                continue
            if marks is None:
                marks = row_marks(self.placed_train("cpu", torch.float32).x)
            rows = torch.unique(row_marks(examples.x))
            shared = int(torch.isin(rows, marks).sum())
            if 2 * shared > len(rows):
                raise UsageError(
                    f"{shared} of {len(rows)} {part} examples belong to clients, and are used without noise: "
                    "take them out of the clients' data first."
                )

    @torch.no_grad()
    def refuse_impossible_values(self) -> None:
        """Labels that no class has and tokens that no row has, before a GPU trips over them in the middle of a run."""
        model = copy.deepcopy(self.model).cpu().eval()
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        groups = {part: self.placed(part, "cpu", dtype) for part in ("public", "validation", "test")}
        train = self.placed_train("cpu", dtype)
        for part, examples in ({"": Examples(train.x, train.y)} | groups).items():
            if examples is None or not len(examples.x):
                continue
            where = f"The {part} examples have" if part else "The clients have"
            outputs = _outputs_at_extremes(model, examples.x, where)
            if not self.is_cross_entropy or examples.y.is_floating_point() or outputs is None or outputs.dim() < 2:
                continue
            wrong = ((examples.y < 0) | (examples.y >= outputs.shape[1])) & (examples.y != self.ignored)
            if bool(wrong.any()):
                row = int(torch.nonzero(wrong.reshape(len(wrong), -1).any(1))[0, 0])
                whose = "" if part else f" (client {int(torch.searchsorted(torch.cumsum(train.sizes, 0), row, right=True))})"
                raise UsageError(
                    f"{where} the label {int(examples.y[wrong][0])} in row {row}{whose}, and the model has {outputs.shape[1]} "
                    f"classes: labels go from 0 to {outputs.shape[1] - 1}."
                )


def _outputs_at_extremes(model: nn.Module, x: Tensor, where: str) -> Tensor | None:
    """What the model answers to the first example, and to those that hold the extremes of whole-number inputs.

    A token beyond an embedding must not come to training: vmap would look it up in the next client's table.
    """
    rows = torch.zeros(1, dtype=torch.int64)
    if not x.is_floating_point() and x.numel():
        high = low = x.reshape(len(x), -1)
        if high.shape[1] > _POSITIONS:  # pixels, or one long text
            high, low = high.amax(1, keepdim=True), low.amin(1, keepdim=True)
        rows = torch.unique(torch.cat([rows, high.argmax(0), low.argmin(0)]))
    outputs: Tensor | None = None
    for part in torch.split(rows, 16):
        try:
            answer = model(x[part])
        except IndexError:
            row = next((int(r) for r in part if not _answers(model, x[r : r + 1])), int(part[0]))
            raise UsageError(
                f"{where} an input in row {row} that the model's embedding does not hold "
                f"(values go from {int(x.min())} to {int(x.max())}): check the tokens, or enlarge it."
            ) from None
        except Exception:  # the trial of training says what is wrong with it, and how
            return None
        outputs = answer if outputs is None and isinstance(answer, Tensor) else outputs
    return outputs


def _answers(model: nn.Module, x: Tensor) -> bool:
    try:
        model(x)
    except IndexError:
        return False
    return True


def _is_pair(held: object) -> bool:
    return isinstance(held, tuple | list) and len(held) == 2 and all(isinstance(part, Tensor) for part in held)


def _place(x: Tensor, y: Tensor, device: torch.device | str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    labels = y.dtype if y.dtype is torch.bool else torch.int64  # PyTorch's losses take no other whole numbers
    return (
        x.to(device, dtype if x.is_floating_point() else x.dtype),
        y.to(device, dtype if y.is_floating_point() else labels),
    )


def _mean_over_targets(loss: nn.Module, ignored: int, outputs: Tensor, targets: Tensor) -> Tensor:
    """One value per example: of several targets (a token each) the mean over those that count."""
    losses: Tensor = loss(outputs, targets)
    if losses.dim() < 2:
        return losses
    counts = (targets != ignored).flatten(1).sum(1)
    return losses.flatten(1).sum(1) / counts.clamp_min(1)
