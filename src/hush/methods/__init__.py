"""What papers propose, by name: one paper, one file. A new method is a file beside these and a line in `METHODS`.

`METHOD+part+part` is a method with more settings: `hush.methods.parts`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hush import plugins
from hush.core import Method
from hush.errors import UsageError
from hush.methods.adpfl import adpfl
from hush.methods.ae_dpfl import ae_dpfl
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
from hush.methods.recipe import Recipe, method
from hush.methods.skellam import skellam
from hush.names import pick
from hush.settings import word

METHODS: dict[str, Recipe[Any]] = {
    recipe.name: recipe
    for recipe in (
        *(fedavg, fedavg_rand_k, fedavg_top_k, dp_fedavg, fed_smp_rand_k, fed_smp_top_k, fed_spa, dp_fed, cpfed, cpfed_output),
        *(dp_sgd, cpsgd, ddgauss, skellam, ae_dpfl, fetchsgd, dpsfl, dpsfl_ac, dpfl, adpfl),
    )
}


def every_method() -> dict[str, Recipe[Any]]:
    """Hush's own, and those that installed packages offer as `hush.methods`."""
    return METHODS | {name: found.value for name, found in plugins.installed("hush.methods").items()}


def whole_name(name: str) -> str:
    """`FILE.py`, also with parts, as `FILE.py:NAME` where the file declares one method alone."""
    found = re.fullmatch(r"(.*\.py)(\+[^:/]*)?", name)
    if found is None:
        return name
    file, parts = Path(found[1]), found[2] or ""
    module, _ = plugins.opened(file)
    own = [key for key, value in vars(module).items() if isinstance(value, Recipe) and value.make.__module__ == module.__name__]
    if len(own) != 1:
        there = f"{' and '.join(own)}: write {file}:{own[0]}, say" if own else "no method (docs/own-method.md shows how)"
        raise UsageError(f"{file.name} declares {there}.")
    return f"{file}:{own[0]}{parts}"


def recipe_of(name: str) -> Recipe[Any]:
    """The method of a name, without its parts; they must be of settings that it has."""
    base, parts = split(name)
    recipe = plugins.from_file(base).value if plugins.is_in_file(base) else pick(every_method(), base, "method")
    if not isinstance(recipe, Recipe):
        raise UsageError(f"{base} is no method: put @method(NAME, SETTINGS) above the function (docs/own-method.md shows it).")
    for key in parts:
        if key not in recipe.settings.known():
            raise UsageError(f"{base} has no setting '{key}', which a part of this name sets, so there is no {name}.")
    return recipe


def settings_of(name: str) -> dict[str, Any]:
    """The keys a method takes, with their types."""
    return recipe_of(name).settings.kinds()


def build(name: str, **settings: Any) -> Method:
    """A method by name, with its settings."""
    recipe, (_, parts) = recipe_of(name), split(name)
    for key in ("mask", "server"):
        if key in parts and settings.get(key, parts[key]) != parts[key]:
            raise UsageError(f"The name {name} says {key}={parts[key]}, and the settings {key}={settings[key]}: which shall it be?")
    return recipe.built(parts | settings, plugins.shown(name))


def taken(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given settings that mean something to a method: without a mask, a ratio does not."""
    kind, (_, parts) = recipe_of(name).settings, split(name)
    own = {key: value for key, value in (parts | dict(given)).items() if key in kind.known()}
    settings = kind(**kind.converted(own))
    return {key: value for key, value in given.items() if key in own and settings.uses(key)}


class Explained(NamedTuple):
    """A setting, as one method takes it."""

    key: str
    default: str
    range: str
    meaning: str


def explained(name: str) -> list[Explained]:
    """All settings of a method, by its name with or without parts: those of its own first."""
    kind, (_, parts) = recipe_of(name).settings, split(name)
    defaults = kind.defaults() | parts
    told = {key: known.unset if defaults[key] is None else word(defaults[key]) for key, known in kind.known().items()}
    return [Explained(key, told[key], known.within or ", ".join(known.choices), known.help) for key, known in kind.known().items()]


def summary(name: str) -> str:
    """One line on what a method does."""
    if name in COMBINATIONS:
        return COMBINATIONS[name]
    _, *parts = name.rpartition(".py:")[2].split("+")
    return " ".join((recipe_of(name).summary, *(f"+{part}: {PARTS[part].summary}." for part in parts)))


def names() -> list[str]:
    """All that have a name of their own; any method goes with any of `PARTS` besides."""
    return [*every_method(), *COMBINATIONS]


__all__ = [
    "COMBINATIONS",
    "METHODS",
    "PARTS",
    "Recipe",
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
    "every_method",
    "explained",
    "fed_smp_rand_k",
    "fed_smp_top_k",
    "fed_spa",
    "fedavg",
    "fedavg_rand_k",
    "fedavg_top_k",
    "fetchsgd",
    "method",
    "names",
    "recipe_of",
    "settings_of",
    "skellam",
    "summary",
    "taken",
    "whole_name",
]
