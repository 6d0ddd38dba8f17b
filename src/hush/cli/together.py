"""A command in several processes, as torchrun starts them: the first one runs it and speaks, the others help."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hush.cli.console import say

if TYPE_CHECKING:  # no torch before something is typed that needs it
    from hush.engines.processes import Processes
    from hush.engines.run import Run
    from hush.engines.rundir import RunDir
    from hush.engines.sharded import SetUp
    from hush.experiment import Experiment

_TELLING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_joined = False


def processes_started() -> int:
    """How many torchrun started, or what sets the same variables; 0 where nothing did."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _TELLING) else 0


def helps() -> bool:
    """Whether this process helps another one."""
    return processes_started() > 1 and os.environ["RANK"] != "0"


def to_go_on(folder: RunDir) -> str:
    """What to type."""
    many = processes_started()
    return f"{f'torchrun --nproc-per-node {many} -m hush' if many > 1 else 'hush'} run --resume {folder.path}"


@contextmanager
def together(folder: RunDir) -> Iterator[Processes | None]:
    """All processes of this command, which the others have joined; None where it is one. `folder` is where the work is."""
    if not processes_started():
        yield None
        return
    from hush.engines.processes import Processes
    from hush.errors import LostProcess

    global _joined
    processes, _joined = Processes.join(), True
    try:
        yield processes
    except BaseException as error:
        processes.spoke()
        lost = processes.ending  # what it made of a library that it fell into does not matter
        if not isinstance(lost, LostProcess):
            raise
        kept = f" What was done is kept; go on with: {to_go_on(folder)}" if folder.started else ""
        raise LostProcess(f"{lost}{kept}") from error
    finally:
        processes.leave()


def dismiss() -> None:
    """A command that needed no help is done: the others wait, and may go."""
    if processes_started() > 1 and not _joined:
        from hush.engines.processes import Processes

        Processes.join().leave()


def told_to_set_up(processes: Processes | None, experiment: Experiment, name: str, data_dir: Path | None) -> None:
    """The others make the same run ready while this one does. The ledger is this one's: they get its delta."""
    if processes is None:
        return
    from dataclasses import replace

    from hush.engines.charging import delta_of
    from hush.engines.sharded import SetUp

    config = experiment.config
    if config.ledger is not None:
        known = delta_of(config.ledger, config.population or name, config.rollback_protection)
        delta = known if config.delta is None else config.delta
        config = replace(config, ledger=None, population=None, rollback_protection=True, delta=delta)
    processes.tell(SetUp(config.to_dict(), str(data_dir.resolve()) if data_dir else None))


def help_out() -> int:
    """All that a process does that is not the first; what it ends with."""
    from hush.engines.processes import Processes
    from hush.engines.round import play_share
    from hush.engines.sharded import work
    from hush.errors import HushError, LostProcess

    warnings.simplefilter("ignore")  # the first one warns of the same
    processes = Processes.join()
    try:
        work(processes, _set_up, play_share)
        processes.leave()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if processes.ending is None:
            processes.fail(error)
            if not isinstance(error, HushError | KeyboardInterrupt | MemoryError):
                traceback.print_exc()
        elif isinstance(processes.ending, LostProcess) and not processes.somebody_spoke():
            say(f"hush: {processes.ending} What was done is kept: go on with hush run --resume.")
    sys.stderr.flush()
    os._exit(2)  # a library that waits for a lost process would not let it go


def _set_up(told: SetUp) -> Run:
    from hush.config import RunConfig
    from hush.experiment import Experiment

    experiment = Experiment.of(RunConfig.read(told.config))
    return experiment.set_up(experiment.task(Path(told.data_dir) if told.data_dir else None))
