"""The papers' plain convolutional networks. Their order is theirs: convolution, pooling, ReLU, or ReLU before pooling."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from hush.tasks.models.linear import dense
from hush.tasks.models.shapes import require_images, require_shape


def fed_smp_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """Fed-SMP's and McMahan's CNN for 28 x 28 images: 5x5x32, 5x5x64, 512 units (1,663,370 parameters at 10 classes)."""
    require_shape("fed-smp-cnn", shape, (1, 28, 28))
    return nn.Sequential(*_pooled(5, 1, 32, 64, padding=2), nn.Flatten(), *dense(64 * 7 * 7, 512, classes))


def fed_smp_svhn_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """Fed-SMP's CNN for SVHN's 3 x 32 x 32 images: 5x5x64, 5x5x128, 384 and 192 units (3,431,754 parameters at 10 classes)."""
    require_shape("fed-smp-svhn-cnn", shape, (3, 32, 32))
    return nn.Sequential(*_pooled(5, 3, 64, 128, padding=2), nn.Flatten(), *dense(128 * 8 * 8, 384, 192, classes))


def fed_spa_mnist_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """Fed-SPA's CNN for MNIST's 28 x 28 images: 5x5x10, 5x5x20, 50 units (21,840 parameters at 10 classes)."""
    require_shape("fed-spa-mnist-cnn", shape, (1, 28, 28))
    return nn.Sequential(*_pooled(5, 1, 10, 20), nn.Flatten(), *dense(20 * 4 * 4, 50, classes))


def fed_spa_cifar_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """Fed-SPA's CNN for CIFAR's 3 x 32 x 32 images: 3x3 x 64, 128, 256, 128 and 256 units (537,610 parameters at 10 classes)."""
    require_shape("fed-spa-cifar-cnn", shape, (3, 32, 32))
    return nn.Sequential(*_pooled(3, 3, 64, 128, 256), nn.Flatten(), *dense(256 * 2 * 2, 128, 256, classes))


def afo_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """Adaptive Federated Optimization's CNN of two 3x3 layers, with dropout (1,206,590 parameters at 1 x 28 x 28, 62 classes)."""
    require_images("afo-cnn", shape, least=6)
    channels, height, width = shape
    layers = nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*layers, *_dropped_out_head(64 * ((height - 4) // 2) * ((width - 4) // 2), classes))


def ddgauss_cnn(shape: torch.Size, classes: int) -> nn.Module:
    """DDGauss's CNN of two 3x3 layers, with dropout and early pooling (1,018,174 parameters at 1 x 28 x 28, 62 classes)."""
    require_images("ddgauss-cnn", shape, least=8)
    channels, height, width = shape
    layers = nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU()
    return nn.Sequential(*layers, *_dropped_out_head(64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2), classes))


def _pooled(size: int, *channels: int, padding: int = 0) -> list[nn.Module]:
    """Convolutions from each number of channels to the next, with pooling, then ReLU, after each."""
    layers: list[nn.Module] = []
    for inside, out in pairwise(channels):
        layers += [nn.Conv2d(inside, out, size, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    return layers


def _dropped_out_head(features: int, classes: int) -> tuple[nn.Module, ...]:
    hidden, relu, last = dense(features, 128, classes)
    return nn.Dropout(0.25), nn.Flatten(), hidden, relu, nn.Dropout(0.5), last
