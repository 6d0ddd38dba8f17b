"""`hush bench simulation` and `hush bench cohort`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import Json, figure, name, print_figures, print_json, print_table, say, spinner
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
                first, patience = (1, 120.0) if place == "cpu" else (2, 400.0)
                asked = Asked(place, rounded, rounds, passes, first, seconds, python, patience)
                found.append(measure(one, peers, asked, lambda what: progress.update(bar, description=what)))
    return {"machine": machine(place), "found": found}


def cohort(
    model: Annotated[list[str] | None, typer.Option("--model", help="Which, several times [default: those of the device].")] = None,
    clients: Annotated[
        list[int] | None, typer.Option("--clients", min=1, help="Cohorts [default: 50 to 5,000, on a CPU 5 to 100].")
    ] = None,
    device: Device = "auto",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Timed after a first one.")] = 3,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Local steps, of batches of 10.")] = 1,
    stored: Stored = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw it: a .png or .svg.")] = None,
    as_json: Json = False,
) -> None:
    """Seconds a round as cohorts grow, for models from 21,840 to 11 million parameters, and how straight a line that is."""
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise UsageError("--plot takes a .png or .svg.")
    if plot is not None:
        from hush.report.plots import as_png, as_svg, blank

        blank(1, 1)  # refuses here, before anything is measured, where there is no matplotlib
    told = json.loads(stored.read_text()) if stored is not None else _grown(model, clients, device, rounds, steps)
    if plot is not None:
        from hush.benchmarks.cohorts import picture

        drawn = picture(told["found"], told["machine"])
        plot.write_bytes(as_png(drawn) if plot.suffix == ".png" else as_svg(drawn).encode())
    if as_json:
        print_json(told)
        return
    columns = (name("model"), figure("parameters"), figure("clients"), figure("a round"), figure("a client"))
    rows = []
    for one in told["found"]:
        for many, took in zip(one["cohorts"], one["round_s"], strict=True):
            rows.append((one["model"], f"{one['parameters']:,}", f"{many:,}", f"{took:.4g} s", f"{1e3 * took / many:.3g} ms"))
    print_table(columns, rows)
    for one in told["found"]:
        straight, line = one["straight_from"], f"{one['fixed_s']:.3g} s + {one['client_s']:.3g} s a client"
        where = "nowhere within 20% of a line" if straight is None else f"within 20% of a line from {straight:,} clients on"
        print(f"{one['model']}: {where}; at most {100 * one['deviation']:.0f}% off {line}")


def _grown(model: list[str] | None, clients: list[int] | None, device: str, rounds: int, steps: int) -> dict[str, Any]:
    from hush.benchmarks.cohorts import COHORTS, FOR, measure
    from hush.benchmarks.simulation import machine
    from hush.engines.run import pick_device

    place = pick_device(device).type
    with spinner() as progress:
        bar = progress.add_task("")
        many = sorted(clients or COHORTS[place])
        found = measure(model or FOR[place], many, place, rounds, steps, lambda what: progress.update(bar, description=what))
    return {"machine": machine(place), "steps": steps, "found": found}
