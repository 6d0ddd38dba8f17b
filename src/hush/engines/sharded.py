"""A cohort over several processes: each trains its share of the clients, and one sum is made of all.

The first process leads, and this is all that it tells: which run to set up, that it begins, and round by round the model, the
cohort, what clients get besides, and the secret that simulated clients' own draws come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hush.core import Public, Round
from hush.engines.diagnostics import Recorder
from hush.engines.run import Run
from hush.errors import UsageError

if TYPE_CHECKING:
    from hush.engines.processes import Processes


@dataclass(frozen=True)
class SetUp:
    """Make this run ready, too."""

    config: Mapping[str, Any]
    data_dir: str | None


@dataclass(frozen=True)
class Begin:
    """It is ready: what must be the same everywhere."""

    fingerprint: Mapping[str, str]
    chunk: int


@dataclass(frozen=True)
class Share:
    """One round's work."""

    rnd: Round
    params: Tensor
    ids: Tensor
    public: Public
    key: bytes
    rows: bool
    """Whether the clients' rows are wanted one by one, as secure aggregation needs them, or their sum."""


Contribution = tuple[Tensor, Tensor, Tensor]
"""Some clients, what they send, and their public keys."""


def led(run: Run, processes: Processes) -> Run:
    """The first one's run, which the others were told of."""
    processes.tell(Begin(run.identity.fingerprint, run.chunk))
    return replace(run, processes=processes)


def follow(run: Run, begun: Begin, processes: Processes) -> Run:
    """The same run in another process; refused where it is another one."""
    mine = run.identity.fingerprint
    if other := [name for name, digest in begun.fingerprint.items() if mine.get(name) != digest]:
        raise UsageError(
            f"Processes of one run must start from the same, and process {processes.rank} has other {' and other '.join(other)}: "
            "give all of them the same data, versions and kind of device."
        )
    return replace(run, chunk=begun.chunk, processes=processes)


def hand_out(run: Run, params: Tensor, ids: Tensor, rnd: Round, public: Public, rows: bool = False) -> None:
    """The first process tells the others what to do; they were told."""
    if run.processes is not None and run.processes.rank == 0:
        run.processes.tell(Share(rnd, params, ids, public, run.identity.secret.key, rows), _known(run))
        run.processes.busy = True


def _known(run: Run | None) -> tuple[object, ...]:
    """What `prepare` may pass on to clients and every process has itself: the model's functions, and public examples."""
    return () if run is None else (run.data.server, run.data.server.learner, run.data.server.public)


def share_of(run: Run, sizes_descend: Tensor) -> Tensor:
    """This process' clients, of all that are sorted by size: each process has as much to do."""
    return sizes_descend if run.processes is None else sizes_descend[run.processes.rank :: run.processes.count]


def is_mine(run: Run, number: int) -> bool:
    """Whether a pass over the slots is this process'."""
    return run.processes is None or number % run.processes.count == run.processes.rank


def added_up(run: Run, total: Tensor, recorder: Recorder) -> Tensor:
    """The sum of all processes; and their figures, where these may be kept."""
    processes = run.processes
    if processes is None:
        return total
    total = processes.add_up(total)
    _joined(run, processes, recorder)
    return total


def of_all(run: Run, own: Iterator[Contribution], recorder: Recorder) -> Iterator[tuple[Tensor, Tensor]]:
    """Everybody's rows in the first process, a chunk of each process in turn; in the others, none: they were sent."""
    processes = run.processes
    if processes is None:
        yield from ((part, encoded) for part, encoded, _ in own)
    elif processes.rank:
        for part, encoded, _ in own:
            processes.send((part.cpu(), encoded.cpu()))
        processes.send(None)
        _joined(run, processes, recorder)
    else:
        working = list(range(processes.count))
        while working:
            for rank in list(working):
                got = next(own, None) if rank == 0 else processes.receive(rank)
                if got is None:
                    working.remove(rank)
                else:
                    yield got[0], got[1]
        _joined(run, processes, recorder)


def _joined(run: Run, processes: Processes, recorder: Recorder) -> None:
    """What was seen of clients, where anything of it is kept: all of it comes to the first process."""
    if run.config.diagnostics or run.privacy.plan is None:
        if processes.rank:
            processes.send(recorder.seen())
        else:
            for rank in range(1, processes.count):
                recorder.join(processes.receive(rank), run.data.learner.device)
    processes.busy = False


def work(processes: Processes, make: Callable[[SetUp], Run], train: Callable[[Run, Share], None]) -> None:
    """A process that is not the first: do what it tells, until it tells nothing more."""
    run: Run | None = None
    while (told := processes.hear(_known(run))) is not None:
        if isinstance(told, SetUp):
            run = None
            run = make(told)
        elif isinstance(told, Begin):
            assert run is not None
            run = follow(run, told, processes)
        else:
            assert run is not None
            train(run, told)
