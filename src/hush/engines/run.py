"""A run in two halves: what stays the same from the first round to the last, and what a checkpoint holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.core import Method, Round, Server, State, scope, within
from hush.engines.federation import AmortisedFederation, Federation
from hush.errors import UsageError
from hush.local.flat import FlatModel
from hush.privacy.vocabulary import Enrolled, Plan
from hush.random import derive
from hush.secret import Secret
from hush.tasks.task import Clients, Examples, Task


@dataclass(frozen=True)
class Run:
    """Everything that stays the same from the first round to the last."""

    method: Method
    task: Task
    learner: FlatModel
    train: Clients
    server: Server
    validation: Examples | None
    test: Examples | None
    cohort: Cohort
    secret: Secret
    secure: bool
    """Whether the secret is fresh: an interrupted round is then drawn anew, and charged again."""
    apart: bool
    """Whether a client's row may depend on nobody else, to the last bit: clients then train in slots of their own."""
    run_id: str
    """Random: it tells nothing."""
    fingerprint: str
    """Of settings and data: only the same run may go on in a folder."""
    plan: Plan | None
    refused: str | None
    """Why a paper's own words, which run here, have no proof."""
    enrolled: Enrolled
    delta: float | None
    rounds: int
    rounds_planned: int
    seed: int
    chunk: int
    dropout: float
    notes: tuple[str, ...]
    eval_every: int
    track_test: bool
    diagnostics: bool
    ledger: Path | None
    """A ledger shared with other runs; without one, a run with a folder keeps its own there."""
    population: str
    rollback_protection: bool
    budget: float | None
    """The most epsilon that this run may spend, rounds that are drawn again included."""
    federation: Federation | AmortisedFederation | None = None
    """Where the sum is secure: everybody who takes part in making it."""

    @property
    def attempt(self) -> str:
        """Empty where a repeat draws the very same noise; otherwise a name of this secret."""
        return self.secret.stream("attempt", 0, 8).hex() if self.secure else ""

    def round(self, index: int) -> Round:
        return Round(index, derive(self.seed, 1, index), self.cohort.size)


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
    seconds: float = 0.0
    charges: int = 0
    """Rounds that were paid for: more than `counted` where a round was drawn again."""
    aborted: int = 0
    """Rounds that a secure sum broke off before anything was opened: nothing was paid, and the cohort comes again."""
    sent: int = 0
    """Bytes that all clients sent together, where they were counted message by message."""
    received: int = 0
    """The same on the way down, without the model."""

    @property
    def counted(self) -> int:
        """Rounds that something was released in, or may have been."""
        return self.round - self.aborted

    def to_disk(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors = {"params": self.params, "best": self.best}
        tensors |= scope("state", self.state) | scope("cohort", self.cohort_state)
        keys = ("round", "best_accuracy", "train_loss", "seconds", "charges", "aborted", "sent", "received")
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
    return device
