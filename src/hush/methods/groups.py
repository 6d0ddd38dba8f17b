"""Settings that several methods share, in groups that a method's own settings include. No torch here.

@dataclass(frozen=True, kw_only=True)
class FedSoft(ServerStep, Clipped):
    softness: float = setting(0.5, "how soon updates are shortened", "[0, 1]")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hush.settings import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Settings, Span, around, between, free, not_with, only_with, setting

MASKS = ("none", "rand-k", "top-k", "saliency", "free", "sketch")
SERVERS = ("average", "momentum", "adam", "fed-spa")
_ADAM, _SKETCH = only_with("server", "adam", "fed-spa"), only_with("mask", "sketch")


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Settings):
    """How a client makes a step."""

    lr: float = free(0.1, "local learning rate", POSITIVE, search=around())
    lr_decay: float = free(1.0, "lr is multiplied by this every lr_decay_every rounds", POSITIVE)
    lr_decay_every: int = free(1, "rounds from one decay of lr to the next", COUNT, when=not_with("lr_decay", 1.0))
    momentum: float = free(0.0, "local momentum, reset every round", SHARE)
    batch_size: int = setting(10, "local batch", COUNT)
    prox: float = free(0.0, "FedProx's pull towards the global model", NOT_NEGATIVE)
    blur: float = free(0.0, "BLUR's pull on updates that leave blur_limit while they are trained", NOT_NEGATIVE, search=around())
    blur_limit: float | None = free(
        None, "the norm that BLUR pulls back to", POSITIVE, unset="the clip, if any", when=not_with("blur", 0.0)
    )


_EPOCHS = "passes over a client's own examples, unless local_steps is given"
_DROPPED = "LUS: the share of every layer that a client drops, the least salient; noise covers all the same"
_WEIGHED = "weigh clients by min(examples, cap)/cap; only bounded weights have a bound"


@dataclass(frozen=True, kw_only=True)
class LocalTraining(LocalSteps):
    """How a client trains on its examples, and what it does to its update before anything is clipped."""

    local_epochs: int = setting(1, _EPOCHS, COUNT, when=only_with("local_steps", None))
    local_steps: int | None = setting(None, "exactly so many batches a client and round", COUNT, unset="local_epochs")
    max_local_steps: int | None = free(None, "the most batches a client trains on in a round, whatever its size", COUNT)
    sparsity: float = free(0.0, _DROPPED, SHARE, search=between(0.1, 0.95, log=False))
    weight_cap: int | None = setting(None, _WEIGHED, COUNT, unset="all alike")


def _server_steps(own: Any, key: str) -> Span | None:
    near = getattr(own, key)
    if own.server in ("adam", "fed-spa"):
        return Span(near / 10, near * 10)
    return Span(0.03 if own.server == "momentum" else 0.1, 3.0)


@dataclass(frozen=True, kw_only=True)
class ServerStep(Settings):
    """What the server does with the average update."""

    server: str = free("average", "average, momentum, adam or fed-spa", choices=SERVERS)
    server_lr: float = free(None, "the server's step", POSITIVE, unset="1, of adam and fed-spa 0.01", search=_server_steps)
    server_lr_decay: float = free(1.0, "the server's step shrinks by this factor from round to round", "(0, 1]")
    server_momentum: float = free(0.9, "the server's momentum", SHARE, when=only_with("server", "momentum", "adam", "fed-spa"))
    server_beta2: float = free(0.99, "the memory of squares in Adam", SHARE, when=_ADAM)
    kappa: float = free(0.001, "added to the root in Adam's denominator", POSITIVE, when=_ADAM)
    average_iterates: float = free(0.0, "decay of an average of the released models; 0 is none", SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_lr is None:
            object.__setattr__(self, "server_lr", 0.01 if self.server in ("adam", "fed-spa") else 1.0)


_CLIP = "the most that a client's update (a record's gradient, where records are protected) may weigh, in L2"
_QUANTILE = "let the clip follow this quantile of the norms, by a noised bit that the plan pays for"

_SCORE = "clients judge the model on a tenth of their own, in one more entry of this share of the clip, under the same noise"


@dataclass(frozen=True, kw_only=True)
class Noised(Settings):
    """Noise in units of the clip."""

    clip: float = free(1.0, _CLIP, "[1e-9, 1e30]", search=around())
    noise: float | None = setting(None, "noise multiplier, as --noise gives it", "[1e-9, 1e9]", unset="from the budget")


@dataclass(frozen=True, kw_only=True)
class Clipped(Noised, LocalTraining):
    """Clipped updates of clients, under noise."""

    clip_quantile: float | None = setting(None, _QUANTILE, "(0, 1)", unset="fixed")
    score: float = free(0.0, _SCORE, "[0, 1]", when=only_with("clip_quantile", None))


@dataclass(frozen=True, kw_only=True)
class Ratio(Settings):
    """A mask keeps a share of the coordinates."""

    ratio: float = free(
        0.1,
        "the share of coordinates that is sent",
        "(0, 1]",
        search=between(0.001, 1.0),
        when=only_with("mask", "rand-k", "top-k", "saliency", "free"),
    )


_PUBLIC = "batches the server trains on public examples for its mask; 0 is the clients' own epochs"


@dataclass(frozen=True, kw_only=True)
class PublicMask(Ratio):
    """A mask that the server finds on public examples."""

    public_steps: int = free(0, _PUBLIC, NOT_NEGATIVE, when=only_with("mask", "top-k", "saliency"))


@dataclass(frozen=True, kw_only=True)
class Sketch(Settings):
    """A table of counters; `cols` and `k` are numbers, or below 1 shares of the model."""

    rows: int = setting(5, "rows of counters in a sketch", COUNT, when=_SKETCH)
    cols: float = setting(0.07, "counters in a row of a sketch; below 1 a share of the model", POSITIVE, when=_SKETCH)
    k: float = setting(0.007, "coordinates that a sketch applies in a round; below 1 a share of the model", POSITIVE, when=_SKETCH)


_MASK = "none, rand-k, top-k or saliency (from public examples), free (from past noised sums), sketch"
_EXPLORE = "mask=free: the share of the coordinates that is drawn at random"


@dataclass(frozen=True, kw_only=True)
class SharedMask(PublicMask, Sketch, LocalSteps):
    """Some coordinates alone, the same for the whole cohort, or a sketch."""

    mask: str = free("none", _MASK, choices=MASKS)
    explore: float = free(0.2, _EXPLORE, "(0, 1]", when=only_with("mask", "free"))


@dataclass(frozen=True, kw_only=True)
class Masked(SharedMask, LocalTraining):
    """The same, of clients' updates."""


_RATE = "the chance of every record to be in a step, the same at all clients"
_BATCHES = "poisson or fixed batches of records, drawn anew and in secret at every step"
_PER = "clip a record's gradient by its l2 norm, or per coordinate"


@dataclass(frozen=True, kw_only=True)
class Records(Noised, LocalSteps):
    """Noise on every local step, which protects a client's single records."""

    noise: float | None = Noised.redefined("noise", None, within="[0, 1e9]")
    mode: str = setting("proved", "proved; or paper, as it is written, without a number", choices=("proved", "paper"))
    clip_per: str = setting("l2", _PER, choices=("l2", "coordinate"), when=only_with("mode", "proved"))
    batches: str = setting("poisson", _BATCHES, choices=("poisson", "fixed"), when=only_with("mode", "proved"))
    rate: float | None = setting(
        None,
        _RATE,
        "(0, 1]",
        unset="batch_size over the client's own records; with --secure over those of a client on average",
        when=(only_with("mode", "proved"), only_with("batches", "poisson")),
    )


@dataclass(frozen=True, kw_only=True)
class RecordSteps(Records):
    """The same, with several steps in a round."""

    local_steps: int = LocalTraining.redefined("local_steps", 10)


@dataclass(frozen=True, kw_only=True)
class FoundClip(RecordSteps):
    """The same, with a clip that Fed-SPA's own words find in an initial round, where none is given."""

    clip: float | None = RecordSteps.redefined(  # type: ignore[assignment]
        "clip", None, unset="1; with mode=paper from an initial round"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is None and self.mode == "proved":
            object.__setattr__(self, "clip", 1.0)


@dataclass(frozen=True, kw_only=True)
class OneGradient(LocalTraining):
    """One step of length 1 down one batch's gradient, so that the update is the gradient. Other settings make it a few steps."""

    follows_data: ClassVar[bool] = False  # what it suggests is for longer training
    lr: float = LocalTraining.redefined("lr", 1.0, search=None)  # it only scales what is clipped
    batch_size: int = LocalTraining.redefined("batch_size", 50)
    local_epochs: int | None = LocalTraining.redefined("local_epochs", None, unset="local_steps")  # type: ignore[assignment]
    local_steps: int | None = LocalTraining.redefined("local_steps", None, unset="1, unless local_epochs is given")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_epochs is None and self.local_steps is None:
            object.__setattr__(self, "local_steps", 1)


@dataclass(frozen=True, kw_only=True)
class Sketched(Sketch):
    """A gradient's sketch, in which the server's learning rate and momentum act. A momentum of 0.9 wants a tenth of the rate."""

    follows_data: ClassVar[bool] = False
    lr: float = OneGradient.redefined("lr", 1.0)
    batch_size: int = OneGradient.redefined("batch_size", 50)
    local_steps: int = OneGradient.redefined("local_steps", 1)
    server_lr: float = ServerStep.redefined("server_lr", 1.0, search=between(0.03, 3.0))
    server_lr_decay: float = ServerStep.redefined("server_lr_decay", 1.0)
    server_momentum: float = ServerStep.redefined("server_momentum", 0.0)


_BY = "noise by the server, in shares under a secure sum, on every client's messages; or none, without privacy"


@dataclass(frozen=True, kw_only=True)
class NoiseBy(Noised):
    """Who draws the noise."""

    clip: float = Noised.redefined("clip", 1.5)
    noise: float | None = Noised.redefined("noise", None, when=(not_with("noise_by", "none"),))
    noise_by: str = setting("server", _BY, choices=("server", "shares", "messages", "none"))


@dataclass(frozen=True, kw_only=True)
class WholeNumbers(ServerStep, Masked, Clipped):
    """What a secure sum can add up: whole numbers of b bits, under whole noise."""

    bits: int = setting(16, "bits of an entry, and of the sum")
    shares: bool = setting(False, "every client adds a share of the noise: then the server is covered, and nothing is amplified")
