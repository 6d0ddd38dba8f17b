"""The settings that every method shares, and the two stations built from them."""

from __future__ import annotations

import math
from typing import TypedDict, Unpack

from hush.core import ServerUpdate, Transform
from hush.errors import UsageError
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import ClipRule, CoordinateClip, L2Clip
from hush.local.sgd import Sgd
from hush.names import pick
from hush.server import Adam, Average, Averaged, FedSpaAdam, Momentum
from hush.transforms import AdaptiveClip, Clip
from hush.transforms.own_mask import OwnRandK


class StepCommon(TypedDict, total=False):
    """Keys of `--set` that every method takes."""

    lr: float
    lr_decay: float
    lr_decay_every: int
    momentum: float
    batch_size: int
    prox: float
    server: str
    server_lr: float
    server_momentum: float
    server_beta2: float
    kappa: float
    average_iterates: float


class RecordCommon(StepCommon, total=False):
    """And those of methods that make more than one local step in a round."""

    local_steps: int


class Common(RecordCommon, total=False):
    """And those of methods that pass over a client's examples; where every step draws its records anew, there are no epochs."""

    local_epochs: int
    max_local_steps: int


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


def clip_rule(clip: float, per: str) -> ClipRule:
    """How a record's gradient is bounded: its L2 norm, or every coordinate of it."""
    if not 0 < clip < math.inf:
        raise UsageError(f"clip must be a positive number, not {clip:g}.")
    kinds: dict[str, ClipRule] = {"l2": L2Clip(clip), "coordinate": CoordinateClip(clip)}
    return pick(kinds, per, "clip_per")


def local_dp_sgd(
    clip: ClipRule, noise: float | None, batches: str, mask: OwnRandK | None, **settings: Unpack[RecordCommon]
) -> DpSgd:
    """Local training with noise of its own at every step, as the settings say."""
    for key in settings:
        pick(RecordCommon.__annotations__, key, "setting")
    return DpSgd(
        lr=settings.get("lr", 0.1),
        batch_size=settings.get("batch_size", 10),
        steps=settings.get("local_steps", 10),
        clip=clip,
        noise=noise,
        records=batches,
        mask=mask,
        momentum=settings.get("momentum", 0.0),
        decay=settings.get("lr_decay", 1.0),
        every=settings.get("lr_decay_every", 1),
        prox=settings.get("prox", 0.0),
    )


def clipping(clip: float, quantile: float | None) -> Transform:
    """A fixed clip, or one that starts there and follows that quantile of the clients' norms, at the price of a noisy bit."""
    return Clip(clip) if quantile is None else AdaptiveClip(clip, quantile)


def server_step(**settings: Unpack[Common]) -> ServerUpdate:
    """`server` is average, momentum, adam or fed-spa; `average_iterates` in (0, 1) averages what it hands out."""
    kind = settings.get("server", "average")
    inner: ServerUpdate
    if kind == "average":
        inner = Average(settings.get("server_lr", 1.0))
    elif kind == "momentum":
        inner = Momentum(settings.get("server_lr", 1.0), settings.get("server_momentum", 0.9))
    elif kind in ("adam", "fed-spa"):
        inner = (Adam if kind == "adam" else FedSpaAdam)(
            settings.get("server_lr", 0.01),
            settings.get("server_momentum", 0.9),
            settings.get("server_beta2", 0.99),
            settings.get("kappa", 1e-3),
        )
    else:
        raise UsageError(f"server must be average, momentum, adam or fed-spa, not '{kind}'.")
    decay = settings.get("average_iterates", 0.0)
    return Averaged(inner, decay) if decay else inner


def as_written(mode: str) -> bool:
    """Whether a paper's own local training shall run, which has no proof, instead of the proved one.

    It then draws batches of a fixed size, whatever `batches` says, as the paper does.
    """
    return pick({"proved": False, "paper": True}, mode, "mode")
