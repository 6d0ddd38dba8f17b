"""What papers propose, by name: one paper, one file. A new method is a file beside these and a line in `METHODS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from hush.core import Method
from hush.methods.common import Common
from hush.methods.dp_fedavg import dp_fedavg
from hush.methods.fed_smp_rand_k import fed_smp_rand_k
from hush.methods.fed_smp_top_k import fed_smp_top_k
from hush.methods.fedavg import fedavg
from hush.methods.fedavg_rand_k import fedavg_rand_k
from hush.methods.fedavg_top_k import fedavg_top_k
from hush.names import pick

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedavg-rand-k": fedavg_rand_k,
    "fedavg-top-k": fedavg_top_k,
    "dp-fedavg": dp_fedavg,
    "fed-smp-rand-k": fed_smp_rand_k,
    "fed-smp-top-k": fed_smp_top_k,
}


def settings_of(name: str) -> dict[str, type]:
    """The keys a method takes, with their types."""
    build = pick(METHODS, name, "method")
    hints = get_type_hints(build)
    own = {key: hints[key] for key, p in inspect.signature(build).parameters.items() if p.kind is not p.VAR_KEYWORD}
    return own | get_type_hints(Common)


def build(name: str, **settings: Any) -> Method:
    """A method by name, with its settings."""
    known = settings_of(name)
    for key in settings:
        pick(known, key, f"setting of {name}")
    return METHODS[name](**settings)


def summary(name: str) -> str:
    """One line on what a method does."""
    return (inspect.getdoc(METHODS[name]) or "").split("\n")[0]


__all__ = [
    "METHODS",
    "build",
    "dp_fedavg",
    "fed_smp_rand_k",
    "fed_smp_top_k",
    "fedavg",
    "fedavg_rand_k",
    "fedavg_top_k",
    "settings_of",
    "summary",
]
