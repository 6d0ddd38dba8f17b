"""docs/settings.md, written from the settings themselves: `python -m hush.methods.documented > docs/settings.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hush.config import NO_FLAG, RunConfig
from hush.methods import COMBINATIONS, METHODS, PARTS, Explained, explained
from hush.settings import word

_ABOVE = """# Settings

<!-- Written by `python -m hush.methods.documented`; a test compares. -->

Given as `--set key=value`, under `[set]` in a TOML file, or as keywords in Python (`hush.methods.dp_fedavg(lr=0.1, clip=0.5)`).
`hush methods NAME` says which a method takes, with its defaults; `hush run ... --dry-run` which a data set brings. A setting that
does nothing beside the others is refused, with what it goes with:

    $ hush run dp-fedavg --set kappa=0.1
    hush: kappa goes with server=adam or fed-spa, not with server=average.

`hush compare` takes a setting that at least one of its methods uses, and names the others.

"""
_BELOW = """
## Defaults

On the command line a data set brings training settings of its own (`hush run --data DATA --dry-run` says which): Fashion-MNIST and
MNIST Fed-SMP's, CIFAR and EMNIST those of BLUR+LUS, Shakespeare LEAF's; for methods that protect records others, among fewer
clients. Methods whose clients send one gradient ({gradients}) take none of them. Without `--noise` or `--epsilon`, a
private method gets the noise that spends epsilon 8.

## A whole run

A run as a file, for `hush run --config experiment.toml`; flags win over it. `config.json` in a run's folder has the same keys, with
every default filled in.

```toml
method = "fed-smp-rand-k"
data = "fashion-mnist"
clients = 6000
cohort = 100
rounds = 180
sampling = "poisson"
noise = 1.4
partition = "dirichlet:0.3"
track_test = true

[set]
ratio = 0.1
clip = 1.0
```

"""


def page() -> str:
    """The whole of it."""
    own = ", ".join(f"`{name}`" for name in COMBINATIONS)
    gradients = ", ".join(f"`{name}`" for name, recipe in METHODS.items() if not recipe.settings.follows_data)
    parts = [(f"`+{name}`", _sets(part.settings), part.summary) for name, part in PARTS.items()]
    return "".join(
        (
            _ABOVE,
            _table(("key", "what it is", "default", "range", "in"), _settings()),
            "\n## Names made of parts\n\n`dp-fedavg+top-k+blur+adam` is `dp-fedavg` with a setting for each part, which `--set` "
            f"changes. They go with every method that has the setting; papers' own names are {own}. "
            "The guarantee is derived from what comes out.\n\n",
            _table(("part", "sets", "what it does"), parts),
            _BELOW.format(gradients=gradients),
            _table(("key", "default", "what it is"), _keys_of_a_run()),
            "\nHow often to repeat, where to write and where data lie are flags alone: `--seeds`, `--out`, `--data-dir`.\n",
        )
    )


def _settings() -> list[tuple[str, ...]]:
    """Every setting once, with the methods that have it where these are few."""
    found: dict[str, tuple[Explained, dict[str, str]]] = {}
    for name in METHODS:
        for known in explained(name):
            found.setdefault(known.key, (known, {}))[1][name] = known.default
    return [
        (f"`{key}`", known.meaning, _defaults(each), known.range.replace("inf", "∞"), _methods(each))
        for key, (known, each) in found.items()
    ]


def _defaults(each: dict[str, str]) -> str:
    """The usual one, and where it is another."""
    usual = max(dict.fromkeys(each.values()), key=list(each.values()).count)
    others: dict[str, list[str]] = {}
    for name, default in each.items():
        if default != usual:
            others.setdefault(default, []).append(name)
    return "; ".join([usual, *(f"{', '.join(names)}: {default}" for default, names in others.items())])


def _methods(each: dict[str, str]) -> str:
    if len(each) <= 6:
        return ", ".join(each)
    without = [name for name in METHODS if name not in each]
    return f"all but {', '.join(without)}" if without and len(without) <= 6 else "all" if not without else f"{len(each)} methods"


def _sets(settings: dict[str, Any]) -> str:
    return " ".join(f"`{key}={word(value)}`" for key, value in settings.items())


def _keys_of_a_run() -> list[tuple[str, ...]]:
    defaults = RunConfig.defaults()
    return [
        (f"`{key}`", "" if defaults[key] is None else word(defaults[key]), known.help.partition(" [default")[0].rstrip(".") + ".")
        for key, known in RunConfig.known().items()
        if key != "set" and known.flag != NO_FLAG
    ]


def _table(head: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *body]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
