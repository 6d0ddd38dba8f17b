"""One client's own examples: a table, a folder of tables, a description of either, or a function of its own."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.errors import DataError, HushError, UsageError
from hush.federation.folders import read_text
from hush.federation.proposal import Examples, Proposal
from hush.plugins import from_file, is_in_file
from hush.tasks import own
from hush.tasks.clients import Clients
from hush.tasks.columns import Columns, column_names
from hush.tasks.task import Task

_NOBODY = "client (none)"


def task_of(proposal: Proposal, source: str | None) -> Task:
    """The proposed model on this client's own examples, or on none."""
    held = read_examples(source, proposal.examples) if source is not None else _none(proposal.examples)
    model = proposal.model()
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if count != proposal.parameters:
        raise UsageError(f"The model has {count:,} parameters here, and the server says {proposal.parameters:,}.")
    task = Task(model, held, loss=proposal.examples.loss, name=proposal.run.data, model_name=str(proposal.run.model))
    persons = proposal.examples.persons
    return task if persons is None or persons.rows is None else replace(task, person_rows=persons.rows, by_person=True)


def _none(told: Examples) -> Clients:
    targets = torch.zeros(0, 1) if told.numbers else torch.zeros(0, dtype=torch.int64)
    nobody = torch.zeros(0, dtype=torch.int64) if told.person is not None else None
    return Clients(
        torch.zeros(0, *told.shape, dtype=getattr(torch, told.dtype)), targets, torch.zeros(1, dtype=torch.int64), nobody
    )


def check_source(source: str) -> None:
    """That there is something to read, before anybody proposes anything."""
    if _is_function(source):
        _called(source)
    elif not Path(source).exists():
        raise DataError(f"There is no file or folder {source}.")


def missing_columns(source: str, told: Examples) -> list[str]:
    """The columns that a proposal reads and a table does not have: no secret, unlike what stands in them."""
    if _is_function(source):
        return []
    path = Path(source)
    known = column_names(own.table(_described(path, told) if path.suffix == ".toml" else path.name, path.parent))
    read = (*(told.features or ()), told.target, *([told.person] if told.person is not None else []))
    return [name for name in read if name not in known]


def read_examples(source: str, told: Examples) -> Clients:
    """What a client holds, in the form that was agreed on; `source` is a file, a folder, or `module:function`."""
    if _is_function(source):
        x, y, *whose = (torch.as_tensor(np.asarray(part)) for part in _called(source, persons=told.person is not None))
        persons = whose[0] if whose else None
    else:
        x, y, persons = _from_tables(Path(source), told)
    if tuple(x.shape[1:]) != told.shape:
        raise DataError(f"The inputs in {source} have the shape {tuple(x.shape[1:])}, and the model reads {told.shape}.")
    wanted = getattr(torch, told.dtype)
    if x.dtype != wanted:
        if not wanted.is_floating_point:
            raise DataError(f"The inputs in {source} are {x.dtype}, and the model reads {told.dtype}.")
        x = x.to(wanted)
    if len(x) != len(y) or not len(x):
        raise DataError(f"{source} holds {len(x)} inputs and {len(y)} targets.")
    return Clients(x, y, torch.tensor([len(x)]), persons)


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


def _from_tables(path: Path, told: Examples) -> tuple[Tensor, Tensor, Tensor | None]:
    source, folder = path.name, path.parent
    if path.suffix == ".toml":
        source = _described(path, told)
    elif not path.exists():
        raise DataError(f"There is no file or folder {path}.")
    columns = Columns(_NOBODY, told.target, told.features, told.categories, told.person)
    table = own.table(source, folder)
    return *own.shaped(columns.examples(table), told.target, 0 if told.numbers else told.classes, source), columns.persons(table)


def _described(path: Path, told: Examples) -> str:
    """Where the table of a description lies. What it says of columns must be what was agreed on."""
    try:
        value = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error
    if not isinstance(value.get("train"), str):
        raise UsageError(f'{path.name} does not say where the table is: train = "visits.csv".')
    features = None if told.features is None else list(told.features)
    person = [("person", told.person)] if told.person is not None else []  # without it, whose a row is does not matter
    for key, agreed in (("target", told.target), ("features", features), ("categories", told.categories), *person):
        if key in value and value[key] != agreed:
            raise UsageError(f"{path.name} has {key} = {value[key]!r}, and the server proposes {agreed!r}.")
    return str(value["train"])
