"""Mistakes that people make with their data, and the one sentence that each gets before a round is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hush
from hush import Columns, DataError, UsageError, methods
from hush.tasks.catalogue import dataset
from hush.tasks.metrics import auc, perplexity
from hush.tasks.partition import partition
from tests.cli.test_cli import hush as command
from tests.conftest import make_task

X, Y = torch.randn(12, 3), torch.arange(12) % 2


def run(**parts: Any) -> hush.Result:
    values = {"model": nn.Linear(3, 2), "clients": [(X[:6], Y[:6]), (X[6:], Y[6:])]} | parts
    return hush.simulate(methods.fedavg(), hush.Task(**values), rounds=1, cohort=1)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"model": nn.Linear}, "A model is a torch.nn.Module"),
        ({"test": (torch.randn(4, 5), torch.zeros(4, dtype=torch.int64))}, r"test inputs have the shape \(5,\)"),
        ({"validation": (X[:4], Y[:3])}, "4 validation inputs and 3 validation targets"),
        ({"test": [(X[:2], Y[:2])] * 3}, "3 clients have test examples of their own, and 2 train"),
        ({"test": [(X[:2], "labels")] * 2}, "test: Client 0 is tuple"),
        ({"model": nn.Linear(3, 1), "clients": [(X, X[:, :1])]}, "The targets are fractions"),
        ({"model": nn.Linear(3, 1), "clients": [(X, X[:, 0])]}, "The targets are fractions"),
        ({"clients": [(X, Y), (X.double(), Y)]}, "torch.float64 where others have torch.float32"),
        ({"test": (torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]]), Y[:2])}, "Row 1 of the test examples has an input"),
        ({"metrics": {"m": 3}}, "A metric is a name or a function"),
        ({"metrics": (lambda o, y: o,), "test": (X, Y)}, r"The metric '<lambda>' cannot be computed on 12"),
        ({"metrics": {"bad": lambda o, y: 1 / 0}, "test": (X, Y)}, "'bad' cannot be computed .*ZeroDivisionError"),
        (
            {"model": nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), "clients": [(X, X[:, :1])], "loss": nn.MSELoss()},
            r"Outputs of shape \(\d+,\) and targets of shape \(\d+, 1\) would be broadcast",
        ),
    ],
)
def test_one_sentence_before_the_first_round(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(**parts)


class Tokens(nn.Module):
    def __init__(self, last: bool) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(7, 7), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).movedim(-1, 1) if self.last else self.table(x)


def test_tokens_after_the_positions_are_named() -> None:
    x = torch.randint(0, 7, (6, 4))
    with pytest.raises(UsageError, match=r"end the model with .movedim\(-1, 1\)"):
        run(model=Tokens(last=False), clients=[(x, x)])
    assert run(model=Tokens(last=True), clients=[(x, x)]).rounds == 1


def test_a_metric_that_fails_later_loses_a_figure_and_not_the_model() -> None:
    calls = []

    def second_time(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        calls.append(len(targets))
        if len(calls) > 1:
            raise ValueError("no")
        return 1.0

    with pytest.warns(UserWarning, match="'second_time' failed on the test examples"):
        result = run(metrics=(second_time,), test=(torch.randn(5, 3), Y[:5]))
    assert result.test_metrics == {"second_time": None}
    assert result.state_dict


def test_a_client_that_holds_nan_is_named_where_it_ends_a_run() -> None:
    x = X.clone()
    x[7, 0] = torch.nan
    with pytest.raises(hush.Diverged, match="look for NaN in the data"):
        hush.simulate(methods.fedavg(), hush.Task(nn.Linear(3, 2), [(x[:6], Y[:6]), (x[6:], Y[6:])]), rounds=1, cohort=2)


def test_inputs_and_targets_of_odd_kinds() -> None:
    whole = run(test=TensorDataset(torch.randn(4, 3), Y[:4]))
    assert whole.per_client is None  # one data set is of nobody
    assert run(clients=[(X, Y.bool())]).rounds == 1
    tokens = torch.randint(0, 5, (8, 3))
    for kind in (torch.uint8, torch.int16, torch.int32):
        model = nn.Sequential(Cast(), nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
        assert run(model=model, clients=[(tokens.to(kind), torch.zeros(8, dtype=torch.int64))]).rounds == 1


class Cast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.long()


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        raise FileNotFoundError("scan.png")


class Endless(Dataset[Any]):
    pass


def test_data_sets_that_break() -> None:
    with pytest.raises(UsageError, match=r"Client 0's data set cannot be read: FileNotFoundError: scan\.png"):
        hush.Clients.of([Broken()])
    with pytest.raises(UsageError, match="Client 0's data set"):
        hush.Clients.of([Endless()])
    with pytest.raises(UsageError, match="whole numbers, one for each client"):
        hush.Clients(X, Y, torch.tensor([6.0, 6.0]))


def test_a_label_of_minus_100_counts_nowhere() -> None:
    task = make_task(classes=2, metrics=("auc", "macro_f1"))
    x, y = task.test  # type: ignore[misc]
    half = y.clone()
    half[::2] = -100
    model = task.model
    ours, plain = (
        hush.simulate(
            methods.fedavg(), make_task(classes=2, model=model, metrics=("auc", "macro_f1"), test=held), rounds=2, cohort=6
        )
        for held in ((x, half), (x[1::2], y[1::2]))
    )
    for key in ("test_accuracy", "test_loss"):
        assert getattr(ours, key) == pytest.approx(getattr(plain, key))
    assert ours.test_metrics == pytest.approx(plain.test_metrics)
    assert auc(torch.tensor([[0.1], [0.9]]), torch.tensor([[0.0], [1.0]])) == 1.0
    assert np.isnan(perplexity(torch.full((2, 3), torch.nan), torch.tensor([0, 1])))


def test_examples_without_a_target_do_not_dilute_training() -> None:
    x, y = torch.randn(4, 3), torch.tensor([0, 1, -100, -100])
    model = nn.Linear(3, 2)
    updates = []
    for rows in (4, 2):
        task = hush.Task(model, [(x[:rows], y[:rows])])
        learner, train = task.learner(dtype=torch.float64), task.placed_train("cpu", torch.float64)
        weight, key = torch.ones(1, rows, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
        updates.append(learner.gradients(learner.initial()[None], train.x[None], train.y[None], weight, key)[0])
    assert torch.allclose(*updates)


def test_columns_go_by_name_and_not_by_place() -> None:
    frame = {"u": [1, 2], "a": [1.0, 2.0], "b": [3.0, 4.0], "y": [0, 1]}
    columns = Columns("u", "y")
    assert columns.clients(frame).x.tolist() == [[1, 3], [2, 4]]
    other = {"y": [1], "b": [30.0], "c": [5.0], "a": [10.0]}
    assert columns.examples(other).x.tolist() == [[10, 30]]
    with pytest.raises(UsageError, match="no column 'a'"):
        columns.examples({"y": [1], "b": [30.0]})
    with pytest.raises(UsageError, match="no column 'hospitl'"):
        Columns("hospitl", "y").width({"hospital": ["a"], "y": [1], "b": [1.0]})


@pytest.mark.parametrize(
    ("columns", "frame", "said"),
    [
        ({"client": "y"}, {}, "both client and target"),
        ({"categories": {"a": ["x", "x"]}}, {}, "hold one twice"),
        ({"categories": {"z": ["x"]}}, {}, "no column 'z'"),
        ({"features": ["a", "a"]}, {}, "an input twice"),
        ({}, {"u": [1, "1"]}, "names of several kinds"),
        ({}, {"a": [1e300, 1.0]}, "too large for a model"),
        ({}, {"a": [float("inf"), 1.0]}, "too large for a model"),
        ({}, {"a": 3.0}, "one value and not a column"),
        ({}, {"Unnamed: 0": [0, 1]}, "a column without a name"),
        ({}, {"u": list(range(20)), "y": [0] * 20, "a": [*map(str, range(19)), "n/k"]}, "holds numbers, but 'n/k' in row 19"),
    ],
)
def test_tables_with_a_slip(columns: dict[str, Any], frame: dict[str, Any], said: str) -> None:
    table = {"u": [1, 2], "y": [0, 1], "a": [1.0, 2.0]} | frame
    if "u" in frame and len(frame["u"]) == 2:
        table["u"] = np.array(frame["u"], dtype=object)
    with pytest.raises(UsageError, match=said):
        Columns(**({"client": "u", "target": "y"} | columns)).clients(table)


def test_a_mix_of_labels_is_a_draw_also_for_those_who_come_last() -> None:
    """Dealt one after another, a tenth of these clients would hold a single label that was left over."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = partition("dirichlet:1+zipf:1.2", labels, 200, 0)
    single = [len(np.unique(labels[p])) == 1 and len(p) > 5 for p in parts]
    assert sum(single) <= 2
    ideal = np.random.default_rng(1).dirichlet(np.ones(10), 4000)
    mixes = np.array([np.bincount(labels[p], minlength=10) / len(p) for p in parts if len(p) > 20])
    entropy = [float(-(m * np.log(np.where(m > 0, m, 1))).sum(1).mean()) for m in (mixes, ideal)]
    assert entropy[0] == pytest.approx(entropy[1], abs=0.2)
    for spec in ("dirichlet:1e-300", "dirichlet:1e300", "lognormal:1000", "zipf:1e9"):
        dealt = partition(spec, labels[:500], 20, 0)
        assert sorted(np.concatenate(dealt).tolist()) == list(range(500))
        assert min(map(len, dealt)) >= 1
    assert len(partition("dirichlet:1", labels[:50] * 10**12 - 7, 5, 0)) == 5  # whatever numbers labels are


def test_files_and_settings_of_ones_own_with_a_slip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    folder = tmp_path / "f"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("x,y\n1,0\n2,1\n")
    (folder / "empty.csv").write_text("x,y\n")
    path = tmp_path / "own.toml"
    path.write_text('train = "f"\ntarget = "y"\nclasses = 2\n')
    assert dataset(str(path)).clients == 2
    (folder / "c.csv").write_text("x,y\n1,0\n")
    assert dataset(str(path)).clients == 3
    (folder / "c.csv").unlink()
    assert dataset(str(path)).clients == 2  # who withdrew is gone
    (folder / "a.parquet").write_text("x")
    with pytest.raises(DataError, match="two files of one name"):
        dataset(str(path))
    (folder / "a.parquet").unlink()
    (folder / "b.csv").write_text("x,y\n1,0\n2,7\n")
    with pytest.raises(UsageError, match="Row 3 of the train table has the y 7"):
        dataset(str(path))
    (folder / "b.csv").write_text("x,y\n1,0\n2,1\n")
    path.write_text('train = "f"\ntarget = "y"\n')
    with pytest.raises(UsageError, match="say classes = 2 where they are labels, or classes = 0"):
        dataset(str(path))
    for settings, said in (("learning_rate = 0.5", "no setting of"), ('lr = "abc"', "lr must be a number")):
        path.write_text(f'train = "f"\ntarget = "y"\nclasses = 2\n[settings]\n{settings}\n')
        code, _, err = command(capsys, "run", "fedavg", "--data", str(path), "--rounds", "1")
        assert code == 2
        assert said in err
    code, _, err = command(capsys, "run", "fedavg", "--data", str(folder / "a.csv"))
    assert code == 2
    assert "describe it in a .toml file" in err


def test_a_certificate_can_be_checked_where_the_table_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "t.csv").write_text("u,y,a\n" + "".join(f"{i % 20},{i % 2},{i / 40}\n" for i in range(80)))
    (tmp_path / "t.toml").write_text('train = "t.csv"\nclient = "u"\ntarget = "y"\nclasses = 2\n')
    out = tmp_path / "r"
    args = ("--data", str(tmp_path / "t.toml"), "--rounds", "1", "--noise", "1", "--cohort", "5", "--out", str(out))
    assert command(capsys, "run", "dp-fedavg", *args)[0] == 0
    assert command(capsys, "certify", str(out))[0] == 0
    (tmp_path / "t.csv").unlink()
    code, said, _ = command(capsys, "certify", str(out))
    assert code == 0
    assert "for the 20 clients that the certificate counts" in said


def test_a_large_delta_is_said_to_be_large() -> None:
    """And comes from the user alone: the default is small, however few clients there are."""
    for typed, large in ((0.1, True), (None, False)):
        result = hush.simulate(methods.dp_fedavg(noise=1.0), make_task(), rounds=1, cohort=2, delta=typed)
        assert result.guarantee is not None
        assert result.delta == (typed or 0.01)
        assert any("may fail altogether" in line for line in result.guarantee.warnings) is large
