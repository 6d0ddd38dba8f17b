"""`hush bench cohort`: what a round costs as cohorts grow, and how far that is from a straight line."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from hush.benchmarks.workloads import Workload
from hush.errors import UsageError

COHORTS = {"cpu": (5, 10, 20, 50, 100), "cuda": (50, 100, 200, 500, 1000, 2000, 5000)}
_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
MODELS = {"fed-spa-mnist-cnn": _GREY, "fed-spa-cifar-cnn": _COLOUR, "fed-smp-cnn": _GREY, "resnet18": _COLOUR}
"""From 21,840 parameters to 11 million, and their images."""
FOR = {"cpu": ("fed-spa-mnist-cnn", "fed-smp-cnn"), "cuda": tuple(MODELS)}
STRAIGHT = 0.2
"""How far from a line still counts as one."""


def measure(
    models: Sequence[str],
    cohorts: Sequence[int],
    device: str,
    rounds: int,
    steps: int,
    tell: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """For each model the seconds of a round of each cohort, and the line through them."""
    from hush.benchmarks.own import play, task_of
    from hush.benchmarks.peers.drawn import count

    found = []
    for model in models:
        if model not in MODELS:
            raise UsageError(f"The cost against the cohort is measured of {', '.join(MODELS)}, not of {model}.")
        seconds, parameters = list[float](), 0
        for cohort in cohorts:
            tell(f"{model}: {cohort} clients")
            workload = Workload(name=model, title=model, model=model, shape=MODELS[model], cohort=cohort, steps=steps)
            task, stamps = task_of(workload), list[float]()
            play(workload, task, device, rounds + 1, partial(_stamp, stamps))
            seconds.append(median(later - earlier for earlier, later in pairwise(stamps)))
            parameters = count(task.model)
        line = dataclasses.asdict(fit(cohorts, seconds))
        found.append({"model": model, "parameters": parameters, "cohorts": list(cohorts), "round_s": seconds} | line)
    return found


def _stamp(stamps: list[float]) -> None:
    stamps.append(time.perf_counter())


@dataclasses.dataclass(frozen=True)
class Line:
    """Seconds = fixed_s + client_s * clients, and by what share of the line a round is off it at most."""

    fixed_s: float
    client_s: float
    deviation: float
    straight_from: int | None
    """From this cohort on the others lie within a fifth of a line of their own; None where no three do."""


def fit(cohorts: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line of least squares of relative errors."""
    starts = (i for i in range(max(0, len(cohorts) - 2)) if _line(cohorts[i:], seconds[i:])[2] <= STRAIGHT)
    first = next(starts, None)
    return Line(*_line(cohorts, seconds), None if first is None else cohorts[first])


def _line(cohorts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    n, t = np.array(cohorts, float), np.array(seconds, float)
    if len(n) < 2:
        return 0.0, float(t[0] / n[0]), 0.0
    fixed, each = np.linalg.lstsq(np.stack([1 / t, n / t], 1), np.ones_like(t), rcond=None)[0]
    on = fixed + each * n
    return float(fixed), float(each), float(np.abs(t / on - 1).max())


def picture(found: Sequence[dict[str, Any]], machine: str) -> Any:
    """Both axes logarithmic: a line for each model, dashed where the fit is."""
    from hush.report.plots import COLOURS, blank, tidy

    figure = blank(6.4, 4.2)
    axes = figure.subplots()
    for one, colour in zip(found, COLOURS, strict=False):
        n, label = np.array(one["cohorts"], float), f"{one['model']}, d = {one['parameters']:,}"
        axes.plot(n, one["round_s"], "o", color=colour, label=label, markersize=4)
        dense = np.geomspace(n[0], n[-1], 100)
        axes.plot(dense, one["fixed_s"] + one["client_s"] * dense, "--", color=colour, linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="clients in a round", ylabel="seconds a round", title=machine)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure
