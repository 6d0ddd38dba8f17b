"""`hush bench`: figures of this machine, beside the peers' that are installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.table import Table

from hush.cli.bench_simulation import cohort, simulation
from hush.cli.commands import Commands
from hush.cli.console import Json, out, print_json, say, spinner

bench = Commands(help="Figures of this machine beside the peers', as ratios.")


@bench.callback()
def _group() -> None:
    """A group, whatever commands are in it."""


bench.command()(simulation)
bench.command()(cohort)


@bench.command()
def secagg(
    clients: Annotated[list[int] | None, typer.Option("--clients", help="Cohorts to measure [default: 100, 500, 1000].")] = None,
    entries: Annotated[int, typer.Option("--entries", help="Of a vector.")] = 1_000_000,
    dropout: Annotated[float, typer.Option("--dropout", help="Share of clients that vanish after they shared secrets.")] = 0.1,
    degree: Annotated[int, typer.Option("--degree", help="Neighbours in the comparison with Flower.")] = 32,
    peer: Annotated[bool, typer.Option(help="Also run Flower's SecAgg+, if flwr is installed, on the first cohort.")] = True,
    as_json: Json = False,
) -> None:
    """Secure aggregation: a client's time, the server's, and bytes; and masking against AES alone."""
    from hush.benchmarks import flower_secagg
    from hush.benchmarks.secagg import masking, measure

    cohorts = clients or [100, 500, 1000]
    rows: list[dict[str, Any]] = []
    with spinner() as progress:
        bar = progress.add_task("masks")

        def tell(what: str) -> None:
            progress.update(bar, description=what)

        aes = masking()
        if peer and find_spec("flwr") is not None:
            rows.append(measure(cohorts[0], entries, dropout, degree, tell=tell))
            tell(f"{cohorts[0]} clients of Flower's")
            rows.append(flower_secagg.measure(cohorts[0], entries, dropout, degree))
        rows += [measure(many, entries, dropout, tell=tell) for many in cohorts]
    theirs = next((row for row in rows if row["implementation"] != "hush"), None)
    ratios = None
    if theirs is not None:
        names = ("client_ms", "server_s", "upload_bytes")
        ratios = {name: theirs[name] / rows[0][name] for name in names}
    if as_json:
        print_json({"rounds": rows, "theirs_over_ours": ratios, "masking": aes})
        return
    out().print(_table(rows))
    if ratios is not None:
        print(
            f"At the same {rows[0]['neighbours']} neighbours Flower takes {ratios['client_ms']:.1f} times our client's time, "
            f"{ratios['server_s']:.0f} times our server's, and {ratios['upload_bytes']:.2f} times the upload."
        )
    elif peer:
        say("note: Flower is not installed, so it is not compared with: pip install flwr")
    print(
        f"Masks of {aes['neighbours']} neighbours on {aes['entries']:,} entries take {1e3 * aes['masks_s']:.0f} ms, "
        f"{aes['ratio']:.2f} times AES alone."
    )


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for name in ("", "clients", "neighbours", "client ms", "server s", "opening s", "bytes/entry", "+ KB", "exact"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        each = row["bits"] / 8
        rest = (row["upload_bytes"] - each * row["entries"]) / 1e3
        opening = f"{row['opening_wall_s']:.2f}" if "opening_wall_s" in row else ""
        sizes = (f"{row['client_ms']:.1f}", f"{row['server_s']:.2f}", opening, f"{each:g}", f"{rest:.1f}")
        table.add_row(row["implementation"], str(row["clients"]), str(row["neighbours"]), *sizes, "yes" if row["exact"] else "NO")
    return table
