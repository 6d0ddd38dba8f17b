"""TensorFlow Federated's FEMNIST and Shakespeare, from small HDF5 files of the true format."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush import DataError, UsageError
from hush.tasks.readers.tff import (
    ALPHABET,
    BEGIN,
    END,
    FEMNIST,
    PAD,
    SHAKESPEARE,
    TOKENS,
    UNKNOWN,
    read_femnist,
    read_tff_shakespeare,
    tokens,
)

h5py = pytest.importorskip("h5py")

Clients = dict[str, dict[str, Any]]


def h5(clients: Clients) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as f:
        examples = f.create_group("examples")
        for client, parts in clients.items():
            held = examples.create_group(client)
            for name, values in parts.items():
                held[name] = values
    return file.getvalue()


def archive(path: Path, members: dict[str, bytes]) -> dict[str, Path]:
    with tarfile.open(path, "w:bz2") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return {path.name: path}


def writer(count: int, first: int) -> dict[str, Any]:
    """Image i of a writer is `first + i` of 255 everywhere, but 1 (background) in row 2, column 5."""
    pixels = np.ones((count, 28, 28), dtype=np.float32)
    pixels *= ((first + np.arange(count)) / 255).astype(np.float32)[:, None, None]
    pixels[:, 2, 5] = 1.0
    return {"pixels": pixels, "label": (first + np.arange(count, dtype=np.int32)) % 62}


def femnist(folder: Path, train: Clients | None = None, test: Clients | None = None) -> dict[str, Path]:
    train = train or {"f0002_01": writer(3, 10), "f0001_41": writer(2, 60), "f0003_07": writer(1, 250)}
    test = test or {"f0003_07": writer(2, 0), "f0001_41": writer(1, 61)}
    # the test part first: nothing may depend on the order
    return archive(folder / FEMNIST, {"fed_emnist_test.h5": h5(test), "fed_emnist_train.h5": h5(train)})


def test_femnist_by_writer(tmp_path: Path) -> None:
    raw = read_femnist(femnist(tmp_path))
    assert raw.names == ("f0001_41", "f0002_01", "f0003_07")
    assert raw.owner is not None
    assert raw.test_owner is not None
    assert raw.owner.tolist() == [0, 0, 1, 1, 1, 2]
    assert raw.test_owner.tolist() == [0, 2, 2]  # the second writer has no test example
    assert raw.train.y.tolist() == [60, 61, 10, 11, 12, 2]
    assert raw.test.y.tolist() == [61, 0, 1]
    assert raw.train.x.shape == (6, 1, 28, 28)
    assert (raw.train.x.dtype, raw.train.y.dtype, raw.owner.dtype) == (torch.uint8, torch.int64, torch.int64)
    assert raw.train.x[:, 0, 5, 2].tolist() == [60, 61, 10, 11, 12, 250]  # every byte comes back, whatever its float was
    assert raw.train.x[:, 0, 2, 5].tolist() == [255] * 6


def test_every_byte_survives_its_float(tmp_path: Path) -> None:
    values = (np.arange(784) % 256).reshape(1, 28, 28)
    one = {"a": {"pixels": (values / 255).astype(np.float32), "label": np.array([0], dtype=np.int32)}}
    raw = read_femnist(femnist(tmp_path, one, one))
    assert np.array_equal(raw.train.x[0].numpy(), values)
    between = {"a": one["a"] | {"pixels": np.full((1, 28, 28), 41.7 / 255, dtype=np.float32)}}
    assert read_femnist(femnist(tmp_path, between, between)).train.x.unique().tolist() == [42]  # the nearest


def test_labels_may_stand_in_a_column(tmp_path: Path) -> None:
    column = {"a": writer(3, 10) | {"label": np.array([[7], [8], [9]], dtype=np.int32)}}
    assert read_femnist(femnist(tmp_path, column, column)).test.y.tolist() == [7, 8, 9]


def changed(**changes: Any) -> Clients:
    return {"a": writer(2, 0) | changes}


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (changed(label=np.array([0, 62], dtype=np.int32)), changed(), "not one of 0 to 61 for client a"),
        (changed(label=np.array([-1, 0], dtype=np.int32)), changed(), "not one of 0 to 61 for client a"),
        (changed(label=np.zeros((2, 2), dtype=np.int32)), changed(), "not one of 0 to 61 for client a"),
        (changed(label=np.array([0], dtype=np.int32)), changed(), "does not hold 1 images of 28 x 28 pixels"),
        (changed(pixels=np.full((2, 28, 28), 1.5, dtype=np.float32)), changed(), "pixels from 0 to 1 for client a"),
        (changed(pixels=np.full((2, 28, 28), np.nan, dtype=np.float32)), changed(), "pixels from 0 to 1 for client a"),
        (changed(pixels=np.zeros((2, 784), dtype=np.float32)), changed(), "does not hold 2 images"),
        ({"a": {"pixels": np.zeros((2, 28, 28))}}, changed(), r"fed_emnist_train\.h5 of .* cannot be read"),
        (changed(), {"b": writer(1, 0)}, r"fed_emnist_test\.h5 of .* holds the client b, who has nothing to train on"),
    ],
)
def test_wrong_femnist_files(train: Clients, test: Clients, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said + r"(.|\n)*: fetch it again\.$"):
        read_femnist(femnist(tmp_path, train, test))


def test_damaged_femnist_files(tmp_path: Path) -> None:
    path = femnist(tmp_path)[FEMNIST]
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:middle], b"", b"no archive", whole[:middle] + bytes([whole[middle] ^ 0x55]) + whole[middle + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"fed_emnist\.tar\.bz2 .*: fetch it again\.$"):
            read_femnist({FEMNIST: path})
    with pytest.raises(DataError, match=r"does not hold fed_emnist_train\.h5"):
        read_femnist(archive(path, {"fed_emnist_test.h5": h5(changed())}))
    with pytest.raises(DataError, match=r"fed_emnist_train\.h5 of .* cannot be read"):
        read_femnist(archive(path, {"fed_emnist_train.h5": b"no HDF5", "fed_emnist_test.h5": h5(changed())}))


def test_without_h5py_the_way_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UsageError, match=r"pip install 'hush-fl\[h5\]'\.$"):
        read_femnist({FEMNIST: tmp_path / FEMNIST})


def test_tokens_are_those_of_tff() -> None:
    """The figures that TFF's own tests expect, at its full length."""
    assert (len(ALPHABET), len(set(ALPHABET)), TOKENS) == (86, 86, 90)
    assert (PAD, UNKNOWN, BEGIN, END) == (0, 87, 88, 89)
    (row,) = tokens([b"abc"])
    assert row.tolist() == [BEGIN, 64, 42, 21, END] + [PAD] * 76
    (row,) = tokens([b"a\r~"])
    assert row[:5].tolist() == [BEGIN, 64, 86, UNKNOWN, END]
    (row,) = tokens([b"star wars"])
    assert row[:12].tolist() == [BEGIN, 25, 5, 64, 46, 14, 26, 64, 46, 25, END, PAD]
    assert tokens([]).shape == (0, 81)
    (row,) = tokens([b"\xc3"])  # bytes, not characters
    assert row[:3].tolist() == [BEGIN, UNKNOWN, END]


@pytest.mark.parametrize(("length", "rows"), [(0, 1), (78, 1), (79, 1), (80, 2), (160, 2), (161, 3)])
def test_snippets_are_padded_to_whole_chunks_and_never_joined(length: int, rows: int) -> None:
    cut = tokens([b"a" * length, b"b"])
    assert cut.shape == (rows + 1, 81)
    assert cut[:rows].reshape(-1)[: length + 2].tolist() == [BEGIN] + [64] * length + [END]
    assert not cut[:rows].reshape(-1)[length + 2 :].any()
    assert cut[rows, :3].tolist() == [BEGIN, 42, END]


def snippets(*texts: str) -> dict[str, Any]:
    return {"snippets": np.array([text.encode() for text in texts], dtype=h5py.special_dtype(vlen=bytes))}


def test_shakespeare_by_role(tmp_path: Path) -> None:
    train = {"LEAR": snippets("abc", "a" * 79), "HAMLET": snippets("a" * 80)}
    test = {"LEAR": snippets("cab")}
    members = {"shakespeare_train.h5": h5(train), "shakespeare_test.h5": h5(test)}
    raw = read_tff_shakespeare(archive(tmp_path / SHAKESPEARE, members))
    assert raw.names == ("HAMLET", "LEAR")
    assert raw.owner is not None
    assert raw.test_owner is not None
    assert raw.owner.tolist() == [0, 0, 1, 1]
    assert raw.test_owner.tolist() == [1]
    assert (raw.train.x.shape, raw.train.y.shape) == ((4, 80), (4, 80))
    assert (raw.train.x.dtype, raw.train.y.dtype) == (torch.uint8, torch.int64)
    assert raw.test.x[0].tolist() == [BEGIN, 21, 64, 42, END] + [PAD] * 75
    assert raw.test.y[0].tolist() == [21, 64, 42, END] + [-100] * 76  # the next token; padding is no target
    assert raw.train.x[0].tolist() == [BEGIN] + [64] * 79
    assert raw.train.y[0].tolist() == [64] * 80
    assert raw.train.x[1].tolist() == [END] + [PAD] * 79
    assert raw.train.y[1].tolist() == [-100] * 80  # kept, as TFF keeps it
    assert raw.train.y[3].tolist() == [64] * 79 + [END]
    members["shakespeare_test.h5"] = h5({"LEAR": {"snippets": np.arange(3)}})
    with pytest.raises(DataError, match="something else than text for client LEAR"):
        read_tff_shakespeare(archive(tmp_path / SHAKESPEARE, members))
