"""`hush bench simulation` and `hush bench cohort`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import Json, print_figures, print_json, say, spinner
from hush.errors import UsageError
from hush.names import pick

Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Stored = Annotated[Path | None, typer.Option("--from", help="Show what --json printed, instead of measuring.")]
Tf32 = Annotated[
    bool | None,
    typer.Option("--tf32/--no-tf32", help="Whether products may be rounded to TF32 [default: on a GPU one, then the other]."),
]


def simulation(
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="Which to time, several times [default: those of the device].")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option("--peer", help="hush, pfl, jax, flower, loop, several times [default: all].")
    ] = None,
    device: Device = "auto",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds that are timed in each pass.")] = 5,
    passes: Annotated[int, typer.Option("--passes", min=1, help="Turns that everybody has.")] = 3,
    seconds: Annotated[float, typer.Option("--seconds", help="A pass ends after so many, with one round at least.")] = 8.0,
    tf32: Tf32 = None,
    python: Annotated[
        str, typer.Option("--python", help="The Python that peers are installed for [default: this one].")
    ] = sys.executable,
    stored: Stored = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the docs.")] = False,
    as_json: Json = False,
) -> None:
    """A simulated round beside pfl-research's, jitted JAX's, Flower's and a plain loop's, whichever are installed."""
    from hush.benchmarks import tables

    told = (
        json.loads(stored.read_text())
        if stored is not None
        else _measured(workload, peer, device, rounds, passes, seconds, tf32, python)
    )
    if as_json:
        print_json(told)
    elif markdown:
        print(tables.markdown(told["found"], told["machine"]))
    else:
        titles, rows = tables.screen(told["found"])
        print_figures(titles, rows)
        for note in tables.notes(told["found"]):
            say(f"note: {note}")


def _measured(
    workload: list[str] | None,
    peer: list[str] | None,
    device: str,
    rounds: int,
    passes: int,
    seconds: float,
    tf32: bool | None,
    python: str,
) -> dict[str, Any]:
    from hush.benchmarks.simulation import MODULES, Asked, machine, measure
    from hush.benchmarks.workloads import FOR, WORKLOADS
    from hush.engines.run import pick_device

    place = pick_device(device).type
    peers = [pick(dict.fromkeys(MODULES, name) | {name: name}, name, "peer") for name in peer or MODULES]
    chosen = [pick(WORKLOADS, name, "workload").on(place) for name in workload or FOR[place]]
    if place == "cpu" and tf32:
        raise UsageError("TF32 is a GPU's: leave --tf32 out.")
    precisions = (bool(tf32),) if place == "cpu" or tf32 is not None else (True, False)
    found = []
    with spinner() as progress:
        bar = progress.add_task("")
        for one in chosen:
            for rounded in precisions:
                asked = Asked(place, rounded, rounds, passes, seconds=seconds, python=python)
                found.append(measure(one, peers, asked, lambda what: progress.update(bar, description=what)))
    return {"machine": machine(place), "found": found}
