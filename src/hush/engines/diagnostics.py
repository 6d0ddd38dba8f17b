"""What limits a run: the papers' error terms, round by round.

These are un-noised views of the clients' data. They exist in simulation alone, go to `diagnostics.jsonl`, and never into a
federation, a certificate or `rounds.jsonl`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hush.core import Chain, Method, Public, Round, Server, State, Transform, is_ours
from hush.local.flat import FlatModel
from hush.own import OwnSecrets
from hush.rows import l2, places, total
from hush.secret import Secret
from hush.tasks.clients import Clients
from hush.transforms.adaptive import AdaptiveClip
from hush.transforms.clip import Clip
from hush.transforms.discretize import Discretize
from hush.transforms.noise import Noise, NoiseShares

WATCHED = 4096
"""Examples of clients that the model is judged on in a round, for simulation alone."""


@dataclass
class Recorder:
    """Collects one round's figures as its tensors pass by."""

    cohort: float
    before: dict[int, Tensor] = field(default_factory=dict)
    after: dict[int, Tensor] = field(default_factory=dict)
    clip_norms: list[Tensor] = field(default_factory=list)
    update_norms: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    work: list[Callable[[], tuple[int, int] | None]] = field(default_factory=list)
    """Of each chunk: `LocalUpdate.work`, asked for when the round is over, since it waits for the device."""
    clip: float = math.inf
    figures: dict[str, float | int | None] = field(default_factory=dict)
    latest: tuple[Tensor, int, Tensor] | None = None
    """Rows, their version, and their sum: what leaves one part usually enters the next."""

    def encoded(self, index: int, part: Transform, x: Tensor, y: Tensor, public: Public) -> None:
        self.before[index] = self.before.get(index, 0) + self._sum(x)
        self.after[index] = self.after.get(index, 0) + self._sum(y)
        if isinstance(part, Clip | AdaptiveClip):
            self.clip = part.norm if isinstance(part, Clip) else float(public)
            self.clip_norms.append(l2(x))

    def decoded(self, index: int, part: Transform, total: Tensor, out: Tensor, clean: Tensor | None) -> None:
        if isinstance(part, NoiseShares) and index in self.before:  # which came with the messages
            self.figures["signal_norm"] = _norm(self.before[index]) / self.cohort
            self.figures["noise_norm"] = _norm(total - self.before[index]) / self.cohort
        elif isinstance(part, Noise):
            self.figures["signal_norm"] = _norm(total) / self.cohort
            self.figures["noise_norm"] = _norm(out - total) / self.cohort
        if isinstance(part, Discretize):  # figures so far are in steps of its grid
            step = _norm(out) / _norm(total) if bool(total.any()) else 0.0
            for name in ("signal_norm", "noise_norm"):
                if (steps := self.figures.get(name)) is not None:
                    self.figures[name] = steps * step
        if clean is not None and index in self.before and clean.shape == self.before[index].shape:
            name = "clip_bias" if isinstance(part, Clip | AdaptiveClip) else "compression_error"
            self.figures[name] = _norm(clean - self.before[index]) / self.cohort

    def trained(self, updates: Tensor, losses: Tensor) -> None:
        self.update_norms.append(torch.linalg.vector_norm(updates, dim=1))  # for a figure: no copy in float64
        self.losses.append(losses)
        self.latest = None  # rows take memory

    def _sum(self, x: Tensor) -> Tensor:
        if self.latest is None or self.latest[0] is not x or self.latest[1] != x._version:
            self.latest = (x, x._version, _finite_sum(x))
        return self.latest[2]

    def seen(self) -> tuple[Any, ...]:
        """What it saw of clients, in the main memory."""
        sums = ({i: x.cpu() for i, x in some.items()} for some in (self.before, self.after))
        lists = ([x.cpu() for x in some] for some in (self.clip_norms, self.update_norms, self.losses))
        return (*sums, *lists, self.clip, [work() for work in self.work])

    def join(self, seen: tuple[Any, ...], place: torch.device) -> None:
        """Other clients of the same round, whom another process saw."""
        before, after, *lists, clip, works = seen
        for own, sums in ((self.before, before), (self.after, after)):
            for i, x in sums.items():
                own[i] = own.get(i, 0) + x.to(place)
        for some, more in zip((self.clip_norms, self.update_norms, self.losses), lists, strict=True):
            some += [x.to(place) for x in more]
        self.clip = min(self.clip, clip)
        self.work += [partial(_told, found) for found in works]

    @property
    def train_loss(self) -> float | None:
        losses = _finite(_joined(self.losses))
        return float(losses.mean()) if len(losses) else None

    @property
    def worked(self) -> tuple[int, int]:
        """Examples that were computed, and those that were clients' own; none where it is not known."""
        known = [found for work in self.work if (found := work()) is not None]
        return (sum(every for every, _ in known), sum(own for _, own in known)) if len(known) == len(self.work) else (0, 0)

    @property
    def not_finite(self) -> int:
        """Clients that returned NaN or infinity."""
        norms = _joined(self.update_norms)
        return len(norms) - len(_finite(norms))

    def summary(self) -> dict[str, float | int | None]:
        """The round's figures; a norm is of the cohort's mean, in the model's own units."""
        norms, entering = _joined(self.update_norms), _joined(self.clip_norms)
        figures: dict[str, float | int | None] = {
            "participants": len(norms),
            "not_finite": self.not_finite,
            "train_loss": self.train_loss,
            "wasted_work": wasted(*self.worked),
            "median_update_norm": _median(norms),
            "clip": self.clip if math.isfinite(self.clip) else None,
            "median_norm_at_clip": _median(entering),
            "clipped_fraction": float((entering > self.clip).double().mean()) if len(entering) else None,
            "clip_bias": None,
            "compression_error": None,
            "signal_norm": None,
            "noise_norm": None,
            **self.figures,
        }
        return {key: None if value is None or not math.isfinite(value) else value for key, value in figures.items()}


@dataclass(frozen=True)
class Watched(Transform):
    """A part of the pipeline that reports what passes through it in a round; it changes nothing, and answers nothing else."""

    part: Transform
    index: int
    recorder: Recorder

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Public:
        return self.part.prepare(params, state, rnd, server)

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        y = self.part.encode(x, rnd, keys, public)
        self.recorder.encoded(self.index, self.part, x, self.part.unpack(y, rnd, keys, public), public)
        return y

    def beside(self, x: Tensor, scores: Tensor) -> Tensor:
        return self.part.beside(x, scores)

    @property
    def covers(self) -> bool:
        return self.part.covers

    def cover(self, x: Tensor, rnd: Round, own: OwnSecrets | None) -> Tensor:
        return self.part.cover(x, rnd, own)

    def unpack(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        return self.part.unpack(x, rnd, keys, public)

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        # what somebody's part may keep of a sum must be the noised one
        apart = self.part if is_ours(type(self.part)) else copy.deepcopy(self.part)
        out, after = self.part.decode(total, state, rnd, public, secret)
        clean = None
        if not isinstance(self.part, Noise) and self.index in self.recorder.after:
            clean, _ = apart.decode(self.recorder.after[self.index], state, rnd, public, secret)
        self.recorder.decoded(self.index, self.part, total, out, clean)
        return out, after

    def room(self, after: float | None, public: Public) -> float | None:
        return self.part.room(after, public)


def _told(work: tuple[int, int] | None) -> tuple[int, int] | None:
    """What another process has asked for."""
    return work


def wasted(computed: int, own: int) -> float | None:
    """The share of what was computed that is padding, or of clients that wait for others."""
    return 1 - own / computed if computed else None


def watched(method: Method, recorder: Recorder) -> Method:
    """The same method, observed for one round."""
    parts = tuple(Watched(part, i, recorder) for i, part in enumerate(method.pipeline.parts))
    return replace(method, pipeline=Chain(parts))


def client_spread(learner: FlatModel, params: Tensor, train: Clients, ids: Tensor, most: int = WATCHED) -> dict[str, float | None]:
    """How unequally the model serves the clients: its accuracy on each one's own examples."""
    names = ("client_accuracy_mean", "client_accuracy_std", "client_accuracy_min")
    held = train.sizes[ids.to(train.sizes.device)]
    shard = train.shard(ids.to(held.device)[(torch.cumsum(held, 0) <= most) & (held > 0)])
    size = shard.size
    rows, owner = places(shard.start, size)
    correct = learner.scores(params, shard.x[rows], shard.y[rows]).correct if len(size) else None
    if correct is None:
        return dict.fromkeys(names)
    accuracy = torch.zeros(len(size), device=size.device, dtype=correct.dtype).index_add_(0, owner, correct) / size
    return dict(zip(names, map(float, (accuracy.mean(), accuracy.std(correction=0), accuracy.min())), strict=True))


def _finite_sum(x: Tensor) -> Tensor:
    found = total(x)
    return found if bool(torch.isfinite(found).all()) else total(torch.where(torch.isfinite(x), x, 0.0))


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _joined(chunks: list[Tensor]) -> Tensor:
    return torch.cat(chunks) if chunks else torch.zeros(0)


def _finite(x: Tensor) -> Tensor:
    return x[torch.isfinite(x)]


def _median(x: Tensor) -> float | None:
    finite = _finite(x)
    return float(finite.median()) if len(finite) else None
