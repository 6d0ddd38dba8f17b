"""The settings that methods share, and the stations built from them."""

from __future__ import annotations

import math
from typing import TypedDict, Unpack, get_type_hints

from hush.core import LocalUpdate, ServerUpdate, Transform
from hush.errors import UsageError
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import ClipRule, CoordinateClip, L2Clip
from hush.local.saliency import Saliency
from hush.local.sgd import Sgd
from hush.local.weigh import Weigh
from hush.methods.public_mask import public_top_k
from hush.names import pick
from hush.server import Adam, Average, Averaged, Decayed, FedSpaAdam, Momentum
from hush.transforms import AdaptiveClip, Clip, CountSketch, FreeMask, RandK
from hush.transforms.own_mask import OwnRandK


class StepCommon(TypedDict, total=False):
    """Keys of `--set` that every method takes."""

    lr: float
    lr_decay: float
    lr_decay_every: int
    momentum: float
    batch_size: int
    prox: float
    blur: float
    blur_limit: float
    server: str
    server_lr: float
    server_lr_decay: float
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
    sparsity: float
    weight_cap: int


class Masked(Common, total=False):
    """And those of methods whose clients may send some coordinates alone."""

    mask: str
    ratio: float
    explore: float
    public_steps: int
    rows: int
    cols: float
    k: float


MASK_SETTINGS = {
    **dict.fromkeys(("rows", "cols", "k"), ("sketch",)),
    "ratio": ("rand-k", "top-k", "saliency", "free"),
    "explore": ("free",),
    "public_steps": ("top-k", "saliency"),
}
"""Settings that mean something with certain masks alone."""


def local_training(**settings: Unpack[Masked]) -> LocalUpdate:
    """`Sgd`, and what is done to its updates on the client: all but the most salient coordinates dropped, weighed by size."""
    local: LocalUpdate = local_sgd(**settings)
    if settings.get("sparsity"):
        local = Saliency(local, settings["sparsity"])
    return Weigh(local, settings["weight_cap"]) if "weight_cap" in settings else local


def local_sgd(**settings: Unpack[Masked]) -> Sgd:
    """Local training as the settings say: `local_steps` wins over the default of one epoch."""
    for key in settings:
        pick(get_type_hints(Masked), key, "setting")
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
        blur=settings.get("blur", 0.0),
        blur_limit=settings.get("blur_limit"),
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
        blur=settings.get("blur", 0.0),
        blur_limit=settings.get("blur_limit"),
    )


def masking(**settings: Unpack[Masked]) -> tuple[Transform, ...]:
    """`mask` is none, or one for the whole cohort: rand-k; top-k or saliency, from public examples; free, from noised past sums;
    or a sketch, which needs none: the coordinates are found after the sum."""
    kind, ratio = settings.get("mask", "none"), settings.get("ratio", 0.1)
    for key, masks in MASK_SETTINGS.items():
        if key in settings and kind not in masks:
            raise UsageError(f"{key} goes with a mask: give mask={' or '.join(masks)}.")
    if kind == "none":
        return ()
    if kind == "rand-k":
        return (RandK(ratio),)
    if kind == "top-k":
        return (public_top_k(ratio, local_sgd(**settings), settings.get("public_steps", 0)),)
    if kind == "saliency":
        return (public_top_k(ratio, local_sgd(**settings), settings.get("public_steps", 0), by_saliency=True),)
    if kind == "free":
        return (FreeMask(ratio, settings.get("explore", 0.2)),)
    if kind == "sketch":
        return (CountSketch(settings.get("rows", 5), settings.get("cols", 0.07), settings.get("k", 0.007)),)
    raise UsageError(f"mask must be none, rand-k, top-k, saliency, free or sketch, not '{kind}'.")


def clipping(clip: float, quantile: float | None, **settings: Unpack[Masked]) -> Transform:
    """A fixed clip, or one that starts there and follows that quantile of the clients' norms, at the price of a noisy bit."""
    if quantile is not None and "weight_cap" in settings:
        raise UsageError("weight_cap goes with a fixed clip: updates that were weighed after clipping say nothing of the norms.")
    return Clip(clip) if quantile is None else AdaptiveClip(clip, quantile)


def server_step(**settings: Unpack[Masked]) -> ServerUpdate:
    """`server` is average, momentum, adam or fed-spa, whose steps `server_lr_decay` shrinks from round to round;
    `average_iterates` in (0, 1) averages what it hands out."""
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
    if settings.get("server_lr_decay", 1.0) != 1.0:
        inner = Decayed(inner, settings["server_lr_decay"])
    decay = settings.get("average_iterates", 0.0)
    return Averaged(inner, decay) if decay else inner


def as_written(mode: str) -> bool:
    """Whether a paper's own local training shall run, which has no proof, instead of the proved one.

    It then draws batches of a fixed size, whatever `batches` says, as the paper does.
    """
    return pick({"proved": False, "paper": True}, mode, "mode")
