"""What the methods of the sketch family share: one gradient a client, a table of counters, noise in one of three places."""

from __future__ import annotations

from typing import TypedDict, Unpack, cast

from hush.core import LocalUpdate
from hush.errors import UsageError
from hush.methods.common import Common, local_training
from hush.names import pick
from hush.transforms import CountSketch, Gaussian, MessageGaussian, Noise
from hush.transforms.sketch import SketchAsWritten


class Sketched(TypedDict, total=False):
    """Keys of `--set` that all of them take; `cols` and `k` are numbers, or below 1 shares of the model."""

    lr: float
    batch_size: int
    local_steps: int
    rows: int
    cols: float
    k: float
    server_lr: float
    server_lr_decay: float
    server_momentum: float


def one_gradient(**settings: Unpack[Common]) -> LocalUpdate:
    """A step of length 1 down one batch's gradient: the update is the gradient. Other settings make it a few steps."""
    usual: Common = {"lr": 1.0, "batch_size": 50}
    if "local_epochs" not in settings:
        usual["local_steps"] = 1
    return local_training(**cast(Common, {**usual, **settings}))


def sketched_gradient(**settings: Unpack[Sketched]) -> LocalUpdate:
    """The same, of those settings that are the client's."""
    own = ("lr", "batch_size", "local_steps")
    return one_gradient(**cast(Common, {key: value for key, value in settings.items() if key in own}))


def count_sketch(as_written: bool = False, **settings: Unpack[Sketched]) -> CountSketch:
    """The server's learning rate and momentum act inside the sketch. FetchSGD's momentum of 0.9 wants a tenth of the rate."""
    return (SketchAsWritten if as_written else CountSketch)(
        rows=settings.get("rows", 5),
        cols=settings.get("cols", 0.07),
        k=settings.get("k", 0.007),
        lr=settings.get("server_lr", 1.0),
        momentum=settings.get("server_momentum", 0.0),
        lr_decay=settings.get("server_lr_decay", 1.0),
    )


def noise_of(noise: float | None, by: str) -> tuple[Noise, ...]:
    """By a trusted server, once; in shares, under a secure sum; by every client, on its own message; or none, to see what clipping
    costs by itself, which has no privacy and gets no number."""
    if by == "none" and noise is not None:
        raise UsageError("noise_by=none adds no noise: leave the noise multiplier out, or say who adds it.")
    kinds: dict[str, tuple[Noise, ...]] = {
        "server": (Gaussian(noise),),
        "shares": (Gaussian(noise, shares=True),),
        "messages": (MessageGaussian(noise),),
        "none": (),
    }
    return pick(kinds, by, "noise_by")
