from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hush import DataError
from hush.tasks.readers.adult import CATEGORIES, COLUMNS, read_adult

ANN = "39, State-gov, 77, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
BEN = "52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband, White, Male, 0, 0, 45, ?, >50K"


def files(folder: Path, data: list[str], test: list[str]) -> dict[str, Path]:
    paths = {name: folder / name for name in ("adult.data", "adult.test")}
    paths["adult.data"].write_text("\n".join([*data, "", ""]))
    paths["adult.test"].write_text("\n".join(["|1x3 Cross validator", *test, "", ""]))
    return paths


def test_every_attribute_becomes_one_column_of_the_public_list(tmp_path: Path) -> None:
    raw = read_adult(files(tmp_path, [ANN, BEN], [f"{BEN}."]))
    assert len(COLUMNS) == 102
    assert len(set(COLUMNS)) == 102
    assert raw.train.x.dtype == torch.float32
    assert raw.train.x.shape == (2, 102)
    assert raw.train.y.tolist() == [0, 1]
    assert raw.test.y.tolist() == [1]

    def told(row: torch.Tensor) -> set[str]:
        return {COLUMNS[i] for i in row.nonzero()[:, 0].tolist()}

    assert told(raw.train.x[0]) == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    }
    unknown = {"workclass=?", "occupation=?", "native-country=?"}
    assert unknown < told(raw.train.x[1])
    assert {column for column in COLUMNS if column.endswith("=?")} == unknown
    assert torch.equal(raw.test.x[0], raw.train.x[1])
    assert raw.train.x.sum(1).tolist() == [8.0, 8.0]


def test_columns_do_not_depend_on_the_data(tmp_path: Path) -> None:
    alone = read_adult(files(tmp_path, [ANN], [f"{ANN}."]))
    both = read_adult(files(tmp_path, [BEN, ANN], [f"{ANN}."]))
    assert torch.equal(alone.train.x[0], both.train.x[1])


@pytest.mark.parametrize(
    ("data", "test", "said"),
    [
        ([ANN, BEN.rsplit(",", 1)[0]], [], r"adult\.data has 14 columns instead of 15 in line 2"),
        ([f"{ANN}, 7"], [], r"adult\.data has 16 columns instead of 15 in line 1"),
        ([ANN.replace("White", "white")], [], r"adult\.data has the unknown value 'white' in line 1, column race"),
        ([ANN.replace("Male", "?")], [], r"the unknown value '\?' in line 1, column sex"),
        (
            [ANN],
            [f"{BEN}.", ANN.replace("State-gov", "Mars")],
            r"adult\.test has the unknown value 'Mars' in line 3, column workclass",
        ),
        ([ANN], [ANN[:-1]], r"adult\.test has the unknown label '<=50' in line 2, column income"),
        ([ANN, "", "|1x3 Cross validator"], [], r"adult\.data has 1 columns instead of 15 in line 3"),
        ([], [], r"adult\.data holds no row"),
    ],
)
def test_wrong_rows_are_named(data: list[str], test: list[str], said: str, tmp_path: Path) -> None:
    paths = files(tmp_path, data, test)
    with pytest.raises(DataError, match=said + r".*: fetch it again\.$"):
        read_adult(paths)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    paths = files(tmp_path, [ANN], [ANN])
    paths["adult.test"].write_bytes(b"39, \xe4\n")
    with pytest.raises(DataError, match=r"adult\.test cannot be read .*: fetch it again\.$"):
        read_adult(paths)


def test_the_real_adult(real_data: Path) -> None:
    folder = real_data / "adult"
    if not folder.is_dir():
        pytest.skip("HUSH_DATA holds no Adult")
    raw = read_adult({path.name: path for path in folder.iterdir()})
    assert (raw.train.x.shape, raw.test.x.shape) == ((32_561, 102), (16_281, 102))
    assert torch.bincount(raw.train.y).tolist() == [24_720, 7_841]
    assert torch.bincount(raw.test.y).tolist() == [12_435, 3_846]
    unknown = [i for i, column in enumerate(COLUMNS) if column.endswith("=?")]
    assert int((raw.train.x[:, unknown].sum(1) > 0).sum()) == 2_399
    assert int((raw.test.x[:, unknown].sum(1) > 0).sum()) == 1_221
    described = dict(
        line.rstrip(".\n").split(": ", 1) for line in (folder / "adult.names").read_text().splitlines() if line[:1].islower()
    )
    assert set(CATEGORIES) == {name for name, values in described.items() if values != "continuous"}
    for name, categories in CATEGORIES.items():
        assert [category for category in categories if category != "?"] == described[name].split(", ")
