"""A round is a straight line: cohort, local training, encode, SUM, decode in reverse, server step, account.

Every client tensor is `[clients, dim]`; a lone client is a cohort of one. A `Transform` is what happens to an update before the
sum (`encode`, on each client) and after it (`decode`, on the server). A `Method` is what a paper proposes: local training, a
chain of transforms, a server step.
"""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hush.errors import HushError, UsageError

if TYPE_CHECKING:  # no torch at import: settings and configurations do without
    from torch import Tensor

    from hush.local.flat import FlatModel
    from hush.own import OwnSecrets
    from hush.privacy.theorems import Claim
    from hush.privacy.vocabulary import Plan
    from hush.secret import Secret
    from hush.settings import Settings

State = Mapping[str, "Tensor"]
"""What a station carries from round to round: named tensors, so that every state can be written to disk."""

Public = Any
"""What the server sends besides the model (a mask, today's clip): whatever one transform's `prepare` returns."""


def scope(name: str, state: State) -> dict[str, Tensor]:
    """A station's state under its name in the state of the whole."""
    return {f"{name}.{key}": value for key, value in state.items()}


def within(name: str, state: State) -> dict[str, Tensor]:
    """The inverse of `scope`: one station's own state out of the whole."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


@dataclass(frozen=True)
class Round:
    """What both sides know about a round."""

    index: int
    seed: int
    """Shared *public* randomness: masks, hashes, rotation signs. Never noise, never who takes part."""
    cohort: float
    """The expected cohort size: the constant that the sum is divided by."""
    room: float | None = None
    """The norm that a client's update may have and still pass the pipeline's clip as it is, today; None: nothing clips it."""


@dataclass(frozen=True)
class Wire:
    """What one message holds; bytes are counted from it."""

    entries: int
    bits: int = 32
    integer: bool = False
    """Whole numbers, which are summed exactly."""
    opened: int | None = None
    """The entries that the server makes of it before the sum, where each client has a mask of its own."""

    @property
    def summed(self) -> int:
        """The length of the sum."""
        return self.opened if self.opened is not None else self.entries

    @property
    def bytes(self) -> int:
        return math.ceil(self.entries * self.bits / 8)


@dataclass(frozen=True)
class Bound:
    """The most that one client can add to the sum: its L2 norm, or why there is no bound."""

    l2: float = math.inf
    reason: str = "nothing in the pipeline clips a client's update"
    bit: float = 0.0
    """The weight of adaptive clipping's bit, an entry of +-bit/2 that the norm includes; zero where the clip is fixed."""
    integer: bool = False
    """Whether entries are whole numbers, and the norm was checked in whole numbers."""
    pending: bool = False
    """There is none yet, and there will be once the model's size is known (`Transform.sized`)."""
    unproved: str = ""
    """Of a paper's own words: why `l2` is only what it takes the bound to be. Empty where it is proved."""


class Shard(NamedTuple):
    """What some clients have: client i owns the `size[i]` rows of `x` and `y` from `start[i]` on, and a secret."""

    x: Tensor
    y: Tensor
    start: Tensor
    size: Tensor
    own: OwnSecrets | None = None
    """Where each draws its own noise and its own batches of records from, if the method has them do so."""
    slots: bool = False
    """Every client keeps its row for the whole of local training, and no shape depends on who else is there: batches are as wide
    as the clients' `size_class` says, and who has finished waits. A row then is the same, to the last bit, whoever is beside it."""
    numbers: Tensor | None = None
    """Of each row of `x`: what its own randomness goes by; None: its place among its client's."""

    def numbers_of(self, rows: Tensor) -> Tensor:
        """What the randomness of rows `[clients, n]` goes by: an example's own, whoever else was drawn."""
        return rows - self.start[:, None] if self.numbers is None else self.numbers[rows]


class Server(NamedTuple):
    """What the server side of a round may use to prepare it: the model's functions and its own public examples."""

    learner: FlatModel
    public: Shard | None


class Transform:
    """One step of the pipeline; the identity unless a method is overridden. Subclasses are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        """What somebody else writes fails with one sentence, wherever it is called."""
        super().__init_subclass__()
        for name in _ANSWERS.keys() & vars(cls).keys() if not is_ours(cls) else ():
            setattr(cls, name, _answering(name, vars(cls)[name]))

    @property
    def needs_public(self) -> bool:
        """Whether `prepare` reads public examples, which then must exist."""
        return False

    @property
    def clients_need_public(self) -> bool:
        """Whether `encode` reads them, too: every client must have them, and what `prepare` returns does not carry them."""
        return False

    def init(self, dim: int) -> State:
        """The state before the first round."""
        return {}

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Public:
        """Server, once a round: what clients get besides the model. `broadcast` counts its bits."""
        return None

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        """Client: `[clients, d]` to `[clients, m]`, each row from its own row alone."""
        return x

    def beside(self, x: Tensor, scores: Tensor) -> Tensor:
        """Client, after `encode`: what local training found out besides the update (`Trained.scores`), where a part sends it."""
        return x

    def cover(self, x: Tensor, rnd: Round, own: OwnSecrets | None) -> Tensor:
        """Client, after `encode`: noise of its own on what it sends."""
        return x

    @property
    def covers(self) -> bool:
        """Whether it puts noise of the client's own on what is sent."""
        return type(self).cover is not Transform.cover

    def unpack(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        """Server, before the sum: messages to rows that can be added up, where each client has a mask of its own."""
        return x

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        """Server, after the sum: `[m]` to `[d]`."""
        return total, state

    def wire(self, incoming: Wire) -> Wire:
        """What leaves a client, given what came in."""
        return incoming

    def broadcast(self, dim: int) -> int:
        """Bits that `prepare`'s answer costs each selected client on the way down."""
        return 0

    def bound(self, incoming: Bound) -> Bound:
        """The sensitivity after this step, given the one before it. Ask `bound_after`, which checks that it is stated."""
        return incoming

    def room(self, after: float | None, public: Public) -> float | None:
        """The norm that a row may have to pass this step and what follows it unclipped, given the room `after` it.

        `public` is what `prepare` returned, or None before the first round. It guides local training and proves nothing.
        """
        return after

    def covered(self, multiplier: float) -> Transform:
        """This step, told how strong the noise will be that covers it, where it must leave room for that."""
        return self

    def after(self, incoming: Bound) -> Transform:
        """This step, told the bound of what reaches it; noise takes its scale from here, never from the user."""
        return self

    def fitted(self, public: int, classes: int) -> Transform:
        """This step, told before it is accounted how many public examples the task has and how many classes its model knows."""
        return self

    def sized(self, dim: int) -> Transform:
        """This step, told before it is accounted how many entries reach it."""
        return self

    def answer(self, dim: int) -> int | None:
        """Bits of what `decode` returns, where that is sparse and can come down instead of the model; None where it is not."""
        return None


def _is_tensor(value: object) -> bool:
    return hasattr(value, "untyped_storage")  # without torch


def _is_state(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and _is_tensor(held) for key, held in value.items())


_ROWS = ("a tensor with one row for each client", lambda value: _is_tensor(value) and value.dim() == 2)
_ANSWERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "init": ("a dictionary of tensors, such as {'mean': torch.zeros(dim)}", _is_state),
    "prepare": ("what clients get", lambda value: True),
    "encode": _ROWS,
    "cover": _ROWS,
    "unpack": _ROWS,
    "decode": (
        "the sum and the state, as in `return total, state`: a tensor and a dictionary of tensors",
        lambda value: isinstance(value, tuple) and len(value) == 2 and _is_tensor(value[0]) and _is_state(value[1]),
    ),
    "wire": ("a hush.Wire", lambda value: isinstance(value, Wire)),
    "bound": ("a hush.Bound", lambda value: isinstance(value, Bound)),
}
"""What the methods of a transform must return, and whether a value is that."""


def _answering(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a transform that says in one sentence what is wrong with it."""
    must, right = _ANSWERS[name]

    @functools.wraps(method)
    def asked(self: Transform, *given: Any, **named: Any) -> Any:
        own = f"{type(self).__name__}.{name}"
        try:
            answer = method(self, *given, **named)
        except (HushError, MemoryError):
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = [f", line {f.lineno}" for f in frames if f.filename == inspect.getfile(method)][-1:]
            raise UsageError(f"{own} fails{''.join(line)}: {type(error).__name__}: {error}") from error
        if not right(answer):
            told = f"a tensor of shape {tuple(answer.shape)}" if _is_tensor(answer) else f"{answer!r:.80}"
            raise UsageError(f"{own} must return {must}, not {told}.")
        return answer

    return asked


def is_ours(kind: type) -> bool:
    """Whether a class is Hush's own, which its tests know, or somebody else's, which a run has to look at."""
    return kind.__module__.split(".")[0] == "hush"


def bound_after(part: Transform, incoming: Bound) -> Bound:
    """The bound that holds after `part`. One that changes updates and does not itself say what that does to their norm has none.

    A class inherits no promise about an `encode`, `beside`, `cover` or `unpack` that it overrides, nor, outside Hush, about a
    `prepare` that tells these what to do.
    """
    kinds, own = type(part).__mro__, ("encode", "beside", "cover", "unpack")
    uses = any(getattr(type(part), name) is not getattr(Transform, name) for name in own)

    def changes(kind: type) -> bool:
        names = own if is_ours(kind) or not uses else (*own, "prepare")
        return any(name in vars(kind) for name in names)

    encodes = next(i for i, kind in enumerate(kinds) if changes(kind))
    states = next(i for i, kind in enumerate(kinds) if "bound" in vars(kind))
    if encodes < states:
        return Bound(reason=f"{type(part).__name__} changes the updates and states no bound")
    return part.bound(incoming)


@dataclass(frozen=True)
class Chain(Transform):
    """Parts encoded left to right and decoded right to left. Build it with `chain`."""

    parts: tuple[Transform, ...] = ()

    @property
    def needs_public(self) -> bool:
        return any(part.needs_public for part in self.parts)

    @property
    def clients_need_public(self) -> bool:
        return any(part.clients_need_public for part in self.parts)

    def init(self, dim: int) -> State:
        state: dict[str, Tensor] = {}
        for i, (part, entries) in enumerate(self._reached(dim)):
            state |= scope(str(i), part.init(entries))
        return state

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Public:
        return tuple(p.prepare(params, within(str(i), state), rnd, server) for i, p in enumerate(self.parts))

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        for part, own in zip(self.parts, public, strict=True):
            x = part.encode(x, rnd, keys, own)
        return x

    def send(
        self,
        x: Tensor,
        rnd: Round,
        keys: Tensor,
        public: Public,
        own: OwnSecrets | None,
        absent: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> Tensor:
        """What really leaves the clients: encoded, and covered with noise of their own where a part says so.

        Those who are `absent` (`[clients]`) add a row of zeros, and that noise: nothing in their place.
        """
        covered = False
        for part, told in zip(self.parts, public, strict=True):
            x = part.encode(x, rnd, keys, told)
            if scores is not None:
                x = part.beside(x, scores)
            if absent is not None and not covered:
                x = x.masked_fill(absent[:, None], 0)
            covered |= part.covers
            x = part.cover(x, rnd, own)
        return x

    def cover(self, x: Tensor, rnd: Round, own: OwnSecrets | None) -> Tensor:
        for part in self.parts:
            x = part.cover(x, rnd, own)
        return x

    def unpack(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        for part, told in zip(reversed(self.parts), reversed(public), strict=True):
            x = part.unpack(x, rnd, keys, told)
        return x

    def decode(self, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        after: dict[str, Tensor] = {}
        for i, part in reversed(list(enumerate(self.parts))):
            total, own = part.decode(total, within(str(i), state), rnd, public[i], secret.part(str(i)))
            after |= scope(str(i), own)
        return total, after

    def wire(self, incoming: Wire) -> Wire:
        for part in self.parts:
            incoming = part.wire(incoming)
        return incoming

    def broadcast(self, dim: int) -> int:
        return sum(part.broadcast(entries) for part, entries in self._reached(dim))

    def answer(self, dim: int) -> int | None:
        for part in self.parts:
            if (bits := part.answer(dim)) is not None or type(part).decode is not Transform.decode:
                return bits
        return None

    def sized(self, dim: int) -> Chain:
        return self.told([part.sized(entries) for part, entries in self._reached(dim)])

    def told(self, parts: list[Transform]) -> Chain:
        """The same with parts that were told something, of which the noise takes its scale anew; itself where nothing changed."""
        return self if all(a is b for a, b in zip(parts, self.parts, strict=True)) else chain(*parts)

    def _reached(self, dim: int) -> Iterator[tuple[Transform, int]]:
        """Each part, and how many entries reach it. The last one's wire is not asked: what noise adds may not be known yet."""
        wire = Wire(dim)
        for i, part in enumerate(self.parts):
            wire = self.parts[i - 1].wire(wire) if i else wire
            yield part, wire.entries

    def bound(self, incoming: Bound) -> Bound:
        for part in self.parts:
            incoming = bound_after(part, incoming)
        return incoming

    def room(self, after: float | None = None, public: Public = None) -> float | None:
        for i, part in reversed(list(enumerate(self.parts))):
            after = part.room(after, None if public is None else public[i])
        return after


def chain(*parts: Transform) -> Chain:
    """Transforms in order: clients encode left to right, the server decodes right to left.

    >>> chain(Clip(1.0), Gaussian(1.4))  # doctest: +SKIP
    """
    flat: list[Transform] = []
    for part in parts:
        if not isinstance(part, Transform):
            raise UsageError(f"A pipeline is made of transforms, such as hush.transforms.Clip(1.0), not of {part!r}.")
        flat += part.parts if isinstance(part, Chain) else (part,)
    told: list[Transform] = []
    bound = Bound()
    for part in flat:
        if part.needs_public and Chain(tuple(told)).wire(Wire(1000)) != Wire(1000):
            raise UsageError(f"{type(part).__name__} must come before what shortens updates: its mask is over the whole model.")
        told.append(part.after(bound))
        bound = bound_after(told[-1], bound)
    return Chain(tuple(told))


class Trained(NamedTuple):
    """What local training gives: one update a client, and its training loss (un-noised, for simulation alone)."""

    updates: Tensor
    losses: Tensor
    scores: Tensor | None = None
    """How well the model that came does on examples that a client keeps apart, in [0, 1]: `transforms.Score` sends it, noised."""


class LocalUpdate:
    """What a client does with its data. Subclasses are frozen dataclasses."""

    @property
    def draws_its_own(self) -> bool:
        """Whether it needs the clients' own secrets (`Shard.own`)."""
        return False

    @property
    def needs_room(self) -> bool:
        """Whether it trains towards the clip that follows it (`Round.room`), which then must exist."""
        return False

    @property
    def exact(self) -> bool:
        """Whether it adds up records in whole numbers, under exact noise: no record may then change what comes of another."""
        return False

    @property
    def by_record(self) -> bool:
        """Whether the pipeline encodes single records' gradients instead of the client's update: see `messages`."""
        return False

    def messages(
        self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, encode: Callable[[Tensor, Tensor], Tensor]
    ) -> Trained:
        """Where it is `by_record`: what each client adds up of its records' rows, which `encode(rows, keys)` makes one by one."""
        raise UsageError(f"{type(self).__name__} does not say what a client sends of its records: override messages.")

    def shortened(self, steps: int) -> LocalUpdate:
        """The same for so many steps only, where it is made of steps: for trials and estimates."""
        return self

    def steps_of(self, sizes: Tensor) -> Tensor:
        """How many steps clients of these sizes make in a round, in those that `shortened` counts."""
        return sizes.new_ones(sizes.shape)

    def work(self, sizes: Tensor, slots: bool) -> tuple[int, int] | None:
        """Examples that clients of these sizes, side by side, compute in a round, and how many of them are their own.

        The others are padding, or of clients that wait (`Shard.slots`). None where that is not known.
        """
        return None

    def size_class(self, sizes: Tensor) -> Tensor:
        """Clients of one class train in tensors of one shape (`Shard.slots`): a function of each one's own size and of settings."""
        return sizes

    def initialised(self, learner: FlatModel, params: Tensor, data: Shard, keys: Tensor) -> LocalUpdate:
        """This, with what an initial round finds out about some clients' data. Nothing, unless a paper does so."""
        return self

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        """`updates[clients, d]` = the model received minus the model trained, each row from its own client alone."""
        raise UsageError(f"{type(self).__name__} does not say how a client trains: override __call__.")


class ServerUpdate:
    """What the server does with the average update. Subclasses are frozen dataclasses."""

    def init(self, params: Tensor) -> State:
        return {}

    def step(self, params: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        raise UsageError(f"{type(self).__name__} does not say how the server steps: override step.")

    def model(self, params: Tensor, state: State) -> Tensor:
        """The weights to hand out and evaluate: the last iterate unless the server averages them."""
        return params

    @property
    def keeps_sparse(self) -> bool:
        """Whether the model changes only where the update is not zero."""
        return False


@dataclass(frozen=True)
class Method:
    """What a paper proposes. `contribute` is the client's half of a round and `finish` the server's, in every engine."""

    name: str
    local: LocalUpdate
    pipeline: Chain
    server: ServerUpdate
    claim: Callable[[Plan, float, Method], Claim | None] | None = field(default=None, compare=False)
    """What the paper itself would print, for a plan, a delta and this method, and on what conditions; never ours."""
    settings: Settings | None = field(default=None, compare=False, repr=False)
    """What it was made of, where it was made by name."""

    def __post_init__(self) -> None:
        if not isinstance(self.pipeline, Chain):
            object.__setattr__(self, "pipeline", chain(self.pipeline))
        if self.local.needs_room and self.pipeline.room() is None:
            raise UsageError("No update is clipped here, so BLUR has no norm to keep it within: give blur_limit.")

    def init(self, params: Tensor) -> State:
        """The server's state before the first round."""
        return scope("pipeline", self.pipeline.init(params.numel())) | scope("server", self.server.init(params))

    def prepare(self, params: Tensor, state: State, rnd: Round, server: Server) -> Public:
        """Server: what this round's clients get besides the model."""
        return self.pipeline.prepare(params, within("pipeline", state), rnd, server)

    def contribute(
        self,
        learner: FlatModel,
        params: Tensor,
        data: Shard,
        rnd: Round,
        keys: Tensor,
        public: Public,
        silent: Tensor | None = None,
    ) -> tuple[Tensor, Trained]:
        """Clients: train and encode; `[clients, m]`, ready to leave. Those who are `silent` train, too, and send noise alone."""
        told = replace(rnd, room=self.pipeline.room(None, public))
        if self.local.by_record:
            trained = self.local.messages(
                learner, params, data, told, keys, lambda x, own: self.pipeline.encode(x, rnd, own, public)
            )
            sums = trained.updates if silent is None else trained.updates.masked_fill(silent[:, None], 0)
            return self.pipeline.cover(sums, rnd, data.own), trained._replace(updates=sums.double())
        trained = self.local(learner, params, data, told, keys, public)
        absent = data.size == 0  # a client without data is as if it were not there: zero-out is just that
        if silent is not None:  # one way for both sides of a coin, which a clock must not tell
            absent = absent | silent
        nobody = absent if silent is not None or bool(absent.any()) else None
        return self.pipeline.send(trained.updates, rnd, keys, public, data.own, nobody, trained.scores), trained

    def finish(
        self, params: Tensor, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret
    ) -> tuple[Tensor, State]:
        """Server: decode the sum (noise is drawn here, once), divide by the *constant* expected cohort, step."""
        decoded, own = self.pipeline.decode(total, within("pipeline", state), rnd, public, secret)
        if decoded.shape != params.shape:
            raise UsageError(
                f"The pipeline of {self.name} decodes the sum to a tensor of shape {tuple(decoded.shape)}, and the model's is "
                f"{tuple(params.shape)}: let decode undo what encode does to the length."
            )
        update = (decoded / rnd.cohort).to(params.dtype)
        params, server = self.server.step(params, update, within("server", state))
        return params, scope("pipeline", own) | scope("server", server)

    def model(self, params: Tensor, state: State) -> Tensor:
        """The weights a user gets."""
        return self.server.model(params, within("server", state))

    @property
    def draws_its_own(self) -> bool:
        """Whether clients draw anything by themselves: noise, or which of their records a step reads."""
        return self.local.draws_its_own or any(part.covers for part in self.pipeline.parts)

    def uplink(self, dim: int) -> Wire:
        """One client's message in one round."""
        return self.pipeline.wire(Wire(dim))

    def downlink_bytes(self, dim: int) -> int:
        """What one selected client downloads in one round: the model, and what `prepare` adds."""
        return Wire(dim).bytes + math.ceil(self.pipeline.broadcast(dim) / 8)

    def answer_bytes(self, dim: int) -> int | None:
        """What a client downloads in one round that follows all of them, where updates are sparse: the last one alone."""
        bits = self.pipeline.answer(dim) if self.server.keeps_sparse else None
        return None if bits is None else math.ceil((bits + self.pipeline.broadcast(dim)) / 8)

    def downloads(self, dim: int, rounds: float, times: float) -> float:
        """Bytes that a client downloads that takes part in `times` of `rounds` rounds: the model each time, or every update."""
        whole, answer = times * self.downlink_bytes(dim), self.answer_bytes(dim)
        return whole if answer is None else min(whole, rounds * answer)

    def fitted(self, public: int, classes: int) -> Method:
        """The same method with every part told what the task has; the noise takes its scale anew."""
        told = self.pipeline.told([part.fitted(public, classes) for part in self.pipeline.parts])
        return self if told is self.pipeline else replace(self, pipeline=told)

    def sized(self, dim: int) -> Method:
        """The same method with every part told how many entries reach it; the noise takes its scale anew."""
        return replace(self, pipeline=self.pipeline.sized(dim))

    def with_pipeline(self, *parts: Transform) -> Method:
        return replace(self, pipeline=chain(*parts))
