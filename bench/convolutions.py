"""How a cohort's convolutions are best computed, layer by layer: `python bench/convolutions.py [--device cuda]`.

Clients that train side by side have weights of their own. vmap makes one grouped convolution of theirs, which lays every image out
anew so that clients become channels. The other way: write every window of an image down as a column, and multiply matrices, one
product a client. Both are timed forward and for the gradient in the weights, on the layers of BLUR+LUS's CNN and of ResNet-9; a
ratio above one says that windows are faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Layer(NamedTuple):
    """One convolution of 3 x 3 of some clients, of so many images each."""

    name: str
    clients: int
    images: int
    channels: int
    filters: int
    side: int
    padding: int


LAYERS = (
    Layer("afo-cnn 1", 30, 50, 3, 32, 32, 0),
    Layer("afo-cnn 2", 30, 50, 32, 64, 30, 0),
    Layer("resnet9 1", 100, 20, 1, 64, 28, 1),
    Layer("resnet9 2", 100, 20, 64, 128, 28, 1),
    Layer("resnet9 3, 4", 100, 20, 128, 128, 14, 1),
    Layer("resnet9 5", 100, 20, 128, 256, 14, 1),
    Layer("resnet9 6", 100, 20, 256, 512, 7, 1),
    Layer("resnet9 7, 8", 100, 20, 512, 512, 3, 1),
)


def windows(x: Tensor, padding: int) -> Tensor:
    """`[clients, images, channels 3 3, y x]` of `x[clients, images, channels, y, x]`."""
    seen = F.pad(x, (padding,) * 4).unfold(3, 3, 1).unfold(4, 3, 1)
    return seen.permute(0, 1, 2, 5, 6, 3, 4).flatten(5, 6).flatten(2, 4)


def as_channels(x: Tensor) -> Tensor:
    return x.movedim(0, 1).flatten(1, 2)


def forward_grouped(x: Tensor, w: Tensor, padding: int) -> Tensor:
    made = F.conv2d(as_channels(x), w.flatten(0, 1), padding=padding, groups=len(x))
    return made.unflatten(1, (len(x), w.shape[1])).movedim(1, 0)


def forward_windows(x: Tensor, w: Tensor, padding: int) -> Tensor:
    return (w.flatten(2)[:, None] @ windows(x, padding)).unflatten(-1, [x.shape[-1] + 2 * padding - 2] * 2)


def weights_grouped(x: Tensor, told: Tensor, padding: int) -> Tensor:
    shape = (len(x) * told.shape[2], x.shape[2], 3, 3)
    made = torch.nn.grad.conv2d_weight(as_channels(x), shape, as_channels(told), padding=padding, groups=len(x))
    return made.unflatten(0, (len(x), told.shape[2]))


def weights_by_image(x: Tensor, told: Tensor, padding: int) -> Tensor:
    """A product for each image, then their sum: much to do side by side."""
    return (told.flatten(3) @ windows(x, padding).mT).sum(1).unflatten(2, (x.shape[2], 3, 3))


def weights_by_client(x: Tensor, told: Tensor, padding: int) -> Tensor:
    """One long product for each client: nothing to add up afterwards."""
    long = [t.transpose(1, 2).flatten(2) for t in (told.flatten(3), windows(x, padding))]
    return (long[0] @ long[1].mT).unflatten(2, (x.shape[2], 3, 3))


def seconds(work: Callable[[], Tensor], device: torch.device, repeats: int) -> float:
    """The median of some, after one that pays for set-up."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return sorted(found[1:])[repeats // 2]


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--share", type=int, default=1, help="divide the number of clients by this")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.set_float32_matmul_precision("high")  # as convolutions have it by default
    print("| layer | forward, ms | windows | weights, ms | windows by image | by client |\n|---|---|---|---|---|---|")
    for layer in LAYERS:
        clients = max(1, layer.clients // asked.share)
        x = torch.randn(clients, layer.images, layer.channels, layer.side, layer.side, device=device)
        w = torch.randn(clients, layer.filters, layer.channels, 3, 3, device=device)
        made = forward_grouped(x, w, layer.padding)
        told = torch.randn(made.shape, device=device)
        true = weights_grouped(x, told, layer.padding)
        for other, known in (
            (forward_windows(x, w, layer.padding), made),
            (weights_by_image(x, told, layer.padding), true),
            (weights_by_client(x, told, layer.padding), true),
        ):
            assert (other - known).norm() <= 3e-3 * known.norm(), layer.name
        del made, true, other, known
        took = [
            seconds(partial(way, x, second, layer.padding), device, asked.repeats)
            for way, second in (
                (forward_grouped, w),
                (forward_windows, w),
                (weights_grouped, told),
                (weights_by_image, told),
                (weights_by_client, told),
            )
        ]
        forward, windowed, weights, by_image, by_client = (1e3 * one for one in took)
        told_of = f"{weights:.2f} | {weights / by_image:.2f} | {weights / by_client:.2f}"
        print(f"| {layer.name} | {forward:.2f} | {forward / windowed:.2f} | {told_of} |", flush=True)


if __name__ == "__main__":
    main()
