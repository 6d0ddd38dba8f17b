"""Several seeds as one line: mean and deviation."""

from __future__ import annotations

import statistics
from typing import Any

from hush.engines.result import Result

AVERAGED = ("test_accuracy", "best_test_accuracy", "test_loss", "train_loss", "validation_accuracy", "seconds", "seconds_per_round")


def _each(key: str, tables: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Means and deviations of the numbers of several tables; a word is the same in all."""
    if any(table is None for table in tables) or not tables[0]:
        return {key: tables[0]}
    means, spread = dict(tables[0]), {}
    for name, first in tables[0].items():
        figures = [table[name] for table in tables if table is not None]
        if all(isinstance(f, float) for f in figures):
            means[name], spread[name] = statistics.fmean(figures), statistics.stdev(figures)
        elif isinstance(first, float):
            means[name] = None
    return {key: means, f"{key}_std": spread}


def over_seeds(results: list[Result]) -> dict[str, Any]:
    """The contract's keys, with means where seeds differ, and their deviations beside them."""
    value = results[0].to_dict()
    if len(results) == 1:
        return value
    for key in AVERAGED:
        figures = [getattr(r, key) for r in results]
        known = [f for f in figures if f is not None]
        value[key] = statistics.fmean(known) if len(known) == len(figures) else None
        value[f"{key}_std"] = statistics.stdev(known) if len(known) == len(figures) else None
    for key in ("test_metrics", "validation_metrics", "per_client"):
        value |= _each(key, [getattr(r, key) for r in results])
    if value["epsilon"] is not None:
        value["notes"] = [*value["notes"], f"epsilon is that of each run; publishing all {len(results)} models costs more"]
    return value | {"seeds": [r.seed for r in results], "runs": [r.to_dict() for r in results]}
