"""A user's own clients: tensors, PyTorch data sets, data frames; and what is wrong with them, said at once."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import hush
from hush import Columns, UsageError
from tests.conftest import make_task


class Rows(Dataset[tuple[Any, Any]]):
    """A data set as users write them."""

    def __init__(self, rows: list[tuple[Any, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.rows[i]


class Stream(IterableDataset[tuple[Any, Any]]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        yield np.ones(2, dtype=np.float32), 1
        yield np.zeros(2, dtype=np.float32), 0


def test_a_data_set_for_each_client_whatever_its_kind() -> None:
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 1, 0])
    clients = hush.Clients.of(
        {
            "a": TensorDataset(x, y),
            "b": Subset(TensorDataset(x, y), [3, 1]),
            "c": Rows([(np.array([5.0, 6.0]), 1)]),  # numpy's float64 becomes what models take
            "d": Stream(),
            "e": Rows([]),
        }
    )
    assert clients.sizes.tolist() == [4, 2, 1, 2, 0]
    assert clients.x.dtype is torch.float32
    assert clients.x[4:7].tolist() == [[6, 7], [2, 3], [5, 6]]
    assert clients.y.tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 0]
    task = hush.Task(nn.Linear(2, 2), [TensorDataset(x, y), Stream()], [TensorDataset(x, y), Stream()])
    result = hush.simulate(hush.methods.fedavg(), task, rounds=2, cohort=2)
    assert result.per_client is not None
    assert result.per_client["clients"] == 2


def test_data_sets_that_are_read_once_only() -> None:
    """A task may be asked for its clients many times; an iterator gives them once."""
    reads = []

    class Counting(Rows):
        def __getitem__(self, i: int) -> tuple[Any, Any]:
            reads.append(i)
            return super().__getitem__(i)

    task = hush.Task(nn.Linear(2, 2), [Counting([(torch.zeros(2), 0), (torch.ones(2), 1)])])
    hush.simulate(hush.methods.fedavg(), task, rounds=2, cohort=1)
    assert sorted(reads) == [0, 1]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Rows([("a picture", 1)]), "gives tuple and Tensor|gives list and Tensor"),
        (Rows([(torch.zeros(2), 1), (torch.zeros(3), 1)]), "of one shape"),
        (Rows([(object(), 1)]), "give it a transform"),
        (Rows([(1, 2, 3)]), "does not give"),  # type: ignore[list-item]
        (3, "Client 1 is int, where a pair of torch tensors"),
    ],
)
def test_data_sets_that_do_not_fit(bad: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hush.Clients.of([TensorDataset(torch.zeros(1, 2), torch.zeros(1)), bad])


def test_clients_that_differ_in_shape_or_are_all_empty() -> None:
    with pytest.raises(UsageError, match=r"Client 1 has inputs of shape \(3,\) where others have \(2,\)"):
        hush.Clients.of([(torch.zeros(1, 2), torch.zeros(1)), (torch.zeros(1, 3), torch.zeros(1))])
    with pytest.raises(UsageError, match="None of the 2 clients"):
        hush.Clients.of([Rows([]), Rows([])])


def test_an_empty_client_and_one_with_a_single_example_take_part() -> None:
    task = make_task(sizes=(5, 0, 1, 7))
    result = hush.simulate(hush.methods.dp_fedavg(noise=1.0, local_epochs=2), task, rounds=3, cohort=4)
    assert result.clients == 4
    alone = hush.simulate(hush.methods.fedavg(), make_task(sizes=(0, 1)), rounds=2, cohort=2)
    assert alone.test_loss is not None


@pytest.mark.parametrize("part", ["clients", "test", "validation", "public"])
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_out_of_range_is_named(part: str, label: int) -> None:
    x, y = torch.randn(4, 6), torch.tensor([0, 1, label, 2])
    task = make_task(**({part: (x, y)} if part != "clients" else {}))
    if part == "clients":
        task = hush.Task(task.model, [(x[:1], y[:1]), (x[:0], y[:0]), (x[1:], y[1:])])
    where = "Example 1 of client 2" if part == "clients" else f"Row 2 of the {part} examples"
    with pytest.raises(UsageError, match=rf"{where} has the label {label}, and the model has 3 classes"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=2)


def test_a_token_out_of_range_is_named() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    tokens = torch.randint(0, 10, (40, 3))
    tokens[33, 1] = 10
    task = hush.Task(model, [(tokens, torch.zeros(40, dtype=torch.int64))])
    with pytest.raises(UsageError, match=r"Example 33 of client 0 holds a value .* \(they go from \d+ to 10\)"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=1)
    tokens[33, 1] = 9
    result = hush.simulate(
        hush.methods.fedavg(), hush.Task(model, [(tokens, torch.zeros(40, dtype=torch.int64))]), rounds=1, cohort=1
    )
    assert result.rounds == 1


class TwoTables(nn.Module):
    """A column of ten kinds and one of three."""

    def __init__(self) -> None:
        super().__init__()
        self.many, self.few, self.out = nn.Embedding(10, 4), nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.many(x[:, 0]) + self.few(x[:, 1]))


def test_each_column_of_tokens_is_held_against_its_own_table() -> None:
    """vmap would look a token beyond the table up in the next client's, without a word."""
    tokens = torch.stack([torch.arange(10), torch.arange(10) % 3], 1)
    tokens[7, 1] = 3  # the other column holds far larger ones
    task = hush.Task(
        TwoTables(), [(tokens[:5], torch.zeros(5, dtype=torch.int64)), (tokens[5:], torch.zeros(5, dtype=torch.int64))]
    )
    with pytest.raises(UsageError, match="Example 2 of client 1 holds a value that the model's embedding does not"):
        hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=2)


TABLE = {
    "hospital": ["b", "a", "b", "c", "a"],
    "ward": ["A", "B", "A", "C", "B"],
    "age": [1.0, 2.0, 3.0, 4.0, 5.0],
    "smokes": [True, False, False, True, True],
    "readmitted": [0, 1, 1, 0, 1],
}
COLUMNS = Columns("hospital", "readmitted", categories={"ward": ["A", "B", "C"]})


def frames() -> list[Any]:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(TABLE)
    frame["ward"] = frame["ward"].astype("category")
    nullable = pandas.DataFrame(TABLE).convert_dtypes()
    others = []
    for name, make in (("polars", "DataFrame"), ("datasets", "Dataset")):  # where they are installed
        if importlib.util.find_spec(name):
            kind = getattr(importlib.import_module(name), make)
            others.append(kind.from_dict(TABLE) if name == "datasets" else kind(TABLE))
    return [TABLE, pandas.DataFrame(TABLE), frame, nullable, pyarrow.table(TABLE), *others]


def test_a_data_frame_with_a_client_column() -> None:
    for frame in frames():
        clients = COLUMNS.clients(frame)
        assert clients.sizes.tolist() == [2, 2, 1]
        assert clients.x.tolist() == [
            [0, 1, 0, 2, 0],
            [0, 1, 0, 5, 1],
            [1, 0, 0, 1, 1],
            [1, 0, 0, 3, 0],
            [0, 0, 1, 4, 1],
        ]
        assert clients.y.tolist() == [1, 1, 0, 1, 0]
        assert COLUMNS.width(frame) == 5
    test = {name: values[:2] for name, values in TABLE.items() if name != "hospital"}
    task = hush.Task(nn.Linear(5, 2), COLUMNS.clients(TABLE), COLUMNS.examples(test))
    assert hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=2).test_accuracy is not None


def test_targets_and_inputs_of_other_kinds() -> None:
    words = Columns("hospital", "ward", features=["age"], categories={"ward": ["C", "B", "A"]})
    assert words.clients(TABLE).y.tolist() == [1, 1, 2, 2, 0]
    assert Columns("hospital", "age", features=["smokes"]).clients(TABLE).y.dtype is torch.float32
    tokens = {"u": [1, 0], "text": [[1, 2, 3], [4, 5, 6]], "y": [0, 1]}
    clients = Columns("u", "y").clients(tokens)
    assert clients.x.tolist() == [[4, 5, 6], [1, 2, 3]]
    assert not clients.x.is_floating_point()
    images = {"u": [0, 0], "image": np.zeros((2, 1, 4, 4), dtype=np.uint8), "y": [0, 1]}
    assert Columns("u", "y").clients(images).x.shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("columns", "change", "said"),
    [
        (Columns("hospitl", "readmitted"), {}, "no column 'hospitl'; did you mean 'hospital'"),
        (Columns("hospital", "outcome"), {}, "no column 'outcome'"),
        (Columns("hospital", "readmitted", features=["agee"]), {}, "did you mean 'age'"),
        (Columns("hospital", "readmitted", features=["hospital"]), {}, "it is the client"),
        (Columns("hospital", "readmitted", features=[]), {}, "no column besides"),
        (Columns("hospital", "readmitted"), {}, "'ward' holds text: give its categories"),
        (Columns("hospital", "ward", features=["age"]), {}, "target 'ward' holds text"),
        (Columns("hospital", "readmitted", categories={"ward": ["A", "B"]}), {}, "holds 'C' in row 3"),
        (COLUMNS, {"age": [1.0, float("nan"), 3.0, 4.0, 5.0]}, "'age' has no value in 1 rows, first in row 1"),
        (COLUMNS, {"hospital": ["b", None, "b", "c", "a"]}, "'hospital' has no value"),
        (COLUMNS, {"age": [1.0, 2.0]}, "differ in length|dimensions"),
        (COLUMNS, {"ward": [[1, 2], [1], [2], [3], [4]]}, "differ in shape"),
        (COLUMNS, {name: [] for name in TABLE}, "no row"),
    ],
)
def test_tables_that_do_not_fit(columns: Columns, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        columns.clients(TABLE | change)


def test_a_table_is_a_table() -> None:
    with pytest.raises(UsageError, match="A table is a data frame"):
        COLUMNS.clients(3)
