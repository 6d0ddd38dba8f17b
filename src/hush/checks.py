"""One sentence for a number that cannot be meant."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from hush.errors import UsageError

HUGE = 1e30
"""More than any rate, pull or weight can be; float32 ends at 3e38."""

MANY = 2**31 - 1
"""More steps, epochs or examples than anybody waits for."""


def python_number(value: Any) -> Any:
    """A number of numpy's, or a tensor of one, as Python's own, which JSON takes; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def keep_python_numbers(what: Any) -> None:
    """The same for every field of a frozen dataclass."""
    for f in fields(what):
        object.__setattr__(what, f.name, python_number(getattr(what, f.name)))


def check_number(name: str, value: object, above: float | None = None, least: float | None = None, most: float = HUGE) -> None:
    """Refuse what is no number `above` or of at `least` something, and at `most` something else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if is_number and (above is None or value > above) and (least is None or value >= least) and value <= most:  # type: ignore[operator]
        return
    limits = "a positive number" if above == 0 else f"a number above {above:g}" if above is not None else f"a number from {least:g}"
    end = f", {most:g} at most" if above is not None else f" to {most:,}"
    raise UsageError(f"{name} must be {limits}{end}, not {value!r}.")


def check_noise(multiplier: float | None, none: bool = False) -> None:
    """Refuse a noise multiplier that cannot be meant; one that is not known yet passes, and 0 where there may be `none`."""
    if multiplier is not None and not (none and multiplier == 0) and not 1e-9 <= multiplier <= 1e9:
        raise UsageError(f"noise must be a positive number, from 1e-9 to 1e9{', or 0 for none' * none}, not {multiplier:g}.")


def check_share(name: str, value: object) -> None:
    """Refuse what does not lie in [0, 1)."""
    if not (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1):
        raise UsageError(f"{name} must lie in [0, 1), not {value!r}.")
