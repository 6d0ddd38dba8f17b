"""Where a model's body ends and its last layers begin: what stays as it is, and what clients train."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hush.errors import UsageError
from hush.local.frozen import layers_of
from hush.tasks.models.residual import Scale
from hush.tasks.models.shapes import times

_MOST_FEATURES = 4096
"""More numbers of an image than that are averaged over neighbouring pixels: directions among 12,544 take minutes and gigabytes."""
_MOST_DIRECTIONS = 512
"""Where no layer of the model says how many directions it has room for."""


@dataclass(frozen=True)
class Ending:
    """A chain, taken apart: the body, a hidden linear layer with its ReLU if there is one, the last linear layer, the rest."""

    body: nn.Sequential
    features: int
    """How many numbers the body makes of an image."""
    hidden: int | None
    """How many the hidden layer makes of these."""
    outputs: int
    after: tuple[nn.Module, ...]

    @property
    def directions(self) -> int:
        """How many numbers the last layer sees: the model's own width, and never more than there are features."""
        return min(self.features, self.hidden or _MOST_DIRECTIONS)


def take_apart(model: nn.Module, example: Tensor) -> Ending:
    """`model` as an `Ending`, in copies; `example` is a batch of one, of any values."""
    layers = layers_of(copy.deepcopy(model))
    if not layers:
        raise UsageError("--start keeps the first layers of an nn.Sequential, and this model is no such chain: use --start random.")
    layers = _without_dropout(layers)
    last = max((i for i, layer in enumerate(layers) if any(True for _ in layer.parameters())), default=0)
    *before, head = layers[: last + 1]
    if not isinstance(head, nn.Linear):
        raise UsageError(
            f"--start has clients train a last linear layer, and this model ends in {type(head).__name__}: end its nn.Sequential "
            "in an nn.Linear, or use --start random."
        )
    hidden = before[-2] if [type(layer) for layer in before[-2:]] == [nn.Linear, nn.ReLU] else None
    body = _averaged(before if hidden is None else before[:-2], example)
    seen = _answer(body, example)
    if seen.dim() != 2:
        raise UsageError(
            f"--start needs a list of features of each image, and this model has {times(seen.shape[1:])} before its last linear "
            "layer: put an nn.Flatten() there, or use --start random."
        )
    # the last layer will start at zero, so that a constant factor behind it would do nothing but slow it down
    after = tuple(layer for layer in layers[last + 1 :] if type(layer) is not Scale)
    return Ending(body, seen.shape[1], hidden.out_features if isinstance(hidden, nn.Linear) else None, head.out_features, after)


def zeros(into: int, out: int) -> nn.Linear:
    """A linear layer of zeros, for which nothing is drawn from torch's own generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, into, out)  # type: ignore[no-untyped-call]
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _without_dropout(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers but for dropout: it keeps from overfitting what is trained, and would blur what is not, each time anew."""
    kind = nn.modules.dropout._DropoutNd
    for layer in layers:
        for inside in list(layer.modules()):
            for name, child in inside.named_children():
                if isinstance(child, kind):
                    setattr(inside, name, nn.Identity())
    return [layer for layer in layers if not isinstance(layer, kind)]


def _averaged(layers: Sequence[nn.Module], example: Tensor) -> nn.Sequential:
    """The layers, which average squares of two by two pixels before they flatten an image of too many."""
    body = list(layers)
    if not body or not isinstance(body[-1], nn.Flatten):
        return nn.Sequential(*body)
    while (seen := _answer(body[:-1], example)).dim() == 4 and seen[0].numel() > _MOST_FEATURES and max(seen.shape[2:]) > 1:
        body.insert(-1, nn.AvgPool2d(2, ceil_mode=True))
    return nn.Sequential(*body)


@torch.no_grad()
def _answer(layers: Sequence[nn.Module] | nn.Sequential, example: Tensor) -> Tensor:
    seen: Tensor = nn.Sequential(*layers).eval()(example)
    return seen
