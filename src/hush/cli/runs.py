"""`hush run` and `hush compare`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import print_figures, print_json, round_progress, say
from hush.cli.folders import as_folder, done, kept, new_folder, picture
from hush.cli.interrupt import stop_if_heard
from hush.cli.options import RunFlags, takes_flags
from hush.cli.together import to_go_on, together, told_to_set_up
from hush.config import CONFIG_FORMAT, RunConfig, runs_of
from hush.engines.processes import Processes
from hush.engines.result import Result
from hush.engines.run import Run
from hush.engines.rundir import RunDir
from hush.engines.sharded import led
from hush.engines.simulation import train
from hush.errors import DataError, UsageError
from hush.experiment import Experiment, on_the_same_clients, resolve
from hush.local.record_gradients import MUCH_MORE, RecordGradients
from hush.privacy.guarantee import Unit, at_least
from hush.privacy.record_plan import ONE_ROW
from hush.privacy.rules import warnings_of
from hush.report.figures import figures
from hush.report.pages import write_pages
from hush.report.plots import comparison_figure
from hush.report.seeds import over_seeds
from hush.report.tables import comparison
from hush.secagg.terms import Terms
from hush.tasks.catalogue import dataset


@takes_flags
def run(
    method: Annotated[str | None, typer.Argument(help="Method (hush methods lists them).")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this directory.")] = None,
    *,
    flags: RunFlags,
) -> None:
    """Train one method and say what was learned, what it cost and what privacy was spent."""
    if resume is not None:
        if method is not None or flags.typed:
            raise UsageError("--resume goes on with a run as it was begun: leave the method and the other flags out.")
        _resume(resume, flags.json)
        return
    experiment = resolve(flags.asked(method))
    if flags.dry_run:
        _dry_run([experiment], flags.data_dir, flags.json)
        return
    folder = empty_folder(flags.out, experiment.method.name)
    _run_seeds(experiment, flags.seeds, folder, flags.data_dir, flags.json)


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
    _compare(experiments, flags.seeds, empty_folder(flags.out, "compare"), flags.data_dir, flags.json)


def _compare(experiments: list[Experiment], seeds: int, folder: RunDir, data_dir: Path | None, as_json: bool) -> None:
    rows, curves, first, private = [], {}, {}, 0
    with together(folder) as processes, _kept(folder):
        for experiment in experiments:
            name = experiment.method.name
            place = RunDir(folder.path / as_folder(name))
            results = _all_seeds(experiment, seeds, folder, place, data_dir, experiments, processes)
            rows.append(over_seeds(results))
            private += sum(result.guarantee is not None for result in results)
            curves[name], first[name] = results[0].history, results[0]
    folder.write_json("compare.json", {"methods": rows})
    plot = picture(folder, "compare.png", lambda: comparison_figure(curves, f"{rows[0]['model']} on {rows[0]['data']}"))
    if as_json:
        print_json({"methods": rows, "plot": plot})
        return
    print_figures(*comparison(rows))
    final, beside = first[experiments[-1].method.name], first.get("dp-fedavg")
    print(f"{final.method}: {final.sentence(beside if beside is not final else None)}.")
    _each_by_itself(private)
    done(folder, plot)


def _config(experiments: list[Experiment], seeds: int, data_dir: Path | None) -> dict[str, Any]:
    """What `--resume` needs to go on: one method, or the several of a comparison, with every default filled in."""
    place = str(data_dir.resolve()) if data_dir else None
    return {"format": CONFIG_FORMAT, "runs": [one.config.to_dict() for one in experiments], "seeds": seeds, "data_dir": place}


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


def _resume(path: Path, as_json: bool) -> None:
    if not path.is_dir():
        raise UsageError(f"There is no run directory {path}.")
    folder = RunDir(path)
    config = folder.read_json("config.json")
    try:
        experiments = [Experiment.of(one) for one in runs_of(folder)]
        seeds, data_dir = int(config["seeds"]), Path(config["data_dir"]) if config["data_dir"] else None
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path / 'config.json'} is not what a run of Hush writes.") from None
    if len(experiments) == 1:
        _run_seeds(experiments[0], seeds, folder, data_dir, as_json)
    else:
        _compare(experiments, seeds, folder, data_dir, as_json)


def _run_seeds(experiment: Experiment, seeds: int, folder: RunDir, data_dir: Path | None, as_json: bool) -> None:
    with together(folder) as processes, _kept(folder):
        results = _all_seeds(experiment, seeds, folder, folder, data_dir, [experiment], processes)
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


def _all_seeds(
    experiment: Experiment,
    seeds: int,
    top: RunDir,
    folder: RunDir,
    data_dir: Path | None,
    all_of_it: list[Experiment],
    processes: Processes | None,
) -> list[Result]:
    """One run a seed; a run that is already complete is read back instead of repeated. `top` is what to resume from."""
    results, name = [], experiment.method.name
    for i in range(seeds):
        config = replace(experiment.config, seed=experiment.config.seed + i)
        place = folder if seeds == 1 else RunDir(folder.path / f"seed-{config.seed}")
        if place.finished:
            results.append(_complete(place))
            continue
        own = replace(experiment, config=config)
        task = own.task(data_dir)
        told_to_set_up(processes, own, task.name, data_dir)
        ready = own.set_up(task)
        ready = ready if processes is None else led(ready, processes)
        if not top.started:  # everything was checked: from here on there is something to resume
            top.write_json("config.json", _config(all_of_it, seeds, data_dir))
        results.append(_one(ready, place, name if seeds == 1 else f"{name} seed {config.seed}"))
    return results


def _one(ready: Run, folder: RunDir, label: str) -> Result:
    """One run with its progress bar and its page; what speaks against it is said before it begins."""
    plan, delta = ready.privacy.plan, ready.privacy.delta
    told = warnings_of(plan, delta) if plan is not None and delta is not None else ()
    for line in (*told, *_one_row(ready.config), *_planned_losses(ready), *_little_room(ready)):
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


def _advance(progress: Any, bar: Any) -> Callable[[dict[str, Any]], None]:
    shown = ""

    def on_round(record: dict[str, Any]) -> None:
        nonlocal shown
        stop_if_heard()
        shown = figures(record) if "epsilon" in record else shown
        progress.update(bar, completed=record["round"], total=record["rounds"], figures=shown)

    return on_round


def _one_row(config: RunConfig) -> list[str]:
    """That a row of the user's own table is one record, where nothing says whose it is."""
    return [ONE_ROW] if config.unit == Unit.RECORD and dataset(config.data).own else []


def _dry_run(experiments: list[Experiment], data_dir: Path | None, as_json: bool) -> None:
    from hush.engines.estimate import estimate

    rows = []
    for e in experiments:
        task = e.task(data_dir)
        told = estimate(e.config, e.as_run(task.enrolled), task, e.cohort, _fresh_terms(e, task.train.count))
        rows.append(told | {"settings": dict(e.chosen)})
    notes = [line for e, row in zip(experiments, rows, strict=True) for line in (*row["warnings"], *_one_row(e.config))]
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
