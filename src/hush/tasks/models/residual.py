"""Residual networks for small images, with group normalisation.

BatchNorm mixes the examples of a batch and would carry statistics of clients' data out un-noised. Its stand-in is GroupNorm of
two groups, as Reddi et al. (Adaptive Federated Optimization, 2021) put it into ResNet-18 for federated CIFAR.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hush.tasks.models.shapes import require_images


def resnet18(shape: torch.Size, classes: int) -> nn.Module:
    """ResNet-18 for images of about 32 pixels: 3x3 stem without pooling, GroupNorm of 2 groups (11.2 million parameters)."""
    require_images("resnet18", shape, least=8)
    widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
    blocks = [_block(i, o, stride) for i, o, stride in widths]
    again = [_block(o, o, stride=1) for _, o, _ in widths]
    stages = [block for pair in zip(blocks, again, strict=True) for block in pair]
    return nn.Sequential(*_rectified(shape[0], 64), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def resnet9(shape: torch.Size, classes: int) -> nn.Module:
    """ResNet-9 as in DAWNBench and FetchSGD, with GroupNorm of 2 groups (6.57 million parameters)."""
    require_images("resnet9", shape, least=8)
    return nn.Sequential(
        *_rectified(shape[0], 64),
        *_rectified(64, 128),
        nn.MaxPool2d(2),
        _around(128),
        *_rectified(128, 256),
        nn.MaxPool2d(2),
        *_rectified(256, 512),
        nn.MaxPool2d(2),
        _around(512),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes, bias=False),
        Scale(0.125),
    )


class Sum(nn.Module):
    """What a path makes of its input, plus what the shortcut leaves of it."""

    sees_one_example = True
    """As far as both of them do."""

    def __init__(self, path: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.path, self.shortcut = path, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.path(x) + self.shortcut(x)  # type: ignore[no-any-return]


class Scale(nn.Module):
    """A constant factor: small logits at the start."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _normed(channels: int, filters: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, size, stride, padding=size // 2, bias=False), nn.GroupNorm(2, filters)


def _rectified(channels: int, filters: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return *_normed(channels, filters, stride=stride), nn.ReLU()


def _block(channels: int, filters: int, stride: int) -> nn.Module:
    """ResNet's basic block: two convolutions, the sum, then ReLU."""
    path = nn.Sequential(*_rectified(channels, filters, stride), *_normed(filters, filters))
    same = stride == 1 and channels == filters
    shortcut = nn.Identity() if same else nn.Sequential(*_normed(channels, filters, size=1, stride=stride))
    return nn.Sequential(Sum(path, shortcut), nn.ReLU())


def _around(channels: int) -> nn.Module:
    """DAWNBench's residual: two convolutions with ReLU each, then the sum."""
    return Sum(nn.Sequential(*_rectified(channels, channels), *_rectified(channels, channels)), nn.Identity())
