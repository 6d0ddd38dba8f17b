"""The models of the catalogue, by name. Anything that is a `torch.nn.Module` serves as well."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hush.names import pick
from hush.plugins import from_file, installed, is_in_file
from hush.tasks.models.convolutional import (
    afo_cnn,
    ddgauss_cnn,
    fed_smp_cnn,
    fed_smp_svhn_cnn,
    fed_spa_cifar_cnn,
    fed_spa_mnist_cnn,
)
from hush.tasks.models.linear import cpfed_mlp, logistic, mlp
from hush.tasks.models.lstm import Lstm
from hush.tasks.models.pixels import Pixels, on_pixels
from hush.tasks.models.recurrent import char_lstm, char_lstm_every
from hush.tasks.models.residual import resnet9, resnet18

Build = Callable[[torch.Size, int], nn.Module]

MODELS: dict[str, Build] = {
    "logistic": logistic,
    "mlp": mlp,
    "cpfed-mlp": cpfed_mlp,
    "fed-smp-cnn": fed_smp_cnn,
    "fed-smp-svhn-cnn": fed_smp_svhn_cnn,
    "fed-spa-mnist-cnn": fed_spa_mnist_cnn,
    "fed-spa-cifar-cnn": fed_spa_cifar_cnn,
    "afo-cnn": afo_cnn,
    "ddgauss-cnn": ddgauss_cnn,
    "resnet9": resnet9,
    "resnet18": resnet18,
    "char-lstm": char_lstm,
    "char-lstm-every": char_lstm_every,
}


def every_model() -> dict[str, Build]:
    """Hush's own, and those that installed packages offer as `hush.models`."""
    return MODELS | {name: found.value for name, found in installed("hush.models").items()}


def build_model(name: str, shape: torch.Size, classes: int, seed: int) -> nn.Module:
    """A model by name with weights from `seed`, leaving torch's global generator as it was."""
    build = from_file(name).value if is_in_file(name) else pick(every_model(), name, "model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(shape, classes)


__all__ = ["MODELS", "Build", "Lstm", "Pixels", "build_model", "every_model", "fed_smp_cnn", "logistic", "mlp", "on_pixels"]
