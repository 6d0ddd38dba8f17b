"""Look a name up, and suggest the nearest when it is not there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import PurePath
from typing import TypeVar

from hush.errors import UsageError

T = TypeVar("T")

ALSO_KNOWN_AS = (
    ("learning_rate", "lr"),
    ("epochs", "local_epochs"),
    ("steps", "local_steps"),
    ("batch", "batch_size"),
    ("max_grad_norm", "clip"),
    ("clip_norm", "clip"),
    ("l2_norm_clip", "clip"),
    ("noise_multiplier", "noise"),
    ("sigma", "noise"),
    ("mu", "prox"),
    ("lambda", "blur"),
    ("server_learning_rate", "server_lr"),
    ("compression", "ratio"),
)
"""What other libraries and papers call it."""


def pick(known: Mapping[str, T], name: str, kind: str) -> T:
    """`known[name]`, or one sentence that names the nearest."""
    if name in known:
        return known[name]
    meant = [ours for theirs, ours in ALSO_KNOWN_AS if theirs == name.lower().replace("-", "_") and ours in known]
    near = meant or difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}."
    raise UsageError(f"There is no {kind} '{name}'; {hint}")


DESCRIPTION = "data.toml"
"""The file that describes the data of a folder."""


def described(path: str) -> str:
    """What a data set of one's own is called: its description's name, or its folder's."""
    place = PurePath(path)
    return place.parent.name if place.name == DESCRIPTION else place.stem
