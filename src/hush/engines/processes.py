"""Processes that torchrun started together: what the first tells the others, what they add up, and how they end.

The first one has the run: it draws, pays, steps, judges and writes. The others train their share of each cohort. Tensors go from
device to device, by NCCL where every process has a GPU of its own and else by gloo; what is around them goes pickled, which is for
processes of one user alone.
"""

from __future__ import annotations

import io
import json
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hush import errors
from hush.engines.beside import beside
from hush.errors import HushError, LostProcess, UsageError

_PATIENCE = timedelta(days=1)
"""A process waits while another judges a model or trains the last of its clients; one that is lost is found out otherwise."""
_SPEAKS_WITHIN = timedelta(seconds=5)
_LOOKS_EVERY = 1.0
"""Seconds between looks at what others left word of: not everything that waits for a lost one is told so."""


@dataclass
class Processes:
    """All of them, seen from this one."""

    rank: int
    count: int
    store: Any = field(repr=False)
    """torchrun's own, which outlives every process that it started: why one ended stands there."""
    busy: bool = False
    """Whether the others are at work, and would not hear."""
    ending: BaseException | None = None

    @staticmethod
    def join() -> Processes:
        """Meet the others."""
        store, rank, count = next(rendezvous("env://", timeout=_PATIENCE))
        own_gpus = torch.cuda.is_available() and dist.is_nccl_available() and beside().on_one_gpu == 1
        backend = "cpu:gloo,cuda:nccl" if own_gpus else "gloo"
        dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=count, timeout=_PATIENCE)
        joined = Processes(rank, count, PrefixStore("hush", store))
        signal.signal(signal.SIGTERM, joined._told_to_end)
        return joined

    # -- what they tell each other -----------------------------------------------------------------------------------------------

    def tell(self, message: object, known: Sequence[object] = ()) -> None:
        """From the first to all others; what is `known` they have themselves, in the same order."""
        _put(message, known, self._broadcast)

    def hear(self, known: Sequence[object] = ()) -> Any:
        """What the first one tells."""
        return _take(known, self._broadcast)

    def send(self, message: object) -> None:
        """From another to the first; tensors of it lie in the main memory."""
        _put(message, (), lambda x: self._wait(lambda: dist.send(x, 0)))

    def receive(self, rank: int) -> Any:
        """What another sends."""
        return _take((), lambda x: self._wait(lambda: dist.recv(x, rank)))

    def add_up(self, total: Tensor) -> Tensor:
        """The sum of all processes' `total`, for the first of them: whole numbers exactly, others in float64."""
        self._wait(lambda: dist.reduce(total, 0, async_op=True))
        return total

    def _broadcast(self, x: Tensor) -> None:
        # on a GPU it follows what was told in the main memory, and only the GPU need wait for it
        self._wait(lambda: dist.broadcast(x, 0, async_op=not x.is_cuda))

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Until it is done, with an ear for signals, which no library listens to while it waits. Between two, one that is lost
        ends the wait of the other."""
        pause, looked = 2e-5, time.monotonic()
        try:
            work = begin()
            if not isinstance(work, dist.Work):
                return
            while not work.is_completed():
                time.sleep(pause)
                pause = min(1.2 * pause, 1e-3)
                if time.monotonic() - looked > _LOOKS_EVERY:
                    looked = time.monotonic()
                    if self._noted("failed") or self._noted("lost"):
                        raise self.why()
            work.wait()
        except RuntimeError as error:
            raise self.why() from error

    # -- how they end ------------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """All is done: the others may go, and this one goes."""
        with suppress(HushError, MemoryError, KeyboardInterrupt):  # all was done, or why not is known
            if self.rank == 0 and not self.busy and self.ending is None:
                self.tell(None)
        if self.ending is None and not self.busy:  # with somebody lost it could wait for ever
            dist.destroy_process_group()

    def fail(self, error: BaseException) -> None:
        """Leave word for the first one, which says it: every process would say the same."""
        kind = "KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._note("failed", json.dumps({"kind": kind, "told": str(error), "rank": self.rank}))

    def spoke(self) -> None:
        """The first one says why it ends, whatever torchrun tells it meanwhile."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._note("spoke", "yes")

    def somebody_spoke(self) -> bool:
        """Whether the first one said it, which may take it a moment; or another one, where the first is the one that was lost."""
        try:
            self.store.wait(["spoke"], _SPEAKS_WITHIN)
        except RuntimeError:
            with suppress(RuntimeError):
                return bool(self.store.add("others", 1) > 1)
            return False
        return True

    def why(self) -> BaseException:
        """What ended another process: its own error, or nothing that it could have told."""
        if self.ending is None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._note("lost", "yes")
            self.ending = LostProcess("Another process of this run was lost, so all of them ended.")
            if (word := self._noted("failed")) is not None:
                self.ending = _as_raised(**json.loads(word))
        return self.ending

    def _told_to_end(self, *_: object) -> None:
        """SIGTERM: torchrun ends all processes once one is lost."""
        raise self.why()

    def _note(self, key: str, value: str) -> None:
        try:
            self.store.set(key, value)
        except RuntimeError:
            return  # torchrun itself is gone

    def _noted(self, key: str) -> str | None:
        try:
            return self.store.get(key).decode() if self.store.check([key]) else None
        except RuntimeError:
            return None


def _as_raised(kind: str, told: str, rank: int) -> BaseException:
    if kind in ("KeyboardInterrupt", "MemoryError"):
        return KeyboardInterrupt() if kind == "KeyboardInterrupt" else MemoryError()
    known = getattr(errors, kind, None)
    if not (isinstance(known, type) and issubclass(known, HushError)):
        return LostProcess(f"Process {rank} of this run failed ({kind}), so all of them ended.")
    return UsageError(told) if known is errors.NoGuarantee else known(told)


# -- messages --------------------------------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Tensors stay out: they follow, each as it is. So does what the others have."""

    def __init__(self, file: io.BytesIO, known: Sequence[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.known = {id(one): number for number, one in enumerate(known)}
        self.tensors: list[Tensor] = []

    def persistent_id(self, obj: object) -> int | tuple[Any, ...] | None:
        if (number := self.known.get(id(obj))) is not None:
            return number
        if not isinstance(obj, Tensor):
            return None
        self.tensors.append(obj.detach().contiguous())
        return obj.dtype, tuple(obj.shape), obj.device.type


class _Unpickler(pickle.Unpickler):
    """Room for the tensors, each on a device of this process."""

    def __init__(self, file: io.BytesIO, known: Sequence[object]) -> None:
        super().__init__(file)
        self.known = known
        self.tensors: list[Tensor] = []

    def persistent_load(self, told: int | tuple[Any, ...]) -> Any:
        if isinstance(told, int):
            return self.known[told]
        dtype, shape, device = told
        self.tensors.append(torch.empty(shape, dtype=dtype, device=device))
        return self.tensors[-1]


def _put(message: object, known: Sequence[object], pass_on: Callable[[Tensor], None]) -> None:
    file = io.BytesIO()
    pickler = _Pickler(file, known)
    try:
        pickler.dump(message)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"What this method tells its clients cannot go to another process ({error}): let prepare return tensors, numbers, or "
            "objects of classes that stand in a module; or run it without torchrun."
        ) from error
    pass_on(torch.tensor([file.tell()]))
    pass_on(torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8))
    for tensor in pickler.tensors:
        if tensor.numel():
            pass_on(_raw(tensor))


def _take(known: Sequence[object], take: Callable[[Tensor], None]) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    take(length)
    told = torch.empty(int(length), dtype=torch.uint8)
    take(told)
    unpickler = _Unpickler(io.BytesIO(told.numpy().tobytes()), known)
    message = unpickler.load()
    for tensor in unpickler.tensors:
        if tensor.numel():
            take(_raw(tensor))
    return message


def _raw(tensor: Tensor) -> Tensor:
    """Its bytes: no library knows every type."""
    return tensor.reshape(-1).view(torch.uint8)
