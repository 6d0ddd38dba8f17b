"""Where words go: figures to standard output, everything else to standard error, so that `--json` stays one object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, and nothing else.")]


def err() -> Console:
    """Words for people."""
    return Console(stderr=True, highlight=False)


def out() -> Console:
    """Figures."""
    return Console(highlight=False)


def say(text: str) -> None:
    """One sentence on standard error."""
    print(text, file=sys.stderr, flush=True)


def name(title: str) -> Column:
    """A column of names."""
    return Column(title, no_wrap=True)


def figure(title: str) -> Column:
    """A column of figures."""
    return Column(title, justify="right", no_wrap=True)


def print_table(columns: Iterable[Column | str], rows: Iterable[Sequence[str]]) -> None:
    """A table on standard output; a column that is given as a word may wrap."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    out().print(table)


def print_figures(titles: Sequence[str], rows: Sequence[Sequence[str]], first: Callable[[str], Column] = name) -> None:
    """A table of figures, none of which is cut: columns for which there is no room beside the first come below."""
    widths = [2 + max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    room, start = out().width + 2 - widths[0], 1
    while start < len(titles):
        end = next((i for i in range(start + 1, len(titles)) if sum(widths[start : i + 1]) > room), len(titles))
        print_table((first(titles[0]), *map(figure, titles[start:end])), [(row[0], *row[start:end]) for row in rows])
        start = end


def print_json(value: Any) -> None:
    """One JSON object on standard output; a figure that does not exist is null, never NaN."""
    print(json.dumps(value, indent=2, allow_nan=False))


def spinner() -> Progress:
    """What is being done, and since when."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=err(), transient=True)


def round_progress() -> Progress:
    """A bar that shows accuracy, epsilon spent and bytes sent as a run goes."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=err(),
        transient=False,
    )
