"""TensorFlow Federated's SQLite files, from small ones of the true format: the same data as from HDF5."""

from __future__ import annotations

import errno
import lzma
import shutil
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush import DataError, UsageError
from hush.tasks.raw import Raw
from hush.tasks.readers.tf_example import parse_example
from hush.tasks.readers.tff import FEMNIST, SHAKESPEARE, read_femnist, read_tff_shakespeare
from hush.tasks.readers.tff_sqlite import FEMNIST_SQLITE, SHAKESPEARE_SQLITE, read_femnist_sqlite, read_tff_shakespeare_sqlite

Row = tuple[Any, Any, Any]
"""Split, client, message."""


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary files, 100% #1"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def floats(values: Any, *, packed: bool = True) -> bytes:
    each = [struct.pack("<f", value) for value in np.asarray(values).reshape(-1)]
    return field(2, field(1, b"".join(each)) if packed else b"".join(b"\x0d" + one for one in each))


def integers(*values: int, packed: bool = True) -> bytes:
    each = [varint(value % (1 << 64)) for value in values]
    return field(3, field(1, b"".join(each)) if packed else b"".join(b"\x08" + one for one in each))


def texts(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def example(**features: bytes) -> bytes:
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in features.items()))


def image(level: int, target: int, **changes: bytes) -> bytes:
    return example(**({"label": integers(target), "pixels": floats(np.full(784, level / 255))} | changes))


def schema(db: sqlite3.Connection, table: str = "examples") -> None:
    """TFF's, less the types that would keep out what is wrong on purpose."""
    db.execute(f"CREATE TABLE {table} (split_name TEXT NOT NULL, client_id, serialized_example_proto)")
    db.execute("CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)")
    db.execute(f"CREATE INDEX idx_examples_client_id ON {table} (client_id)")
    db.execute(f"CREATE INDEX idx_examples_client_id_split ON {table} (split_name, client_id)")


def packed(path: Path, rows: list[Row], *, table: str = "examples", form: int = lzma.FORMAT_XZ) -> dict[str, Path]:
    plain = path.with_suffix(".plain")
    with closing(sqlite3.connect(plain)) as db, db:
        schema(db, table)
        db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
    path.write_bytes(lzma.compress(plain.read_bytes(), format=form, preset=0))
    plain.unlink()
    return {path.name: path}


ROWS = [  # the parts are mixed, and so are the clients: nothing may depend on the order, but that within a client
    ("all_test", "f0003_07", image(0, 0)),
    ("all_train", "f0002_01", image(10, 10)),
    ("all_train", "f0002_01", image(11, 11)),
    ("digits_only_train", "f0002_01", image(1, 1)),
    ("all_train", "f0003_07", image(250, 2)),
    ("all_train", "f0001_41", image(60, 60)),
    ("all_test", "f0001_41", image(61, 61)),
    ("all_train", "f0002_01", image(12, 12)),
    ("digits_only_test", "f0009_99", image(1, 1)),
    ("all_test", "f0003_07", image(1, 1)),
    ("all_train", "f0001_41", image(61, 61)),
]


def femnist(folder: Path, rows: list[Row] | None = None, **how: Any) -> dict[str, Path]:
    return packed(folder / FEMNIST_SQLITE, ROWS if rows is None else rows, **how)


def equal(ours: Raw, theirs: Raw) -> bool:
    pairs = [
        (ours.train.x, theirs.train.x),
        (ours.train.y, theirs.train.y),
        (ours.test.x, theirs.test.x),
        (ours.test.y, theirs.test.y),
        (ours.owner, theirs.owner),
        (ours.test_owner, theirs.test_owner),
    ]
    return ours.names == theirs.names and all(
        a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b) and a.is_contiguous() for a, b in pairs
    )


def test_femnist_by_writer(tmp_path: Path) -> None:
    raw = read_femnist_sqlite(femnist(tmp_path))
    assert raw.names == ("f0001_41", "f0002_01", "f0003_07")
    assert raw.owner is not None
    assert raw.test_owner is not None
    assert raw.owner.tolist() == [0, 0, 1, 1, 1, 2]
    assert raw.test_owner.tolist() == [0, 2, 2]  # the second writer has no test example
    assert raw.train.y.tolist() == [60, 61, 10, 11, 12, 2]
    assert raw.test.y.tolist() == [61, 0, 1]
    assert raw.train.x.shape == (6, 1, 28, 28)
    assert (raw.train.x.dtype, raw.train.y.dtype, raw.owner.dtype) == (torch.uint8, torch.int64, torch.int64)
    assert raw.train.x[:, 0, 5, 2].tolist() == [60, 61, 10, 11, 12, 250]
    assert equal(read_femnist_sqlite(femnist(tmp_path, form=lzma.FORMAT_ALONE)), raw)  # what .lzma stood for once


def test_femnist_is_that_of_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from tests.tasks.test_readers_tff import archive, h5

    rng = np.random.default_rng(0)
    parts: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for client, counts in {"f2_1": (4, 1), "f0_7": (1, 0), "f1_3": (3, 3), "F9_0": (2, 1), "é": (1, 1)}.items():
        for part, count in zip(parts, counts, strict=True):
            if count:
                pixels = rng.random((count, 28, 28), dtype=np.float32)
                pixels[0, 0, :2] = 0, 1
                parts[part][client] = {"pixels": pixels, "label": rng.integers(62, size=count, dtype=np.int32)}
    members = {f"fed_emnist_{part}.h5": h5(clients) for part, clients in parts.items()}
    rows = [
        (f"all_{part}", client, example(pixels=floats(pixels, packed=i % 2 == 0), label=integers(label, packed=i % 3 == 0)))
        for part, clients in parts.items()
        for client, held in clients.items()
        for i, (pixels, label) in enumerate(zip(held["pixels"], held["label"].tolist(), strict=True))
    ]
    assert equal(read_femnist_sqlite(femnist(tmp_path, rows)), read_femnist(archive(tmp_path / FEMNIST, members)))


def test_shakespeare_is_that_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from tests.tasks.test_readers_tff import archive, h5

    parts = {
        "train": {"LEAR": [b"abc", b"a" * 79], "HAMLET": [b"a" * 80, b"", b"~\xc3\r\n"], "OTHELLO": [b"b"]},
        "test": {"LEAR": [b"cab"], "HAMLET": [b"to be, or"]},
    }
    text = h5py.special_dtype(vlen=bytes)
    members = {
        f"shakespeare_{part}.h5": h5({role: {"snippets": np.array(said, dtype=text)} for role, said in roles.items()})
        for part, roles in parts.items()
    }
    rows = [(part, role, example(snippets=texts(s))) for part, roles in parts.items() for role, said in roles.items() for s in said]
    mixed = [rows[i] for i in (0, 2, 5, 3, 1, 7, 4, 6)]  # each role's own snippets in their order
    expected = read_tff_shakespeare(archive(tmp_path / SHAKESPEARE, members))
    assert expected.names == ("HAMLET", "LEAR", "OTHELLO")
    for order in (rows, mixed):
        assert equal(read_tff_shakespeare_sqlite(packed(tmp_path / SHAKESPEARE_SQLITE, order)), expected)


def one(message: Any, split: str = "all_train", client: Any = "a") -> list[Row]:
    """Data that would be right but for one row."""
    return [("all_train", "a", image(1, 1)), ("all_test", "a", image(1, 1)), (split, client, message)]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (image(1, 62), "a label that is not one of 0 to 61 for client a"),
        (image(1, -1), "a label that is not one of 0 to 61 for client a"),
        (image(1, 1 << 62), "a label that is not one of 0 to 61 for client a"),
        (image(1, 1, label=integers(1, 2)), "one whole number called label"),
        (image(1, 1, label=floats([1])), "one whole number called label"),
        (example(pixels=floats(np.zeros(784))), "one whole number called label"),
        (example(label=integers(1)), "784 floats called pixels"),
        (image(1, 1, pixels=floats(np.zeros(783))), "784 floats called pixels"),
        (image(1, 1, pixels=floats(np.zeros(785), packed=False)), "784 floats called pixels"),
        (image(1, 1, pixels=integers(*[0] * 784)), "784 floats called pixels"),
        (image(1, 1, pixels=texts(b"a")), "784 floats called pixels"),
        (image(1, 1, pixels=floats([1.5] * 784)), "pixels from 0 to 1 for client a"),
        (image(1, 1, pixels=floats([np.nan] * 784)), "pixels from 0 to 1 for client a"),
        (image(1, 1)[:-1], "a field breaks off"),
        (image(1, 1) + b"\x0a", "a number breaks off"),
        (b"", "784 floats called pixels"),
        ("text", "cannot be read"),
        (7, "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_wrong_examples(message: Any, said: str, tmp_path: Path) -> None:
    for split in ("all_train", "all_test"):
        with pytest.raises(DataError, match=rf"^{split} of .*{said}.*: fetch it again\.$"):
            read_femnist_sqlite(femnist(tmp_path, one(message, split)))


def test_wrong_clients(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^all_test of .* holds the client b, who has nothing to train on: fetch it again\.$"):
        read_femnist_sqlite(femnist(tmp_path, one(image(1, 1), "all_test", "b")))
    for client in (None, 7, b"b"):
        with pytest.raises(DataError, match=r"does not hold examples by the names of clients: fetch it again\.$"):
            read_femnist_sqlite(femnist(tmp_path, one(image(1, 1), client=client)))
    with pytest.raises(DataError, match=r"^all_test of .* does not hold examples by the names of clients"):
        read_femnist_sqlite(femnist(tmp_path, [("all_train", "a", image(1, 1))]))


def test_wrong_text(tmp_path: Path) -> None:
    for message in (example(snippets=texts(b"a", b"b")), example(snippets=integers(1)), example(snippet=texts(b"a"))):
        rows = [("train", "LEAR", example(snippets=texts(b"a"))), ("test", "LEAR", message)]
        with pytest.raises(DataError, match=r"^test of .* client LEAR .*one text called snippets\): fetch it again\.$"):
            read_tff_shakespeare_sqlite(packed(tmp_path / SHAKESPEARE_SQLITE, rows))


def test_damaged_files(tmp_path: Path) -> None:
    path = femnist(tmp_path)[FEMNIST_SQLITE]
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:middle],
        whole[:-1],
        b"",
        b"no archive",
        whole[:middle] + bytes([whole[middle] ^ 0x55]) + whole[middle + 1 :],
        lzma.compress(b"no database, but as long as its header is" * 9),
        lzma.compress(lzma.decompress(whole)[:-4096]),
        lzma.compress(b""),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"emnist_all\.sqlite\.lzma cannot be read \(.*: fetch it again\.$"):
            read_femnist_sqlite({FEMNIST_SQLITE: path})
    with pytest.raises(DataError, match=r"cannot be read \(no such table: examples\): fetch it again\.$"):
        read_femnist_sqlite(femnist(tmp_path, table="other"))
    path.unlink()
    with pytest.raises(DataError, match=r"cannot be read \(.*No such file"):
        read_femnist_sqlite({FEMNIST_SQLITE: path})


@pytest.mark.parametrize("change", ["DELETE FROM examples WHERE rowid = 2", "INSERT INTO examples VALUES ('all_train', 'b', x'')"])
def test_an_index_that_lies_is_noticed(change: str, tmp_path: Path) -> None:
    """Behind its back, so to speak: the index is taken out of the schema while the table changes."""
    path = femnist(tmp_path)[FEMNIST_SQLITE]
    plain = tmp_path / "plain"
    plain.write_bytes(lzma.decompress(path.read_bytes()))
    with closing(sqlite3.connect(plain)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        indexes = db.execute("SELECT * FROM sqlite_master WHERE type = 'index'").fetchall()
        db.execute("DELETE FROM sqlite_master WHERE type = 'index'")
    with closing(sqlite3.connect(plain)) as db, db:
        db.execute(change.replace("x''", f"x'{image(1, 1).hex()}'"))
        db.execute("PRAGMA writable_schema = ON")
        db.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", indexes)
    path.write_bytes(lzma.compress(plain.read_bytes()))
    with pytest.raises(DataError, match=r"^all_train of .* does not hold the examples that its index lists: fetch it again\.$"):
        read_femnist_sqlite({FEMNIST_SQLITE: path})


def test_no_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = femnist(tmp_path)
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(DataError, match=r"has no room to decompress emnist_all\.sqlite\.lzma: .* TMPDIR"):
        read_femnist_sqlite(paths)


@pytest.mark.parametrize("module", ["lzma", "sqlite3"])
def test_a_python_without_the_modules(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = femnist(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"^emnist_all\.sqlite\.lzma needs a Python with .*{module}"):
        read_femnist_sqlite(paths)


def test_examples_of_every_kind() -> None:
    whole = [0, 1, 127, 128, -1, (1 << 63) - 1, -(1 << 63)]
    for together in (True, False):
        found = parse_example(
            example(a=texts(b"", b"\xff"), b=floats([0.5, -2], packed=together), c=integers(*whole, packed=together), d=texts())
        )
        assert found["a"] == [b"", b"\xff"]
        assert found["d"] == []
        numbers = [np.asarray(found[name]) for name in "bc"]
        assert [each.dtype for each in numbers] == [np.float32, np.int64]
        assert [each.tolist() for each in numbers] == [[0.5, -2], whole]
    assert len(parse_example(example(a=floats([]), b=integers()))["a"]) == 0
    unknown = b"\x10\x96\x01" + b"\x19" + bytes(8) + field(4, b"abc") + b"\x2d" + bytes(4)  # fields 2 to 5, of every kind
    assert parse_example(unknown + example(a=texts(b"b")) + unknown) == {"a": [b"b"]}
    assert parse_example(b"") == {}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"\x0a", "a number breaks off"),
        (b"\x0a\x02\x0a", "a field breaks off"),
        (b"\x0d\x00\x00", "a field breaks off"),
        (b"\x0a" + b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        (b"\x80" * 11, "more than 64 bits"),
        (b"\x0b", "a type that does not exist"),  # a group, which protobuf gave up
        (b"\x02\x00", "a number that does not exist"),
        (varint(1 << 32) + b"\x00", "a number that does not exist"),
        (b"\x08\x01", "a type that is not its own"),
        (field(1, field(1, field(2, texts()))), "not a name and a value"),
        (field(1, field(1, field(1, b"a"))), "not a name and a value"),
        (field(1, field(1, field(1, b"a") + b"\x10\x01" + field(2, texts()))), "not a name and a value"),
        (field(1, field(1, field(1, b"\xff") + field(2, texts()))), "utf-8"),
        (example(a=b""), "not one list"),
        (example(a=floats([1]) + integers(1)), "not one list"),
        (example(a=field(4, b"")), "not one list"),
        (example(a=b"\x10\x01"), "not one list"),
        (example(a=field(1, b"\x08\x01")), "a type that is not its own"),
        (example(a=field(2, field(1, bytes(5)))), "multiple"),
        (example(a=field(3, field(1, b"\x80"))), "a number breaks off"),
    ],
)
def test_what_is_no_example(message: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_example(message)


def test_every_cut_and_every_flip_is_answered() -> None:
    """With features, or with a ValueError; never with anything else."""
    whole = example(label=integers(7), pixels=floats([0.5, 1]), name=texts(b"abc"))
    changed = [whole[:i] for i in range(len(whole))]
    changed += [whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :] for i in range(len(whole)) for bit in range(8)]
    refused = 0
    for message in changed:
        try:
            parse_example(message)
        except ValueError:
            refused += 1
    assert refused > len(whole)  # of the cuts, all but the one that leaves nothing
