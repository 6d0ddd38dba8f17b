"""A cohort's descent layer by layer: no gradient of all layers is put together, and those of linear layers are nowhere written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from hush.errors import UsageError
from hush.local.channels_last import ChannelsLast
from hush.local.descent import Slope
from hush.local.layers import CohortLayers
from hush.local.linear import Kept, Pair, Taken
from hush.local.low_rank import Factors, Shares, pays

if TYPE_CHECKING:
    from hush.local.flat import FlatModel


class Step(NamedTuple):
    """What all layers of a step have in common."""

    lr: Tensor
    """`[1]`: on the device, so that a graph of launches can be repeated."""
    momentum: float
    pull: Tensor | None
    """`[clients]`: how strongly each is drawn back to where it began."""
    done: Tensor | None
    """`[clients]`: who has finished and waits."""
    first: bool
    """Whether all were at one place before, and had no velocity."""


class Layered:
    """Of so many clients at most, over and over, for so many steps at most: `begin`, steps, `moved`.

    Clients come with the longest training first, so those who still train are a prefix. After the first step, where all stand at
    the received weights, each layer is either written, `[clients, n]`, or kept as factors of low rank.
    """

    def __init__(self, learner: FlatModel, clients: int, slope: Slope, steps: int) -> None:
        self._learner, self.clients, self._steps = learner, clients, steps
        self._kernels = learner.has_kernels
        self._start = torch.empty(learner.dim, device=learner.device, dtype=learner.dtype)
        self._lr, self._limit = (torch.empty(1, device=learner.device, dtype=learner.dtype) for _ in range(2))
        self._written: dict[str, Tensor] | None = None
        self._velocity: dict[str, Tensor] = {}
        self._factors: dict[str, Factors] = {}
        self._shares = Shares(clients, self._steps, self._start)

    def begin(self, params: Tensor, slope: Slope, clients: int) -> Layered:
        """So many, from these weights."""
        self._slope, self._at, self._count = slope, 0, 0
        self._start.copy_(params)
        self._lr.fill_(slope.lr)
        if slope.limit is not None:
            self._limit.fill_(slope.limit)
        self._shares.begin()
        for factors in self._factors.values():
            factors.begin()
        self.losses = self._start.new_zeros(clients)
        return self

    def step(self, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None = None) -> None:
        """One of those who have a batch here; who is `done` waits."""
        if not self._learner.is_due():
            return
        self._count = self._count or len(x)
        self.losses[: len(x)] += self._step(self._at, x, y, weight, keys, done)
        self._at += 1

    def moved(self) -> Tensor:
        """`[clients, d]`: how far each is from where it began, which is what it sends."""
        moved = self._start.new_empty(len(self.losses), self._learner.dim)
        moved[self._count :] = 0.0  # whoever had not one batch
        trained, share = moved[: self._count], self._shares.share[: self._count, : self._at]
        for name, there in self._learner.places.items() if self._count else ():
            if name in self._factors:
                self._factors[name].gone(share, trained[:, there].view(-1, *self._learner.shapes[name]))
            else:
                torch.sub(self._start[there], self._rows(name, self._count), out=trained[:, there])
        return moved

    # -- one step ------------------------------------------------------------------------------------------------------------------

    def _step(self, at: int, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, done: Tensor | None) -> Tensor:
        """Every client's loss before it."""
        slope, count = self._slope, len(x)
        first = at == 0 and self._learner.shares
        if not first and self._written is None:
            self._write(dict(self._learner.places))
        if at == 0 and not first:
            self._stand()
        gradients, loss, kept = self._gradients(at, first, x, y, weight, keys)
        if self._written is None:
            self._write(self._not_factored(gradients, kept))
        pull = self._pull(count) if at and (slope.prox or slope.blur) else None
        step = Step(self._lr, slope.momentum, pull, done, first)
        for name, gradient in gradients.items():
            pairs = kept.pairs.get(name, [])
            if name in self._factors:
                self._factors[name].keep(self._shares.at, pairs[0], done)
            else:
                self._descend(name, gradient, pairs, step)
        if self._factors:
            self._shares.step(count, self._lr, slope.momentum, slope.prox, done)
        return loss if done is None else loss.masked_fill(done, 0.0)

    def _gradients(self, at: int, first: bool, *batch: Tensor) -> tuple[dict[str, Tensor], Tensor, Kept]:
        """Of every client's mean loss: by name; but for linear layers, of which the pairs are kept."""
        learner, count, kept, seen = self._learner, len(batch[0]), Kept(), set[str]()
        learner.prepare_training()
        named, in_common = learner.named(self._start), dict.fromkeys(learner.places, None)
        if not first:
            own = [name for name in learner.places if name not in self._factors]
            named |= {name: self._rows(name, count).view(count, *learner.shapes[name]) for name in own}
            in_common |= dict.fromkeys(own, 0)
        share = self._shares.before(count, at)
        taken = {name: factors.taken(share) for name, factors in self._factors.items()} if at else {}

        def mean_loss(named: dict[str, Tensor], taken: Mapping[str, Taken], *batch: Tensor) -> Tensor:
            names = {id(one): name for name, one in named.items()}
            with CohortLayers(names, kept, taken, self._kernels) as mode:
                loss = learner.mean_loss(named, *batch)
            seen.update(mode.elsewhere)
            return loss

        one = grad_and_value(mean_loss)
        if count == 1 and self._start.device.type == "cpu":  # a lone client needs no vmap: half the time for convolutions
            alone = {name: value if in_common[name] is None else value[0] for name, value in named.items()}
            its = {name: Taken(*(value[0] for value in values)) for name, values in taken.items()}
            with ChannelsLast():
                gradients, loss = one(alone, its, *(values[0] for values in batch))
            gradients, loss = {name: value[None] for name, value in gradients.items()}, loss[None]
        else:
            with learner.quiet():
                gradients, loss = vmap(one, (in_common, 0, 0, 0, 0, 0))(named, taken, *batch)
        if another := seen & self._factors.keys():
            raise UsageError(
                f"The model uses its weights '{min(another)}' in another way than at its first step: let forward do the same "
                "every time."
            )
        self._elsewhere = seen
        return gradients, loss, kept

    def _descend(self, name: str, gradient: Tensor, pairs: list[Pair], step: Step) -> None:
        """A layer that is written."""
        count, start = len(gradient), self._start[self._learner.places[name]]
        weights = self._rows(name, count)
        velocity = self._velocity[name][:count] if self._slope.momentum else None
        alone = len(pairs) == 1 and not any(gradient.stride())  # it comes of one linear layer, and of nothing else
        if self._kernels and alone:
            from hush.kernels.steps import descend_linear

            given, back = pairs[0]
            return descend_linear(weights, velocity, given, back, start, *step)
        whole = pairs[0][1].mT @ pairs[0][0] if alone else sum((back.mT @ given for given, back in pairs), gradient)
        if self._kernels:
            from hush.kernels.steps import descend as descend_in_one
        else:
            descend_in_one = descend
        descend_in_one(weights, velocity, whole.reshape(count, -1), start, *step)

    def _pull(self, count: int) -> Tensor:
        """How strongly each client is drawn back, as in `hush.local.pull`."""
        slope = self._slope
        if not slope.blur or slope.limit is None:
            return torch.full((count,), slope.prox, device=self._start.device, dtype=self._start.dtype)
        assert self._written is not None
        away = [rows[:count] - self._start[self._learner.places[name]] for name, rows in self._written.items()]
        norms = torch.stack([torch.linalg.vector_norm(one, dim=1) for one in away]).norm(dim=0)
        return torch.where(norms > self._limit, slope.prox + slope.blur, slope.prox)

    # -- where layers are --------------------------------------------------------------------------------------------------------

    def _rows(self, name: str, clients: int) -> Tensor:
        """`[clients, n]` of a layer that is written."""
        assert self._written is not None
        return self._written[name][:clients]

    def _not_factored(self, gradients: dict[str, Tensor], kept: Kept) -> dict[str, slice]:
        """The layers to write; the others' factors begin here. BLUR asks for a norm, which takes all weights."""
        written = dict(self._learner.places)
        for name, pairs in kept.pairs.items():
            linear = len(pairs) == 1 and not any(gradients[name].stride()) and name not in self._elsewhere
            if linear and not self._slope.blur and pays(self._steps, pairs[0][0].shape[1], *self._learner.shapes[name]):
                del written[name]
                widest = [values.new_empty(self.clients, *values.shape[1:]) for values in pairs[0]]
                self._factors[name] = Factors(self.clients, self._steps, (widest[0], widest[1]))
        return written

    def _write(self, places: Mapping[str, slice]) -> None:
        """Memory for these layers, `[clients, n]` each."""
        sizes = {name: there.stop - there.start for name, there in places.items()}
        self._written = {name: self._start.new_empty(self.clients, size) for name, size in sizes.items()}
        if self._slope.momentum:
            self._velocity = {name: torch.zeros_like(rows) for name, rows in self._written.items()}

    def _stand(self) -> None:
        """Where a cohort cannot be computed at weights that it shares: everybody at the received ones, without velocity."""
        assert self._written is not None
        for name, rows in self._written.items():
            rows.copy_(self._start[self._learner.places[name]].expand_as(rows))
        for rows in self._velocity.values():
            rows.zero_()


def descend(
    weights: Tensor,
    velocity: Tensor | None,
    gradient: Tensor,
    start: Tensor,
    lr: Tensor,
    momentum: float,
    pull: Tensor | None,
    done: Tensor | None,
    first: bool,
) -> None:
    """velocity <- momentum velocity + gradient + pull (weights - start); weights <- weights - lr velocity: `[clients, n]` each."""
    if pull is not None:
        gradient = gradient + pull[:, None] * (weights - start)
    if velocity is not None:
        gradient = velocity.copy_(gradient) if first else velocity.mul_(momentum).add_(gradient)
    if done is not None:
        gradient = gradient.masked_fill(done[:, None], 0.0)
    torch.sub(start if first else weights, lr * gradient, out=weights)
