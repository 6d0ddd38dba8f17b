"""A run in two halves: what stays the same from the first round to the last, and what a checkpoint holds."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.core import Method, Round, Server, State, scope, within
from hush.errors import DataError, UsageError
from hush.local.flat import FlatModel
from hush.privacy.plan import Plan
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
    fingerprint: str
    plan: Plan | None
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

    @property
    def run_id(self) -> str:
        """A name that only this run on this machine has; it can be published."""
        return self.secret.stream("run id", 0, 8).hex()

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

    def to_disk(self, run: Run) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors = {"params": self.params, "best": self.best, "secret": torch.tensor(list(run.secret.key), dtype=torch.uint8)}
        tensors |= scope("state", self.state) | scope("cohort", self.cohort_state)
        keys = ("round", "best_accuracy", "train_loss", "seconds")
        return tensors, {"fingerprint": run.fingerprint} | {k: json.dumps(getattr(self, k)) for k in keys}

    @staticmethod
    def from_disk(run: Run, tensors: dict[str, Tensor], meta: dict[str, str], where: str) -> Snapshot:
        """The state a checkpoint holds, if it is of this very run."""
        if meta.get("fingerprint") != run.fingerprint:
            raise DataError(f"{where} holds a run with other settings or other data: it cannot go on from here.")
        if bytes(tensors["secret"].tolist()) != run.secret.key:
            raise DataError(f"{where} was begun on another machine, whose noise cannot be repeated here.")
        place = run.learner.device
        state = within("state", tensors)
        return Snapshot(
            params=tensors["params"].to(place),
            best=tensors["best"].to(place),
            state={name: value.to(place) if value.dim() else value for name, value in state.items()},
            cohort_state=within("cohort", tensors),
            **{key: json.loads(value) for key, value in meta.items() if key != "fingerprint"},
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
