"""From settings to stations. A method's function imports these when it is called, since its settings need no torch."""

from __future__ import annotations

from dataclasses import replace

from hush.core import Chain, LocalUpdate, ServerUpdate, Transform, chain
from hush.errors import UsageError
from hush.local.as_written import AsWritten
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import ClipRule, CoordinateClip, L2Clip
from hush.local.saliency import Saliency
from hush.local.scored import Scored
from hush.local.sgd import Sgd
from hush.local.weigh import Weigh
from hush.methods import groups
from hush.names import pick
from hush.server import Adam, Average, Averaged, Decayed, FedSpaAdam, Momentum
from hush.transforms import (
    AdaptiveClip,
    Clip,
    CountSketch,
    Discretize,
    ExactNoise,
    FreeMask,
    Gaussian,
    MessageGaussian,
    Modulo,
    Noise,
    RandK,
    Rotate,
    Score,
    TopK,
)
from hush.transforms.modulo import grid_bits
from hush.transforms.own_mask import OwnRandK
from hush.transforms.sketch import SketchAsWritten

# -- on the client ---------------------------------------------------------------------------------------------------------------


def local_training(s: groups.LocalTraining) -> LocalUpdate:
    """SGD, and what is done to its updates on the client: all but the most salient coordinates dropped, weighed by size."""
    local: LocalUpdate = sgd(s)
    if s.sparsity:
        local = Saliency(local, s.sparsity)
    if s.weight_cap is not None:
        local = Weigh(local, s.weight_cap)
    return Scored(local) if isinstance(s, groups.Clipped) and s.score else local


def sgd(s: groups.LocalSteps) -> Sgd:
    """The steps alone, which the server makes, too, for a mask from public examples."""
    steps = getattr(s, "local_steps", 1)  # one, where a method has no such setting
    return Sgd(
        lr=s.lr,
        batch_size=s.batch_size,
        epochs=getattr(s, "local_epochs", None) if steps is None else None,
        steps=steps,
        momentum=s.momentum,
        decay=s.lr_decay,
        every=s.lr_decay_every,
        prox=s.prox,
        most=getattr(s, "max_local_steps", None),
        blur=s.blur,
        blur_limit=s.blur_limit,
    )


def sketched_gradient(s: groups.Sketched) -> LocalUpdate:
    """A step down one batch's gradient, or a few."""
    return Sgd(lr=s.lr, batch_size=s.batch_size, epochs=None, steps=s.local_steps)


def local_dp_sgd(s: groups.Records, steps: int, mask: OwnRandK | None = None, as_written: type[AsWritten] | None = None) -> DpSgd:
    """Noise at every step, on records whose gradients are clipped in L2 or by coordinates; or what a paper wrote, if asked for."""
    clip = s.clip if s.clip is not None else 1.0
    rules: dict[str, ClipRule] = {"l2": L2Clip(clip), "coordinate": CoordinateClip(clip)}
    proved = record_steps(s, pick(rules, s.clip_per, "clip_per"), s.batches, s.noise, steps, mask, s.rate)
    return proved if as_written is None or s.mode != "paper" else as_written.of(proved, s.clip)


def record_steps(
    s: groups.LocalSteps,
    clip: ClipRule,
    batches: str,
    noise: float | None = 0.0,
    steps: int = 1,
    mask: OwnRandK | None = None,
    rate: float | None = None,
) -> DpSgd:
    """One step of clipped records without noise, which the pipeline adds, or several with noise."""
    return DpSgd(
        lr=s.lr,
        batch_size=s.batch_size,
        steps=steps,
        clip=clip,
        noise=noise,
        records=batches,
        rate=rate,
        mask=mask,
        momentum=s.momentum,
        decay=s.lr_decay,
        every=s.lr_decay_every,
        prox=s.prox,
        blur=s.blur,
        blur_limit=s.blur_limit,
    )


# -- on the way to the sum -------------------------------------------------------------------------------------------------------


def masking(s: groups.SharedMask) -> tuple[Transform, ...]:
    """No mask, or one for the whole cohort: rand-k; top-k or saliency, from public examples; free, from noised past sums; or a
    sketch, which needs none: the coordinates are found after the sum."""
    if s.mask == "none":
        return ()
    if s.mask == "rand-k":
        return (RandK(s.ratio),)
    if s.mask in ("top-k", "saliency"):
        return (public_top_k(s, s, by_saliency=s.mask == "saliency"),)
    if s.mask == "free":
        return (FreeMask(s.ratio, s.explore),)
    return (CountSketch(s.rows, s.cols, s.k),)


def public_top_k(s: groups.PublicMask, training: groups.LocalSteps, by_saliency: bool = False) -> TopK:
    """Top-k by the clients' own training: `public_steps` batches (Fed-SMP's algorithm 2), or with 0 the clients' own epochs or
    steps on the public examples (its section 6). By saliency: the coordinates that the loss on those examples depends on most."""
    local: LocalUpdate = sgd(training)
    if s.public_steps:
        local = replace(sgd(training), steps=s.public_steps, epochs=None)
    if by_saliency:  # an update of which only the salient coordinates are left, so that those are the largest
        local = Saliency(local, 1 - s.ratio)
    return TopK(s.ratio, local)


def clipping(s: groups.Clipped) -> Transform:
    """A fixed clip, or one that starts there and follows that quantile of the clients' norms, at the price of a noisy bit."""
    if s.clip_quantile is None:
        return chain(Clip(s.clip), Score(s.score)) if s.score else Clip(s.clip)
    if s.weight_cap is not None:
        raise UsageError("weight_cap goes with a fixed clip: updates that were weighed after clipping say nothing of the norms.")
    return AdaptiveClip(s.clip, s.clip_quantile)


def count_sketch(s: groups.Sketched, as_written: bool = False) -> CountSketch:
    """A sketch in which the server's steps are made; `as_written` is DPSFL's, whose norm its paper misjudges."""
    kind = SketchAsWritten if as_written else CountSketch
    return kind(s.rows, s.cols, s.k, lr=s.server_lr, momentum=s.server_momentum, lr_decay=s.server_lr_decay)


def noise_by(s: groups.NoiseBy) -> tuple[Noise, ...]:
    """By a trusted server, once; in shares, under a secure sum; by every client, on its own message; or none, to see what clipping
    costs by itself, which has no privacy and gets no number."""
    kinds: dict[str, tuple[Noise, ...]] = {
        "server": (Gaussian(s.noise),),
        "shares": (Gaussian(s.noise, shares=True),),
        "messages": (MessageGaussian(s.noise),),
        "none": (),
    }
    return kinds[s.noise_by]


def on_integers(kind: str, s: groups.WholeNumbers) -> Chain:
    """Mask, clip, rotate, round, wrap, noise: every step before the noise keeps the bound that the clip made."""
    grid = Discretize(grid_bits(s.bits, s.noise), modulus=s.bits)
    noise = ExactNoise(s.noise, shares=s.shares, kind=kind)
    return chain(*masking(s), clipping(s), Rotate(), grid, Modulo(s.bits), noise)


# -- on the server ---------------------------------------------------------------------------------------------------------------


def server_step(s: groups.ServerStep) -> ServerUpdate:
    """A step with the average update, by itself or averaged over rounds."""
    inner: ServerUpdate = Average(s.server_lr)
    if s.server == "momentum":
        inner = Momentum(s.server_lr, s.server_momentum)
    elif s.server != "average":
        kind = Adam if s.server == "adam" else FedSpaAdam
        inner = kind(s.server_lr, s.server_momentum, s.server_beta2, s.kappa)
    if s.server_lr_decay != 1.0:
        inner = Decayed(inner, s.server_lr_decay)
    return Averaged(inner, s.average_iterates) if s.average_iterates else inner
