"""The settings that every method shares, and the two stations built from them."""

from __future__ import annotations

from typing import TypedDict, Unpack

from hush.core import ServerUpdate, Transform
from hush.errors import UsageError
from hush.local.sgd import Sgd
from hush.names import pick
from hush.server import Adam, Average, Averaged, Momentum
from hush.transforms import AdaptiveClip, Clip


class Common(TypedDict, total=False):
    """Keys of `--set` that every method takes."""

    lr: float
    lr_decay: float
    lr_decay_every: int
    momentum: float
    batch_size: int
    local_epochs: int
    local_steps: int
    max_local_steps: int
    prox: float
    server: str
    server_lr: float
    server_momentum: float
    average_iterates: float


def local_sgd(**settings: Unpack[Common]) -> Sgd:
    """Local training as the settings say: `local_steps` wins over the default of one epoch."""
    for key in settings:
        pick(Common.__annotations__, key, "setting")
    steps, epochs = settings.get("local_steps"), settings.get("local_epochs")
    if steps is None and epochs is None:
        epochs = 1
    return Sgd(
        lr=settings.get("lr", 0.1),
        batch_size=settings.get("batch_size", 10),
        epochs=epochs,
        steps=steps,
        momentum=settings.get("momentum", 0.0),
        decay=settings.get("lr_decay", 1.0),
        every=settings.get("lr_decay_every", 1),
        prox=settings.get("prox", 0.0),
        most=settings.get("max_local_steps"),
    )


def clipping(clip: float, quantile: float | None) -> Transform:
    """A fixed clip, or one that starts there and follows that quantile of the clients' norms, at the price of a noisy bit."""
    return Clip(clip) if quantile is None else AdaptiveClip(clip, quantile)


def server_step(**settings: Unpack[Common]) -> ServerUpdate:
    """`server` is average, momentum or adam; `average_iterates` in (0, 1) averages what it hands out."""
    kind = settings.get("server", "average")
    inner: ServerUpdate
    if kind == "average":
        inner = Average(settings.get("server_lr", 1.0))
    elif kind == "momentum":
        inner = Momentum(settings.get("server_lr", 1.0), settings.get("server_momentum", 0.9))
    elif kind == "adam":
        inner = Adam(settings.get("server_lr", 0.01), settings.get("server_momentum", 0.9))
    else:
        raise UsageError(f"server must be average, momentum or adam, not '{kind}'.")
    decay = settings.get("average_iterates", 0.0)
    return Averaged(inner, decay) if decay else inner
