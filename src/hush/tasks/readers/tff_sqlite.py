"""FEMNIST by writer and Shakespeare by role, as TensorFlow Federated (TFF) gives them today: SQLite, compressed with LZMA.

    examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB), a row for each example

The file's other table, client_metadata, only counts these rows by client: they are counted here.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from hush.errors import DataError, UsageError
from hush.tasks.raw import Raw
from hush.tasks.readers.archive import BLOCK
from hush.tasks.readers.damaged import damaged, reading
from hush.tasks.readers.tf_example import Feature, parse_example
from hush.tasks.readers.tff import Part, Sizes, by_client, chunks, images

if TYPE_CHECKING:
    import sqlite3

FEMNIST_SQLITE = "emnist_all.sqlite.lzma"
SHAKESPEARE_SQLITE = "shakespeare.sqlite.lzma"

_Image = tuple[NDArray[np.float32], NDArray[np.int64]]
_T = TypeVar("_T")


def read_femnist_sqlite(paths: Mapping[str, Path]) -> Raw:
    """What `read_femnist` gives, from the other file. Until it is read, it takes 4.7 GB of the folder for temporary files.

    The digits are there a second time, as a data set of their own: that one is left out.
    """
    return _read(paths[FEMNIST_SQLITE], ("all_train", "all_test"), _images)


def read_tff_shakespeare_sqlite(paths: Mapping[str, Path]) -> Raw:
    """What `read_tff_shakespeare` gives, from the other file."""
    return _read(paths[SHAKESPEARE_SQLITE], ("train", "test"), _chunks)


def _read(path: Path, splits: tuple[str, str], convert: Callable[[_Split], Part]) -> Raw:
    with _database(path) as database:
        train, test = (_Split(database, split, f"{split} of {path}") for split in splits)
        return by_client(convert(train), convert(test), test.name)


@dataclass(frozen=True)
class _Split:
    """The rows of one part of the data."""

    database: sqlite3.Connection
    split: str
    name: str
    """For people."""

    def sizes(self) -> Sizes:
        """Clients in the order of their names."""
        query = "SELECT client_id, COUNT(*) FROM examples WHERE split_name = ? GROUP BY client_id"
        sizes: Sizes = dict(self.database.execute(query, (self.split,)))
        if not sizes or not all(isinstance(client, str) for client in sizes):
            raise damaged(f"{self.name} does not hold examples by the names of clients")
        return dict(sorted(sizes.items()))

    def runs(self, sizes: Sizes, convert: Callable[[Mapping[str, Feature]], _T]) -> Iterator[tuple[str, list[_T]]]:
        """Examples that follow each other and are of one client. Each client's keep their order, as in TFF.

        By an index, the same would come client by client, but from anywhere in a file that may exceed the memory.
        """
        query = "SELECT client_id, serialized_example_proto FROM examples NOT INDEXED WHERE split_name = ? ORDER BY rowid"
        left = dict(sizes)
        for client, rows in groupby(self.database.execute(query, (self.split,)), itemgetter(0)):
            try:
                run = [convert(parse_example(message)) for _, message in rows]
            except (ValueError, TypeError) as error:  # TypeError: what should be a message is text, a number or nothing
                raise damaged(f"{self.name} has an example of client {client} that cannot be read ({error})") from error
            left[client] = left.get(client, 0) - len(run)
            if left[client] < 0:
                break
            yield client, run
        if any(left.values()):  # the sizes came from an index
            raise damaged(f"{self.name} does not hold the examples that its index lists")


def _images(split: _Split) -> Part:
    sizes = split.sizes()
    return images(split.name, sizes, (_stacked(client, run) for client, run in split.runs(sizes, _image)))


def _image(features: Mapping[str, Feature]) -> _Image:
    match features.get("pixels"), features.get("label"):
        case np.ndarray(dtype=np.float32, shape=(784,)) as pixels, np.ndarray(dtype=np.int64, shape=(1,)) as label:
            return pixels, label
    raise ValueError("it is not 784 floats called pixels and one whole number called label")


def _stacked(client: str, run: list[_Image]) -> tuple[str, NDArray[np.float32], NDArray[np.int64]]:
    pixels, labels = zip(*run, strict=True)
    return client, np.stack(pixels).reshape(-1, 28, 28), np.concatenate(labels)


def _chunks(split: _Split) -> Part:
    sizes = split.sizes()
    said: dict[str, list[bytes]] = {client: [] for client in sizes}
    for client, snippets in split.runs(sizes, _snippet):
        said[client] += snippets
    return chunks(split.name, said)


def _snippet(features: Mapping[str, Feature]) -> bytes:
    match features.get("snippets"):
        case [bytes(snippet)]:
            return snippet
    raise ValueError("it is not one text called snippets")


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    """The database, decompressed for as long as it is read: SQLite wants to move about in a file."""
    try:
        import sqlite3
    except ImportError as error:
        raise UsageError(f"{path.name} needs a Python with SQLite, and this one has none ({error}).") from None
    with tempfile.TemporaryDirectory(prefix="hush-") as folder:
        plain = Path(folder) / "database"
        _decompress(path, plain)
        # immutable: nobody else knows the file, so nothing is locked and no journal is looked for
        with reading(path, sqlite3.Error), closing(sqlite3.connect(f"{plain.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            yield database


def _decompress(path: Path, plain: Path) -> None:
    try:
        import lzma
    except ImportError as error:
        raise UsageError(f"{path.name} needs a Python with LZMA, and this one has none ({error}).") from None
    try:
        with lzma.open(path) as packed, plain.open("wb") as out:
            shutil.copyfileobj(packed, out, BLOCK)
    except (OSError, EOFError, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"{plain.parent.parent} has no room to decompress {path.name}: make some, or let TMPDIR name another folder."
            ) from error
        raise damaged(f"{path} cannot be read ({error})") from error
