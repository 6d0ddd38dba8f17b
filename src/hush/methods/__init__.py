"""What papers propose, by name: one paper, one file. A new method is a file beside these and a line in `METHODS`.

`METHOD+part+part` is a method with more settings: `hush.methods.parts`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_type_hints

from hush.core import Method
from hush.errors import UsageError
from hush.methods.adpfl import adpfl
from hush.methods.ae_dpfl import ae_dpfl
from hush.methods.common import MASK_SETTINGS
from hush.methods.cpfed import cpfed
from hush.methods.cpfed_output import cpfed_output
from hush.methods.cpsgd import cpsgd
from hush.methods.ddgauss import ddgauss
from hush.methods.dp_fed import dp_fed
from hush.methods.dp_fedavg import dp_fedavg
from hush.methods.dp_sgd import dp_sgd
from hush.methods.dpfl import dpfl
from hush.methods.dpsfl import dpsfl
from hush.methods.dpsfl_ac import dpsfl_ac
from hush.methods.fed_smp_rand_k import fed_smp_rand_k
from hush.methods.fed_smp_top_k import fed_smp_top_k
from hush.methods.fed_spa import fed_spa
from hush.methods.fedavg import fedavg
from hush.methods.fedavg_rand_k import fedavg_rand_k
from hush.methods.fedavg_top_k import fedavg_top_k
from hush.methods.fetchsgd import fetchsgd
from hush.methods.parts import COMBINATIONS, PARTS, split
from hush.methods.skellam import skellam
from hush.names import pick

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedavg-rand-k": fedavg_rand_k,
    "fedavg-top-k": fedavg_top_k,
    "dp-fedavg": dp_fedavg,
    "fed-smp-rand-k": fed_smp_rand_k,
    "fed-smp-top-k": fed_smp_top_k,
    "fed-spa": fed_spa,
    "dp-fed": dp_fed,
    "cpfed": cpfed,
    "cpfed-output": cpfed_output,
    "dp-sgd": dp_sgd,
    "cpsgd": cpsgd,
    "ddgauss": ddgauss,
    "skellam": skellam,
    "ae-dpfl": ae_dpfl,
    "fetchsgd": fetchsgd,
    "dpsfl": dpsfl,
    "dpsfl-ac": dpsfl_ac,
    "dpfl": dpfl,
    "adpfl": adpfl,
}


class Usual(NamedTuple):
    """How a method is usually run, where that differs from what a data set suggests."""

    rounds: int | None = None
    everybody: bool = False
    settings: Mapping[str, Any] = MappingProxyType({})
    gradients: bool = False
    """Clients send one gradient, so what a data set suggests for longer local training does not apply."""


USUAL = {
    "ae-dpfl": Usual(rounds=1, everybody=True, settings={"local_epochs": 50}),
    **dict.fromkeys(("fetchsgd", "dpsfl", "dpsfl-ac", "dpfl", "adpfl"), Usual(gradients=True)),
}


def usual(name: str) -> Usual:
    """By a method's name."""
    return USUAL.get(split(name)[0], Usual())


def settings_of(name: str) -> dict[str, type]:
    """The keys a method takes, with their types."""
    base, parts = split(name)
    build = pick(METHODS, base, "method")
    hints = get_type_hints(build)
    own: dict[str, Any] = {}
    for key, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (shared,) = get_args(hints[key])
            own |= get_type_hints(shared)
        else:
            own[key] = hints[key]
    for key in parts:
        if key not in own:
            raise UsageError(f"{base} has no setting '{key}', which a part of this name sets, so there is no {name}.")
    return own


def build(name: str, **settings: Any) -> Method:
    """A method by name, with its settings."""
    known = settings_of(name)
    for key in settings:
        pick(known, key, f"setting of {name}")
    base, parts = split(name)
    for key in ("mask", "server"):
        if key in parts and settings.get(key, parts[key]) != parts[key]:
            raise UsageError(f"The name {name} says {key}={parts[key]}, and the settings {key}={settings[key]}: which shall it be?")
    return replace(METHODS[base](**(parts | settings)), name=name)


def taken(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given settings that mean something to a method: without a mask, a ratio does not."""
    known, (_, parts) = settings_of(name), split(name)
    mask = (parts | dict(given)).get("mask", "none") if "mask" in known else None
    idle = [key for key, masks in MASK_SETTINGS.items() if mask is not None and mask not in masks]
    return {key: value for key, value in given.items() if key in known and key not in idle}


def summary(name: str) -> str:
    """One line on what a method does."""
    if name in COMBINATIONS:
        return COMBINATIONS[name]
    base, *parts = name.split("+")
    own = (inspect.getdoc(pick(METHODS, base, "method")) or "").split("\n")[0]
    return " ".join((own, *(f"+{part}: {PARTS[part].summary}." for part in parts)))


def names() -> list[str]:
    """All that have a name of their own; any method goes with any of `PARTS` besides."""
    return [*METHODS, *COMBINATIONS]


__all__ = [
    "COMBINATIONS",
    "METHODS",
    "PARTS",
    "adpfl",
    "ae_dpfl",
    "build",
    "cpfed",
    "cpfed_output",
    "cpsgd",
    "ddgauss",
    "dp_fed",
    "dp_fedavg",
    "dp_sgd",
    "dpfl",
    "dpsfl",
    "dpsfl_ac",
    "fed_smp_rand_k",
    "fed_smp_top_k",
    "fed_spa",
    "fedavg",
    "fedavg_rand_k",
    "fedavg_top_k",
    "fetchsgd",
    "names",
    "settings_of",
    "skellam",
    "summary",
    "taken",
    "usual",
]
