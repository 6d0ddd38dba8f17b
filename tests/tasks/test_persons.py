"""Whose rows they are: from a column to examples of persons, whatever the order of rows and whoever else there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hush
from hush import UsageError
from hush.tasks.catalogue import dataset
from hush.tasks.clients import Clients
from hush.tasks.persons import grouped, held, most_clients
from tests.tasks.test_own import describe, visits

pandas = pytest.importorskip("pandas")


def people(train: Clients, most: int) -> dict[tuple[int, int], list[tuple[float, ...]]]:
    """What stands in each person's example, by client and person; without what is not there."""
    found = grouped(train, most)
    made = found.examples(train, -100)
    assert made.sizes.tolist() == held(train).tolist()
    owner = made.owner.tolist()
    assert made.numbers is not None
    told = {}
    for i, (client, person) in enumerate(zip(owner, made.numbers.tolist(), strict=True)):
        real = made.y[i] != -100
        assert torch.equal(made.x[i][~real], made.x[i][:1].expand(int((~real).sum()), -1))
        told[client, person] = [(*row, float(y)) for row, y in zip(made.x[i][real].tolist(), made.y[i][real].tolist(), strict=True)]
    return told


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_persons_example_depends_on_her_rows_alone(data: st.DataObject) -> None:
    """Not on the order of rows, nor on other persons, there or at other clients."""
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    total, most = sum(sizes), data.draw(st.integers(1, 5))
    x = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=2 * total, max_size=2 * total))).reshape(total, 2).float()
    y = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=total, max_size=total)), dtype=torch.int64)
    ids = torch.tensor(data.draw(st.lists(st.integers(-2, 3), min_size=total, max_size=total)), dtype=torch.int64)
    train = Clients(x, y, torch.tensor(sizes), ids)
    whole = people(train, most)
    owner = train.owner.tolist()
    for (client, person), rows in whole.items():
        own = [(*x[i].tolist(), float(y[i])) for i in range(total) if (owner[i], int(ids[i])) == (client, person)]
        assert len(rows) == min(most, len(own))
        assert all(rows.count(row) <= own.count(row) for row in rows)
    order = torch.tensor(data.draw(st.permutations(range(total))), dtype=torch.int64)
    within = order[torch.tensor([owner[i] for i in order.tolist()], dtype=torch.int64).argsort(stable=True)]
    assert people(Clients(x[within], y[within], train.sizes, ids[within]), most) == whole
    if total:  # somebody else is taken out everywhere
        gone = int(ids[data.draw(st.integers(0, total - 1))])
        stays = ids != gone
        fewer = torch.bincount(train.owner[stays], minlength=len(sizes))
        rest = people(Clients(x[stays], y[stays], fewer, ids[stays]), most)
        assert rest == {key: rows for key, rows in whole.items() if key[1] != gone}


def test_persons_come_as_their_table_names_them_first() -> None:
    """So whoever is in somebody's place leaves all others in theirs, whatever the name is and however many rows there are."""
    x, y, sizes = torch.arange(7.0)[:, None], torch.zeros(7), torch.tensor([5, 2])
    numbers = [
        grouped(Clients(x, y, sizes, torch.tensor([30, name, 30, 20, name, 40, 20])), 2).persons.tolist() for name in (10, 25, 99)
    ]
    assert numbers == [[30, name, 20, 40, 20] for name in (10, 25, 99)]


def test_the_same_person_is_counted_at_every_client() -> None:
    train = Clients(torch.zeros(6, 1), torch.zeros(6), torch.tensor([2, 1, 3]), torch.tensor([1, 2, 2, 3, 3, 2]))
    assert held(train).tolist() == [2, 1, 2]
    assert most_clients(train) == 3


def with_patients(rows: int, seed: int, per_hospital: int = 20) -> pandas.DataFrame:
    frame = visits(rows, seed)
    rng = np.random.default_rng(seed + 100)
    frame["patient_id"] = [f"{h}-{i}" for h, i in zip(frame["hospital"], rng.integers(0, per_hospital, rows), strict=True)]
    return frame


def test_a_description_names_persons_and_how_many_of_their_rows_count(tmp_path: Path) -> None:
    frame = with_patients(400, 0)
    frame.to_csv(tmp_path / "visits.csv", index=False)
    frame.to_csv(tmp_path / "later.csv", index=False)
    path = describe(tmp_path, "visits.csv", 'test = "later.csv"\nperson = "patient_id"\nrows_per_person = 3')
    with pytest.raises(UsageError, match="test examples are among"):  # of the same rows, as always
        hush.simulate(hush.methods.dp_sgd(noise=1.0), hush.load_task(path), rounds=1, cohort=2)
    with_patients(50, 1).drop(columns=["hospital", "patient_id"]).to_csv(tmp_path / "later.csv", index=False)
    task = hush.load_task(path)
    assert task.person_rows == 3
    assert task.train.x.shape[1] == 4  # the person is no input
    assert held(task.train).tolist() == frame.groupby("hospital")["patient_id"].nunique().tolist()
    result = hush.simulate(hush.methods.dp_sgd(noise=1.0), task, rounds=2, cohort=2)
    assert (result.unit, result.configuration["records"]) == ("person", int(held(task.train).min()))
    assert any("at most 3 of them" in line for line in result.guarantee.assumptions)  # type: ignore[union-attr]
    assert any("no person's rows lie at more than one client" in line for line in result.guarantee.assumptions)  # type: ignore[union-attr]
    every = path.replace("visits.toml", "every.toml")
    Path(every).write_text(Path(path).read_text().replace('features = ["ward", "age"]', ""))
    frame.drop(columns="cost").to_csv(tmp_path / "visits.csv", index=False)
    with_patients(50, 1).drop(columns=["hospital", "patient_id", "cost"]).to_csv(tmp_path / "later.csv", index=False)
    assert hush.load_task(every).train.x.shape[1] == 4  # nor is it one where all other columns are


@pytest.mark.parametrize("part", ["test", "validation", "public"])
def test_whoever_trains_is_not_among_examples_of_nobody(part: str, tmp_path: Path) -> None:
    """They are used without noise: a mask, or a figure, would show a person whom the certificate calls protected."""
    with_patients(300, 0).to_csv(tmp_path / "visits.csv", index=False)
    later = with_patients(40, 1).drop(columns="hospital")
    later["age"] += 0.001  # other visits, of the same people
    later.drop(columns="patient_id").to_csv(tmp_path / "nobody.csv", index=False)
    later.to_csv(tmp_path / "later.csv", index=False)
    tables = {"test": "nobody.csv", "public": "nobody.csv", part: "later.csv"}
    said = "\n".join(f'{name} = "{file}"' for name, file in tables.items())
    path = describe(tmp_path, "visits.csv", f'{said}\nperson = "patient_id"')
    method = hush.methods.dp_sgd(noise=1.0, mask="top-k")
    with pytest.raises(UsageError, match=f"Persons who train have rows among the {part} examples"):
        hush.simulate(method, hush.load_task(path), rounds=1, cohort=2)
    assert hush.simulate(method, hush.load_task(path), rounds=1, cohort=2, unit="record").epsilon is not None
    later["patient_id"] = "else " + later["patient_id"]
    later.to_csv(tmp_path / "later.csv", index=False)
    assert hush.simulate(method, hush.load_task(path), rounds=1, cohort=2).unit == "person"


def test_whoever_trains_is_not_at_a_client_that_was_taken_out(tmp_path: Path) -> None:
    frame = with_patients(600, 0)
    frame.to_csv(tmp_path / "visits.csv", index=False)
    with_patients(40, 1)[["ward", "age", "readmitted"]].to_csv(tmp_path / "later.csv", index=False)
    path = describe(tmp_path, "visits.csv", 'test = "later.csv"\nperson = "patient_id"')
    method = hush.methods.dp_sgd(noise=1.0, mask="top-k")
    assert hush.simulate(method, hush.load_task(path, public=30), rounds=1, cohort=2).unit == "person"
    frame["patient_id"] = [f"{i % 100}" for i in range(600)]  # whoever comes may come anywhere
    frame.to_csv(tmp_path / "visits.csv", index=False)
    with pytest.raises(UsageError, match="Persons who train have rows among the public examples"):
        hush.simulate(method, hush.load_task(path, public=30), rounds=1, cohort=2)


def test_each_client_keeps_whole_persons_to_judge_on(tmp_path: Path) -> None:
    frame = with_patients(600, 0)
    frame.to_parquet(tmp_path / "visits.parquet")
    task = hush.load_task(describe(tmp_path, "visits.parquet", 'person = "patient_id"'))
    assert isinstance(task.test, Clients)
    assert isinstance(task.validation, Clients)
    assert len(task.train.x) + len(task.test.x) + len(task.validation.x) == 600
    assert 60 < int(held(task.train).sum()) < 115  # of about 120, each with a chance of 0.8
    busy = frame["patient_id"] == "h2-7"
    pandas.concat([frame, *[frame[busy]] * 9]).to_parquet(tmp_path / "visits.parquet")  # one comes ten times as often
    again = hush.load_task(describe(tmp_path, "visits.parquet", 'person = "patient_id"'))
    assert set(again.train.persons.tolist()) == set(task.train.persons.tolist())  # type: ignore[union-attr]
    assert task.test.sizes.min() > 0
    rows = hush.load_task(describe(tmp_path, "visits.parquet"))
    assert rows.train.persons is None
    assert rows.train.count == 6


@pytest.mark.parametrize(
    ("more", "change", "match"),
    [
        ('person = "patient"', {}, "no column 'patient'"),
        ('person = "readmitted"', {}, "both person and target"),
        ('person = "hospital"', {}, "both person and client: a method for clients"),
        ('person = "age"', {}, "'age' cannot be an input: it is the person"),
        ('person = "patient_id"', {"patient_id": None}, r"'patient_id' has no value in 1 rows, first in row 7"),
        ('person = "patient_id"\nrows_per_person = 0', {}, "rows_per_person in visits.toml"),
    ],
)
def test_what_is_wrong_with_the_column_is_one_sentence(more: str, change: dict[str, object], match: str, tmp_path: Path) -> None:
    frame = with_patients(60, 0)
    for name, value in change.items():
        frame[name] = frame[name].astype(object)
        frame.loc[7, name] = value
    frame.to_csv(tmp_path / "visits.csv", index=False)
    with pytest.raises(UsageError, match=match):
        dataset(describe(tmp_path, "visits.csv", more))


def test_one_name_of_two_kinds_is_refused() -> None:
    columns = hush.Columns("shop", "y", ["x"], person="who")
    frame = {"shop": ["a", "a"], "who": np.array([1, "1"], dtype=object), "x": [1.0, 2.0], "y": [0, 1]}
    with pytest.raises(UsageError, match="one person might be two persons"):
        columns.clients({key: np.asarray(value) for key, value in frame.items()})


def test_a_day_that_is_missing_is_nobodys_name() -> None:
    """Rows of several people would be one person otherwise."""
    columns = hush.Columns("shop", "y", ["x"], person="day")
    frame = {"shop": ["a", "a"], "day": np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "x": [1.0, 2.0], "y": [0, 1]}
    with pytest.raises(UsageError, match="'day' has no value in 1 rows, first in row 1"):
        columns.clients({key: np.asarray(value) for key, value in frame.items()})


def test_columns_give_the_same_number_to_the_same_person_everywhere() -> None:
    columns = hush.Columns(client="shop", target="y", person="who", features=["x"])
    one = {"shop": ["b", "a", "a"], "who": ["eve", "bob", "eve"], "x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}
    other = {"shop": ["a"], "who": ["eve"], "x": [1.0], "y": [0]}
    made = columns.clients({key: np.array(value) for key, value in one.items()})
    assert made.persons is not None
    assert made.persons[1] == made.persons[2] != made.persons[0]
    assert columns.clients({key: np.array(value) for key, value in other.items()}).persons[0] == made.persons[1]  # type: ignore[index]
    assert most_clients(made) == 2


@pytest.mark.parametrize("ids", [torch.tensor([1.0, 2.0]), torch.tensor([1])])
def test_persons_are_whole_numbers_one_for_each_example(ids: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="one for each example"):
        Clients(torch.zeros(2, 1), torch.zeros(2), torch.tensor([2]), ids)


def test_persons_by_images_and_by_numbers_to_come_close_to() -> None:
    g = torch.Generator().manual_seed(0)
    ids, sizes = torch.arange(60) // 3, torch.tensor([30, 30])
    images = torch.randint(0, 256, (60, 1, 4, 4), generator=g).to(torch.uint8)
    model = nn.Sequential(hush.tasks.models.pixels.Pixels((0.5,), (0.5,)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    task = hush.Task(model, Clients(images, torch.arange(60) % 3, sizes, ids))
    assert hush.simulate(hush.methods.dp_sgd(noise=1.0), task, rounds=2, cohort=2).unit == "person"
    x = torch.randn(60, 3, generator=g)
    house = hush.Task(
        nn.Linear(3, 1), Clients(x, x[:, :1], sizes, ids), test=(torch.randn(9, 3), torch.zeros(9, 1)), loss=nn.MSELoss()
    )
    assert hush.simulate(hush.methods.fed_spa(noise=1.0, ratio=0.5), house, rounds=2, cohort=2).test_loss is not None
