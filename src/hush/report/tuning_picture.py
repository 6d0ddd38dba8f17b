"""A search as one picture: how good each trial was, and how that went with each setting."""

from __future__ import annotations

from typing import Any

from hush.report.plots import COLOURS, blank, tidy
from hush.tuning.space import Range, Space
from hush.tuning.study import COMPLETE, Tuning

_ROW = 3
"""Panels side by side."""


def tuning_figure(tuning: Tuning, space: Space, title: str) -> Any:
    """Validation accuracy by trial with the best so far, then against each setting that was searched."""
    rows = -(-(1 + len(space)) // _ROW)
    figure = blank(9.6, 2.9 * rows)
    from matplotlib.ticker import MaxNLocator, NullFormatter

    done = [trial for trial in tuning.history if trial.state == COMPLETE]
    by_accuracy = all(trial.validation_accuracy is not None for trial in done)
    heights = [100 * (t.validation_accuracy or 0.0) if by_accuracy else (t.validation_loss or 0.0) for t in done]
    label = "validation accuracy in %" if by_accuracy else "validation loss"
    panels = list(figure.subplots(rows, _ROW, sharey=True, squeeze=False).flat)
    first = panels[0]
    first.plot([t.number for t in done], heights, "o", color=COLOURS[0], markersize=4, alpha=0.7)
    pick = max if by_accuracy else min
    first.step([t.number for t in done], [pick(heights[: i + 1]) for i in range(len(done))], where="post", color=COLOURS[1])
    first.set(xlabel="trial", title=title)
    first.xaxis.set_major_locator(MaxNLocator(integer=True))
    best = tuning.best
    for axes, (key, where) in zip(panels[1:], space.items(), strict=False):
        values = [t.settings[key] if isinstance(where, Range) else str(t.settings[key]) for t in done]
        axes.scatter(values, heights, color=[COLOURS[1] if t is best else COLOURS[0] for t in done], s=18, alpha=0.7)
        axes.set(xlabel=key)
        if isinstance(where, Range) and where.log:
            axes.set(xscale="log", xlim=(where.low / 1.1, where.high * 1.1))
            axes.xaxis.set_minor_formatter(NullFormatter())  # or labels of less than a decade run into each other
    tidy(*panels)
    for number, axes in enumerate(panels):
        axes.set_visible(number <= len(space))
        if number % _ROW == 0:
            axes.set_ylabel(label)
    return figure
