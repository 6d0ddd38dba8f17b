"""`hush methods`, `hush data`, `hush models`: what there is, with one line each."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from hush.cli import options
from hush.cli.console import err, out, print_json
from hush.tasks.catalogue import CATALOGUE, DataSet, dataset
from hush.tasks.fetch import data_dir, download

data = typer.Typer(help="Data sets: list them, or fetch one.", invoke_without_command=True)


def methods(as_json: options.Json = False) -> None:
    """The methods, with one line each."""
    from hush.methods import METHODS, build, settings_of, summary
    from hush.privacy.plan import is_private

    rows = [
        {"name": n, "private": is_private(build(n)), "summary": summary(n), "settings": sorted(settings_of(n))} for n in METHODS
    ]
    if as_json:
        print_json({"methods": rows})
        return
    table = Table("method", "privacy", "what it does", box=None, pad_edge=False)
    for row in rows:
        table.add_row(str(row["name"]), "client-level" if row["private"] else "none", str(row["summary"]))
    out().print(table)


def models(as_json: options.Json = False) -> None:
    """The models, with one line each."""
    from hush.tasks.models import MODELS

    rows: list[dict[str, Any]] = []
    for name, build in MODELS.items():
        counts = {}
        for entry in CATALOGUE.values():
            try:
                module = build(torch.Size(entry.shape), entry.classes)
            except Exception:  # this model does not fit that data set
                continue
            counts[entry.name] = sum(p.numel() for p in module.parameters())
        rows.append({"name": name, "summary": (inspect.getdoc(build) or "").split("\n")[0], "parameters": counts})
    if as_json:
        print_json({"models": rows})
        return
    table = Table("model", "what it is", "parameters", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["summary"], ", ".join(f"{v:,} ({k})" for k, v in row["parameters"].items()))
    out().print(table)


@data.callback(invoke_without_command=True)
def show(context: typer.Context, folder: options.DataDir = None, as_json: options.Json = False) -> None:
    """The data sets, with licence, size and whether they are here."""
    if context.invoked_subcommand is not None:
        return
    rows = [_row(entry, data_dir(folder)) for entry in CATALOGUE.values()]
    if as_json:
        print_json({"data": rows})
        return
    table = Table("data set", "what it is", "train / test", "size", "licence", "here", box=None, pad_edge=False)
    for row in rows:
        megabytes = f"{float(str(row['bytes'])) / 1e6:.1f} MB" if row["bytes"] else "bundled"
        counts = f"{row['train']:,} / {row['test']:,}"
        table.add_row(str(row["name"]), str(row["title"]), counts, megabytes, str(row["licence"]), "yes" if row["here"] else "no")
    out().print(table)


def _row(entry: DataSet, folder: Path) -> dict[str, object]:
    here = all((folder / entry.name / f.name).is_file() for f in entry.files)
    keys = ("name", "title", "train", "test", "classes", "licence", "citation", "source", "bytes", "model", "clients")
    return {key: getattr(entry, key) for key in keys} | {"here": here, "features": math.prod(entry.shape)}


@data.command("fetch")
def fetch(name: Annotated[str, typer.Argument(help="Data set.")], folder: options.DataDir = None) -> None:
    """Download a data set from its canonical source and verify it."""
    entry = dataset(name)
    if entry.bundled:
        print(f"{name} is bundled with Hush: nothing to fetch.")
        return
    place = data_dir(folder) / name
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=err()) as progress:
        bars = {file.name: progress.add_task(file.name, total=file.size) for file in entry.files}
        download(entry.source, place, entry.files, name, lambda n, done, _: progress.update(bars[n], completed=done))
        for file in entry.files:
            progress.update(bars[file.name], completed=file.size)
    print(f"{name} is in {place}, verified ({entry.licence}; {entry.citation}).")
