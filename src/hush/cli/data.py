"""`hush data`: what there is, fetch it, look at who would hold what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from hush.cli import options
from hush.cli.commands import Commands
from hush.cli.console import Json, err, figure, name, print_json, print_table
from hush.errors import UsageError
from hush.tasks.catalogue import CATALOGUE, dataset
from hush.tasks.dataset import DataSet
from hush.tasks.fetch import data_dir, download

data = Commands(help="Data sets: list them, fetch one, or look at a partition.", invoke_without_command=True, no_args_is_help=False)


@data.callback(invoke_without_command=True)
def listing(context: typer.Context, folder: options.DataDir = None, as_json: Json = False) -> None:
    """The data sets, with licence, size and whether they are here."""
    if context.invoked_subcommand is not None:
        return
    rows = [_row(entry, data_dir(folder)) for entry in CATALOGUE.values()]
    if as_json:
        print_json({"data": rows})
        return
    columns = (name("data set"), figure("train"), figure("size"), name("here"), name("licence"), "what it is")
    print_table(columns, [_words_of(row) for row in rows])


def _words_of(row: dict[str, Any]) -> tuple[str, ...]:
    size = f"{row['bytes'] / 1e6:,.1f} MB" if row["files"] else "bundled"
    what = row["title"] + (f", {row['natural']:,} clients" if row["natural"] else "")
    return row["name"], f"{row['train']:,}", size, "yes" if row["here"] else "no", row["licence"], what


def _row(entry: DataSet, folder: Path) -> dict[str, Any]:
    facts = ("name", "title", "train", "test", "classes", "licence", "citation", "source", "bytes", "note")
    usual = ("model", "papers", "clients", "natural", "partition", "evaluation")
    files = [{"name": file.name, "bytes": file.size, "sha256": file.sha256} for file in entry.files]
    return {key: getattr(entry, key) for key in (*facts, *usual)} | {
        "here": entry.found(folder) is not None,
        "shape": list(entry.shape),
        "files": files,
    }


@data.command("fetch")
def fetch(name: Annotated[str, typer.Argument(help="Data set.")], folder: options.DataDir = None) -> None:
    """Download a data set from its canonical source and verify it."""
    entry = dataset(name)
    if entry.bundled:
        print(f"{name} is {'your own' if entry.own else 'bundled with Hush'}: nothing to fetch.")
        return
    place = data_dir(folder) / name
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=err()) as progress:
        bars = {file.name: progress.add_task(file.name, total=file.size) for file in entry.files}
        download(entry.source, place, entry.files, name, lambda n, done, _: progress.update(bars[n], completed=done))
        for file in entry.files:
            progress.update(bars[file.name], completed=file.size)
    print(f"{name} is in {place}, verified ({entry.licence}; {entry.citation}).")
    if entry.note:
        print(entry.note)


@data.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Data set.")],
    partition: options.Partition = None,
    clients: Annotated[int | None, typer.Option("--clients", help="How many clients hold the data.")] = None,
    evaluation: options.Evaluation = None,
    validation: Annotated[int | None, typer.Option("--validation", help="Training examples held out for validation.")] = None,
    public: Annotated[int, typer.Option("--public", help="Training examples made public, taken from the clients.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Of the partition.")] = 0,
    file: Annotated[
        Path | None, typer.Option("--out", help="The picture, a .png or .svg [default: here, named after all of this].")
    ] = None,
    folder: options.DataDir = None,
    as_json: Json = False,
) -> None:
    """A picture of who would hold what: each client's labels, and how many examples it has."""
    from hush.report.partition_picture import partition_figure, summary
    from hush.tasks.build import load_task
    from hush.tasks.stored import Stored

    entry = dataset(name)
    spec = partition or entry.partition
    if file is not None and file.suffix not in (".png", ".svg"):
        raise UsageError(f"A picture is a .png or a .svg, not '{file.name}'.")
    task = load_task(
        name, clients=clients, split=spec, validation=validation, public=public, evaluation=evaluation, seed=seed, folder=folder
    )
    if isinstance(task.train, Stored):
        raise UsageError(f"{entry.name} lies on disk, and the picture is of clients in memory: on_disk = false, if they fit in.")
    told: dict[str, Any] = {"data": entry.name, "partition": spec, "seed": seed} | summary(task.train)
    count = task.train.count
    title = f"{entry.name}: {told['examples']:,} examples, {spec} over {count:,} clients, seed {seed}"
    place = file or Path(f"{entry.name}-{re.sub('[^a-z0-9.]+', '-', spec)}-{count}-seed{seed}.png")
    figure = partition_figure(task.train, title, entry.labels)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(place, dpi=150)
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror}.") from error
    if as_json:
        print_json(told | {"notes": list(task.notes), "picture": str(place)})
        return
    sizes, kinds = told["examples_per_client"], told["effective_labels_per_client"]
    print(f"{told['clients']:,} clients hold {told['examples']:,} examples: {_words(sizes)} each.")
    if task.validation is not None and not task.belongs_to_clients("validation"):
        print(f"{len(task.validation.x):,} examples are held out for validation.")  # type: ignore[union-attr]
    if kinds is not None:
        print(f"Of {entry.classes} labels a client has effectively {_words(kinds)}.")
    for note in task.notes[1:]:
        print(f"{note[0].upper()}{note[1:]}.")
    print(f"The picture is {place}." + (" It shows what your clients hold: it is not for publication." if entry.own else ""))


def _words(spread: dict[str, float]) -> str:
    low, high, middle = (f"{spread[key]:,.0f}" if spread[key] >= 100 else f"{spread[key]:.3g}" for key in ("min", "max", "median"))
    return low if low == high else f"{low} to {high} (median {middle})"
