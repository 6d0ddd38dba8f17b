"""Clients on disk: the same bits as in memory, read for the cohort alone and before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hush
from hush import DataError, UsageError
from hush.engines.simulation import set_up
from hush.engines.simulation import train as train_run
from hush.tasks import clients as clients_module
from hush.tasks import on_disk
from hush.tasks.clients import Clients, Examples
from hush.tasks.on_disk import npy, safetensors, sizes_of
from hush.tasks.stored import Stored
from tests.cli.test_cli import hush as command


class Disk:
    """A table that notes what is read of it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.asked = list[tuple[tuple[int, int], ...]]()

    def __call__(self, ranges: Sequence[tuple[int, int]]) -> Examples:
        self.asked.append(tuple(ranges))
        return Examples(*(torch.cat([values[a:b] for a, b in ranges]) for values in (self.x, self.y)))


def population(clients: int = 40) -> tuple[Disk, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 30, (clients,), generator=generator)
    x = torch.randn(int(sizes.sum()), 20, generator=generator)
    return Disk(x, (x[:, 0] > 0).long()), sizes


def task_of(clients: Clients) -> hush.Task:
    torch.manual_seed(1)
    model, x = nn.Linear(20, 2), torch.randn(50, 20)
    return hush.Task(model, clients, test=(x, (x[:, 0] > 0).long()))


def simulated(clients: Clients, **keywords: Any) -> hush.Result:
    method = hush.methods.dp_fedavg(noise=1.0, batch_size=4)
    usual: dict[str, Any] = {"rounds": 4, "cohort": 10, "noise_seed": 1, "chunk": 4}
    return hush.simulate(method, task_of(clients), **(usual | keywords))


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"dropout": 0.3},
        {"dtype": torch.float64},
        {"cohort": hush.Rotation(10)},
        {"cohort": hush.FixedSize(10), "secure_sum": hush.SecureSum()},  # rows that depend on nobody, in slots
    ],
)
def test_a_run_comes_to_the_same_bits_from_disk(keywords: dict[str, Any]) -> None:
    disk, sizes = population()
    stored, held = (simulated(clients, **keywords) for clients in (Stored.reading(disk, sizes), Clients(disk.x, disk.y, sizes)))
    assert all(torch.equal(a, b) for a, b in zip(stored.state_dict.values(), held.state_dict.values(), strict=True))
    assert stored.history == held.history


def test_a_cohort_is_read_once_and_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, sizes = population()
    run = set_up(
        hush.methods.fedavg(), task_of(Stored.reading(disk, sizes)), rounds=5, cohort=hush.FixedSize(10), chunk=4, diagnostics=False
    )
    disk.asked.clear()
    train = run.data.train
    assert isinstance(train, Stored)
    waited = list[bool]()
    take = train.ahead.take
    monkeypatch.setattr(train.ahead, "take", lambda key, read: (waited.append(key in train.ahead._waiting), take(key, read))[1])
    train_run(run)
    assert len(disk.asked) == len(waited) == 15  # three chunks a round
    assert all(waited)
    assert max(sum(b - a for a, b in ranges) for ranges in disk.asked) <= 4 * int(sizes.max())


def test_looking_at_everything_takes_no_more_memory_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, sizes = population()
    monkeypatch.setattr(clients_module, "_PIECE", 16 * 88)
    stored = Stored.reading(disk, sizes)
    disk.asked.clear()
    pieces = list(stored.pieces())
    assert [first for first, _ in pieces] == list(range(0, len(disk.x), 16))
    assert torch.equal(torch.cat([piece.x for _, piece in pieces]), disk.x)
    assert max(sum(b - a for a, b in ranges) for ranges in disk.asked) == 16


def test_a_token_beyond_the_embedding_is_found_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "_PIECE", 10 * 33)
    x, y = torch.randint(0, 9, (60, 4)), torch.randint(0, 3, (60,), dtype=torch.uint8)
    model = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, 3))
    sizes = torch.full((6,), 10)
    hush.Task(model, Stored.reading(Disk(x, y), sizes)).refuse_impossible_values()
    x[43, 2] = 9
    with pytest.raises(UsageError, match=r"Example 3 of client 4 holds a value"):
        hush.Task(model, Stored.reading(Disk(x, y), sizes)).refuse_impossible_values()
    x[43, 2], y[51] = 8, 3
    with pytest.raises(UsageError, match=r"Example 1 of client 5 has the label 3"):
        hush.Task(model, Stored.reading(Disk(x, y), sizes)).refuse_impossible_values()


def test_examples_of_nobody_are_looked_for_among_those_on_disk() -> None:
    disk, sizes = population(200)
    task = hush.Task(nn.Linear(20, 2), Stored.reading(disk, sizes), test=(disk.x[300:330], disk.y[300:330]))
    with pytest.raises(UsageError, match="30 of 30 test examples are among those that clients train on"):
        task.refuse_clients_examples()


def test_a_run_goes_on_with_the_same_population_alone(tmp_path: Path) -> None:
    disk, sizes = population()

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulated(Stored.reading(disk, sizes), out=tmp_path / "run", on_round=stop)
    with pytest.raises(DataError, match="other data"):
        simulated(Stored.reading(Disk(disk.x + 1, disk.y), sizes), out=tmp_path / "run", resume=True)
    resumed = simulated(Stored.reading(disk, sizes), out=tmp_path / "run", resume=True)
    whole = simulated(Clients(disk.x, disk.y, sizes))
    assert all(torch.equal(a, b) for a, b in zip(resumed.state_dict.values(), whole.state_dict.values(), strict=True))


# -- files -----------------------------------------------------------------------------------------------------------------------


def files(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 20, 30)
    for part, rows in (("train", int(sizes.sum())), ("test", 40)):
        (folder / part).mkdir(parents=True)
        y = rng.integers(0, 3, rows)
        x = rng.integers(0, 50, (rows, 1, 6, 6), dtype=np.uint8)
        x[np.arange(rows), 0, y] += 100
        np.save(folder / part / "x.npy", x)
        np.save(folder / part / "y.npy", y.astype(np.uint8))
    np.save(folder / "train" / "sizes.npy", sizes)
    (folder / "data.toml").write_text(
        'train = "train"\ntest = "test"\ntarget = "y"\nclasses = 3\nmodel = "mlp"\nmean = [0.25]\nstd = [0.3]\ncohort = 10\n'
    )
    return np.load(folder / "train" / "x.npy"), np.load(folder / "train" / "y.npy"), sizes


def test_a_folder_of_arrays_runs_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path / "letters")
    monkeypatch.chdir(tmp_path)
    models = []
    for number, more in enumerate(("", "on_disk = false\n")):
        with (tmp_path / "letters" / "data.toml").open("a") as file:
            file.write(more)
        words = ["--noise", "1", "--noise-seed", "3", "--rounds", "3", "--out", f"r{number}", "--json"]
        code, out, err = command(capsys, "run", "dp-fedavg", "--data", "letters", *words)
        assert code == 0, err
        assert '"data": "letters"' in out
        models.append((tmp_path / f"r{number}" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_some_of_the_clients_on_disk(tmp_path: Path) -> None:
    x, _, sizes = files(tmp_path / "letters")
    task = hush.load_task(str(tmp_path / "letters"), clients=12)
    assert task.train.count == 12
    shard, starts = task.train.shard(torch.arange(12)), np.cumsum(sizes) - sizes
    for i in range(12):
        (number,) = [k for k, start in enumerate(starts) if start == task.train.starts[i] and sizes[k] == task.train.sizes[i]][:1]  # type: ignore[attr-defined]
        own = shard.x[shard.start[i] : shard.start[i] + shard.size[i]]
        assert np.array_equal(own.numpy(), x[starts[number] : starts[number] + sizes[number]])
    with pytest.raises(UsageError, match="30 clients on disk"):
        hush.load_task(str(tmp_path / "letters"), clients=31)
    with pytest.raises(UsageError, match="keep no examples apart"):
        hush.load_task(str(tmp_path / "letters"), validation=5)


def test_columns_in_files_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    values = np.arange(60, dtype=">i4").reshape(20, 3)
    np.save(tmp_path / "a.npy", values)
    column = npy(tmp_path / "a.npy")
    assert np.array_equal(column.rows([(3, 5), (5, 6), (0, 1)]), values[[3, 4, 5, 0]])
    assert np.array_equal(np.asarray(column), values)
    torch.from_numpy(column.rows([(0, 2)]))  # in this machine's order of bytes
    save_file({"b": torch.arange(10.0), "a": torch.arange(40).reshape(10, 4)}, tmp_path / "t.safetensors")
    held = safetensors(tmp_path / "t.safetensors")
    assert held["a"].rows([(8, 10)]).tolist() == [[32, 33, 34, 35], [36, 37, 38, 39]]
    assert held["b"].rows([(1, 3)]).tolist() == [1.0, 2.0]
    np.save(tmp_path / "f.npy", np.asfortranarray(values))
    with pytest.raises(DataError, match="row after row"):
        npy(tmp_path / "f.npy")
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-20])
    with pytest.raises(DataError, match="ends early"):
        column.rows([(0, 20)])


def test_a_clients_rows_must_lie_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "_AT_ONCE", 4)  # names go on from one part to the next
    names = np.array(["b"] * 3 + ["a"] * 6 + ["c"] * 3)
    assert sizes_of({"client": names}, "client").tolist() == [3, 6, 3]
    assert sizes_of({"client": names[:9]}, "client").tolist() == [3, 6]
    with pytest.raises(UsageError, match="client b lie in 2 places"):
        sizes_of({"client": np.concatenate([names, names[:1]])}, "client")


def test_an_arrow_table_stays_where_it_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 200, (50, 2, 3)).astype(np.uint8), rng.integers(0, 4, 50)
    who = np.repeat(["ann", "bob", "cid", "dan", "eve"], 10)
    plain = {"writer": who, "image": x, "digit": y}
    lists = pyarrow.array(x.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.uint8())))
    nested = pyarrow.table({"writer": who, "image": lists, "digit": y})
    with pyarrow.OSFile(str(tmp_path / "d.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, nested.schema) as writer:
        writer.write_table(nested, max_chunksize=7)
    columns = hush.Columns(client="writer", target="digit", features=["image"])
    stored = columns.stored(on_disk.arrow([tmp_path / "d.arrow"]))
    held = hush.Columns(client="writer", target="digit", features=["image"]).clients(plain)
    assert torch.equal(stored.sizes, held.sizes)
    read = stored.in_memory()
    assert torch.equal(read.x, held.x)
    assert torch.equal(read.y, held.y)
    shard = stored.shard(torch.tensor([3, -1, 1]))
    assert shard.size.tolist() == [10, 0, 10]
    assert torch.equal(shard.x, torch.cat([held.x[30:40], held.x[10:20]]))
    with pytest.raises(UsageError, match="a data frame is in memory already"):
        columns.stored(object.__new__(type("Frame", (), {"columns": ["writer", "image", "digit"], "__len__": lambda self: 3})))


@pytest.mark.parametrize("repeats", [0, 2])
def test_a_reader_that_loses_or_repeats_a_row_is_refused(repeats: int) -> None:
    """One client's rows would become those of the next."""
    x, y = torch.randn(30, 9), torch.zeros(30).long()
    x[2] = 1e9

    def read(ranges: Sequence[tuple[int, int]]) -> Examples:
        rows = torch.cat([torch.arange(a, b) for a, b in ranges])
        times = torch.where(x[rows].abs().amax(1) > 1e8, repeats, 1)
        rows = torch.repeat_interleave(rows, times)
        return Examples(x[rows], y[rows])

    clients = hush.Stored.reading(read, torch.tensor([6] * 5))
    clients.shard(torch.tensor([1, 2]))
    with pytest.raises(hush.UsageError, match="rows that were asked for"):
        clients.shard(torch.tensor([0, 1]))


def test_many_clients_may_have_nothing() -> None:
    """So many that fewer examples than one of them would be looked at."""
    x, y = torch.randn(3, 9), torch.zeros(3).long()
    clients = hush.Stored.reading(
        lambda ranges: (x[ranges[0][0] : ranges[0][1]], y[ranges[0][0] : ranges[0][1]]), torch.tensor([3] + [0] * 1000)
    )
    assert len(clients.told()[0]) >= 1
