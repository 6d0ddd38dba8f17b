"""Where words go: figures to standard output, everything else to standard error, so that `--json` stays one object."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hush.privacy.guarantee import at_least


def err() -> Console:
    """Words for people."""
    return Console(stderr=True, highlight=False)


def out() -> Console:
    """Figures."""
    return Console(highlight=False)


def say(text: str) -> None:
    """One sentence on standard error."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON object on standard output; a figure that does not exist is null, never NaN."""
    print(json.dumps(value, indent=2, allow_nan=False))


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


def figures(record: dict[str, Any]) -> str:
    """The running figures of one round's record."""
    words = []
    for key, label in (("test_accuracy", "test"), ("validation_accuracy", "validation")):
        if record.get(key) is not None:
            words.append(f"{label} {100 * record[key]:.1f}%")
            break
    else:
        for key, label in (("test_loss", "test"), ("validation_loss", "validation")):
            if record.get(key) is not None:
                words.append(f"{label} loss {record[key]:.4g}")
                break
    if record.get("epsilon") is not None:
        words.append(f"eps {at_least(record['epsilon'])}")
    words.append(f"{record['uplink_bytes_per_client'] / 1e6:.3g} MB")
    if record.get("aborted"):
        words.append(f"{record['aborted']} rounds broke off")
    return "  ".join(words)
