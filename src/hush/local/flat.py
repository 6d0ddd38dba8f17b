"""Any `torch.nn.Module` as pure functions of one flat vector, and of a whole cohort's vectors at once.

The flat vector holds the trainable parameters alone; frozen parameters and buffers stay in the module and are shared by all
clients. Gradients of a cohort are `vmap(grad(functional_call))`. A module that PyTorch cannot vectorise trains its clients one
after another, correctly, and says so.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hush.errors import UsageError
from hush.kernels import kernels_for
from hush.local.channels_last import ChannelsLast
from hush.local.descent import Descent, FlatDescent, LoneDescent, Slope
from hush.local.own_rows import OwnRows
from hush.local.remembered import remembered

if TYPE_CHECKING:
    from hush.local.graphed import Graphed

_LARGE = 500_000
"""Weights of which ten copies fill the cache of a processor."""
IGNORED = -100
"""A target that stands for nothing, as in PyTorch's cross-entropy: the padding of a short text."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) to one loss per example."""


class Scores(NamedTuple):
    """What one model does on each example."""

    losses: Tensor
    correct: Tensor | None
    targets: Tensor
    """How many targets of each example count: one, or those of a text that are not padding."""
    outputs: Tensor | None = None


class FlatModel:
    """`module` and `loss` as functions of flat parameters. The caller's module is copied, never changed."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        ignored: int = IGNORED,
    ) -> None:
        self.module = copy.deepcopy(module).to(device=device, dtype=dtype)
        self.loss, self.ignored = loss, ignored
        self.device, self.dtype = torch.device(device), dtype
        self.memory = 2**29
        """Bytes that single examples' gradients may take at once (`with_memory`)."""
        trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not trainable:
            raise UsageError("The model has no trainable parameter: set requires_grad on what the clients shall train.")
        self._names = list(trainable)
        first_name = {id(p): n for n, p in trainable.items()}
        aliases = self.module.named_parameters(remove_duplicate=False)
        self._trained_as = {n: first_name[id(p)] for n, p in aliases if id(p) in first_name}
        self._came_with = {n: v.detach().clone() for n, v in self.module.state_dict().items() if isinstance(v, Tensor)}
        self._buffers = {n: b.detach().clone() for n, b in self.module.named_buffers()}
        self._shapes = [p.shape for p in trainable.values()]
        self._sizes = [p.numel() for p in trainable.values()]
        self.shapes = {name: p.shape for name, p in trainable.items()}
        ends = list(accumulate(self._sizes))
        self.places = {n: slice(end - size, end) for n, end, size in zip(trainable, ends, self._sizes, strict=True)}
        """Where each parameter lies in the flat vector."""
        self._start = torch.cat([p.detach().reshape(-1) for p in trainable.values()])
        self._frozen_norms = refuse_batch_statistics(self.module)
        self.whole: FlatModel | None = None
        """The model whose weights these are: this one is its end, after frozen layers, or the same for many rows at a time."""
        self.vectorised, self._slow_layers, self._shares = True, False, True
        self._graphed: dict[Any, Graphed] = {}
        self._twins: list[FlatModel] = []
        self._one = grad_and_value(self._mean_loss)
        self._all = vmap(self._one)
        self._all_at_one = vmap(self._one, in_dims=(None, 0, 0, 0, 0))

    @property
    def dim(self) -> int:
        """Number of trainable parameters."""
        return sum(self._sizes)

    @property
    def layers(self) -> list[slice]:
        """Where each layer's parameters lie in the flat vector: those of one module, its weight and its bias, together."""
        owners = [name.rpartition(".")[0] for name in self._names]
        found, first = list[slice](), 0
        for i, size in enumerate(self._sizes):
            start = found.pop().start if i and owners[i] == owners[i - 1] else first
            first += size
            found.append(slice(start, first))
        return found

    def after(self, rest: nn.Module) -> FlatModel:
        """The same weights of the `rest` of this model, whose inputs are what its other layers, all frozen, make of examples."""
        learner = FlatModel(rest, self.loss, self.device, self.dtype, self.ignored)
        learner.whole = self
        return learner

    def with_memory(self, memory: int) -> FlatModel:
        """The same, with so many bytes for the gradients of single examples."""
        other = copy.copy(self)
        other.memory = memory
        return other

    def one_by_one(self) -> FlatModel:
        """The same, with clients that train one after another."""
        other = copy.copy(self)
        other.vectorised = False
        return other

    @property
    def best_alone(self) -> bool:
        """Whether clients train faster one after another than side by side: on a CPU, where a convolution of one client fills the
        processor and the weights of ten do not fit its cache (docs/figures.md)."""
        convolves = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in self.module.modules())
        return self.device.type == "cpu" and self.vectorised and convolves and self.dim >= _LARGE

    @property
    def may_have_twins(self) -> bool:
        """Whether threads may train clients of this model at once: nothing of it is one for the whole process."""
        return self.device.type == "cpu" and self.vectorised and not self._slow_layers and "is_due" not in vars(self)

    def twins(self, count: int) -> list[FlatModel]:
        """So many of the same, each with a module of its own: a call puts weights into its module."""
        while len(self._twins) < count:
            twin = FlatModel(self.module, self.loss, self.device, self.dtype, self.ignored)
            twin.whole, twin.memory, twin._shares = self.whole, self.memory, self._shares
            self._twins.append(twin)
        return self._twins[:count]

    def in_float64(self) -> FlatModel:
        """The same model in float64, trained as this one is."""
        exact = FlatModel(self.module, _in_float64(self.loss), self.device, torch.float64, self.ignored)
        exact.vectorised, exact.memory = self.vectorised, self.memory
        return exact

    def initial(self) -> Tensor:
        """The weights the user's module came with."""
        return self._start.clone()

    def named(self, params: Tensor) -> dict[str, Tensor]:
        """The trainable parameters by name, as views of the flat vector."""
        parts = torch.split(params, self._sizes)  # backward of split is one cat, not one padded copy per layer
        return {n: p.view(s) for n, p, s in zip(self._names, parts, self._shapes, strict=True)}

    def named_rows(self, params: Tensor) -> dict[str, Tensor]:
        """The same of many clients, `params[clients, d]`: `[clients, ...]` each."""
        parts = torch.split(params, self._sizes, dim=1)
        return {n: p.unflatten(1, s) if s else p[:, 0] for n, p, s in zip(self._names, parts, self._shapes, strict=True)}  # type: ignore[no-untyped-call]

    @property
    def shares(self) -> bool:
        """Whether a cohort may be computed at weights that it shares."""
        return self._shares

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        """A state dict that the user's own module loads: trained weights under all their names, the rest as it came."""
        if self.whole is not None:
            return self.whole.state_dict(params)
        trained = self.named(params)
        values = {name: trained[self._trained_as[name]] if name in self._trained_as else v for name, v in self._came_with.items()}
        return {name: value.detach().clone() for name, value in values.items()}

    def prepare_training(self) -> None:
        """Dropout draws, and what is frozen stays so."""
        self.module.train()
        for norm in self._frozen_norms:
            norm.eval()

    def is_due(self) -> bool:
        """Asked before every step: whether it is to be computed at all. Who counts steps puts a function of its own here."""
        return True

    def gradients(self, params: Tensor, x: Tensor, y: Tensor, weight: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[clients, d]` and loss `[clients]` of each client's weighted mean loss over its own batch.

        `params[clients, d]`, or `params[d]` where all are at the same weights, which makes one large product of many small ones;
        `x[clients, batch, ...]`, `y[clients, batch, ...]`, `weight[clients, batch]` (zero: a padded row).
        """
        if not self.is_due():
            return params.new_zeros(len(x), self.dim), params.new_zeros(len(x))
        self.prepare_training()
        if self.vectorised and len(x) == 1:  # a lone client needs no vmap: half the time for convolutions on a CPU
            parts, loss = self.lone_gradients(params.view(-1), x[0], y[0], weight[0], keys[0])
            return torch.cat([part.reshape(-1) for part in parts.values()])[None], loss[None]
        if self.vectorised:
            with self.quiet():
                if params.dim() == 1 and self._shares:
                    gradients, losses = self._all_at_one(params, x, y, weight, keys)
                else:
                    gradients, losses = self._all(params.expand(len(x), -1), x, y, weight, keys)
            return gradients, losses
        rows = [self._lone_gradient(*row) for row in zip(params.expand(len(x), -1), x, y, weight, keys, strict=True)]
        return torch.stack([g for g, _ in rows]), torch.stack([loss for _, loss in rows])

    def lone_gradients(self, params: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The same of one client, by name: without vmap, and in PyTorch's own way, which costs a small model half the time."""
        self.prepare_training()
        named = {name: value.detach().requires_grad_() for name, value in self.named(params).items()}
        with ChannelsLast() if self.device.type == "cpu" else nullcontext(), torch.enable_grad():
            loss = self.mean_loss(named, x, y, weight, key)
        if not loss.requires_grad:  # of a model that uses none of its weights
            return {name: torch.zeros_like(value) for name, value in named.items()}, loss
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(named, found, strict=True)), loss.detach()

    def quiet(self) -> AbstractContextManager[None]:
        """Without what PyTorch says of slow layers at every step: `probe` has said so."""
        return without_fallback_warnings(self._slow_layers)

    @property
    def has_kernels(self) -> bool:
        """Whether a cohort of this model is trained by `hush.kernels`."""
        return self.vectorised and self.dtype == torch.float32 and kernels_for(self.device)

    def descent(self, params: Tensor, clients: int, slope: Slope, steps: int = 0, batch: int = 0) -> Descent:
        """Gradient descent of so many clients from these weights, by so many `steps` at most (0: it is not said), on batches of
        one width."""
        if not self.has_kernels or clients < 2:
            lone = clients == 1 and self.vectorised and not (slope.prox or slope.blur)
            return (LoneDescent if lone else FlatDescent)(self, params, clients, slope)
        from hush.local.graphed import Graphed

        most = 1 << (steps - 1).bit_length() if steps else 0  # of few numbers
        key = (most, batch, slope.shape)
        kept = self._graphed.pop(key, None)
        if kept is None or kept.clients < clients:
            kept = Graphed(self, clients, slope, most)
        room = torch.cuda.get_device_properties(self.device).total_memory // 16 - kept.bytes
        while self._graphed and room < sum(one.bytes for one in self._graphed.values()):
            del self._graphed[next(iter(self._graphed))]  # the one that was used longest ago
        self._graphed[key] = kept
        return kept.begin(params, slope, clients)

    def probe(self, x: Tensor, y: Tensor) -> None:
        """Try two clients on an example or two: settle whether the module vectorises, and refuse what must not be trained.

        What a model settles at its first call it settles on examples of nobody, so that it holds nothing of a client's.
        """
        if len(x) == 0:
            return
        rows = two_different(x)
        writes = {n: b._version for n, b in self.module.named_buffers()}
        self._call_every_way(of_nobody(x), of_nobody(y))
        settled, why = (remembered(self.module), remembered(self.loss)), ""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self.vectorised = True
                own, losses = self._probe_step(x, y, rows)
                self._shares = self._trains_at_one(own, x, y, rows)
                if not self._ignores_padding(x, y, rows):
                    self.vectorised, why = False, "the examples of a batch affect each other"
            except UsageError:
                raise
            except Exception as error:  # vmap refuses in many ways; the plain path decides whether the module is at fault
                self.vectorised, why = False, first_line(error)
            if not self.vectorised:
                try:
                    _, losses = self._probe_step(x, y, rows)
                except UsageError:
                    raise
                except Exception as error:
                    raise UsageError(f"The model does not train on one example of the data: {first_line(error)}") from error
        self._refuse_changed_buffers(writes)
        self._refuse_memory(x, y, settled)
        if bool(torch.isfinite(x[rows]).all()) and not bool(torch.isfinite(losses).all()):
            raise UsageError("The model returns NaN or infinity on finite examples before any training: check it.")
        self._slow_layers = any(_FALLBACK in str(w.message) for w in said)
        if not self.vectorised:
            warnings.warn(f"This model cannot be vectorised, so clients train one after another ({why}).", stacklevel=2)
        elif self._slow_layers:
            warnings.warn("PyTorch has no vectorised form of a layer of this model and loops over clients inside it.", stacklevel=2)

    def probe_nobodys(self, x: Tensor, y: Tensor) -> None:
        """Settle again whether the module vectorises, on examples of nobody: no client's may decide how others are computed."""
        try:
            with warnings.catch_warnings(action="ignore"):
                self.probe(of_nobody(x), of_nobody(y))
        except UsageError:
            self.vectorised = False

    def _trains_at_one(self, own: Tensor, x: Tensor, y: Tensor, rows: Tensor) -> bool:
        """Whether a cohort may be computed at weights that it shares, and gives what weights of each client's own give.

        vmap refuses to write what is a client's own into a tensor that a layer made of weights alone, once these are shared.
        """
        try:
            self._shares = True
            together, _ = self._probe_step(x, y, rows, at_one=True)
        except Exception:  # vmap refuses in many ways
            return False
        alike = (together - own).norm() <= (1e-2 if self.device.type == "cuda" else 1e-4) * own.norm()
        return bool(alike) or not bool(torch.isfinite(own).all())

    def _probe_step(self, x: Tensor, y: Tensor, rows: Tensor, padding: int = 0, at_one: bool = False) -> tuple[Tensor, Tensor]:
        padded = torch.cat([rows, rows[:1].expand(padding)])
        weight = torch.cat([torch.ones(len(rows)), torch.zeros(padding)]).to(self.device, self.dtype).expand(2, -1)
        both = (x[padded].expand(2, -1, *x.shape[1:]), y[padded].expand(2, -1, *y.shape[1:]))
        params = self._start if at_one else self._start.expand(2, -1)
        return self.gradients(params, *both, weight, torch.arange(2, device=self.device))

    def _ignores_padding(self, x: Tensor, y: Tensor, rows: Tensor) -> bool:
        """Whether rows that weigh nothing change nothing: if not, a client's update would depend on the size of others.

        In float64 where the model can: a GPU chooses other algorithms for other shapes, and in single precision a maximum may
        then fall on another pixel, which looks like the effect of a neighbour.
        """
        try:
            twin, rounding = self.in_float64(), 1e-6
            exact = (x.double() if x.is_floating_point() else x, y.double() if y.is_floating_point() else y, rows)
            plain, padded = twin._probe_step(*exact)[0], twin._probe_step(*exact, padding=3)[0]
        except Exception:  # what is written for single precision
            rounding = 1e-2 if self.device.type == "cuda" else 1e-4
            plain, padded = self._probe_step(x, y, rows)[0], self._probe_step(x, y, rows, padding=3)[0]
        if not bool(torch.isfinite(plain).all()):
            return True  # nothing to compare: such a client contributes zero
        return bool((plain - padded).norm() <= rounding * plain.norm())

    def _call_every_way(self, x: Tensor, y: Tensor) -> None:
        """As judging and training call it: without gradients, client by client, and many at once, where a value cannot be read.

        On two examples each time, whoever's they are. What fails here fails again in the trial, which says why.
        """
        rows, devices = torch.arange(len(x), device=x.device), [self.device] if self.device.type == "cuda" else []
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=devices):
            with suppress(Exception):
                self.scores(self._start, x, y)
            for learner in (self, self.one_by_one()):
                with suppress(Exception):
                    learner._probe_step(x, y, rows)

    def _refuse_memory(self, x: Tensor, y: Tensor, settled: tuple[str, str]) -> None:
        """What it keeps elsewhere counts as well. What it `settled` on examples of nobody, clients' must not change."""
        rows = torch.tensor([len(x) - 1, len(x) // 2], device=x.device)
        self._call_every_way(x[rows], y[rows])
        if settled != (remembered(self.module), remembered(self.loss)):
            raise UsageError(
                "The model, or its loss, remembers what it was trained on, in an attribute or in a frozen weight, which carries "
                "clients' data into each other's updates: let forward change nothing, but for what it settles when it is first "
                "called, on an example of zeros and one of ones."
            )

    def _refuse_changed_buffers(self, writes: dict[str, int]) -> None:
        """A buffer that training changes would carry clients' data out of the pipeline, un-noised, and into each other.

        `writes` counts what was written into each before the trial. A write of the value that was already there counts too:
        spectral norm's iteration stands still at the initial weights and moves at every others.
        """
        for name, now in self.module.named_buffers():
            try:
                changed = writes.get(name) != now._version or not torch.equal(self._buffers[name], now)
            except RuntimeError:  # what vmap left behind where the module assigned to it
                changed = True
            if changed:
                raise UsageError(
                    f"Training changes the buffer '{name}' of the model, which would leave the clients un-noised: remove it, "
                    "or use a layer without running statistics, such as torch.nn.GroupNorm."
                )

    @torch.no_grad()
    def scores(self, params: Tensor, x: Tensor, y: Tensor, outputs: bool = False) -> Scores:
        """Loss, and for classification the share of right answers, of every example; its outputs too if asked for."""
        batch = min(2048, max(64, 2**20 // max(x.shape[1:].numel(), 1)))  # large images make large activations
        self.module.eval()
        named = self.named(params)
        losses, correct, counts, kept = [], [], [], []
        for xs, ys in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            with OwnRows(torch.zeros((), dtype=torch.int64, device=self.device)):
                answers = functional_call(self.module, named, (xs,))
            counting = self._counting(ys)
            losses.append(self.per_example(answers, ys))
            counts.append(counting.sum(1) if not ys.is_floating_point() else torch.ones_like(counting[:, 0]))
            if _is_classification(answers, ys):
                right = (answers.argmax(1) == ys).reshape(len(ys), -1) & counting
                correct.append(right.sum(1) / counting.sum(1).clamp_min(1).to(self.dtype))
            if outputs:
                kept.append(answers)
        return Scores(
            torch.cat(losses),
            torch.cat(correct) if correct else None,
            torch.cat(counts).to(self.dtype),
            torch.cat(kept) if kept else None,
        )

    @torch.no_grad()
    def predictions(self, params: Tensor, x: Tensor) -> Tensor:
        """Outputs `[clients, n, ...]` of every client's model, `params[clients, d]`, on the same examples; targets are not needed.

        One client after another: a row is the same to the last bit alone and in a cohort, which vmap's is not, and where two
        classes tie the last bit decides. Batches of examples keep the processor as busy as vmap does, and convolutions are faster.
        """
        self.module.eval()
        batches = torch.split(x, min(2048, max(64, 2**20 // max(x.shape[1:].numel(), 1))))
        rows = []
        for row in params:
            named = self.named(row)
            with OwnRows(torch.zeros((), dtype=torch.int64, device=self.device)):
                rows.append(torch.cat([functional_call(self.module, named, (batch,)) for batch in batches]))
        return torch.stack(rows)

    def _counting(self, targets: Tensor) -> Tensor:
        """`[n, targets]`: which are not padding."""
        return (targets != self.ignored).reshape(len(targets), -1)

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per example: a loss with further axes (a token each) is averaged over them."""
        if targets.is_floating_point() and outputs.shape != targets.shape and outputs.numel() == targets.numel():
            raise UsageError(
                f"Outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} would be broadcast: make "
                "them alike, with targets[:, None], or by a last layer nn.Flatten(0)."
            )
        losses = self.loss(outputs, targets)
        if losses.dim() == 0 or len(losses) != len(targets):
            raise UsageError("The loss must return one value per example: for PyTorch's losses pass reduction='none'.")
        return losses.reshape(len(targets), -1).mean(1)

    def _mean_loss(self, params: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> Tensor:
        return self.mean_loss(self.named(params), x, y, weight, key)

    def mean_loss(self, named: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> Tensor:
        """One client's weighted mean loss over a batch, under its parameters by name."""
        with OwnRows(key):
            losses = self.per_example(functional_call(self.module, named, (x,)), y)
            if not y.is_floating_point():  # an example without a target that counts has nothing to say
                weight = weight * (y != self.ignored) if y.dim() == 1 else weight * self._counting(y).any(1)
            # a padded row repeats an example of the same client, so that nothing of another client is ever read
            return (losses * weight).sum() / weight.sum().clamp_min(1.0)

    def _lone_gradient(self, params: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        real = weight > 0
        if bool(real.any()):  # here shapes may vary, so a model that looks at its whole batch sees no padding
            x, y, weight = x[real], y[real], weight[real]
        return self.without_vmap(self._mean_loss, params, key, x, y, weight)

    def without_vmap(self, loss: Callable[..., Tensor], params: Tensor, key: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """A loss's gradient, and its value. A layer that draws from torch's own generator gets it seeded with the key."""
        row = params.detach().requires_grad_()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(int(key))
            value = loss(row, *batch, key)
        (gradient,) = torch.autograd.grad(value, row)
        return gradient, value.detach()


def _in_float64(loss: Any) -> Any:
    """The same loss, where it is a module, or holds one, whose weights can be converted; others are taken as they are."""
    if isinstance(loss, nn.Module):
        return copy.deepcopy(loss).double()
    if isinstance(loss, partial):
        return partial(loss.func, *map(_in_float64, loss.args), **loss.keywords)
    return loss


def of_nobody(values: Tensor) -> Tensor:
    """An example of zeros and one of ones, of the same shape and kind as these: nobody's, and tokens that every table has."""
    made = values.new_zeros(2, *values.shape[1:])
    made[1] = 1
    return made


def two_different(x: Tensor) -> Tensor:
    """The first finite example and the first that differs from it: on two alike, no effect of one on the other would show."""
    flat = x.reshape(len(x), -1)
    finite = torch.isfinite(flat).all(1) if x.is_floating_point() else torch.ones(len(x), dtype=torch.bool, device=x.device)
    first = int(finite.to(torch.uint8).argmax())
    other = finite & (flat != flat[first]).any(1)
    rows = [first, int(other.to(torch.uint8).argmax())] if bool(other.any()) else [first]
    return torch.tensor(rows, device=x.device)


def first_line(error: Exception) -> str:
    """What an error says, for a sentence of ours."""
    return str(error).strip().split("\n")[0][:160]


_FALLBACK = "There is a performance drop because we have not yet implemented the batching rule"


@contextmanager
def without_fallback_warnings(expected: bool) -> Iterator[None]:
    """PyTorch warns at every step of a layer it cannot batch; `probe` has said so once."""
    if not expected:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_FALLBACK)
        yield


def refuse_batch_statistics(module: nn.Module) -> list[nn.Module]:
    """BatchNorm mixes the examples of a batch and carries un-noised statistics of clients' data out of the pipeline.

    One that is frozen (no parameter of it trains, as in a pretrained backbone) is a fixed function: it is returned, to be kept
    in evaluation mode.
    """
    frozen: list[nn.Module] = []
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            continue
        trains = [p.requires_grad for p in layer.parameters()]
        if layer.track_running_stats and (not any(trains) if trains else not layer.training):
            frozen.append(layer)
            continue
        raise UsageError(
            f"Layer '{name or type(layer).__name__}' is {type(layer).__name__}: it mixes the examples of a batch, and its running "
            f"statistics would leave the clients un-noised. Replace it with torch.nn.GroupNorm(num_groups, {layer.num_features})."
        )
    return frozen


def _is_classification(outputs: Tensor, targets: Tensor) -> bool:
    return outputs.dim() >= 2 and not targets.is_floating_point() and outputs.shape[:1] + outputs.shape[2:] == targets.shape
