"""A run that goes on from another's model, as after a change of the roster: its weights, and the ledger in which both add up."""

from __future__ import annotations

import copy
import hashlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import safetensors.torch

from hush.config import RunConfig, runs_of
from hush.engines.rundir import CHECKPOINT, IDENTITY, LEDGER, RunDir, tensors_as_bytes
from hush.errors import DataError, UsageError
from hush.local.remembered import remembered
from hush.privacy.ledger import Ledger
from hush.tasks.task import Task

FILE = "initial.safetensors"
"""In the folder of the run that goes on: it needs the other one no more."""


class Initial(NamedTuple):
    """Weights to begin with, as they lie in a file."""

    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def of(self, task: Task) -> Task:
        """The task that begins with them."""
        model = copy.deepcopy(task.model)
        try:
            model.load_state_dict(safetensors.torch.load(self.content))
        except RuntimeError:
            raise UsageError(f"The weights to begin with are of another model than {task.model_name}: choose the same.") from None
        told = f"it goes on from an earlier model (SHA-256 {self.sha256}): what that cost adds to this number"
        return replace(task, model=model, drawn=remembered(model.state_dict()), caveats=(*task.caveats, told))

    @staticmethod
    def kept(folder: RunDir, sha256: str) -> Initial:
        """Those that a run began with."""
        try:
            held = Initial((folder.path / FILE).read_bytes())
        except OSError as error:
            raise DataError(f"{folder.path / FILE}, which this run began with, cannot be read: {error.strerror}.") from error
        if held.sha256 != sha256:
            raise DataError(f"{folder.path / FILE} is not what this run began with: bring it back.")
        return held

    @staticmethod
    def of_run(folder: RunDir, task: Task) -> Initial:
        """The model that a run ended with; or, where it never did, that of its last round."""
        last = folder.read_tensors("model.safetensors")
        if last is not None:
            return Initial(tensors_as_bytes(last[0], {}))
        now = folder.read_tensors(CHECKPOINT)
        if now is None:
            raise UsageError(f"{folder.path} holds no model of a run: no round of it is complete.")
        learner = task.learner()
        if now[0]["params"].numel() != learner.dim:
            raise UsageError(f"The weights to begin with are of another model than {task.model_name}: choose the same.")
        return Initial(tensors_as_bytes(learner.state_dict(now[0]["params"].to(learner.initial())), {}))


def refuse_uncounted(folder: RunDir, asked: RunConfig) -> None:
    """What the model cost so far and what is to come are spent on the same clients: both must be in one ledger."""
    run = name_of(folder)
    if asked.ledger is not None and charged(Path(asked.ledger), run) == asked.population:
        return
    there = Path(runs_of(folder)[0].ledger or folder.path / LEDGER)
    population = charged(there, run)
    if population is None and not _was_charged(folder):
        return  # no ledger has a number for it, and no certificate: a caveat says so
    where = f"--ledger {there} --population '{population}'" if population is not None else f"--ledger FILE ({there} is not there)"
    raise UsageError(f"What {folder.path} spent adds to what this run will, on the same clients: charge it there, too ({where}).")


def _was_charged(folder: RunDir) -> bool:
    """Whether there is a ledger that knows of a run, be it complete or not, wherever that lies by now."""
    if folder.has("certificate.json"):
        return folder.read_json("certificate.json").get("guarantee") is not None
    return bool(folder.read_json(IDENTITY).get("charged", True))


def name_of(folder: RunDir) -> str:
    """What ledgers call a run."""
    return str(folder.read_json("certificate.json" if folder.has("certificate.json") else IDENTITY)["run_id"])


def charged(file: Path, run: str) -> str | None:
    """The population that a run is charged to in a ledger."""
    if not file.is_file():
        return None
    with closing(Ledger(file, look=True)) as book:
        return next((name for name, pool in book.populations.items() if run in pool.runs), None)
