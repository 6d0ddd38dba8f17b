"""A data set of one's own from the command line, described in a few lines of TOML."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hush
from hush import DataError, UsageError
from hush.tasks.catalogue import dataset
from hush.tasks.clients import Clients
from tests.cli.test_cli import hush as command

pandas = pytest.importorskip("pandas")


def visits(rows: int, seed: int, hospitals: int = 6) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(size=rows), rng.choice(["A", "B", "C"], rows)
    ill = (age + (ward == "C") + 0.3 * rng.normal(size=rows) > 0.4).astype(int)
    who = [f"h{i}" for i in rng.integers(0, hospitals, rows)]
    return pandas.DataFrame({"hospital": who, "ward": ward, "age": age, "readmitted": ill, "cost": age * 2 + 1})


DESCRIPTION = """
train = "{train}"
client = "hospital"
target = "readmitted"
classes = 2
features = ["ward", "age"]
cohort = 4
rounds = 12
{more}
[categories]
ward = ["A", "B", "C"]
[settings]
lr = 0.5
"""


def describe(folder: Path, train: str, more: str = "") -> str:
    path = folder / "visits.toml"
    path.write_text(DESCRIPTION.format(train=train, more=more))
    return str(path)


def test_a_csv_with_a_client_column_trains_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    visits(300, 0).to_csv(tmp_path / "visits.csv", index=False)
    visits(100, 1).drop(columns="hospital").to_csv(tmp_path / "later.csv", index=False)
    describe(tmp_path, "visits.csv", 'test = "later.csv"\nmetrics = ["auc"]')
    monkeypatch.chdir(tmp_path)  # a relative name, as one types it
    code, out, _ = command(capsys, "run", "fedavg", "--data", "visits.toml", "--json", "--out", "run")
    assert code == 0
    result = json.loads(out)
    assert (result["data"], result["clients"], result["rounds"]) == ("visits", 6, 12)
    assert result["test_accuracy"] > 0.8
    assert result["test_metrics"]["auc"] > 0.9
    assert result["un_noised"] == ["train_loss", "wasted_work"]  # the test table names no client
    monkeypatch.chdir("/")
    code, out, _ = command(capsys, "run", "--resume", str(tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out) == result


def test_without_a_test_table_each_client_keeps_its_own(tmp_path: Path) -> None:
    visits(300, 0).to_parquet(tmp_path / "visits.parquet")
    task = hush.load_task(describe(tmp_path, "visits.parquet"))
    assert task.train.count == 6
    assert isinstance(task.test, Clients)
    assert isinstance(task.validation, Clients)
    assert len(task.train.x) + len(task.test.x) + len(task.validation.x) == 300
    assert task.train.x.shape[1] == 4


def test_a_test_table_with_clients_is_each_ones_own(tmp_path: Path) -> None:
    visits(300, 0).to_csv(tmp_path / "visits.csv", index=False)
    visits(60, 1).to_csv(tmp_path / "later.csv", index=False)
    task = hush.load_task(describe(tmp_path, "visits.csv", 'test = "later.csv"'))
    assert isinstance(task.test, Clients)
    later = visits(60, 1)
    assert task.test.sizes.tolist() == [int((later["hospital"] == f"h{i}").sum()) for i in range(6)]
    visits(60, 1, hospitals=9).to_csv(tmp_path / "later.csv", index=False)
    with pytest.raises(UsageError, match="'h6' of the test table has nothing to train on"):
        hush.load_task(str(tmp_path / "visits.toml"))


def test_a_folder_with_a_file_for_each_client(tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    for i, name in enumerate(("bob", "alice")):
        save_file(
            {"x": torch.full((5 + i, 3), float(i)), "y": torch.ones(5 + i, dtype=torch.int64)},
            tmp_path / f"people/{name}.safetensors",
        )
    path = tmp_path / "own.toml"
    path.write_text('train = "people"\ntarget = "y"\nclasses = 2\n')
    raw = dataset(str(path)).load(tmp_path)
    assert raw.names == ("alice", "bob")
    assert torch.bincount(raw.owner).tolist() == [6, 5]  # type: ignore[arg-type]
    assert raw.train.x[raw.owner == 0].eq(1).all()
    visits(40, 0).to_csv(tmp_path / "people" / "carol.csv", index=False)
    with pytest.raises(DataError, match=r"carol has the columns hospital, ward"):
        dataset(str(path))
    (tmp_path / "parts").mkdir()
    for i in range(2):
        visits(20, i).to_csv(tmp_path / f"parts/{i}.csv", index=False)
    task = hush.load_task(describe(tmp_path, "parts"))  # a client column wins over the files' names, which are no input
    assert task.train.count == 6
    assert task.train.x.shape[1] == 4


def test_a_number_to_come_close_to(tmp_path: Path) -> None:
    visits(300, 0).to_csv(tmp_path / "visits.csv", index=False)
    path = tmp_path / "cost.toml"
    path.write_text('train = "visits.csv"\nclient = "hospital"\ntarget = "cost"\nfeatures = ["age"]\n')
    task = hush.load_task(str(path))
    result = hush.simulate(hush.methods.fedavg(lr=0.1, local_epochs=3), task, rounds=20, cohort=6)
    assert result.test_accuracy is None
    assert result.test_metrics["rmse"] < 0.1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("target = 'y'", UsageError, "there must be a test table"),
        ("train = 'a.csv'\ntarget = 'y'", UsageError, "Say which column is the client"),
        ("train = 'a.csv'\ntarget = 'y'\nclient = 'u'\nclases = 2", UsageError, "did you mean 'classes'"),
        ("train = 'a.csv'\ntarget = 'y'\nclient = 'u'\nclasses = 1", UsageError, "with classes = 1 they go from 0 to 0"),
        ("train = 'nowhere.csv'\ntarget = 'y'\nclient = 'u'", DataError, "There is no file"),
        ("train = 'a.xls'\ntarget = 'y'\nclient = 'u'", UsageError, "not a table that Hush reads"),
        ("train = 'empty'\ntarget = 'y'", DataError, "holds no .csv"),
        ("train = 'a.csv'\ntarget = 'z'\nclient = 'u'", UsageError, "no column 'z'"),
        ("train = 'bad.parquet'\ntarget = 'y'\nclient = 'u'", DataError, "cannot be read as parquet"),
        ("train = 'bad.safetensors'\ntarget = 'y'\nclient = 'u'", DataError, "cannot be read as safetensors"),
        ("train = 'a.csv'\ntarget = 'f'\nclient = 'u'\nclasses = 2", UsageError, "holds fractions"),
        ("train = ", DataError, "cannot be read"),
        ("train = 'hf:there-is-no-such-set'\ntarget = 'y'\nclient = 'u'", (UsageError, DataError), "pip install|cannot be loaded"),
    ],
)
def test_descriptions_that_do_not_fit(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text("u,y,f\n1,0,0.5\n2,1,0.5\n")
    for name in ("a.xls", "bad.parquet", "bad.safetensors"):
        (tmp_path / name).write_text("nonsense")
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(error, match=said):
        dataset(str(path))


def test_a_description_that_is_not_there() -> None:
    with pytest.raises(DataError, match="There is no file"):
        hush.load_task("nowhere.toml")
