"""Several seeds as one line: mean and deviation."""

from __future__ import annotations

import statistics
from typing import Any

from hush.engines.result import Result

AVERAGED = ("test_accuracy", "best_test_accuracy", "test_loss", "train_loss", "validation_accuracy", "seconds", "seconds_per_round")


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
    if value["epsilon"] is not None:
        value["notes"] = [*value["notes"], f"epsilon is that of each run; publishing all {len(results)} models costs more"]
    return value | {"seeds": [r.seed for r in results], "runs": [r.to_dict() for r in results]}
