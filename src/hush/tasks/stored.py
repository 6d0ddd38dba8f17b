"""Clients whose examples lie elsewhere than in memory: sizes and offsets are here, and a cohort's examples while it trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from hush.core import Shard
from hush.errors import UsageError
from hush.tasks.clients import Clients, Examples, Place, as_they_are, in_order, rows_in_a_piece

Read = Callable[[Sequence[tuple[int, int]]], Examples]
"""Rows (from, before), any number of times, to the examples that lie there, one after another."""

_FIRST = 1024
"""Examples that stand for all where their kind alone is asked for."""
_TOLD = 256
"""Clients, evenly spaced, whose examples say whether a run goes on with the same population."""
_MOST = 256
"""Parts of cohorts that wait to be fetched. What is never fetched, since its round was drawn afresh, makes room for others."""


class Ahead:
    """One thread that reads: what is asked for, and what will be, while others train."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[tuple[int, ...], Future[Examples]] = {}

    def expect(self, clients: tuple[int, ...], read: Callable[[], Examples]) -> None:
        """Begin to read what will be asked for."""
        with self._lock:
            if clients not in self._waiting:
                self._waiting[clients] = self._submit(read)
            while len(self._waiting) > _MOST:
                self._waiting.pop(next(iter(self._waiting))).cancel()

    def take(self, clients: tuple[int, ...], read: Callable[[], Examples]) -> Examples:
        """What was read, or is read now."""
        with self._lock:
            waiting = self._waiting.pop(clients, None) or self._submit(read)
        return waiting.result()

    def _submit(self, read: Callable[[], Examples]) -> Future[Examples]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="hush-reads")
        return self._pool.submit(read)


def _nothing(ranges: Sequence[tuple[int, int]]) -> Examples:
    raise UsageError("Clients on disk need a way to read them: hush.Columns(...).stored(table).")


@dataclass(frozen=True)
class Stored(Clients):
    """Clients whose examples `read` finds, client after client. `x` and `y` are the first of them: of what kind all are."""

    starts: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """Of each client: where its rows begin."""
    read: Read = field(default=_nothing, repr=False, compare=False)
    like: Examples = field(default=Examples(torch.zeros(0), torch.zeros(0)), repr=False, compare=False)
    """The first examples as they were read."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    place: Place = field(default=as_they_are, repr=False, compare=False)
    """From examples as they were read, on the device, to those that a model is given."""
    ahead: Ahead = field(default_factory=Ahead, repr=False, compare=False)

    def __post_init__(self) -> None:
        if bool((self.sizes < 0).any()) or not int(self.sizes.sum()):
            raise UsageError("Clients' sizes are whole numbers of examples, and somebody has one.")

    @staticmethod
    def reading(read: Read, sizes: Tensor) -> Stored:
        """Clients of these sizes, whose rows lie one client after the other."""
        sizes = sizes.to(torch.int64)
        like = Examples(*map(in_order, read([(0, min(_FIRST, int(sizes.sum())))])))
        return Stored(*like, sizes, starts=torch.cumsum(sizes, 0) - sizes, read=read, like=like)

    @property
    def total(self) -> int:
        return int(self.sizes.sum())

    def some(self, clients: Tensor) -> Stored:
        """These clients alone."""
        return replace(self, sizes=self.sizes[clients], starts=self.starts[clients], ahead=Ahead())

    def in_memory(self) -> Clients:
        """The same clients, read."""
        return Clients(*self.place(*self._examples(range(self.count))), self.sizes)

    def shard(self, ids: Tensor) -> Shard:
        """The clients `ids`, with their own examples alone."""
        ids = ids.cpu()
        clients = tuple(ids.tolist())
        x, y = (values.to(self.device, non_blocking=True) for values in self.ahead.take(clients, self._reading(clients)))
        size = self.sizes[ids.clamp_min(0)].masked_fill(ids < 0, 0)
        start = torch.cumsum(size, 0) - size
        return Shard(*self.place(x, y), start.to(self.device), size.to(self.device))

    def expect(self, ids: Tensor) -> None:
        clients = tuple(ids.tolist())
        self.ahead.expect(clients, self._reading(clients))

    def pieces(self) -> Iterator[tuple[int, Examples]]:
        first = 0
        for ranges in _cut(self._ranges(range(self.count)), rows_in_a_piece(self.like)):
            piece = self._checked(self.read(ranges), ranges)
            yield first, Examples(*self.place(*piece))
            first += len(piece.x)

    def here_and_there(self, most: int) -> Examples:
        few = torch.arange(self.count)[:: max(1, -(-self.total // most))]
        return Examples(*self.place(*self._examples(few.tolist())))

    def told(self) -> list[Tensor]:
        return [*self.here_and_there(max(1, _TOLD * self.total // self.count)), self.sizes, self.starts]

    def placed(self, device: torch.device, place: Place) -> Stored:
        x, y = place(*self.like)
        return replace(self, x=x, y=y, device=device, place=place, ahead=Ahead())

    def _reading(self, clients: Sequence[int]) -> Callable[[], Examples]:
        """What reads these clients' examples: into memory that a GPU can fetch from by itself, where there is one.

        That memory is had here and not by the thread that reads: while a GPU captures a graph, no other thread may ask it for any.
        """
        if self.device.type != "cuda":
            return partial(self._examples, clients)
        rows = max(1, sum(b - a for a, b in self._ranges(clients)))
        pinned = (torch.empty((rows, *v.shape[1:]), dtype=v.dtype, pin_memory=True) for v in self.like)
        return partial(self._copied, clients, Examples(*pinned))

    def _copied(self, clients: Sequence[int], room: Examples) -> Examples:
        for own, values in zip(room, self._examples(clients), strict=True):
            own.copy_(values)
        return room

    def _examples(self, clients: Sequence[int]) -> Examples:
        """What these clients hold; of nobody, one example that stands somewhere."""
        ranges = list(self._ranges(clients))
        return self._checked(self.read(ranges), ranges) if ranges else Examples(*(v[:1] for v in self.like))

    def _ranges(self, clients: Sequence[int]) -> Iterator[tuple[int, int]]:
        some = torch.tensor([i for i in clients if i >= 0], dtype=torch.int64)
        for start, size in zip(self.starts[some].tolist(), self.sizes[some].tolist(), strict=True):
            if size:
                yield start, start + size

    def _checked(self, found: Examples, ranges: Sequence[tuple[int, int]]) -> Examples:
        """A row too many or too few would make one client's rows those of the next."""
        found, rows = Examples(*found), sum(stop - start for start, stop in ranges)
        if len(found.x) != rows or len(found.y) != rows:
            raise UsageError(
                f"Of {rows:,} rows that were asked for, {len(found.x):,} inputs and {len(found.y):,} targets were read: "
                "every row of a range must come, once and in order."
            )
        for values, like in zip(found, self.like, strict=True):
            if values.dtype != like.dtype or values.shape[1:] != like.shape[1:]:
                raise UsageError(
                    f"Some examples are {values.dtype} of shape {tuple(values.shape[1:])}, where the first are {like.dtype} of "
                    f"{tuple(like.shape[1:])}: make them alike."
                )
        return found


def _cut(ranges: Iterable[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    """The same rows in lists of at most so many; what lies together is read together."""
    held, room = list[tuple[int, int]](), most
    for start, stop in ranges:
        a = start
        while a < stop:
            b = min(stop, a + room)
            if held and held[-1][1] == a:
                held[-1] = held[-1][0], b
            else:
                held.append((a, b))
            a, room = b, room - (b - a)
            if not room:
                yield held
                held, room = [], most
    if held:
        yield held
