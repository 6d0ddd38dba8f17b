"""Runs side by side (`--jobs`): each in a process of its own, with a bar of its own; what each leaves is in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hush.cli.console import round_progress, say
from hush.config import RunConfig
from hush.engines.jobs import Ask, Failed, Note, SideBySide
from hush.engines.run import Run
from hush.engines.rundir import RunDir
from hush.engines.simulation import train
from hush.errors import HushError, UsageError
from hush.experiment import Experiment
from hush.local.record_gradients import MUCH_MORE, RecordGradients
from hush.privacy.guarantee import Unit
from hush.privacy.record_plan import ONE_ROW
from hush.privacy.rules import warnings_of
from hush.report.figures import figures
from hush.report.pages import write_pages
from hush.tasks.catalogue import dataset


class Job(NamedTuple):
    """One run: what it is, and where it goes."""

    config: RunConfig
    folder: Path
    label: str
    data_dir: Path | None


class Failures(HushError):
    """Some runs failed, and the others are complete."""


def train_aside(todo: Sequence[Job], jobs: int) -> dict[str, str]:
    """All of them, `jobs` at a time; why some failed, by their labels, in their order."""
    said, failed = set[str](), dict[int, str]()
    with SideBySide(_train, jobs) as others, round_progress() as progress:
        bars: dict[int, Any] = {}

        def heard(number: int, told: Any) -> None:
            if isinstance(told, Note):
                if told.text not in said:
                    say(f"note: {told.text}")
                said.add(told.text)
                return
            if number not in bars:
                bars[number] = progress.add_task(todo[number].label, figures="", total=told["total"])
            progress.update(bars[number], **told)

        for number, came in others.each([tuple(job) for job in todo], heard):
            if isinstance(came, Failed):
                failed[number] = came.why
    return {todo[number].label: why for number, why in sorted(failed.items())}


def refuse_failures(failed: dict[str, str], runs: int, how: str) -> None:
    """Say it, where the others are told of already; `how` is what to type."""
    if not failed:
        return
    if len(set(failed.values())) == 1 and len(failed) == runs:  # one fault, and one sentence
        raise UsageError(next(iter(failed.values())))
    told = "; ".join(f"{label}: {why.rstrip('.')}" for label, why in failed.items())
    if len(failed) == runs:
        raise UsageError(f"All {runs} runs failed. {told}.")
    raise Failures(f"{len(failed)} of {runs} runs failed, and the others are kept. {told}. Go on with: {how}")


def _train(job: tuple[Any, ...], ask: Ask) -> None:
    """One run, in a process of its own."""
    config, folder, _, data_dir = Job(*job)
    experiment = Experiment.of(config)
    ready = experiment.set_up(experiment.task(data_dir))
    for line in notes_of(ready):
        ask(Note(line))
    shown = ""

    def on_round(record: dict[str, Any]) -> None:
        nonlocal shown
        shown = figures(record) if "epsilon" in record else shown
        ask({"completed": record["round"], "total": record["rounds"], "figures": shown})

    write_pages(RunDir(folder), train(ready, out=folder, resume=True, on_round=on_round))


# -- what speaks against a run, before it begins -------------------------------------------------------------------------------


def notes_of(ready: Run) -> Iterator[str]:
    """In one sentence each."""
    plan, delta = ready.privacy.plan, ready.privacy.delta
    if plan is not None and delta is not None:
        yield from warnings_of(plan, delta)
    yield from one_row(ready.config)
    yield from _planned_losses(ready)
    yield from _little_room(ready)


def one_row(config: RunConfig) -> list[str]:
    """That a row of the user's own table is one record, where nothing says whose it is."""
    return [ONE_ROW] if config.unit == Unit.RECORD and dataset(config.data).own else []


def _planned_losses(ready: Run) -> Iterator[str]:
    """What a secure sum was sized for, where losses make it dearer."""
    if ready.privacy.federation is not None and ready.config.dropout:
        terms = ready.privacy.federation.terms
        lost, shares = terms.smallest - terms.fewest(terms.smallest), terms.honest_min
        yield f"planned for the loss of {lost} of {terms.smallest} clients, so {shares} honest shares carry the noise (--tolerate)"


def _little_room(ready: Run) -> Iterator[str]:
    """A sum of more records than it was made for may wrap around, which nobody sees in it."""
    local, sizes = ready.method.local, ready.data.task.records
    if not isinstance(local, RecordGradients):
        return
    drawn = round(local.rate * float(sizes.float().mean()))
    if drawn > MUCH_MORE * local.batch_size:
        yield (
            f"a client reads about {drawn:,} records a step, and the sum has room for {local.batch_size:,} of each: it may wrap "
            f"around, and the model learn the less (--set batch_size={drawn}, with an lr {drawn / local.batch_size:.2g} times as "
            "large for steps as long)"
        )
