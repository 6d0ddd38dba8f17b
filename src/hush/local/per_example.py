"""Sums of clipped per-example gradients of every client of a cohort at once: what record-level differential privacy noises.

Two ways to the same numbers. `plain` asks autograd for the gradient of each example, piece by piece. `ghost` runs the cohort's
whole batch through the model once, forwards and backwards, and finds norms and clipped sums layer by layer, from what went into
a layer and what came back to it (Goodfellow 2015; book-keeping: Bu et al. 2022). It is trusted with a model only after a trial:
for two clients and two examples, in float64, it must give what `plain` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from hush.errors import UsageError
from hush.local.flat import FlatModel, first_line, two_different, without_fallback_warnings
from hush.local.ghost import Recorder, Step, Unsupported
from hush.local.own_rows import OwnRows
from hush.random import fold, uniform
from hush.rows import exact_l2, wide
from hush.transforms.clip import check_clip


@dataclass(frozen=True)
class L2Clip:
    """g * min(1, norm / ||g||_2), after the mask."""

    norm: float

    def __post_init__(self) -> None:
        check_clip(self.norm)


@dataclass(frozen=True)
class CoordinateClip:
    """Every coordinate clamped to [-most, most]."""

    most: float

    def __post_init__(self) -> None:
        check_clip(self.most)


ClipRule = L2Clip | CoordinateClip


class ClippedSums(NamedTuple):
    """What one step makes of each client's batch."""

    sums: Tensor
    """`[clients, d]`, zero outside of the mask."""
    losses: Tensor
    """`[clients]`: the mean loss over the rows that count, without noise: for the simulation alone."""


def clipped_sums(
    learner: FlatModel,
    params: Tensor,
    x: Tensor,
    y: Tensor,
    real: Tensor,
    keys: Tensor,
    clip: ClipRule,
    mask: Tensor | None = None,
    memory: int = 2**29,
    path: str = "auto",
    numbers: Tensor | None = None,
) -> ClippedSums:
    """The sum of each client's masked, then clipped per-example gradients at its own weights, and its mean loss.

    `params[clients, d]`, `x[clients, batch, ...]`, `y[clients, batch, ...]`, `real[clients, batch]` (False: a padded row),
    `keys[clients]` and `numbers[clients, batch]` for dropout, `mask[clients, d]`. What an example draws must depend on itself alone
    and not on who else is in the batch: give its number among the client's own (default: its place in the batch). An example
    whose gradient is not finite, inside the mask or outside of it, contributes zero, and so does one without a target that counts.
    So does one that sends more than 2^110 clips into a layer, on the ghost path in single precision.
    What is held for single examples is cut to about `memory` bytes, but never below one example of each client.
    """
    if path not in ("auto", "ghost", "plain"):
        raise UsageError(f"The path of per-example gradients is auto, ghost or plain, not '{path}'.")
    if not real.numel():
        return ClippedSums(_zeros(params), params.new_zeros(len(params)))
    learner.prepare_training()
    ghost = path != "plain" and isinstance(clip, L2Clip)
    trial = _tried(learner, x, y) if ghost else _Trial("it clips l2 norms alone")
    if path == "ghost" and trial.why:
        raise UsageError(f"The ghost path does not serve here, so ask for path='auto' or 'plain': {trial.why}.")
    counts = _counting(learner, y, real)
    own = _own_keys(keys, real, numbers)
    floats = 4 * learner.dim if trial.why else trial.floats[mask is not None]
    most = max(1, memory // max(1, len(params) * floats * params.element_size()))
    sums, losses = _zeros(params), list[Tensor]()
    for first in range(0, real.shape[1], most):
        step = Step(*(rows[:, first : first + most] for rows in (x, y, own, counts)))
        if isinstance(clip, L2Clip) and not trial.why:
            part, loss = _ghost(learner, params.detach(), step, clip, mask)
        else:
            part, loss = _plain(learner, params.detach(), step, clip, mask)
        sums, losses = sums.add_(part), [*losses, loss]
    each = torch.where(counts, torch.cat(losses, 1), 0.0)
    return ClippedSums(sums, each.sum(1) / counts.sum(1).clamp_min(1))


Encode = Callable[[Tensor, Tensor], Tensor]
"""`[rows, d]` gradients and a public key for each to `[rows, m]` whole numbers, row by row."""
FEWEST, MOST, _ENTRIES = 4, 64, 1 << 17
"""Records of a client whose gradients are taken at once, each at a place of its own: many of a small model, where calls cost most,
and few of a large one, where computing places costs most that nobody takes."""
_BYTES = 80
"""What an entry of one record's gradient takes until it is a whole number: autograd's, and a few copies."""


def places_at_once(learner: FlatModel, clients: int) -> int:
    """How many records of each client are taken side by side: a function of settings alone."""
    fits = learner.memory // (_BYTES * learner.dim * max(clients, 1))
    return max(1, min(fits, MOST, max(FEWEST, _ENTRIES // learner.dim)))


def encoded_sums(
    learner: FlatModel,
    params: Tensor,
    x: Tensor,
    y: Tensor,
    real: Tensor,
    keys: Tensor,
    numbers: Tensor,
    encode: Encode,
    width: int,
) -> ClippedSums:
    """The sum of what `encode` makes of each example's own gradient: whole numbers, which add up exactly.

    What an example adds depends on the weights, on itself, its number and its place alone, to the last bit, if it lies where
    `records.in_places` puts it: every `width` columns are computed by themselves, in the same shape, and copied first, since where
    a row lies in memory changes its last bits, too.
    """
    learner.prepare_training()
    total, losses, counted = None, params.new_zeros(len(params)), params.new_zeros(len(params))
    for first in range(0, real.shape[1], width):
        step = Step(*(rows[:, first : first + width].clone() for rows in (x, y, _own_keys(keys, real, numbers), real)))
        step = step._replace(counts=_counting(learner, step.y, step.counts))
        gradients, found = _each(learner, params.detach(), step)
        rows = encode(gradients.flatten(0, 1), step.keys.flatten()).masked_fill_(~step.counts.flatten()[:, None], 0)
        rows = rows.view(len(params), width, -1).sum(1)
        total = rows if total is None else total.add_(rows)
        losses += torch.where(step.counts, found, 0.0).sum(1)
        counted += step.counts.sum(1)
    assert total is not None
    return ClippedSums(total, losses / counted.clamp_min(1))


def _counting(learner: FlatModel, y: Tensor, real: Tensor) -> Tensor:
    """Which rows are examples that have a target."""
    return real if y.is_floating_point() else real & (y != learner.ignored).reshape(*real.shape, -1).any(2)


def _own_keys(keys: Tensor, real: Tensor, numbers: Tensor | None) -> Tensor:
    """What an example draws from, by itself: its client, and its number there."""
    return fold(keys[:, None], torch.arange(real.shape[1], device=keys.device)[None] if numbers is None else numbers)


# ---- What is left of an example


def _zeros(params: Tensor) -> Tensor:
    """In float32 at least: half precision is too coarse to hold a bound."""
    return torch.zeros_like(params, dtype=torch.promote_types(params.dtype, torch.float32))


def _factors(norms: Tensor, counts: Tensor, clip: L2Clip, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What to multiply each example's gradient with, and which examples say anything at all.

    Rounding must not carry a contribution past the clip: norms are of float64, and 2^9 roundings of `dtype` are left as a margin.
    A norm that `dtype` cannot hold counts as infinite, and so does one so large that the factor would lose its digits.
    """
    info = torch.finfo(dtype)
    factors = (clip.norm * (1.0 - 512 * info.eps) / norms.clamp_min(1e-300)).clamp_max(1.0)
    alive = counts & (norms <= info.max) & (factors >= info.tiny)  # a comparison with NaN is false
    return torch.where(alive, factors, 0.0).to(dtype), alive


def _weighted(gradients: Tensor, factors: Tensor, alive: Tensor) -> Tensor:
    """`[clients, p]` of `[clients, batch, p]`. Zero times NaN is NaN, so that dead rows are replaced (in place), not scaled."""
    return torch.bmm(factors[:, None], gradients.masked_fill_(~alive[..., None], 0.0))[:, 0]


def _clipped(gradients: Tensor, counts: Tensor, clip: ClipRule, mask: Tensor | None) -> Tensor:
    """The sums `[clients, d]` of `[clients, batch, d]`."""
    gradients = wide(gradients)
    if mask is not None:
        gradients *= mask[:, None]  # a product, so that NaN outside of the mask stays NaN
    norms = exact_l2(gradients)
    if isinstance(clip, L2Clip):
        return _weighted(gradients, *_factors(norms, counts, clip, gradients.dtype))
    most = torch.tensor(clip.most, dtype=gradients.dtype)
    most = most if float(most) <= clip.most else torch.nextafter(most, torch.zeros_like(most))
    alive = counts & torch.isfinite(norms)
    return torch.where(alive[..., None], gradients.clamp(-float(most), float(most)), 0.0).sum(1)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products that round to TF32 or bfloat16 would be summed with other digits than those the norms were taken of."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by PyTorch's newer interface, one backend at a time
        before = ""
    known: Any = torch.backends
    backends = [] if before else [known.cuda.matmul, known.mkldnn.matmul]
    precisions = [backend.fp32_precision for backend in backends]
    try:
        if before != "highest":
            for backend in backends:
                backend.fp32_precision = "ieee"
            if before:
                torch.set_float32_matmul_precision("highest")
        yield
    finally:
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision
        if before not in ("", "highest"):
            torch.set_float32_matmul_precision(before)


# ---- The plain path


def _plain(learner: FlatModel, params: Tensor, step: Step, clip: ClipRule, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums `[clients, d]` and losses `[clients, batch]` from each example's own gradient."""
    if learner.vectorised:
        gradients, losses = _each(learner, params, step)
        with _full_precision():
            return _clipped(gradients, step.counts, clip, mask), losses
    sums, losses = _zeros(params), params.new_zeros(step.counts.shape)
    for c, j in step.counts.nonzero().tolist():  # a model that vmap refuses
        one, only = slice(c, c + 1), slice(j, j + 1)
        gradient, losses[one, only] = _each(learner, params[one], Step(*(rows[one, only] for rows in step)))
        sums[one] += _clipped(gradient, step.counts[one, only], clip, None if mask is None else mask[one])
    return sums, losses


def _each(learner: FlatModel, params: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Gradients `[clients, batch, d]` and losses `[clients, batch]` of single examples."""

    def loss(row: Tensor, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
        with OwnRows(key):
            return learner.per_example(functional_call(learner.module, learner.named(row), (x[None],)), y[None])[0]

    if not learner.vectorised:  # one by one
        gradients, losses = params.new_zeros(*step.counts.shape, learner.dim), params.new_zeros(step.counts.shape)
        for c, j in step.counts.nonzero().tolist():
            one = (params[c].clone(), step.keys[c, j], step.x[c, j], step.y[c, j])
            gradients[c, j], losses[c, j] = learner.without_vmap(loss, *one)
        return gradients, losses
    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0, 0))
    with without_fallback_warnings(True):
        if len(params) == 1:
            gradients, losses = (part[None] for part in each(params[0], step.x[0], step.y[0], step.keys[0]))
        else:
            gradients, losses = vmap(each)(params, step.x, step.y, step.keys)
    return gradients, losses


# ---- The ghost path: is it the same?


class _Trial(NamedTuple):
    why: str
    """What speaks against the ghost path; nothing if it serves."""
    floats: tuple[int, int] = (0, 0)
    """About how many numbers it holds for an example, without and with a mask."""


_TRIALS: WeakKeyDictionary[FlatModel, dict[Any, _Trial]] = WeakKeyDictionary()


def _tried(learner: FlatModel, x: Tensor, y: Tensor) -> _Trial:
    """The trial's verdict, remembered for each model and shape of examples."""
    if not learner.vectorised:
        return _Trial("the model cannot be vectorised")
    if learner.dtype not in (torch.float32, torch.float64):
        return _Trial("its norms need single precision at least")
    known = _TRIALS.setdefault(learner, {})
    shape = (x.shape[2:], x.dtype, y.shape[2:], y.dtype)
    if shape in known:
        return known[shape]
    rows = two_different(x.flatten(0, 1))
    if len(rows) < 2:
        return _Trial("there are no two different examples to try it on")
    two = torch.stack([rows, rows.flip(0)])
    x, y = x.flatten(0, 1)[two], y.flatten(0, 1)[two]
    try:
        exact = (x.double() if x.is_floating_point() else x, y.double() if y.is_floating_point() else y)
        trial = _try_all(learner.in_float64(), *exact, 1e-6)
    except Exception:  # what is written for single precision, or cannot be had so at all
        try:
            trial = _try_all(learner, x, y, 1e-3)
        except Exception as error:
            trial = _Trial(first_line(error))
    return known.setdefault(shape, trial)


def _try_all(learner: FlatModel, x: Tensor, y: Tensor, rounding: float) -> _Trial:
    """On the examples, and on others in the place of one: what examples do to each other may not show on those that came first."""
    trial = _Trial("")
    for other in _others(x):
        trial = _try(learner, torch.cat([x[:, :1], other[:, 1:]], 1), y, rounding)
        if trial.why:
            return trial
    return trial


def _others(x: Tensor) -> Iterator[Tensor]:
    """The examples as they are, and far from it, within what their kind allows."""
    yield x
    drawn = uniform(torch.arange(x.numel(), device=x.device), ()).reshape(x.shape)
    if x.is_floating_point():
        yield 10 * x
        yield x + 1
        yield -x
        yield (drawn.to(x.dtype) - 0.5) * 20
        yield 1e-3 * x
    else:
        low, high = x.min(), x.max()
        yield (low + high) - x
        yield low + (drawn.double() * (high - low + 1).double()).to(x.dtype)


def _try(learner: FlatModel, x: Tensor, y: Tensor, rounding: float) -> _Trial:
    """Both paths, for two clients whose weights differ from those at the start: a layer of zeros would hide those below it."""
    learner.prepare_training()
    keys = torch.arange(4, device=learner.device).reshape(2, 2)
    params = learner.initial() + 0.1 * (uniform(keys[:, 0], (learner.dim,)) - 0.5).to(learner.dtype)
    step, clip = Step(x, y, keys, torch.ones_like(keys, dtype=torch.bool)), L2Clip(1e-3)
    try:
        calls = Recorder(learner, params, step).run()[0]
        ghost = _ghost(learner, params, step, clip, None)[0]
    except Unsupported as error:
        return _Trial(str(error))
    parts = [_plain(learner, params, Step(*(rows[:, j : j + 1] for rows in step)), clip, None)[0] for j in range(2)]
    plain = torch.stack(parts).sum(0)
    if not bool(plain.norm() > 0) or not bool((ghost - plain).norm() <= rounding * plain.norm()):
        return _Trial("the trial on two examples gave something else than plain gradients")
    return _Trial("", (sum(call.floats(False) for call in calls), sum(call.floats(True) for call in calls)))


@torch.no_grad()
def _ghost(learner: FlatModel, params: Tensor, step: Step, clip: L2Clip, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums `[clients, d]` and losses `[clients, batch]` from one pass over all examples."""
    calls, losses = Recorder(learner, params, step).run()
    sums = torch.zeros_like(params)
    with _full_precision():
        held = [pair for call in calls for pair in call.held(mask is not None)]
        squares = [square for square in (call.square(mask, clip.norm) for call in calls) if square is not None]
        parts = []
        for some in _together(held):
            every = some[0][1] if len(some) == 1 else torch.cat([g for _, g in some], 2)
            if mask is not None:  # a product, so that NaN outside of the mask stays NaN
                every *= torch.cat([mask[:, where] for where, _ in some], 1)[:, None]
            squares.append(exact_l2(every).square())
            parts.append((some, every))
        factors, alive = _factors(torch.stack(squares).sum(0).sqrt(), step.counts, clip, params.dtype)
        for some, every in parts:
            totals = torch.split(_weighted(every, factors, alive), [g.shape[2] for _, g in some], 1)
            for (where, _), total in zip(some, totals, strict=True):
                sums[:, where] = total
        done = {where.start for where, _ in held}
        for call in calls:
            if call.weight.start not in done and (rest := call.total(factors, alive)) is not None:
                sums[:, call.weight] = rest
    return sums if mask is None else sums.masked_fill_(~mask, 0.0), losses


def _together(held: list[tuple[slice, Tensor]]) -> list[list[tuple[slice, Tensor]]]:
    """The small ones as one, for fewer operations; the large ones each alone, for fewer copies."""
    small = [pair for pair in held if pair[1].shape[2] <= 2**14]
    return [*([small] if small else []), *([pair] for pair in held if pair[1].shape[2] > 2**14)]
