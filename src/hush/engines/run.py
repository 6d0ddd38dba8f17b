"""A run in two halves: what stays the same from the first round to the last, and what a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.config import RunConfig
from hush.core import Method, Round, Server, State, scope, within
from hush.engines.beside import beside
from hush.engines.federation import AmortisedFederation, Federation, Remote
from hush.errors import UsageError
from hush.local.flat import FlatModel
from hush.privacy.vocabulary import Enrolled, Plan
from hush.random import derive
from hush.secret import Secret
from hush.tasks.task import Clients, Examples, Task

if TYPE_CHECKING:  # with torch.distributed, which one process does without
    from hush.engines.processes import Processes


@dataclass(frozen=True)
class Placed:
    """Data and model, on the device."""

    task: Task
    learner: FlatModel
    train: Clients
    server: Server
    """What judges and prepares: on rows, also where clients train on persons."""
    validation: Examples | None
    test: Examples | None
    caveats: tuple[str, ...] = ()
    """The task's, with the model as it was when it was placed: these are the weights that training starts from."""


@dataclass(frozen=True)
class Privacy:
    """What is proved of a run, and what the proof asks for."""

    plan: Plan | None
    refused: str | None
    """Why a paper's own words, which run here, have no proof."""
    enrolled: Enrolled
    delta: float | None
    budget: float | None
    """The most epsilon that this run may spend, rounds that are drawn again included."""
    apart: bool
    """Whether a client's row may depend on nobody else, to the last bit: clients then train in slots of their own."""
    federation: Federation | AmortisedFederation | Remote | None = None
    """Where the sum is secure: everybody who takes part in making it."""


@dataclass(frozen=True)
class Identity:
    """What a run is known by."""

    run_id: str
    """Random: it tells nothing."""
    fingerprint: Mapping[str, str]
    """Of settings and data: only the same run may go on in a folder."""
    secret: Secret
    secure: bool
    """Whether the secret is fresh: an interrupted round is then drawn anew, and charged again."""

    @property
    def attempt(self) -> str:
        """Empty where a repeat draws the very same noise; otherwise a name of this secret."""
        return self.secret.stream("attempt", 0, 8).hex() if self.secure else ""


@dataclass(frozen=True)
class Run:
    """Everything that stays the same from the first round to the last."""

    config: RunConfig
    method: Method
    """As it runs: with its noise, in the numbers that the sum asks for."""
    cohort: Cohort
    data: Placed
    privacy: Privacy
    identity: Identity
    rounds: int
    """How many there will be: those that were asked for, or fewer where a budget ends before."""
    chunk: int
    processes: Processes | None = None
    """Where several train the cohort: all of them."""

    def round(self, index: int) -> Round:
        return Round(index, derive(self.config.seed, 1, index), self.cohort.size)

    def drawing(self, secret: Secret, secure: bool | None = None) -> Run:
        """The same run with another secret."""
        own = replace(self.identity, secret=secret, secure=self.identity.secure if secure is None else secure)
        return replace(self, identity=own)


@dataclass(frozen=True)
class Snapshot:
    """Everything that changes: what a checkpoint holds."""

    round: int
    params: Tensor
    state: State
    cohort_state: State
    best: Tensor
    best_accuracy: float = -1.0
    train_loss: float | None = None
    computed: int = 0
    """Examples that were computed so far, and `own`, those of them that were clients' own; where diagnostics were asked for."""
    own: int = 0
    seconds: float = 0.0
    charges: int = 0
    """Rounds that were paid for: more than `counted` where a round was drawn again."""
    aborted: int = 0
    """Rounds that a secure sum broke off before anything was opened: nothing was paid, and the cohort comes again."""
    sent: int = 0
    """Bytes that all clients sent together, where they were counted message by message."""
    received: int = 0
    """The same on the way down; in simulation without the model, which real clients get whole or as what changed of it."""
    begun: int = 0
    """Rounds of the secure sum that real clients were asked for: a server that is started again goes on after them."""

    @property
    def counted(self) -> int:
        """Rounds that something was released in, or may have been."""
        return self.round - self.aborted

    def to_disk(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors = {"params": self.params, "best": self.best}
        tensors |= scope("state", self.state) | scope("cohort", self.cohort_state)
        counts = ("computed", "own", "charges", "aborted", "sent", "received", "begun")
        keys = ("round", "best_accuracy", "train_loss", "seconds", *counts)
        return tensors, {k: json.dumps(getattr(self, k)) for k in keys}

    @staticmethod
    def from_disk(tensors: dict[str, Tensor], meta: dict[str, str], place: torch.device) -> Snapshot:
        """The state that a checkpoint holds."""
        state = within("state", tensors)
        return Snapshot(
            params=tensors["params"].to(place),
            best=tensors["best"].to(place),
            state={name: value.to(place) if value.dim() else value for name, value in state.items()},
            cohort_state=within("cohort", tensors),
            **{key: json.loads(value) for key, value in meta.items()},
        )


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("This machine has no CUDA device that PyTorch can use: choose --device cpu.")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"Hush does not run on a device '{name}': choose auto, cpu or cuda.")
    if device.type == "cuda" and beside().count > 1:
        if device.index is not None:
            raise UsageError(f"Each of several processes takes a GPU of its own: write --device cuda, not {name}.")
        torch.cuda.set_device(beside().gpu)
    return device
