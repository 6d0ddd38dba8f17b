"""Columns that stay on disk: .npy files, safetensors, Arrow. Some rows are read where they are asked for, and nothing is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.errors import DataError, UsageError

Ranges = Sequence[tuple[int, int]]
"""Rows: from the first of each pair on, before the second."""
Frame = Any

SIZES = "sizes"
"""The column of a folder that says how many rows each client has, client after client."""
_KINDS = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
"""Types of safetensors that numpy knows."""
_AT_ONCE = 1 << 22
"""Clients' names that are looked at together."""


@dataclass(frozen=True)
class Column:
    """An array in a file. It is read and not mapped, so that what a run holds in memory is what it asked for."""

    path: Path
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.rows([(0, len(self))]).astype(dtype or self.dtype.newbyteorder("="), copy=False)

    def rows(self, ranges: Ranges) -> NDArray[Any]:
        """These rows, one after another."""
        made = np.empty((sum(b - a for a, b in ranges), *self.shape[1:]), self.dtype)
        width = prod(self.shape[1:]) * self.dtype.itemsize
        room, filled = made.reshape(-1).view(np.uint8).data, 0
        try:
            with self.path.open("rb", buffering=0) as file:
                if hasattr(os, "posix_fadvise"):  # the disk may fetch all of them at once
                    for a, b in ranges:
                        os.posix_fadvise(file.fileno(), self.start + a * width, (b - a) * width, os.POSIX_FADV_WILLNEED)
                for a, b in ranges:
                    file.seek(self.start + a * width)
                    end = filled + (b - a) * width
                    while filled < end:  # a call reads 2 GiB at most
                        if not (got := file.readinto(room[filled:end])):
                            raise DataError(f"{self.path} ends early: it is damaged, or still being written.")
                        filled += got
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}.") from None
        return made.astype(self.dtype.newbyteorder("="), copy=False)


def npy(path: Path) -> Column:
    """The array of a .npy file."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_column, dtype = read(file)
            start = file.tell()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as .npy: {error}.") from None
    if dtype.hasobject or dtype.fields or not shape or (by_column and len(shape) > 1):
        raise DataError(f"{path} must hold an array of numbers, row after row (np.ascontiguousarray), not {dtype} of {shape}.")
    return Column(path, start, shape, dtype)


def safetensors(path: Path) -> dict[str, Column]:
    """The arrays of a .safetensors file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            told = json.loads(file.read(min(length, 10**8)))
        held = {name: one for name, one in told.items() if name != "__metadata__"}
        return {
            name: Column(path, 8 + length + one["data_offsets"][0], tuple(one["shape"]), np.dtype(_KINDS[one["dtype"]]))
            for name, one in held.items()
        }
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}.") from None


def arrow(paths: Sequence[Path]) -> Frame:
    """The table of Arrow files, mapped into memory: files or streams, such as `datasets` writes."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError("Arrow files need pyarrow: pip install 'hush-fl[tables]'.") from None
    tables = []
    for path in paths:
        try:
            source = pyarrow.memory_map(str(path))
            try:
                tables.append(pyarrow.ipc.open_file(source).read_all())
            except pyarrow.ArrowInvalid:
                source.seek(0)
                tables.append(pyarrow.ipc.open_stream(source).read_all())
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} cannot be read as Arrow: {str(error).splitlines()[0][:160]}.") from None
    return pyarrow.concat_tables(tables)


def folder(path: Path) -> Frame | None:
    """A folder of .npy files, each a column by its name, or of Arrow files, one below the other; None where it holds neither."""
    if files := sorted(path.glob("*.npy")):
        return {file.stem: npy(file) for file in files}
    files = sorted(path.glob("*.arrow"))
    return arrow(files) if files else None


def length_of(frame: Frame) -> int:
    """How many rows a table has."""
    return len(next(iter(frame.values()))) if isinstance(frame, Mapping) else len(frame)


def on_disk(frame: Frame) -> bool:
    """Whether a table is one whose rows are read where they are asked for."""
    mapped = isinstance(frame, Mapping) and any(isinstance(column, Column | np.memmap) for column in frame.values())
    return mapped or hasattr(frame, "with_format") or type(frame).__module__.startswith("pyarrow")


def rows_of(frame: Frame, names: Sequence[str], ranges: Ranges) -> dict[str, Any]:
    """Some rows of a table, and of these columns alone."""
    if isinstance(frame, Mapping):
        return {name: _rows_of_array(frame[name], ranges) for name in names}
    if hasattr(frame, "with_format"):  # a data set of Hugging Face's
        return {name: _of_hugging_face(frame, name, ranges) for name in names}
    if type(frame).__module__.startswith("pyarrow"):
        return {name: _plain(_slices(frame, name, ranges), name) for name in names}
    raise UsageError(
        "Rows stay on disk in a dict of arrays (np.load(..., mmap_mode='r')), a pyarrow table or a data set of Hugging Face's, "
        f"not in {type(frame).__name__}: a data frame is in memory already (columns.clients)."
    )


def _rows_of_array(column: Any, ranges: Ranges) -> NDArray[Any]:
    if isinstance(column, Column):
        return column.rows(ranges)
    return np.concatenate([np.asarray(column[a:b]) for a, b in ranges])


def _slices(table: Any, name: str, ranges: Ranges) -> Any:
    """Some rows of a column of Arrow's."""
    import pyarrow

    column = table.select([name])
    return pyarrow.concat_tables([column.slice(a, b - a) for a, b in ranges])[name].combine_chunks()


def _of_hugging_face(frame: Frame, name: str, ranges: Ranges) -> NDArray[Any]:
    """As it lies in its Arrow files, or, where its rows were put in another order, row by row; pictures' files are decoded."""
    from pyarrow import types

    index = np.concatenate([np.arange(a, b) for a, b in ranges])
    if getattr(frame, "_indices", None) is None:
        column = _slices(frame.data.table, name, ranges)
    else:
        column = frame.with_format("arrow", columns=[name])[index][name].combine_chunks()
    if types.is_struct(column.type):
        return np.require(frame.with_format("numpy", columns=[name])[index][name], requirements="W")
    return _plain(column, name)


def _plain(array: Any, name: str) -> NDArray[Any]:
    """An Arrow column as one array: lists of equal lengths become axes."""
    import pyarrow
    from pyarrow import compute, types

    array, shape = getattr(array, "storage", array), [len(array)]
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        if array.null_count:
            raise UsageError(f"The column '{name}' has no value in {array.null_count} rows: fill them, or drop those rows.")
        lengths = compute.unique(compute.list_value_length(array)).to_pylist()
        if len(lengths) > 1:
            raise UsageError(f"The arrays of column '{name}' differ in shape: pad or cut them first.")
        shape.append(lengths[0] if lengths else 0)
        array = array.flatten()
        array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
    values = array.to_numpy(zero_copy_only=False).reshape(shape)
    return np.require(values, requirements="W")  # a copy, where it is the file itself


def sizes_of(frame: Frame, client: str) -> NDArray[np.int64]:
    """How many rows each client has, where a column says whose each row is and a client's rows lie together."""
    names, counts = list[NDArray[Any]](), list[NDArray[np.int64]]()
    for values in _in_parts(frame, client):
        begins = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
        names.append(values[begins])
        counts.append(np.diff(begins, append=len(values)))
        if len(names) > 1 and names[-2][-1] == values[0]:  # who goes on from the part before
            counts[-1][0] += counts[-2][-1]
            names[-2], counts[-2] = names[-2][:-1], counts[-2][:-1]
    if not names:
        raise UsageError("The table has no row.")
    every = np.concatenate(names)
    known, often = np.unique(every.astype(str) if every.dtype == object else every, return_counts=True)
    if len(known) < len(every):
        raise UsageError(
            f"The rows of client {known[often.argmax()]!s} lie in {often.max()} places: on disk a client's rows must lie together, "
            f"so sort the table by '{client}'."
        )
    return np.concatenate(counts).astype(np.int64)


def _in_parts(frame: Frame, name: str) -> Iterator[NDArray[Any]]:
    bounds = [*range(0, length_of(frame), _AT_ONCE), length_of(frame)]
    for a, b in pairwise(bounds):
        yield np.asarray(rows_of(frame, [name], [(a, b)])[name])
