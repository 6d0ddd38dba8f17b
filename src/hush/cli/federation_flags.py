"""The flags of `hush server` and `hush federation local`: those of `hush run`, but for what real clients decide by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from hush.cli.options import RunFlags

_IDLE = {
    "clients": "The roster says who the clients are (hush federation admit)",
    "participations": "Real clients take turns, or flip coins that stay secret (--sampling)",
    "partition": "Every client has data of its own, and nobody deals them out",
    "evaluation": "The server judges on its own examples, and clients under the noise by --set score=0.3",
    "start": "Clients begin with the random weights that the server sends",
    "memory": "Nobody trains on the server, so nothing there needs memory for it",
    "chunk": "Every client trains by itself, on its own machine",
    "secure": "In a federation the sum is always secure",
    "masks": "In a federation masks are fresh in every round",
    "noise_mode": "In a federation every client draws its share of the noise exactly",
    "diagnostics": "Un-noised figures never leave clients",
    "dropout": "Real clients vanish by themselves, and --tolerate says how many may",
    "seeds": "A federation trains one model at a time",
    "jobs": "A federation trains one model at a time",
}
_IN_OTHER_WORDS = {
    "data": "Data set (hush data lists them), or a .toml file that describes columns and the server's own tables.",
    "cohort": "How many clients a round asks [default: all].",
    "sampling": "rotation (default): all, or turns of --cohort; secret: all send, and data only where a secret coin says so.",
    "device": "Where the server judges models: auto (default), cpu or cuda.",
    "public": "Public examples of the server's, for methods that choose coordinates by them.",
    "sum_bits": "Bits of each entry of the sum [default: 24, or the method's own].",
    "tolerate": "Share of a cohort that may vanish in a round that counts [default: nobody].",
    "corrupted": "Share of a cohort that may tell the server all it knows [default: 0.1].",
    "threat": "What the sum is safe from: a curious (default) or a malicious server.",
    "population": "With --ledger: whose privacy is spent [default: the federation].",
    "dry_run": "Show what the first client would be asked; ask nobody.",
}


@dataclass(frozen=True, kw_only=True)
class ServerFlags(RunFlags):
    """What is typed after `hush server METHOD`."""

    init: Annotated[Path | None, typer.Option("--init", help="Begin with the model of the run in this directory.")] = None
    idle: ClassVar[Mapping[str, str]] = _IDLE
    in_other_words: ClassVar[Mapping[str, str]] = _IN_OTHER_WORDS


@dataclass(frozen=True, kw_only=True)
class TrialFlags(RunFlags):
    """What is typed after `hush federation local N METHOD`: a data set is dealt out, and everything is a trial."""

    idle: ClassVar[Mapping[str, str]] = {key: why for key, why in _IDLE.items() if key != "partition"} | {
        "clients": "The number of clients stands before the method (hush federation local 5 dp-fedavg)",
        "dry_run": "This is a trial, which has no other before it",
    }
    in_other_words: ClassVar[Mapping[str, str]] = _IN_OTHER_WORDS | {
        "data": "Data set (hush data lists them), dealt to the clients."
    }
