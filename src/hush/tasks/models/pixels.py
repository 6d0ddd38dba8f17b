"""Images as bytes: a quarter of the memory of floats, standardised by the model that reads them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


class Pixels(nn.Module):
    """Bytes `[n, channels, height, width]` to floats of each channel's `mean` and `std`: `((x / 255) - mean) / std`.

    The floats are of the module's own precision, so `.to(torch.float64)` acts on the images too.
    """

    sees_one_example = True

    largest: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        # tensors, the 255 too: a GPU divides by a number through its reciprocal, and would round otherwise than a CPU
        for name, values in (("largest", (255.0,) * len(mean)), ("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) / self.largest - self.mean) / self.std


def on_pixels(network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> nn.Module:
    """`network`, taking bytes where it took standardised floats."""
    return nn.Sequential(OrderedDict(pixels=Pixels(mean, std), network=network))
