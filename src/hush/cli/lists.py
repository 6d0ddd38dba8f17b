"""`hush methods` and `hush models`: what there is, with one line each."""

from __future__ import annotations

import inspect
import json
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column

from hush.cli import console
from hush.cli.console import Json, out, print_json, print_table

LISTED = Path(__file__).with_name("listed.json")
"""Hush's own methods and parts, as they were at the last change: read in place of PyTorch. `python -m hush.cli.lists` writes it."""


def methods(
    name: Annotated[str | None, typer.Argument(help="One of them, also with parts: what it does, and all its settings.")] = None,
    as_json: Json = False,
) -> None:
    """The methods, with one line each; or one, with all its settings."""
    if name is not None:
        from hush.methods import whole_name

        _one_method(whole_name(name), as_json)
        return
    others = metadata.entry_points(group="hush.methods")  # of packages that are installed, whatever they hold
    told = listed() if others else json.loads(LISTED.read_text())
    if as_json:
        print_json(told)
        return
    facts = [(row["name"], f"{row['unit']}-level" if row["private"] else "none", row["summary"]) for row in told["methods"]]
    print_table(("method", "privacy", "what it does"), facts)
    out().print("\nA method goes with any parts whose setting it has, as in dp-fedavg+top-k+blur+adam:")
    sets = {part["name"]: " ".join(f"{key}={value}" for key, value in part["sets"].items()) for part in told["parts"]}
    print_table(("part", "sets", "what it does"), [(part["name"], sets[part["name"]], part["summary"]) for part in told["parts"]])


def listed() -> dict[str, Any]:
    """The same, from the methods themselves."""
    from hush.methods import PARTS, names, settings_of

    rows = [_facts(one) | {"settings": sorted(settings_of(one))} for one in names()]
    parts = [{"name": f"+{name}", "sets": dict(part.settings), "summary": part.summary} for name, part in PARTS.items()]
    return {"methods": rows, "parts": parts}


def _facts(name: str) -> dict[str, Any]:
    from hush.methods import build, summary
    from hush.privacy.plan import is_private
    from hush.privacy.record_plan import has_own_noise

    method = build(name)
    unit = None if not is_private(method) else "record" if has_own_noise(method) else "client"
    return {"name": name, "private": unit is not None, "unit": unit, "summary": summary(name)}


def _one_method(name: str, as_json: bool) -> None:
    from hush.methods import explained

    facts, settings = _facts(name), explained(name)
    if as_json:
        print_json(facts | {"settings": [one._asdict() for one in settings]})
        return
    guarantee = f"protects {facts['unit']}s" if facts["private"] else "no privacy by itself"
    out().print(f"[bold]{name}[/bold] ({guarantee}): {facts['summary']}\n", highlight=False)
    rows = [(one.key, one.default, one.range.replace("inf", "∞"), one.meaning) for one in settings]
    default, where = (14, 12) if out().width < 100 else (None, None)  # room for the words
    print_table(("--set", Column("default", max_width=default), Column("range", max_width=where), "what it is"), rows)
    out().print(
        f"\nOn the command line data sets bring training settings of their own: hush run {name} --data DATA --dry-run says which.",
        highlight=False,
    )


def models(as_json: Json = False) -> None:
    """The models, with one line each."""
    import torch

    from hush.tasks.catalogue import CATALOGUE
    from hush.tasks.models import every_model

    rows: list[dict[str, Any]] = []
    for name, build in every_model().items():
        counts = {}
        for entry in CATALOGUE.values():
            if entry.text and name not in entry.papers:
                continue
            try:
                with torch.device("meta"):  # counted, not filled
                    module = build(torch.Size(entry.shape), entry.classes)
            except Exception:  # this model does not fit that data set
                continue
            counts[entry.name] = sum(p.numel() for p in module.parameters())
        rows.append({"name": name, "summary": (inspect.getdoc(build) or "").split("\n")[0], "parameters": counts})
    if as_json:
        print_json({"models": rows})
        return
    columns = (console.name("model"), "what it is", console.figure("parameters"))
    print_table(columns, [(row["name"], row["summary"], _range(list(row["parameters"].values()))) for row in rows])


def _range(counts: list[int]) -> str:
    """The fewest and the most that a model has on the data sets it fits."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


if __name__ == "__main__":
    LISTED.write_text(json.dumps(listed(), indent=1) + "\n")
