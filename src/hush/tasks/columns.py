"""From a table with a client column to a task's data: pandas, polars, pyarrow, Hugging Face `datasets`, or a dict of arrays.

Nothing is learned from the table: a list of categories, a mean or a deviation taken from clients' rows would be a statistic of
them that no noise hides. What text means is therefore said by whoever makes the task.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import UsageError
from hush.names import pick
from hush.tasks.clients import Clients, Examples
from hush.tasks.on_disk import length_of, on_disk, rows_of, sizes_of
from hush.tasks.stored import Stored

Frame = Any
"""A table: a data frame of pandas, polars or pyarrow, a data set of Hugging Face, or a dict of columns."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are the client, the target and the inputs.

        columns = hush.Columns(client="hospital", target="readmitted", categories={"ward": ["A", "B", "C"]})
        task = hush.Task(torch.nn.Linear(columns.width(train), 2), columns.clients(train), columns.examples(test))

    Inputs are all other columns unless `features` names them. A column of text needs its `categories`, in order: an input becomes
    one 0/1 entry for each, a target the number of its category. One column of equal arrays (an image, 80 tokens) may be the input.
    `person` names the column that says whose a row is: methods that protect records then protect persons. It is no input.
    """

    client: str
    target: str
    features: Sequence[str] | None = None
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    person: str | None = None
    _inputs_of_first: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """The inputs of the first table that was read: those of every other are taken by the same names."""

    def __post_init__(self) -> None:
        if self.client == self.target:
            raise UsageError(f"The column '{self.client}' cannot be both client and target.")
        if self.person in (self.client, self.target):
            other = "client: a method for clients protects all that it holds" if self.person == self.client else "target"
            raise UsageError(f"The column '{self.person}' cannot be both person and {other}.")
        for name, kinds in self.categories.items():
            if len({str(kind) for kind in kinds}) < len(kinds):
                raise UsageError(f"The categories of '{name}' hold one twice.")

    def clients(self, frame: Frame) -> Clients:
        """The rows of a table, dealt to the clients that its column names, in the order of their names."""
        _, owner = self.owners(frame)
        x, y = self.examples(frame)
        if len(y) != len(owner):
            raise UsageError(f"The columns of the table differ in length: {len(owner)} clients and {len(y)} targets.")
        order = owner.argsort(stable=True)
        persons = self.persons(frame)
        return Clients(x[order], y[order], torch.bincount(owner), None if persons is None else persons[order])

    def stored(self, frame: Frame, sizes: Sequence[int] | NDArray[Any] | None = None) -> Stored:
        """The same without reading them: rows stay where they are, and those of a round's cohort are read for it.

        For tables larger than memory: a dict of memory-mapped arrays, a pyarrow table, a data set of Hugging Face's. A client's
        rows must lie together. `sizes` says how many each has, where no column tells whose a row is.
        """
        if self.person is not None:
            raise UsageError("Whose each row is cannot be looked up on disk: leave the person out, or read the table (clients).")
        rows = length_of(frame)
        held = torch.as_tensor(sizes_of(frame, self.client) if sizes is None else np.asarray(sizes).astype(np.int64))
        if int(held.sum()) != rows or bool((held < 0).any()):
            raise UsageError(f"The sizes of {len(held):,} clients add up to {int(held.sum()):,}, and the table has {rows:,} rows.")
        if self.features is None and not self._inputs_of_first:
            self._inputs(rows_of(frame, [name for name in column_names(frame) if name != self.client], [(0, 1)]))
        wanted = [*self.inputs, self.target]
        return Stored.reading(lambda ranges: self.examples(rows_of(frame, wanted, ranges)), held)

    def owners(self, frame: Frame, known: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Tensor]:
        """The clients' names in their order, and the number of each row's; beyond the `known` ones there must be none."""
        told, owner = _names(frame, self.client, "clients")
        if not known:
            return told, owner
        number = {name: i for i, name in enumerate(known)}
        if strange := [name for name in told if name not in number]:
            raise UsageError(f"The client '{strange[0]}' of the test table has nothing to train on.")
        return known, torch.tensor([number[name] for name in told])[owner]

    def persons(self, frame: Frame) -> Tensor | None:
        """Whose each row is: a number that is made of the person's name alone, so that it is the same at every client."""
        if self.person is None:
            return None
        names, places = _names(frame, self.person, "persons")
        marks = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
        return torch.from_numpy(np.frombuffer(b"".join(marks), dtype="<i8").astype(np.int64))[places]

    def examples(self, frame: Frame) -> Examples:
        """The rows of a table that belong to nobody, such as a test set; it needs no client column."""
        y, x = each_of(lambda: self._targets(_column(frame, self.target)), lambda: self._inputs(frame))
        if len(x) != len(y):
            raise UsageError(f"The columns of the table differ in length: {len(x)} inputs and {len(y)} targets.")
        return Examples(x, y)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that are read: those that were named, or all others of the first table."""
        return tuple(self.features if self.features is not None else self._inputs_of_first)

    def width(self, frame: Frame) -> int:
        """How many inputs a model gets from each row of the clients' table."""
        if on_disk(frame):
            frame = rows_of(frame, column_names(frame), [(0, min(1, length_of(frame)))])
        _column(frame, self.client)
        return self._inputs(frame).shape[1:].numel()

    def _inputs(self, frame: Frame) -> Tensor:
        known = column_names(frame)
        own = [name for name in known if name not in (self.client, self.target, self.person)]
        if self.features is None and not self._inputs_of_first:
            if nameless := [name for name in own if name.startswith("Unnamed: ") or not name.strip()]:
                raise UsageError(
                    f"The table has a column without a name ('{nameless[0]}'), perhaps an index that was saved with it: drop it."
                )
            self._inputs_of_first.extend(own)
        names = list(self._inputs_of_first if self.features is None else self.features)
        for name in self.categories:
            pick(dict.fromkeys(known), name, "column")
        if len(set(names)) < len(names):
            raise UsageError("The same column is an input twice.")
        for name in names:
            pick(dict.fromkeys(known), name, "column")
            if name in (kinds := {self.client: "client", self.target: "target", self.person: "person"}):
                raise UsageError(f"The column '{name}' cannot be an input: it is the {kinds[name]}.")
        if not names:
            raise UsageError("The table has no column besides client and target to learn from.")
        columns = each_of(*(partial(lambda name: self._input(name, _column(frame, name)), name) for name in names))
        if len(columns) == 1:  # images keep their axes, and tokens stay whole numbers
            return torch.from_numpy(columns[0])
        if len({len(column) for column in columns}) > 1:
            raise UsageError(f"The columns of the table differ in length: {sorted({len(column) for column in columns})} rows.")
        if any(column.ndim > 2 for column in columns):
            raise UsageError("A column of arrays must be the only input: name it with features=[...].")
        return torch.from_numpy(np.concatenate([column.astype(np.float32) for column in columns], axis=1))

    def _input(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """`[rows, ...]`: numbers as they are, a category as zeros and a one."""
        _refuse_missing(values, name)
        if not len(values):
            return np.zeros((0, len(self.categories.get(name, [0]))), dtype=np.float32)
        if name in self.categories:
            return np.eye(len(self.categories[name]), dtype=np.float32)[self._codes(name, values)]
        if values.dtype.kind not in "biuf":
            _refuse_odd_cell(values, name)
            raise UsageError(
                f"The column '{name}' holds {_kind(values)}: give its categories (categories={{'{name}': [...]}}), which must be "
                "public knowledge and not be taken from the clients' rows."
            )
        if values.ndim > 1 and values.dtype.kind in "iu":
            return np.ascontiguousarray(values)
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        if not np.isfinite(numbers).all():
            row = int(np.argmin(np.isfinite(numbers).reshape(len(numbers), -1).all(1)))
            raise UsageError(f"The column '{name}' holds {values.tolist()[row]!r} in row {row}, which is too large for a model.")
        return np.ascontiguousarray(numbers.reshape(len(values), *(values.shape[1:] or (1,))))

    def _targets(self, values: NDArray[Any]) -> Tensor:
        _refuse_missing(values, self.target)
        if self.target in self.categories:
            return torch.from_numpy(self._codes(self.target, values))
        if values.dtype.kind not in "biuf":
            raise UsageError(
                f"The target '{self.target}' holds {_kind(values)}: give its categories, in the order of their numbers."
            )
        return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))

    def _codes(self, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
        number = {value: i for i, value in enumerate(self.categories[name])}
        codes = np.array([number.get(value, -1) for value in values.tolist()], dtype=np.int64)
        if len(codes) and codes.min() < 0:
            row = int(np.argmin(codes))
            raise UsageError(f"The column '{name}' holds {values.tolist()[row]!r} in row {row}, which is not among its categories.")
        return codes


def each_of(*parts: Callable[[], Any]) -> list[Any]:
    """All of them, and only then what was wrong with the first that fails: how long a table takes tells of no column."""
    made, wrong = [], []
    for part in parts:
        try:
            made.append(part())
        except Exception as error:
            wrong.append(error)
    if wrong:
        raise wrong[0]
    return made


def column_names(frame: Frame) -> list[str]:
    """What a table's columns are called."""
    if type(frame).__name__ == "LazyFrame":
        raise UsageError("A lazy frame holds no rows yet: call its collect() first.")
    if isinstance(frame, Mapping):
        return [str(name) for name in frame]
    for attribute in ("column_names", "columns"):
        if hasattr(frame, attribute):
            return [str(name) for name in getattr(frame, attribute)]
    raise UsageError(
        f"A table is a data frame (pandas, polars, pyarrow, datasets) or a dict of columns, not {type(frame).__name__}."
    )


def _names(frame: Frame, column: str, whose: str) -> tuple[tuple[str, ...], Tensor]:
    """The names in a column, in their order, and the number of each row's."""
    keys = _column(frame, column)
    if not len(keys):
        raise UsageError("The table has no row.")
    _refuse_missing(keys, column)
    if keys.dtype == object and len({type(key) for key in keys.tolist()}) > 1:
        raise UsageError(f"The column '{column}' holds names of several kinds, such as 1 and '1': one person might be two {whose}.")
    names, places = np.unique(keys.astype(str) if keys.dtype == object else keys, return_inverse=True)
    return tuple(str(name) for name in names), torch.from_numpy(places.astype(np.int64))


def _column(frame: Frame, name: str) -> NDArray[Any]:
    """One column as an array; a column of equal arrays as one array of more axes."""
    names = column_names(frame)
    pick(dict.fromkeys(names), name, "column")
    if names.count(name) > 1:
        raise UsageError(f"The table has {names.count(name)} columns called '{name}'.")
    try:
        values = np.asarray(frame[name])
        if values.ndim == 0:
            raise UsageError(f"The column '{name}' is one value and not a column: collect the table first.")
        if values.dtype == object and len(values) and isinstance(values[0], np.ndarray | list | tuple):
            values = np.stack([np.asarray(value) for value in values])
    except ValueError:
        raise UsageError(f"The arrays of column '{name}' differ in shape: pad or cut them first.") from None
    return values


def _refuse_odd_cell(values: NDArray[Any], name: str) -> None:
    """A column of numbers with a word in it is a slip, not a category."""
    words = [i for i, value in enumerate(values.reshape(-1).tolist()) if isinstance(value, str) and not _is_number(value)]
    if values.ndim == 1 and 0 < len(words) <= len(values) // 10:
        row = words[0]
        raise UsageError(f"The column '{name}' holds numbers, but {values.tolist()[row]!r} in row {row}: mend it, or drop the row.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_missing(values: NDArray[Any], name: str) -> None:
    if values.dtype.kind not in "fOMm" or not len(values):
        return
    plain = values.dtype.kind != "O"  # of dates, too, numpy knows which are none
    each = np.isnan(values) if plain else np.array([_is_missing(v) for v in values.reshape(-1).tolist()])
    missing = each.reshape(len(values), -1).any(1)
    if missing.any():
        rows = f"{int(missing.sum())} rows, first in row {int(missing.argmax())}"
        raise UsageError(f"The column '{name}' has no value in {rows}: fill them, or drop those rows.")


def _is_missing(value: Any) -> bool:
    """None, NaN, or what pandas puts in their place."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NAType", "NaTType")


def _kind(values: NDArray[Any]) -> str:
    return "dates" if values.dtype.kind in "Mm" else "text" if values.dtype.kind in "USO" else str(values.dtype)
