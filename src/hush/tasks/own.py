"""A data set of one's own, described in a TOML file: `hush run dp-fedavg --data visits.toml`.

train = "visits.parquet"       # .csv, .parquet, .safetensors, .arrow; a folder of them, or of .npy; or hf:NAME:SPLIT
                               # (a federation's server has none)
on_disk = true                 # optional: read for the cohort alone; the default for folders of .npy and for .arrow
test = "later.csv"             # optional; without it each client keeps a tenth of its own to validate and one to test
validation = "pilot.csv"       # optional, as is public = "...": examples of nobody who trains
client = "hospital"            # a column; without it each file of the folder is a client
person = "patient_id"          # optional, a column: whose a row is, for methods that protect records
rows_per_person = 10           # optional: how many rows of a person count at most
target = "readmitted"
classes = 2                    # leave out (or 0) where the target is a number to come close to
features = ["age", "ward"]     # optional: all other columns
model = "logistic"             # optional
mean = [0.286]                 # optional, of images in bytes: known mean and deviation of each channel, over 255
std = [0.353]

[categories]                   # what text may say, known without looking at anybody's rows
ward = ["A", "B", "C"]

[settings]                     # optional: local training, as for --set
lr = 0.1
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from hush.errors import DataError, UsageError
from hush.names import described, pick
from hush.tasks.clients import Examples
from hush.tasks.columns import Columns, Frame, column_names
from hush.tasks.dataset import DataSet
from hush.tasks.on_disk import SIZES, arrow, on_disk, safetensors
from hush.tasks.on_disk import folder as on_disk_folder
from hush.tasks.raw import Form, Raw
from hush.tasks.stored import Stored
from hush.tasks.task import PERSON_ROWS

_FILES = ".csv, .parquet, .safetensors, .arrow or .npy"
_FILE_NAME = "client (file)"
"""The column that says from which file of a folder a row came."""


class Description(BaseModel):
    """The keys of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    target: str
    train: str | None = None
    on_disk: bool | None = None
    test: str | None = None
    validation: str | None = None
    public: str | None = None
    client: str | None = None
    person: str | None = None
    rows_per_person: int = Field(default=PERSON_ROWS, ge=1)
    classes: int | None = Field(default=None, ge=0)
    features: list[str] | None = None
    categories: dict[str, list[Any]] = Field(default_factory=dict)
    model: str = "logistic"
    mean: list[float] = Field(default_factory=list)
    std: list[float] = Field(default_factory=list)
    metrics: list[str] | None = None
    title: str = "your own"
    licence: str = "your own"
    cohort: float | None = None
    rounds: int = 50
    settings: dict[str, Any] = Field(default_factory=dict)


def own_dataset(path: Path) -> DataSet:
    """The entry that a description makes."""
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    said = _description(path)
    return _entry(path.resolve(), said.model_dump_json(), _state(path.parent, said))


def _state(folder: Path, said: Description) -> tuple[tuple[str, int, int], ...]:
    """Every file with its size and when it was changed: as long as that is the same, it need not be read again."""
    places = [folder / name for name in (said.train, said.test, said.validation, said.public) if name is not None]
    files = [file for place in places for file in (sorted(place.iterdir()) if place.is_dir() else [place]) if file.is_file()]
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@lru_cache(maxsize=2)
def _entry(path: Path, text: str, state: tuple[tuple[str, int, int], ...]) -> DataSet:
    said = Description.model_validate_json(text)
    raw = _tables(said, path.parent) if said.train is not None else _of_the_server(said, path.parent)
    clients = raw.stored.count if raw.stored is not None else int(raw.owner.max()) + 1 if raw.owner is not None else 1
    return DataSet(
        name=described(str(path)),
        title=said.title,
        licence=said.licence,
        citation=said.title,
        source=said.train or "the clients of a federation",
        forms=(Form((), lambda _: raw),),
        train=len(raw.train.x) if raw.stored is None else raw.stored.total,
        test=len(raw.test.x),
        shape=tuple(raw.train.x.shape[1:]),
        classes=said.classes or 1,
        model=said.model,
        clients=clients,
        natural=clients if said.train is not None else None,
        own=True,
        partition="natural",
        evaluation="central" if said.test is not None else "clients",
        cohort=said.cohort or max(1.0, clients / 10),
        rounds=said.rounds,
        metrics=tuple(said.metrics) if said.metrics is not None else None,
        loss=None if said.classes else nn.MSELoss(),
        mean=tuple(said.mean),
        std=tuple(said.std),
        settings=said.settings,
        person=said.person,
        person_rows=said.rows_per_person,
    )


def _description(path: Path) -> Description:
    try:
        values = tomllib.loads(path.read_text())
        for key in values:
            pick(Description.model_fields, key, f"key in {path.name}")
        return Description(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where} in {path.name}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None


def _of_the_server(said: Description, folder: Path) -> Raw:
    """The examples of nobody that the server of a federation has; its clients' own are elsewhere."""
    _, held = _held(said, folder)
    like = held["test"]
    assert like is not None
    return Raw(Examples(like.x[:0], like.y[:0]), like, None, None, (), held["validation"], held["public"])


def columns_of(path: Path) -> Columns:
    """Which columns a description reads, every one by its name."""
    return _held(_description(path), path.parent)[0]


def _held(said: Description, folder: Path) -> tuple[Columns, dict[str, Examples | None]]:
    if said.test is None:
        raise UsageError("Without a train table there must be a test table, whose rows are nobody's: test = ...")
    columns, held = _columns(said), {}
    for part, name in (("test", said.test), ("validation", said.validation), ("public", said.public)):
        held[part] = None if name is None else shaped(columns.examples(table(name, folder)), said.target, said.classes, part)
    return replace(columns, features=columns.inputs), held


def _tables(said: Description, folder: Path) -> Raw:
    """Both tables, and whose each row is."""
    assert said.train is not None
    if said.client is None and not (folder / said.train).is_dir():
        raise UsageError("Say which column is the client (client = ...), or let train be a folder with one file for each client.")
    columns = _columns(said)
    train, sizes = table(said.train, folder, by_file=said.client is None), None
    if said.client is None and isinstance(train, dict) and _FILE_NAME not in train:
        if SIZES not in train:
            raise UsageError(f"Say which column is the client (client = ...), or how many rows each has, in order ({SIZES}.npy).")
        sizes = np.asarray(train.pop(SIZES))
    usual = on_disk(train) and not said.train.startswith("hf:") and not said.train.endswith(".safetensors")
    if usual if said.on_disk is None else said.on_disk:
        return _stored(said, columns, train, sizes, folder)
    if sizes is not None:
        train |= {_FILE_NAME: np.repeat(np.arange(len(sizes)), sizes)}
    names, owner = columns.owners(train)
    learned = shaped(columns.examples(train), said.target, said.classes, "train")
    test, whose = Examples(learned.x[:0], learned.y[:0]), None if said.test else owner[:0]
    persons, theirs = columns.persons(train), None if said.test or said.person is None else owner[:0]
    if said.test is not None:
        held = table(said.test, folder, by_file=said.client is None)
        whose = columns.owners(held, names)[1] if columns.client in column_names(held) else None
        test = shaped(columns.examples(held), said.target, said.classes, "test")
        theirs = columns.persons(held) if columns.person in column_names(held) else None
    frames = {part: table(name, folder) for part in ("validation", "public") if (name := getattr(said, part)) is not None}
    parts = {part: shaped(columns.examples(frame), said.target, said.classes, part) for part, frame in frames.items()}
    named = {part: columns.persons(frame) for part, frame in frames.items() if columns.person in column_names(frame)}
    others = {part: them for part, them in named.items() if them is not None}
    nobodys = (parts.get("validation"), parts.get("public"))
    return Raw(learned, test, owner, whose, names, *nobodys, persons, theirs, others)


def _stored(said: Description, columns: Columns, train: Frame, sizes: NDArray[Any] | None, folder: Path) -> Raw:
    """Clients whose rows stay on disk. What is nobody's is read."""
    if said.test is None:
        raise UsageError("Clients on disk keep no rows apart: name a test table, whose rows are nobody's (test = ...).")
    if not on_disk(train):
        raise UsageError(f"{said.train} is read whole: rows stay on disk in .npy, .safetensors and .arrow files (on_disk = true).")
    told = columns.stored(train, sizes)
    shaped(told.like, said.target, said.classes, "train")
    clients = Stored.reading(lambda ranges: shaped(told.read(ranges), said.target, said.classes or 0, "train"), told.sizes)
    frames = {part: table(name, folder) for part in ("test", "validation", "public") if (name := getattr(said, part)) is not None}
    held = {part: shaped(columns.examples(frame), said.target, said.classes, part) for part, frame in frames.items()}
    nothing = Examples(clients.x[:0], clients.y[:0])
    return Raw(nothing, held["test"], validation=held.get("validation"), public=held.get("public"), stored=clients)


def _columns(said: Description) -> Columns:
    return Columns(said.client or _FILE_NAME, said.target, said.features, said.categories, said.person)


def shaped(examples: Examples, target: str, classes: int | None, part: str) -> Examples:
    """Targets as the loss takes them: class numbers, or one number in a row of its own."""
    x, y = examples
    if classes is None and not y.is_floating_point() and len(kinds := torch.unique(y)) <= 20:
        raise UsageError(
            f"The target '{target}' holds {len(kinds)} whole numbers: say classes = {int(kinds.max()) + 1} where they are "
            "labels, or classes = 0 where they are numbers to come close to."
        )
    if not classes:
        return Examples(x, y.float().reshape(len(y), -1))
    if y.is_floating_point():
        raise UsageError(f"The target '{target}' holds fractions, and classes = {classes} are whole numbers: leave it out.")
    wrong = (y < 0) | (y >= classes)
    if bool(wrong.any()):
        row = int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0, 0])
        raise UsageError(
            f"Row {row} of the {part} table has the {target} {int(y[wrong][0])}: with classes = {classes} they go "
            f"from 0 to {classes - 1}."
        )
    return Examples(x, y)


def table(said: str, folder: Path, by_file: bool = False) -> Frame:
    """One table by name: a file, a folder of files (each row with its file's name), or a data set of Hugging Face's."""
    if said.startswith("hf:"):
        return _hugging_face(said)
    path = folder / said
    if not path.is_dir():
        return _file(path)
    if (columns := on_disk_folder(path)) is not None:
        return columns
    files = sorted(file for file in path.iterdir() if file.suffix in (".csv", ".parquet", ".safetensors"))
    if not files:
        raise DataError(f"{path} holds no {_FILES} file.")
    if len({file.stem for file in files}) < len(files):
        raise DataError(f"{path} holds two files of one name but for the ending: each file is one client.")
    return _joined({file.stem: _file(file) for file in files}, path, by_file)


def _joined(tables: dict[str, Frame], path: Path, by_file: bool) -> Frame:
    """Several tables of the same columns, one below the other."""
    tables = {stem: table for stem, table in tables.items() if len(np.asarray(table[column_names(table)[0]]))} or tables
    names = [list(column_names(table)) for table in tables.values()]
    for other, stem in zip(names, tables, strict=True):
        if other != names[0]:
            raise DataError(f"{path / stem} has the columns {', '.join(other)}, where others have {', '.join(names[0])}.")
    joined = {name: np.concatenate([np.asarray(table[name]) for table in tables.values()]) for name in names[0]}
    lengths = [len(np.asarray(table[names[0][0]])) for table in tables.values()]
    return joined | ({_FILE_NAME: np.repeat(list(tables), lengths)} if by_file else {})


def _file(path: Path) -> Frame:
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    if path.suffix == ".safetensors":
        return safetensors(path)
    if path.suffix == ".arrow":
        return arrow([path])
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{path.name} is not a table that Hush reads: {_FILES}.")
    try:
        import pandas
    except ImportError:
        raise UsageError("Tables need pandas: pip install 'hush-fl[tables]'.") from None
    try:
        return pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path)
    except Exception as error:  # pandas and pyarrow refuse in many ways
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {str(error).strip().splitlines()[0][:160]}") from None


def _hugging_face(said: str) -> Frame:
    """`hf:NAME:SPLIT`: a data set of the hub, or of a local folder."""
    name, _, split = said.removeprefix("hf:").partition(":")
    try:
        import datasets
    except ImportError:
        raise UsageError("Data sets of Hugging Face need their library: pip install 'hush-fl[datasets]'.") from None
    try:
        return datasets.load_dataset(name, split=split or "train").with_format("numpy")
    except Exception as error:
        raise DataError(f"{said} cannot be loaded: {str(error).strip().splitlines()[0][:160]}") from None
