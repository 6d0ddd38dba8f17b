"""CIFAR-10, CIFAR-100, SVHN and EMNIST, from small files of the true format."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from hush import DataError
from hush.tasks.raw import Raw
from hush.tasks.readers.cifar import CIFAR10, CIFAR100, TEST10, TRAIN10, read_cifar10, read_cifar100
from hush.tasks.readers.idx import read_emnist
from hush.tasks.readers.svhn import read_svhn

BATCHES = (*TRAIN10, TEST10)
EACH = 3
RNG = np.random.default_rng(0)


def tar_of(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def flipped(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 0x55
    path.write_bytes(bytes(content))


def cut(path: Path, to: float = 0.6) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * to)])


# CIFAR


def record(labels: list[int], image: int) -> bytes:
    """Byte by byte, as the format's description says: labels, then red, green, blue, each row after row."""
    out = list(labels)
    for channel in range(3):
        for row in range(32):
            for column in range(32):
                out.append(pixel(image, channel, row, column))
    return bytes(out)


def pixel(image: int, channel: int, row: int, column: int) -> int:
    return (image * 7 + channel * 80 + row * 3 + column) % 256


def batches() -> dict[str, bytes]:
    """Image i, counted over all six files, has label i mod 10."""
    whole = {}
    for b, name in enumerate(BATCHES):
        whole[name] = b"".join(record([(b * EACH + i) % 10], b * EACH + i) for i in range(EACH))
    return whole


def as_tar(folder: Path) -> dict[str, Path]:
    other = {"cifar-10-batches-bin/readme.html": b"hello", "cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    members = {f"cifar-10-batches-bin/{name}": content for name, content in batches().items()}
    return {CIFAR10: tar_of(folder / CIFAR10, other | members)}


def as_bin(folder: Path) -> dict[str, Path]:
    paths = {name: folder / name for name in BATCHES}
    for name, content in batches().items():
        paths[name].write_bytes(content)
    return paths


def as_xz(folder: Path) -> dict[str, Path]:
    paths = {f"{name}.xz": folder / f"{name}.xz" for name in BATCHES}
    delta = [{"id": lzma.FILTER_DELTA, "dist": 1}, {"id": lzma.FILTER_LZMA2, "preset": 1}]
    for name, content in batches().items():
        paths[f"{name}.xz"].write_bytes(lzma.compress(content, filters=delta))
    return paths


@pytest.mark.parametrize("form", [as_tar, as_bin, as_xz])
def test_cifar10_in_every_form(form: Callable[[Path], dict[str, Path]], tmp_path: Path) -> None:
    raw = read_cifar10(form(tmp_path), records=EACH)
    assert (raw.train.x.shape, raw.test.x.shape) == ((15, 3, 32, 32), (3, 3, 32, 32))
    assert (raw.train.x.dtype, raw.train.y.dtype) == (torch.uint8, torch.int64)
    assert raw.train.y.tolist() == [i % 10 for i in range(15)]  # the batches in their order
    assert raw.test.y.tolist() == [5, 6, 7]
    for image, channel, row, column in ((0, 0, 0, 1), (0, 0, 1, 0), (4, 2, 31, 5), (14, 1, 9, 30)):
        assert int(raw.train.x[image, channel, row, column]) == pixel(image, channel, row, column)
    assert int(raw.test.x[2, 1, 3, 4]) == pixel(17, 1, 3, 4)
    assert raw.owner is None
    assert raw.train.x.is_contiguous()


@pytest.mark.parametrize("form", [as_tar, as_bin, as_xz])
def test_damaged_cifar10(form: Callable[[Path], dict[str, Path]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds more bytes instead of 6,146: fetch it again\.$"):
        read_cifar10(form(tmp_path), records=EACH - 1)
    with pytest.raises(DataError, match=r"data_batch_1\.bin.* holds 9,219 bytes instead of 12,292: fetch it again\.$"):
        read_cifar10(form(tmp_path), records=EACH + 1)
    for damage in (cut, lambda path: cut(path, 0.999), lambda path: cut(path, 0.0)):
        paths = form(tmp_path)
        damage(list(paths.values())[-1])
        with pytest.raises(DataError, match=r"fetch it again\.$"):
            read_cifar10(paths, records=EACH)


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("form", [as_tar, as_xz])
def test_a_wrong_byte_in_compressed_cifar10_is_found(form: Callable[[Path], dict[str, Path]], at: float, tmp_path: Path) -> None:
    paths = form(tmp_path)
    flipped(list(paths.values())[-1], at)
    with pytest.raises(DataError, match=r"fetch it again\.$"):
        read_cifar10(paths, records=EACH)


def test_a_label_that_no_class_has(tmp_path: Path) -> None:
    paths = as_bin(tmp_path)
    content = bytearray(paths["data_batch_4.bin"].read_bytes())
    content[2 * 3073] = 10
    paths["data_batch_4.bin"].write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"data_batch_4\.bin gives record 2 the label 10, which is not one of 0 to 9"):
        read_cifar10(paths, records=EACH)


def test_an_archive_without_a_batch(tmp_path: Path) -> None:
    members = {f"cifar-10-batches-bin/{name}": content for name, content in batches().items() if name != "data_batch_3.bin"}
    with pytest.raises(DataError, match=r"does not hold cifar-10-batches-bin/data_batch_3\.bin: fetch it again\."):
        read_cifar10({CIFAR10: tar_of(tmp_path / CIFAR10, members)}, records=EACH)
    (tmp_path / CIFAR10).write_bytes(gzip.compress(b"not a tar file" * 100))
    with pytest.raises(DataError, match="fetch it again"):
        read_cifar10({CIFAR10: tmp_path / CIFAR10}, records=EACH)


def test_the_checksum_after_the_last_member_is_checked_too(tmp_path: Path) -> None:
    path = as_tar(tmp_path)[CIFAR10]
    padded = gzip.compress(gzip.decompress(path.read_bytes()).ljust(3 << 20, b"\0"))
    path.write_bytes(padded)
    read_cifar10({CIFAR10: path}, records=EACH)
    path.write_bytes(padded[:-8] + b"CRC!" + padded[-4:])
    with pytest.raises(DataError, match=r"CRC check failed.*fetch it again\.$"):
        read_cifar10({CIFAR10: path}, records=EACH)


def test_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    def archive(fine: int) -> dict[str, Path]:
        train = b"".join(record([19 - i, 99 - i], i) for i in range(4))
        test = record([3, fine], 4)
        members = {"cifar-100-binary/train.bin": train, "cifar-100-binary/test.bin": test}
        return {CIFAR100: tar_of(tmp_path / CIFAR100, members)}

    raw = read_cifar100(archive(7), train=4, test=1)
    assert raw.train.y.tolist() == [99, 98, 97, 96]
    assert raw.test.y.tolist() == [7]
    assert int(raw.train.x[3, 2, 1, 0]) == pixel(3, 2, 1, 0)
    with pytest.raises(DataError, match=r"test\.bin of .* gives record 0 the label 100, which is not one of 0 to 99"):
        read_cifar100(archive(100), train=4, test=1)
    with pytest.raises(DataError, match="instead of"):
        read_cifar100(archive(7), train=5, test=1)


def test_the_real_cifar10(real_data: Path) -> None:
    folder = real_data / "cifar10"
    if not folder.is_dir():
        pytest.skip("HUSH_DATA holds no CIFAR-10")
    raw = read_cifar10({path.name: path for path in folder.iterdir()})
    assert torch.bincount(raw.train.y).tolist() == [5000] * 10
    assert torch.bincount(raw.test.y).tolist() == [1000] * 10
    counts = np.array([torch.bincount(raw.train.x[:, c].reshape(-1), minlength=256) for c in range(3)]) / (50_000 * 1024)
    means = counts @ np.arange(256)
    assert np.allclose(means, [125.307, 122.950, 113.865], atol=0.001)
    assert np.allclose(np.sqrt(counts @ np.arange(256) ** 2 - means**2), [62.993, 62.089, 66.705], atol=0.001)
    first = _file_again(raw.train.x[:10_000], raw.train.y[:10_000])
    assert first == "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"  # of data_batch_1.bin
    assert _file_again(*raw.test) == "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"


def _file_again(x: torch.Tensor, y: torch.Tensor) -> str:
    table = np.concatenate([y.numpy().astype(np.uint8)[:, None], x.numpy().reshape(len(x), -1)], axis=1)
    return hashlib.sha256(table.tobytes()).hexdigest()


# SVHN


def svhn_files(folder: Path, **changes: object) -> tuple[dict[str, Path], dict[str, np.ndarray]]:
    paths, images = {}, {}
    for name, count in (("train", 11), ("extra", 4), ("test", 6)):
        x = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        y = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        held = {"X": x, "y": y}
        if name == "extra":
            held |= changes  # type: ignore[arg-type]
        paths[f"{name}_32x32.mat"] = folder / f"{name}_32x32.mat"
        savemat(paths[f"{name}_32x32.mat"], {k: v for k, v in held.items() if v is not None}, do_compression=True)
        images[name] = x
    return paths, images


def test_svhn_joins_train_and_extra_and_writes_ten_as_zero(tmp_path: Path) -> None:
    paths, images = svhn_files(tmp_path)
    raw = read_svhn(paths)
    assert (raw.train.x.shape, raw.test.x.shape) == ((15, 3, 32, 32), (6, 3, 32, 32))
    assert (raw.train.x.dtype, raw.train.y.dtype) == (torch.uint8, torch.int64)
    assert raw.train.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 1, 2, 3, 4]
    for row, column, channel in ((3, 20, 0), (20, 3, 2)):
        assert int(raw.train.x[2, channel, row, column]) == images["train"][row, column, channel, 2]
        assert int(raw.train.x[14, channel, row, column]) == images["extra"][row, column, channel, 3]
        assert int(raw.test.x[5, channel, row, column]) == images["test"][row, column, channel, 5]
    assert raw.train.x.is_contiguous()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y": np.array([[1], [2], [0], [3]], dtype=np.uint8)}, r"gives image 2 the label 0, which is not one of 1 to 10"),
        ({"y": np.array([[1], [11], [1], [3]], dtype=np.uint8)}, r"gives image 1 the label 11"),
        ({"y": np.array([[1], [2]], dtype=np.uint8)}, r"holds 4 images and 2 labels"),
        ({"y": None}, r"holds no variable y"),
        ({"X": None}, r"holds no images of 32 x 32 x 3 bytes"),
        ({"X": np.zeros((32, 32, 3, 4))}, r"holds no images"),
        ({"X": np.zeros((4, 3, 32, 32), dtype=np.uint8)}, r"holds no images"),
    ],
)
def test_wrong_svhn_files(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    paths, _ = svhn_files(tmp_path, **changes)
    with pytest.raises(DataError, match=said + r".*: fetch it again\.$") as caught:
        read_svhn(paths)
    assert "extra_32x32.mat" in str(caught.value)


@pytest.mark.parametrize("damage", [cut, lambda path: cut(path, 0.0), lambda path: path.write_bytes(b"no matlab file" * 50)])
def test_damaged_svhn_files(damage: Callable[[Path], None], tmp_path: Path) -> None:
    paths, _ = svhn_files(tmp_path)
    damage(paths["train_32x32.mat"])
    with pytest.raises(DataError, match=r"train_32x32\.mat .*fetch it again\.$"):
        read_svhn(paths)


# EMNIST


def idx(array: np.ndarray) -> bytes:
    header = b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def emnist(folder: Path, **changes: bytes | None) -> dict[str, Path]:
    """Image i of training is i everywhere but in row 2, column 5, where it is 200; the file holds it transposed."""
    upright = np.stack([np.full((28, 28), i) for i in range(8)])
    upright[:, 2, 5] = 200
    members: dict[str, bytes | None] = {
        "train-images-idx3": idx(upright.transpose(0, 2, 1)),
        "train-labels-idx1": idx(np.array([0, 9, 10, 35, 36, 61, 5, 5])),
        "test-images-idx3": idx(upright[:2].transpose(0, 2, 1)),
        "test-labels-idx1": idx(np.array([61, 0])),
    } | {name.replace("_", "-"): content for name, content in changes.items()}
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        archive.writestr("gzip/emnist-balanced-train-labels-idx1-ubyte.gz", b"another set")
        for name, content in members.items():
            if content is not None:
                archive.writestr(f"gzip/emnist-byclass-{name}-ubyte.gz", content)
    return {"gzip.zip": folder / "gzip.zip"}


def test_emnist_stands_upright(tmp_path: Path) -> None:
    raw = read_emnist(emnist(tmp_path))
    assert (raw.train.x.shape, raw.test.x.shape) == ((8, 1, 28, 28), (2, 1, 28, 28))
    assert (raw.train.x.dtype, raw.train.y.dtype) == (torch.uint8, torch.int64)
    assert raw.train.y.tolist() == [0, 9, 10, 35, 36, 61, 5, 5]
    assert raw.train.x[:, 0, 2, 5].tolist() == [200] * 8
    assert raw.train.x[:, 0, 5, 2].tolist() == list(range(8))
    assert raw.train.x.is_contiguous()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_labels_idx1": idx(np.array([62, 0]))}, r"gives test image 0 the label 62, not one of 0 to 61"),
        ({"test_labels_idx1": idx(np.array([1, 2, 3]))}, r"test images of \(2, 28, 28\) and labels of \(3,\)"),
        ({"train_images_idx3": idx(np.zeros((8, 27, 28)))}, r"train images of \(8, 27, 28\)"),
        ({"train_labels_idx1": None}, r"does not hold gzip/emnist-byclass-train-labels-idx1-ubyte\.gz"),
        (
            {"train_images_idx3": idx(np.zeros((8, 28, 28)))[:-20]},
            r"emnist-byclass-train-images-idx3-ubyte\.gz of .* cannot be read",
        ),
        ({"train_images_idx3": gzip.compress(b"\x00\x00\x08\x03" + struct.pack(">3I", 9, 28, 28))}, r"promises 9x28x28"),
    ],
)
def test_wrong_emnist_files(changes: dict[str, bytes | None], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said + r".*: fetch it again\.$"):
        read_emnist(emnist(tmp_path, **changes))


def test_damaged_emnist_files(tmp_path: Path) -> None:
    path = emnist(tmp_path)["gzip.zip"]
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        images = archive.getinfo("gzip/emnist-byclass-train-images-idx3-ubyte.gz")
    flip = images.header_offset + 30 + len(images.filename) + images.compress_size // 2
    for damaged in (whole[: len(whole) // 2], b"", b"no zip", whole[:flip] + bytes([whole[flip] ^ 0x55]) + whole[flip + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"gzip\.zip cannot be read .*: fetch it again\.$"):
            read_emnist({"gzip.zip": path})


def test_readers_need_nothing_but_paths(tmp_path: Path) -> None:
    """What the catalogue calls."""
    raw: Raw = read_emnist(emnist(tmp_path))
    assert raw.names == ()
    assert raw.test_owner is None
