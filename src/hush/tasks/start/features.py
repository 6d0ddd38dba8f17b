"""A model that can see before it is trained: its features come from images that belong to nobody, its last layer from the clients.

The fewer numbers clients train, the less noise covers them. So all layers but the last stay as they start: convolutions at random,
or trained for some steps on drawn images (`processes:2500`). Then, in the place of a hidden linear layer and its ReLU, come
directions that tell kinds of images apart, in closed form and equally spread. With `public` those of public examples count as much
as those of drawn images. The last layer starts at zero.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.errors import UsageError
from hush.names import pick
from hush.tasks.clients import Examples
from hush.tasks.start.discriminant import Spread, directions
from hush.tasks.start.ending import take_apart, zeros
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
_COPIES = 10
"""Of every public example, moved and mirrored."""


def start_from(how: str, model: nn.Module, shape: tuple[int, ...], public: Examples | None, in_bytes: bool) -> nn.Module:
    """What `how` makes of `model`: one of `STARTS`, or `NAME:STEPS`. `in_bytes` where it takes images of bytes.

    A chain of `body`, `directions` and the `head`, which clients train. `model` itself stays as it is.
    """
    name, steps = read_start(how)
    if name == "random":
        return model
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(f"--start {name} is for images, and these examples have the shape {tuple(shape)}: use --start random.")
    _refuse_unfit(name, public)
    ending = take_apart(model, torch.zeros(1, *shape, dtype=torch.uint8 if in_bytes else torch.float32))
    if steps:
        pretrained(ending, shape, steps, in_bytes)
    drawn, kinds = _drawn_images(shape, in_bytes, _KINDS, _IMAGES)
    seen = _seen_by(ending.body, drawn)
    spread = Spread.of(seen, kinds)
    if name == "public":
        assert public is not None
        x, y = _copies(public)
        spread = spread.mixed(Spread.of(_seen_by(ending.body, x), y.long()))
    found = directions(spread, ending.directions, _RIDGE).to(seen.dtype)
    found /= float(((seen - spread.mean) @ found).norm(dim=1).mean())
    basis = zeros(*found.shape)
    basis.weight.data.copy_(found.T)
    basis.bias.data.copy_(-spread.mean @ found)
    head = nn.Sequential(zeros(ending.directions, ending.outputs), *ending.after)
    return nn.Sequential(
        OrderedDict(
            body=ending.body.requires_grad_(False),
            directions=basis.requires_grad_(False),
            head=head if ending.after else head[0],
        )
    )


def read_start(how: str) -> tuple[str, int]:
    """A name of `STARTS`, and for how many steps convolutions are trained before."""
    name, _, steps = how.partition(":")
    pick(STARTS, name, "start")
    if steps and (name == "random" or not steps.isdigit()):
        raise UsageError(f"start is {', '.join(STARTS)}, or with steps of training on drawn images processes:2500, not '{how}'.")
    return name, int(steps or 0)


def _refuse_unfit(name: str, public: Examples | None) -> None:
    if name == "public" and (public is None or not len(public.x)):
        raise UsageError("--start public learns from public examples and the task has none: give it some (--public 1000).")
    if name == "public" and public is not None and (public.y.dim() != 1 or public.y.is_floating_point()):
        raise UsageError("--start public needs labels: these public examples have none.")


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


@torch.no_grad()
def _seen_by(body: nn.Sequential, x: Tensor) -> Tensor:
    """The features of each image."""
    body.eval()
    return torch.cat([body(part) for part in torch.split(x, _BATCH)])
