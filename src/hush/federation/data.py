"""One client's own examples: a table, a folder of tables, a description of either, or a function of its own."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush.errors import DataError, HushError, UsageError
from hush.federation.folders import read_text
from hush.federation.proposal import Examples, Proposal
from hush.plugins import from_file, is_in_file
from hush.tasks import own
from hush.tasks.clients import Clients
from hush.tasks.columns import Columns, Frame, column_names, each_of
from hush.tasks.task import Task

_NOBODY = "client (none)"
STAND_INS = 100
"""Examples of nobody that train where it is not even known how many a client has."""
FEW = 2
"""Examples of nobody that a proposal is tried on, whatever a client has."""


def files_of(source: str) -> list[Path]:
    """Where a client's rows lie, as far as that is known beforehand: a function reads what it likes."""
    if _is_function(source):
        return []
    path = Path(source)
    if path.suffix == ".toml":
        path = path.parent / _train(path, _toml(path))
    return sorted(path.rglob("*")) if path.is_dir() else [path]


@dataclass(frozen=True)
class Held:
    """What a client has, read once and not yet looked at: a table's columns, or what a function returned."""

    source: str
    table: Frame = None
    made: Any = None

    @staticmethod
    def read(source: str, told: Examples, by_row: bool = False) -> Held:
        """`source` is a file, a folder, a description of either, or `module:function`; `by_row`: a single row is protected."""
        if _is_function(source):
            return Held(source, made=_called(source, told.person is not None))
        path = Path(source)
        if path.suffix != ".toml" and not path.exists():
            raise DataError(f"There is no file or folder {path}.")
        name = _described(path, told, by_row) if path.suffix == ".toml" else path.name
        return Held(source, table=own.table(name, path.parent))

    def missing_columns(self, told: Examples) -> list[str]:
        """The columns that a proposal reads and a table does not have: no secret, unlike what stands in them."""
        known = () if self.table is None else column_names(self.table)
        read = (*(told.features or ()), told.target, *([told.person] if told.person is not None else []))
        return [] if self.table is None else [name for name in read if name not in known]

    def records(self, told: Examples) -> int:
        """How many examples there are, rows or persons, if that much can be told."""
        try:
            if told.person is not None:
                return len(np.unique(np.asarray(self.made[2] if self.table is None else self.table[told.person]).astype(str)))
            return len(self.made[0] if self.table is None else np.asarray(self.table[column_names(self.table)[0]]))
        except Exception:  # whatever a user's function returned
            return 0

    def examples(self, told: Examples) -> Clients:
        """Inputs and targets, and whose they are, in the form that was agreed on."""
        if self.table is None:
            x, y, *whose = (torch.as_tensor(np.asarray(part)) for part in self.made)
            persons = whose[0] if whose else None
        else:
            columns = Columns(_NOBODY, told.target, told.features, told.categories, told.person)
            persons, read = each_of(partial(columns.persons, self.table), partial(columns.examples, self.table))
            x, y = own.shaped(read, told.target, 0 if told.numbers else told.classes, Path(self.source).name)
        if tuple(x.shape[1:]) != told.shape:
            raise DataError(f"The inputs in {self.source} have the shape {tuple(x.shape[1:])}, and the model reads {told.shape}.")
        wanted = getattr(torch, told.dtype)
        if x.dtype != wanted:
            if not wanted.is_floating_point:
                raise DataError(f"The inputs in {self.source} are {x.dtype}, and the model reads {told.dtype}.")
            x = x.to(wanted)
        if len(x) != len(y) or not len(x):
            raise DataError(f"{self.source} holds {len(x)} inputs and {len(y)} targets.")
        return Clients(x, y, torch.tensor([len(x)]), persons)


def task_of(proposal: Proposal, model: nn.Module, held: Held) -> Task:
    """The proposed model on this client's own examples."""
    return _task(proposal, model, held.examples(proposal.examples))


def stand_in_task(proposal: Proposal, model: nn.Module, records: int) -> Task:
    """The proposed model on so many examples of nobody: training on them takes as long as on a client's own."""
    told = proposal.examples
    x = zeros_and_ones(torch.empty(records or STAND_INS, *told.shape, dtype=getattr(torch, told.dtype)))
    seen = x[:2].to(next(model.parameters()).dtype) if x.is_floating_point() else x[:2]  # as a client's own are
    with torch.no_grad():
        outputs = model.eval()(seen)
    y = torch.zeros(len(x), *outputs.shape[1:]) if told.numbers else torch.zeros(len(x), *outputs.shape[2:], dtype=torch.int64)
    return _task(proposal, model.train(), Clients(x, y, torch.tensor([len(x)]), torch.arange(len(x))))


def zeros_and_ones(x: Tensor) -> Tensor:
    """As many inputs of the same shape and kind, in turn all zero and all one: nobody's, and tokens that every model has."""
    turns = torch.arange(len(x), device=x.device).remainder(2).to(x.dtype)
    return turns.reshape(-1, *(1 for _ in x.shape[1:])).expand(x.shape).contiguous()


def _task(proposal: Proposal, model: nn.Module, held: Clients) -> Task:
    task = Task(model, held, loss=proposal.examples.loss, name=proposal.run.data, model_name=str(proposal.run.model))
    persons = proposal.examples.persons
    return task if persons is None or persons.rows is None else replace(task, person_rows=persons.rows, by_person=True)


def check_source(source: str) -> None:
    """That there is something to read, before anybody proposes anything."""
    if _is_function(source):
        _called(source)
    elif not Path(source).exists():
        raise DataError(f"There is no file or folder {source}.")


def _is_function(source: str) -> bool:
    return is_in_file(source) or (":" in source and not Path(source).exists() and "/" not in source)


def _called(source: str, persons: bool = False) -> Any:
    """What a function of the user's own returns: inputs and targets, and whose they are where `persons` are protected."""
    try:
        if is_in_file(source):
            function = from_file(source).value
        else:
            module, _, name = source.partition(":")
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))  # as python itself looks for what is typed
            function = getattr(importlib.import_module(module), name)
        made = function()
        if not isinstance(made, tuple | list) or len(made) not in (2, 3):
            raise UsageError(f"{source} returns {type(made).__name__}, where a pair of inputs and targets goes.")
        if persons and len(made) == 2:
            raise UsageError(
                f"{source} returns inputs and targets alone, and persons are protected: return whose they are as well."
            )
        return made if persons else made[:2]
    except HushError:
        raise
    except Exception as error:
        raise UsageError(f"{source} cannot be read from: {type(error).__name__}: {error}.") from error


def _described(path: Path, told: Examples, by_row: bool) -> str:
    """Where the table of a description lies. What it says of columns must be what was agreed on."""
    value = _toml(path)
    train = _train(path, value)
    features = None if told.features is None else list(told.features)
    matters = told.person is not None or by_row  # to whom all of a client is protected, whose a row is does not
    person = [("person", told.person)] if matters else []
    for key, agreed in (("target", told.target), ("features", features), ("categories", told.categories), *person):
        if key in value and value[key] != agreed:
            raise UsageError(f"{path.name} has {key} = {value[key]!r}, and the server proposes {agreed!r}.")
    return train


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error


def _train(path: Path, value: dict[str, Any]) -> str:
    if not isinstance(value.get("train"), str):
        raise UsageError(f'{path.name} does not say where the table is: train = "visits.csv".')
    return str(value["train"])
