"""Parts of names: `dp-fedavg+top-k+blur+adaptive+adam` is `dp-fedavg` with a setting for each part, which can be set as well.

Everything is one pipeline, so any of them go together, and the guarantee is derived from whatever came out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hush.errors import UsageError
from hush.names import pick


class Part(NamedTuple):
    """What a part of a name sets, unless the user says otherwise."""

    settings: dict[str, Any]
    summary: str


PARTS: dict[str, Part] = {
    "blur": Part({"blur": 0.4}, "pull updates back that leave the clip while they are trained"),
    "prox": Part({"prox": 0.1}, "pull updates back everywhere (FedProx)"),
    "lus": Part({"sparsity": 0.7}, "drop all but the most salient coordinates of an update; all are noised, and sent"),
    "rand-k": Part({"mask": "rand-k"}, "send random coordinates"),
    "top-k": Part({"mask": "top-k"}, "send the coordinates that move most on public examples"),
    "saliency": Part({"mask": "saliency"}, "send the coordinates that the loss on public examples depends on most"),
    "free-mask": Part({"mask": "free"}, "send the coordinates that past noised sums say matter, and some at random"),
    "sketch": Part({"mask": "sketch"}, "send a count sketch, in whose sum the heavy coordinates are found"),
    "adaptive": Part({"clip_quantile": 0.5}, "let the clip follow the median norm, at the price of a noisy bit"),
    "momentum": Part({"server": "momentum"}, "momentum at the server"),
    "adam": Part({"server": "adam"}, "Adam at the server"),
    "averaged": Part({"average_iterates": 0.9}, "hand out an average of the server's models"),
}

COMBINATIONS = {
    "dp-fedavg+blur": "DP-FedAvg whose clients keep their updates within the clip while they train (BLUR).",
    "dp-fedavg+lus": "DP-FedAvg of updates of which only the most salient coordinates are left (LUS).",
    "dp-fedavg+blur+lus": "DP-FedAvg with BLUR and LUS.",
}
"""Names that a paper gives to combinations."""


def split(name: str) -> tuple[str, dict[str, Any]]:
    """A name's method, and what its other parts set."""
    place, mark, rest = name.rpartition(".py:")  # a path may hold a '+', too
    base, *parts = rest.split("+")
    base = f"{place}{mark}{base}"
    settings: dict[str, Any] = {}
    for part in parts:
        for key, value in pick(PARTS, part, f"part of the name {name}, after a '+':").settings.items():
            if key in settings:
                raise UsageError(f"Two parts of the name {name} set {key}: keep one.")
            settings[key] = value
    return base, settings
