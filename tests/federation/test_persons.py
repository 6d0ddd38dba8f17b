"""Persons in a federation: the column is proposed, named to whoever agrees, read by each client, and never sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hush import DataError, UsageError, methods
from hush.config import RunConfig
from hush.engines.setup import place_data
from hush.errors import HushError
from hush.experiment import Experiment
from hush.federation.consent import Policy, words
from hush.federation.data import missing_columns, read_examples, task_of
from hush.federation.proposal import Examples, Proposal, agree
from hush.federation.propose import _of_own_tables, examples_of
from tests.federation.world import Clock, World
from tests.tasks.test_persons import describe, with_patients

TOLD = Examples((2,), "float32", 2, "readmitted", ("age", "cost"), person="patient_id", person_rows=3)


def test_a_client_reads_whose_its_rows_are(tmp_path: Path) -> None:
    frame = with_patients(60, 0)
    frame.to_csv(tmp_path / "own.csv", index=False)
    held = read_examples(str(tmp_path / "own.csv"), TOLD)
    assert held.persons is not None
    assert len(torch.unique(held.persons)) == frame["patient_id"].nunique()
    assert held.x.shape == (60, 2)
    assert read_examples(str(tmp_path / "own.csv"), replace(TOLD, person=None, person_rows=None)).persons is None
    assert missing_columns(str(tmp_path / "own.csv"), TOLD) == []
    frame.drop(columns="patient_id").to_csv(tmp_path / "own.csv", index=False)
    assert missing_columns(str(tmp_path / "own.csv"), TOLD) == ["patient_id"]
    frame.assign(patient_id=[None, *frame["patient_id"][1:]]).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(UsageError, match="'patient_id' has no value in 1 rows"):
        read_examples(str(tmp_path / "own.csv"), TOLD)


def test_a_function_says_whose_its_rows_are(tmp_path: Path) -> None:
    code = "import numpy as np\ndef three(): return np.zeros((4, 2), np.float32), np.zeros(4, np.int64), np.array([1, 1, 2, 3])\n"
    (tmp_path / "own.py").write_text(code + "def two(): return three()[:2]\n")
    held = read_examples(f"{tmp_path}/own.py:three", TOLD)
    assert held.persons is not None
    assert held.persons.tolist() == [1, 1, 2, 3]
    with pytest.raises(HushError, match="return whose they are"):
        read_examples(f"{tmp_path}/own.py:two", TOLD)
    assert read_examples(f"{tmp_path}/own.py:three", replace(TOLD, person=None, person_rows=None)).persons is None


def test_a_clients_own_description_must_agree(tmp_path: Path) -> None:
    with_patients(20, 0).to_csv(tmp_path / "own.csv", index=False)
    (tmp_path / "own.toml").write_text('train = "own.csv"\nperson = "hospital"\n')
    with pytest.raises(UsageError, match="person = 'hospital', and the server proposes 'patient_id'"):
        read_examples(str(tmp_path / "own.toml"), TOLD)
    assert len(read_examples(str(tmp_path / "own.toml"), replace(TOLD, person=None, person_rows=None)).x) == 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(place=tmp_path_factory.mktemp("persons") / "world", clock=Clock(), config={"rounds": 3})


def naming(made: World, column: str | None = "patient_id", rows: int | None = 3) -> Proposal:
    return replace(made.proposal, examples=replace(made.proposal.examples, person=column, person_rows=rows))


def test_the_column_is_named_to_whoever_agrees(made: World) -> None:
    told = agree(naming(made))
    assert any("patient_id, which says whose a row is and never leaves" in line for line in words(told, 0))
    assert not any("whose a row is" in line for line in words(agree(made.proposal), 0))
    allowed = Policy(epsilon=1e9, roster=told.proposal.members.fingerprint, features=("x",))
    assert allowed.objection(agree(made.proposal)) is None
    assert "a column that is read would be patient_id" in str(allowed.objection(told))
    assert replace(allowed, features=("x", "patient_id")).objection(told) is None


def test_a_proposal_of_persons_says_how_many_rows_count(made: World) -> None:
    proposal = naming(made)
    assert Proposal.read(proposal.to_json()).examples == proposal.examples
    for wrong in ({"person": None}, {"person_rows": None}, {"person_rows": 0}, {"person_rows": 2.5}, {"person": 3}):
        value = json.loads(proposal.to_json())
        value["examples"] |= wrong
        with pytest.raises(DataError, match="not one that Hush writes"):
            Proposal.read(json.dumps(value, sort_keys=True, separators=(",", ":")))


def test_a_client_trains_on_its_persons(made: World, tmp_path: Path) -> None:
    x, y = made.task.test.x[:9], made.task.test.y[:9]  # type: ignore[union-attr]
    ids = torch.tensor([4, 4, 4, 4, 5, 5, 6, 7, 7])
    save_file({"x": x.contiguous(), "y": y.contiguous(), "patient_id": ids}, tmp_path / "own.safetensors")
    task = task_of(naming(made), str(tmp_path / "own.safetensors"))
    placed = place_data(task, torch.device("cpu"), torch.float32, apart=True)
    assert placed.train.sizes.tolist() == [4]
    assert placed.train.x.shape[:2] == (4, 3)
    nobody = place_data(task_of(naming(made), None), torch.device("cpu"), torch.float32, apart=True)
    assert nobody.train.sizes.tolist() == [0]


def test_a_server_proposes_the_column_of_its_description(tmp_path: Path) -> None:
    with_patients(40, 0).drop(columns="hospital").to_csv(tmp_path / "later.csv", index=False)
    path = describe(tmp_path, "none", 'test = "later.csv"\nperson = "patient_id"\nrows_per_person = 4')
    Path(path).write_text(Path(path).read_text().replace('train = "none"', ""))
    for unit, expected in (("person", ("patient_id", 4)), (None, (None, None))):
        config = RunConfig.read({"data": path, "unit": unit, "model": "logistic"})
        experiment = Experiment(config, methods.dp_sgd(noise=1.0))
        found = examples_of(experiment, _of_own_tables(config))
        assert (found.person, found.person_rows) == expected
        assert found.features == ("ward", "age")
