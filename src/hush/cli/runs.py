"""`hush run` and `hush compare`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush.cli.aside import Job, notes_of, one_row, refuse_failures, train_aside
from hush.cli.console import print_figures, print_json, round_progress, say
from hush.cli.folders import as_folder, done, kept, new_folder, picture
from hush.cli.interrupt import stop_if_heard
from hush.cli.options import RunFlags, takes_flags
from hush.cli.together import processes_started, to_go_on, together, told_to_set_up
from hush.config import CONFIG_FORMAT, runs_of
from hush.engines.result import Result
from hush.engines.run import Run
from hush.engines.rundir import RunDir
from hush.engines.sharded import led
from hush.engines.simulation import train
from hush.errors import DataError, UsageError
from hush.experiment import Experiment, on_the_same_clients, resolve
from hush.privacy.guarantee import at_least
from hush.report.figures import figures
from hush.report.pages import write_pages
from hush.report.plots import comparison_figure
from hush.report.seeds import over_seeds
from hush.report.tables import comparison
from hush.secagg.terms import Terms

if TYPE_CHECKING:
    from hush.engines.processes import Processes


@takes_flags
def run(
    method: Annotated[str | None, typer.Argument(help="Method (hush methods lists them).")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this directory.")] = None,
    *,
    flags: RunFlags,
) -> None:
    """Train one method and say what was learned, what it cost and what privacy was spent."""
    if resume is not None:
        if method is not None or replace(flags, jobs=1).typed:
            raise UsageError(
                "--resume goes on with a run as it was begun: leave the method and the other flags out, but for --jobs."
            )
        _resume(resume, flags.jobs, flags.json)
        return
    experiment = resolve(flags.asked(method))
    if flags.dry_run:
        _dry_run([experiment], flags.data_dir, flags.json)
        return
    folder = empty_folder(flags.out, experiment.method.name)
    _run_seeds(_Series([experiment], flags.seeds, folder, flags.data_dir, flags.jobs), flags.json)


@takes_flags
def compare(methods: Annotated[list[str], typer.Argument(help="Two or more methods.")], *, flags: RunFlags) -> None:
    """Train several methods on the same task: one table, one plot. A setting goes to the methods that use it."""
    names = list(dict.fromkeys(methods))
    if len(names) < 2:
        raise UsageError("A comparison needs two different methods or more; hush run trains one.")
    asked, notes = flags.asked_of_each(names)
    same = on_the_same_clients(asked)
    experiments = [resolve(one, lenient=True) for one in same]
    if same != asked:
        first = experiments[0]
        notes.append(
            "with a method that protects records, all take its setting: "
            f"{first.population:,} clients, {first.cohort.size:g} a round, {first.rounds:,} rounds, unless you give them"
        )
    for one, experiment in zip(same, experiments, strict=True):
        if one.secure and experiment.secure_sum is None:
            notes.append(f"{one.method} has no noise, so it is summed in the clear")
    for line in notes:
        say(f"note: {line}")
    if flags.dry_run:
        _dry_run(experiments, flags.data_dir, flags.json)
        return
    folder = empty_folder(flags.out, "compare")
    _compare(_Series(experiments, flags.seeds, folder, flags.data_dir, flags.jobs), flags.json)


@dataclass(frozen=True)
class _Series:
    """All runs of a command: one method or several, each with some seeds, in one folder."""

    experiments: list[Experiment]
    seeds: int
    folder: RunDir
    data_dir: Path | None
    jobs: int

    def of(self, experiment: Experiment) -> list[Job]:
        """A method's runs, one a seed."""
        name = experiment.method.name
        top = self.folder.path if len(self.experiments) == 1 else self.folder.path / as_folder(name)
        configs = [replace(experiment.config, seed=experiment.config.seed + i) for i in range(self.seeds)]
        if self.seeds == 1:
            return [Job(configs[0], top, name, self.data_dir)]
        return [Job(c, top / f"seed-{c.seed}", f"{name} seed {c.seed}", self.data_dir) for c in configs]

    def begin(self) -> None:
        """Everything was checked: from here on there is something to resume."""
        if not self.folder.started:
            self.folder.write_json("config.json", self._config())

    def _config(self) -> dict[str, Any]:
        """What `--resume` needs to go on, with every default filled in."""
        runs, place = [one.config.to_dict() for one in self.experiments], str(self.data_dir.resolve()) if self.data_dir else None
        return {"format": CONFIG_FORMAT, "runs": runs, "seeds": self.seeds, "data_dir": place}


def _side_by_side(series: _Series) -> dict[str, str]:
    """Train now what is left, where that is several runs and several shall run at once; why some failed, by their labels."""
    left = [job for one in series.experiments for job in series.of(one) if not RunDir(job.folder).finished]
    if min(series.jobs, len(left)) < 2:
        return {}
    if processes_started() > 1:
        raise UsageError("torchrun has the processes share every cohort, and --jobs has each train a run: choose one of both.")
    if any(job.config.ledger is not None for job in left):
        raise UsageError("Runs on one ledger are charged one after the other, which --jobs cannot promise: leave --jobs out.")
    series.begin()
    return train_aside(left, min(series.jobs, len(left)))


def _compare(series: _Series, as_json: bool) -> None:
    rows, curves, first, private, folder = [], {}, {}, 0, series.folder
    with together(folder) as processes, _kept(folder):
        failed = _side_by_side(series)
        for experiment in series.experiments:
            name = experiment.method.name
            if any(job.label in failed for job in series.of(experiment)):
                continue
            results = _all_seeds(series, experiment, processes)
            rows.append(over_seeds(results))
            private += sum(result.guarantee is not None for result in results)
            curves[name], first[name] = results[0].history, results[0]
        if failed and rows:
            print_figures(*comparison(rows))
        refuse_failures(failed, len(series.experiments) * series.seeds, to_go_on(folder))
    folder.write_json("compare.json", {"methods": rows})
    plot = picture(folder, "compare.png", lambda: comparison_figure(curves, f"{rows[0]['model']} on {rows[0]['data']}"))
    if as_json:
        print_json({"methods": rows, "plot": plot})
        return
    print_figures(*comparison(rows))
    final, beside = first[series.experiments[-1].method.name], first.get("dp-fedavg")
    print(f"{final.method}: {final.sentence(beside if beside is not final else None)}.")
    _each_by_itself(private)
    done(folder, plot)


def empty_folder(given: Path | None, name: str) -> RunDir:
    """The folder asked for, or a new one under runs/."""
    given = given or new_folder(name)
    folder = RunDir(given)
    if given.exists() and not given.is_dir():
        raise UsageError(f"{given} is a file, and a run needs a folder: choose another --out.")
    if not folder.started and given.is_dir() and any(RunDir(inside).started for inside in given.iterdir() if inside.is_dir()):
        raise UsageError(f"{given} is a folder of other runs: choose another --out, such as {given / as_folder(name)}.")
    if folder.started:
        raise UsageError(f"{given} already holds a run: use hush run --resume {given}, or another --out.")
    return folder


def _resume(path: Path, jobs: int, as_json: bool) -> None:
    if not path.is_dir():
        raise UsageError(f"There is no run directory {path}.")
    folder = RunDir(path)
    config = folder.read_json("config.json")
    try:
        experiments = [Experiment.of(one) for one in runs_of(folder)]
        seeds, data_dir = int(config["seeds"]), Path(config["data_dir"]) if config["data_dir"] else None
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path / 'config.json'} is not what a run of Hush writes.") from None
    series = _Series(experiments, seeds, folder, data_dir, jobs)
    if len(experiments) == 1:
        _run_seeds(series, as_json)
    else:
        _compare(series, as_json)


def _run_seeds(series: _Series, as_json: bool) -> None:
    folder, seeds = series.folder, series.seeds
    with together(folder) as processes, _kept(folder):
        refuse_failures(_side_by_side(series), seeds, to_go_on(folder))
        results = _all_seeds(series, series.experiments[0], processes)
    value = over_seeds(results)
    if seeds > 1:
        folder.write_json("result.json", value)
    if as_json:
        print_json(value)
        return
    if seeds > 1:
        print_figures(*comparison([value]))
    print((f"Seed {results[0].seed}: " if seeds > 1 else "") + results[0].sentence() + ".")
    _each_by_itself(sum(result.guarantee is not None for result in results))
    for result in results:
        if result.stopped:
            print((f"Seed {result.seed} stopped" if seeds > 1 else "Stopped") + f" early, {result.stopped}.")
    done(folder, None)


def _kept(folder: RunDir) -> AbstractContextManager[None]:
    return kept(folder, lambda: f"Interrupted; what was done is kept. Go on with: {to_go_on(folder)}")


def _each_by_itself(models: int) -> None:
    if models > 1:
        print(f"The epsilon is that of each run; publishing all {models} models costs more.")


def _all_seeds(series: _Series, experiment: Experiment, processes: Processes | None) -> list[Result]:
    """One run a seed; a run that is already complete is read back instead of repeated."""
    results = []
    for job in series.of(experiment):
        place = RunDir(job.folder)
        if place.finished:
            results.append(_complete(place))
            continue
        own = replace(experiment, config=job.config)
        task = own.task(series.data_dir)
        told_to_set_up(processes, own, task.name, series.data_dir)
        ready = own.set_up(task)
        ready = ready if processes is None else led(ready, processes)
        series.begin()
        results.append(_one(ready, place, job.label))
    return results


def _one(ready: Run, folder: RunDir, label: str) -> Result:
    """One run with its progress bar and its page; what speaks against it is said before it begins."""
    for line in notes_of(ready):
        say(f"note: {line}")
    with round_progress() as progress:
        bar = progress.add_task(label, total=ready.rounds, figures="")
        result = train(ready, out=folder.path, resume=True, on_round=_advance(progress, bar))
    write_pages(folder, result)
    return result


def _complete(folder: RunDir) -> Result:
    """A run that is there already; what a process that was killed at its very end still had to delete and to write is done now."""
    folder.forget_secrets()
    result = Result.read(folder)
    if not (folder.has("certificate.html") and folder.has("report.html")):
        write_pages(folder, result)
    return result


def _advance(progress: Any, bar: Any) -> Callable[[dict[str, Any]], None]:
    shown = ""

    def on_round(record: dict[str, Any]) -> None:
        nonlocal shown
        stop_if_heard()
        shown = figures(record) if "epsilon" in record else shown
        progress.update(bar, completed=record["round"], total=record["rounds"], figures=shown)

    return on_round


def _dry_run(experiments: list[Experiment], data_dir: Path | None, as_json: bool) -> None:
    from hush.engines.estimate import estimate

    rows = []
    for e in experiments:
        task = e.task(data_dir)
        told = estimate(e.config, e.as_run(task.enrolled), task, e.cohort, _fresh_terms(e, task.train.count))
        rows.append(told | {"settings": dict(e.chosen)})
    notes = [line for e, row in zip(experiments, rows, strict=True) for line in (*row["warnings"], *one_row(e.config))]
    for line in dict.fromkeys(notes):
        say(f"note: {line}")
    if as_json:
        print_json(rows[0] if len(rows) == 1 else {"methods": rows})
        return
    for row in rows:
        privacy = (
            "no privacy guarantee"
            if row["epsilon"] is None
            else f"eps={at_least(row['epsilon'])} at delta={at_least(row['delta'], 2)}, noise {row['noise_multiplier']:.4g}"
        )
        sent, got = row["uplink_bytes_per_client"] / 1e6, row["downlink_bytes_per_client"] / 1e6
        took = row["estimated_seconds"]
        print(
            f"{row['method']}: {row['rounds']:,} rounds of {row['cohort']:g} of {row['clients']:,} clients, "
            f"{row['parameters']:,} parameters, {privacy}; "
            f"{sent:.3g} MB up and {got:.3g} MB down per client; about {_duration(took)}"
        )
        print(f"  with {' '.join(f'{key}={value}' for key, value in row['settings'].items()) or 'no settings but its own'}")


def _fresh_terms(e: Experiment, clients: int) -> Terms | None:
    """Of a secure sum whose messages are more than a vector."""
    secure = e.secure_sum
    return None if secure is None or secure.masks != "fresh" else secure.terms(e.cohort, clients, e.config.dropout)


def _duration(seconds: float) -> str:
    """Seconds in the unit that a person would use."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
