"""Curves, by matplotlib where it is installed."""

from __future__ import annotations

import io
from typing import Any

from hush.audit.audit import Audit, rates
from hush.errors import UsageError
from hush.privacy.guarantee import at_least

Curves = dict[str, list[dict[str, Any]]]
"""Records of rounds, by the label of their curve."""

COLOURS = ("#1f5fbf", "#c2410c", "#15803d", "#7e22ce", "#b45309", "#0e7490", "#be123c", "#4d7c0f")


def blank(width: float, height: float, what: str = "Plots") -> Any:
    """A figure with nothing on it yet."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"{what} need matplotlib: pip install 'hush-fl[plots]'.") from None
    return Figure(figsize=(width, height), layout="constrained")


def tidy(*panels: Any) -> None:
    """A faint grid, and no frame above and to the right."""
    for axes in panels:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)


def comparison_figure(curves: Curves, title: str) -> Any:
    """Accuracy against rounds and against bytes sent, one colour a method."""
    figure = blank(9.6, 3.8)
    every = [record for records in curves.values() for record in records]
    shown = next((figure for figure in ("accuracy", "loss") if any(_judged(record, figure) is not None for record in every)), None)
    if shown is None:
        raise UsageError("There is no curve to draw: hold validation examples out (--validation N), or give --track-test.")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    for (label, records), colour in zip(curves.items(), COLOURS * (1 + len(curves) // len(COLOURS)), strict=False):
        judged = ((r["round"], r["uplink_bytes_per_client"] / 1e6, _judged(r, shown)) for r in records)
        points = [point for point in judged if point[2] is not None]
        if not points:
            continue
        rounds, megabytes, accuracy = zip(*points, strict=True)
        by_round.plot(rounds, accuracy, color=colour, label=label, linewidth=1.8)
        by_bytes.plot(megabytes, accuracy, color=colour, label=label, linewidth=1.8)
    on = "test" if any(record.get(f"test_{shown}") is not None for record in every) else "validation"
    by_round.set(xlabel="round", ylabel=f"{on} accuracy in %" if shown == "accuracy" else f"{on} loss", title=title)
    by_bytes.set(xlabel="MB sent per client (log)", xscale="log", title="and what it costs")
    tidy(by_round, by_bytes)
    if by_round.get_legend_handles_labels()[0]:
        by_round.legend(frameon=False)
    return figure


def line_figure(series: dict[str, list[tuple[float, float]]], xlabel: str, ylabel: str, log: bool = False) -> Any:
    """Named series in one small picture."""
    figure = blank(4.6, 2.9)
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    for (label, points), colour in zip(series.items(), COLOURS, strict=False):
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.6)
    axes.set(xlabel=xlabel, ylabel=ylabel.replace(" (simulation only)", "\n(simulation only)"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "fraction" in ylabel:
        axes.set_ylim(-0.03, 1.03)
    if log:
        axes.set_yscale("log")
    tidy(axes)
    if len(series) > 1 and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    return figure


def trade_off_figure(audit: Audit) -> Any:
    """What each attack found, under the most that the claim allows: true positives against false ones."""
    figure = blank(3.6 * len(audit.attacks), 3.7)
    panels = figure.subplots(1, len(audit.attacks), sharey=True, squeeze=False)[0]
    seen = rates() > 0
    for axes, attack in zip(panels, audit.attacks, strict=True):
        axes.fill_between(rates()[seen], attack.claimed[seen], 1.0, color="#fde2e1", label="more than is claimed")
        axes.plot(rates()[seen], attack.claimed[seen], color=COLOURS[1], linewidth=1.6, label="the most that is claimed")
        axes.plot(rates()[seen], attack.proved[seen], color=COLOURS[0], linewidth=1.8, label="the attack, less chance")
        axes.plot(rates()[seen], attack.found[seen], color=COLOURS[0], linewidth=0.9, alpha=0.55, label="the attack as seen")
        axes.plot(rates()[seen], rates()[seen], color="#9aa4b2", linewidth=1.0, linestyle=":", label="guessing")
        figures = f"eps found {attack.epsilon_found:.2f}, claimed {at_least(attack.epsilon_claimed)}"
        axes.set(xscale="log", xlabel="false positives (log)", title=f"{attack.name}\n{figures}", ylim=(0, 1), xlim=(1e-3, 1))
        axes.title.set_fontsize(9.5)
    tidy(*panels)
    panels[0].set_ylabel("true positives")
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(f"{audit.method}, {audit.cohort} cohorts, noise {audit.noise_multiplier:.4g}", fontsize=11)
    return figure


def as_svg(figure: Any) -> str:
    """The picture as text for a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def as_png(figure: Any) -> bytes:
    """The picture as a file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _judged(record: dict[str, Any], figure: str) -> float | None:
    """Accuracy in percent, or loss: on test examples, else on validation examples."""
    found = next((record[key] for key in (f"test_{figure}", f"validation_{figure}") if record.get(key) is not None), None)
    return None if found is None else 100.0 * float(found) if figure == "accuracy" else float(found)
