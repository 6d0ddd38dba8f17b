"""What a model of images says of data that do not fit it."""

from __future__ import annotations

import torch

from hush.errors import UsageError


def require_shape(model: str, shape: torch.Size, needed: tuple[int, ...]) -> None:
    """Refuse every shape but the one the model was published for."""
    if tuple(shape) != needed:
        raise UsageError(f"{model} takes {times(needed)} images, not {times(shape)}: choose afo-cnn, logistic or mlp.")


def require_images(model: str, shape: torch.Size, least: int) -> None:
    """Refuse what is not `[channels, height, width]` with at least `least` pixels each way."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UsageError(f"{model} takes images of at least {least} x {least} pixels, not {times(shape)}: choose logistic or mlp.")


def times(shape: tuple[int, ...]) -> str:
    """A shape in words: 3 x 32 x 32."""
    return " x ".join(map(str, shape))
