"""A model that can see before it is trained: its features come from images that belong to nobody, its last layer from the clients.

The fewer numbers clients train, the less noise covers them. So all layers but the last stay as they start: convolutions at random,
or trained for some steps on drawn images (`processes:2500`), and then the layer before the last one set, in closed form, to the
directions that tell kinds of images apart, equally spread. With `public` those of public examples count as much as those of drawn
images. The last layer starts at zero.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import UsageError
from hush.names import pick
from hush.tasks.clients import Examples
from hush.tasks.start.discriminant import Spread, directions
from hush.tasks.start.pretraining import pretrained
from hush.tasks.start.processes import Draws, Silhouettes

STARTS = {
    "random": "random weights, all of which clients train",
    "processes": "features from images drawn by random processes; clients train the last layer",
    "public": "features from such images and from public examples; clients train the last layer",
}
_KINDS, _IMAGES, _BATCH = 1000, 20_000, 500
_RIDGE = 0.3
"""Chosen on Fashion-MNIST's validation examples: 0.1 to 1 are alike."""
_RAISED = 20.0
"""By so many standard deviations features are raised above zero, so that the ReLU between the last two layers lets them pass."""
_COPIES = 10
"""Of every public example, moved and mirrored."""


class CentredLinear(nn.Linear):
    """W (x - offset) + b: a linear layer like any other, W x + (b - W offset), whose gradients do not see the offset."""

    offset: Tensor

    def __init__(self, layer: nn.Linear, offset: float) -> None:
        super().__init__(layer.in_features, layer.out_features)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.register_buffer("offset", torch.full((layer.in_features,), offset))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x - self.offset, self.weight, self.bias)

    def plain(self) -> nn.Linear:
        """The same function as an ordinary layer."""
        layer = nn.Linear(self.in_features, self.out_features)
        layer.weight.data.copy_(self.weight.data)
        layer.bias.data.copy_(self.bias.data - self.weight.data @ self.offset)
        return layer


def start_from(how: str, model: nn.Module, shape: tuple[int, ...], public: Examples | None, in_bytes: bool) -> nn.Module:
    """`model`, changed in place as `how` says: one of `STARTS`, or `NAME:STEPS`. `in_bytes` where it takes images of bytes."""
    how, steps = read_start(how)
    if how == "random":
        return model
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(f"--start {how} is for images, and these examples have the shape {tuple(shape)}.")
    network, wide, head = _last_two(model)
    if steps:
        pretrained(model, network, shape, steps, in_bytes)
    drawn = _drawn_images(shape, in_bytes, _KINDS, _IMAGES)
    seen, kinds = _features(model, wide, *drawn)
    spread = Spread.of(seen, kinds)
    if how == "public":
        if public is None or not len(public.x):
            raise UsageError("--start public learns from public examples and the task has none: give it some (--public 1000).")
        if public.y.dim() != 1 or public.y.is_floating_point():
            raise UsageError("--start public needs labels: these public examples have none.")
        spread = spread.mixed(Spread.of(*_features(model, wide, *_copies(public))))
    found = directions(spread, wide.out_features, _RIDGE).to(seen.dtype)
    projected = (seen - spread.mean) @ found
    scale = float(projected.norm(dim=1).mean())
    raised = _RAISED * float(projected.std()) / scale
    with torch.no_grad():
        wide.weight.copy_(found.T / scale)
        wide.bias.copy_(raised - spread.mean @ found / scale)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    network[-1] = CentredLinear(head, raised)
    return model


def read_start(how: str) -> tuple[str, int]:
    """A name of `STARTS`, and for how many steps convolutions are trained before."""
    name, _, steps = how.partition(":")
    pick(STARTS, name, "start")
    if steps and (name == "random" or not steps.isdigit()):
        raise UsageError(f"start is {', '.join(STARTS)}, or with steps of training on drawn images processes:2500, not '{how}'.")
    return name, int(steps or 0)


def _last_two(model: nn.Module) -> tuple[nn.Sequential, nn.Linear, nn.Linear]:
    """The network, and its last two layers."""
    network = getattr(model, "network", model)
    layers = list(network.children())[-3:]
    kinds = [type(layer) for layer in layers]
    if not isinstance(network, nn.Sequential) or kinds != [nn.Linear, nn.ReLU, nn.Linear]:
        raise UsageError("--start needs a model that ends in two linear layers with a ReLU between: fed-smp-cnn is one.")
    wide, head = layers[0], layers[2]
    assert isinstance(wide, nn.Linear)
    assert isinstance(head, nn.Linear)
    return network, wide, head


@lru_cache(maxsize=1)
def _drawn_images(shape: tuple[int, ...], in_bytes: bool, kinds_in_all: int, count: int) -> tuple[Tensor, Tensor]:
    world, draws = Silhouettes(kinds_in_all, seed=5), Draws(99)
    images, kinds = zip(*(world.draw(_BATCH, shape, draws) for _ in range(count // _BATCH)), strict=True)
    x = torch.cat(images)
    return (x * 255).round().to(torch.uint8) if in_bytes else x, torch.cat(kinds)


def _copies(public: Examples) -> tuple[Tensor, Tensor]:
    """Public examples, each ten times: moved by up to two pixels, and mirrored or not."""
    draws, x = Draws(7), []
    for _ in range(_COPIES):
        down, right = (int(v) for v in torch.randint(-2, 3, (2,), generator=draws.generator))
        moved = torch.roll(functional.pad(public.x, (2, 2, 2, 2)), (down, right), (2, 3))[:, :, 2:-2, 2:-2]
        mirrored = draws.coins(0.5, len(moved), 1, 1, 1).bool()
        x.append(torch.where(mirrored, moved.flip(3), moved))
    return torch.cat(x), public.y.repeat(_COPIES)


def _features(model: nn.Module, layer: nn.Linear, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What `layer` sees of each example, and the labels."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        with torch.no_grad():
            for part in torch.split(x, _BATCH):
                model(part)
    finally:
        handle.remove()
    return torch.cat(seen), y.long()
