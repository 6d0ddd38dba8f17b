from __future__ import annotations

import gzip
import hashlib
import http.server
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import hush
from hush import DataError, UsageError
from hush.tasks import catalogue
from hush.tasks.fetch import File, data_dir, download, verified
from hush.tasks.readers.idx import read_idx


def idx_bytes(array: np.ndarray) -> bytes:
    header = b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def test_digits_are_bundled_and_split_for_good() -> None:
    raw = catalogue.CATALOGUE["digits"].load(Path("nowhere"))
    train, test = raw.train, raw.test
    assert (len(train.x), len(test.x)) == (1500, 297)
    assert train.x.shape[1:] == (1, 8, 8)
    assert float(train.x.min()) == 0.0
    assert float(train.x.max()) == 1.0
    counts = torch.bincount(torch.cat([train.y, test.y]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as the data set's own description says
    assert train.y[:8].tolist() == [6, 6, 6, 2, 5, 6, 6, 2]


def test_a_task_by_name_keeps_its_parts_apart() -> None:
    task = hush.load_task("digits", clients=300, validation=100, public=120, seed=3)
    train = task.train
    assert train.count == 300
    assert len(train.x) == 1500 - 220
    assert task.validation is not None
    assert task.public is not None

    def rows(x: torch.Tensor) -> set[bytes]:
        return {row.numpy().tobytes() for row in x}

    clients = rows(train.x)
    assert not clients & rows(task.public[0])  # public examples are really removed from the clients
    assert not clients & rows(task.validation[0])
    again = hush.load_task("digits", clients=300, validation=100, public=120, seed=3)
    assert torch.equal(task.train.x, again.train.x)
    assert all(torch.equal(a, b) for a, b in zip(task.model.parameters(), again.model.parameters(), strict=True))
    other = hush.load_task("digits", clients=300, validation=100, public=120, seed=4)
    assert not torch.equal(task.train.x, other.train.x)


@pytest.mark.parametrize("bad", [{"validation": 1500}, {"public": -1}, {"validation": 1000, "public": 500}, {"clients": 1400}])
def test_impossible_splits(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        hush.load_task("digits", **bad)  # type: ignore[arg-type]


def test_unknown_data_and_models_suggest_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'fashion-mnist'"):
        hush.load_task("fashion_mnist")
    with pytest.raises(UsageError, match="did you mean 'logistic'"):
        hush.load_task("digits", "logstic")
    with pytest.raises(UsageError, match="28 x 28"):
        hush.load_task("digits", "fed-smp-cnn")


def test_the_users_own_task_in_five_lines() -> None:
    x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
    task = hush.Task(
        model=torch.nn.Linear(4, 2),
        clients=[(x[i : i + 4], y[i : i + 4].int()) for i in range(0, 32, 4)],
        test=(x[32:], y[32:]),
    )
    result = hush.simulate(hush.methods.dp_fedavg(noise=1.0), task, rounds=2, cohort=5)
    assert result.test_accuracy is not None


def test_regression_has_a_loss_and_no_accuracy() -> None:
    x = torch.randn(60, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    task = hush.Task(
        model=torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0)),
        clients=[(x[i : i + 6], y[i : i + 6]) for i in range(0, 60, 6)],
        test=(x, y),
        loss=torch.nn.MSELoss(),
    )
    result = hush.simulate(hush.methods.fedavg(lr=0.1), task, rounds=40, cohort=10)
    assert result.test_accuracy is None
    assert result.test_loss is not None
    assert result.test_loss < 0.1


def test_outputs_and_targets_that_would_be_broadcast_are_refused() -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    task = hush.Task(torch.nn.Linear(3, 1), hush.Clients(x, y, [10, 10]), loss=torch.nn.MSELoss())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="would be broadcast"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=2)


def test_clients_must_be_consistent() -> None:
    with pytest.raises(UsageError, match="Client 1 has 3 inputs and 2 targets"):
        hush.Clients.of([(torch.zeros(1, 2), torch.zeros(1)), (torch.zeros(3, 2), torch.zeros(2))])
    with pytest.raises(UsageError, match="at least one client"):
        hush.Clients.of([])
    arrays = hush.Clients.of([(np.zeros((2, 3)), np.zeros(2, dtype=np.int64))])  # type: ignore[list-item]
    assert (arrays.x.dtype, arrays.y.dtype) == (torch.float32, torch.int64)
    with pytest.raises(UsageError, match="differ"):
        hush.Clients(torch.zeros(5, 2), torch.zeros(5), torch.tensor([3, 3]))


def test_idx_files_are_read_and_damage_is_named(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "x.gz"
    path.write_bytes(idx_bytes(array))
    assert np.array_equal(read_idx(path), array)
    whole = path.read_bytes()
    for damaged in (
        whole[:-9],
        whole[:4],
        b"",
        b"not gzip at all",
        gzip.compress(b"\x00\x00\x0d\x01"),
        gzip.compress(b"\x00\x00\x08\x03\x00"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="fetch it again"):
            read_idx(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(DataError, match="promises 2x3x4"):
        read_idx(path)


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of the true format, made here, with a catalogue entry that expects them."""
    rng = np.random.default_rng(0)
    files = []
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for prefix, count in (("train", 60), ("t10k", 20)):
        for kind, array in (("images-idx3", rng.integers(0, 256, (count, 28, 28))), ("labels-idx1", rng.integers(0, 10, count))):
            data = idx_bytes(array)
            name = f"{prefix}-{kind}-ubyte.gz"
            (folder / name).write_bytes(data)
            files.append(File(name, len(data), hashlib.sha256(data).hexdigest()))
    entry = catalogue.CATALOGUE["mnist"]
    form = replace(entry.forms[0], files=tuple(files))
    entry = replace(entry, forms=(form,), train=60, test=20, clients=10, validation=5, public=5)
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", entry)
    return tmp_path / "data"


def test_mnist_files_become_a_task(small_mnist: Path) -> None:
    task = hush.load_task("mnist", "logistic", public=5, folder=small_mnist)
    assert task.train.count == 10
    assert task.train.x.shape == (50, 1, 28, 28)
    assert task.train.x.dtype is torch.uint8  # images stay bytes, and the model's first layer scales them
    scaled = task.model.pixels(task.train.x)  # type: ignore[operator]
    assert abs(float(scaled.mean()) - (127.5 / 255 - 0.1307) / 0.3081) < 0.05


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-5]), "bytes instead of"),
        (lambda p: p.write_bytes(b"\x1e" + p.read_bytes()[1:]), "sha256 differs"),
        (lambda p: p.unlink(), "is not there"),
    ],
)
def test_damaged_files_are_never_used(small_mnist: Path, damage: object, said: str) -> None:
    damage(small_mnist / "mnist" / "train-images-idx3-ubyte.gz")  # type: ignore[operator]
    with pytest.raises(DataError, match=said):
        hush.load_task("mnist", "logistic", folder=small_mnist)


class Server(http.server.BaseHTTPRequestHandler):
    content = bytes(range(256)) * 2000
    breaks_after: int | None = None
    ranges: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        Server.ranges.append(asked)
        body = self.content[int(asked[6:-1]) :] if asked else self.content
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: Server.breaks_after])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.breaks_after, Server.ranges = None, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as s:
        thread = threading.Thread(target=s.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{s.server_address[1]}/"
        s.shutdown()
        thread.join()


def the_file(sha: str | None = None) -> File:
    return File("a.bin", len(Server.content), sha or hashlib.sha256(Server.content).hexdigest())


def test_downloads_are_verified_resumed_and_never_half_there(server: str, tmp_path: Path) -> None:
    seen: list[int] = []
    Server.breaks_after = 100_000
    with pytest.raises(DataError, match="run the command again"):
        download(server, tmp_path, (the_file(),), "toy", lambda name, done, total: seen.append(done))
    assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin.part").stat().st_size == 100_000
    Server.breaks_after = None
    download(server, tmp_path, (the_file(),), "toy")
    assert Server.ranges == [None, "bytes=100000-"]
    assert (tmp_path / "a.bin").read_bytes() == Server.content
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    assert verified(tmp_path, the_file(), "toy") == tmp_path / "a.bin"
    assert seen == sorted(seen)
    download(server, tmp_path, (the_file(),), "toy")
    assert len(Server.ranges) == 2  # it was there already


def test_a_wrong_file_is_not_kept(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing was kept"):
        download(server, tmp_path, (the_file("0" * 64),), "toy")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="could not be fetched"):
        download("http://127.0.0.1:9/", tmp_path, (the_file(),), "toy")
    with pytest.raises(DataError, match="longer than"):
        download(server, tmp_path, (File("a.bin", 10, "0" * 64),), "toy")


def test_where_data_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUSH_DATA", "/somewhere")
    assert data_dir() == Path("/somewhere")
    assert data_dir(tmp_path) == tmp_path
    monkeypatch.delenv("HUSH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_dir() == Path("/cache/hush")


def test_the_real_fashion_mnist(real_data: Path) -> None:
    task = hush.load_task("fashion-mnist", clients=6000, validation=0, public=1000, folder=real_data)
    assert task.train.count == 6000
    assert len(task.train.x) == 59_000
    scaled = task.model.pixels(task.train.x)  # type: ignore[operator]
    assert abs(float(scaled.mean())) < 0.01
    assert abs(float(scaled.std()) - 1) < 0.01
    mnist = hush.load_task("mnist", "logistic", validation=0, folder=real_data)
    assert torch.bincount(mnist.train.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
