"""Look a name up, and suggest the nearest when it is not there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from hush.errors import UsageError

T = TypeVar("T")


def pick(known: Mapping[str, T], name: str, kind: str) -> T:
    """`known[name]`, or one sentence that names the nearest."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.55)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}."
    raise UsageError(f"There is no {kind} '{name}'; {hint}")
