"""Persons in a federation: the column is proposed, named to whoever agrees, read by each client, and never sent."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hush import DataError, UsageError, methods
from hush.config import RunConfig
from hush.engines.setup import place_data
from hush.errors import HushError
from hush.experiment import Experiment
from hush.federation import propose
from hush.federation.consent import Policy, words
from hush.federation.data import Held, stand_in_task, task_of
from hush.federation.proposal import Examples, Proposal, agree
from hush.federation.propose import _of_own_tables, examples_of
from hush.privacy.guarantee import Unit
from hush.tasks.clients import Clients
from tests.federation.world import Clock, World
from tests.tasks.test_persons import describe, with_patients


def read_examples(source: str, told: Examples) -> Clients:
    return Held.read(source, told).examples(told)


def missing_columns(source: str, told: Examples) -> list[str]:
    return Held.read(source, told).missing_columns(told)


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
    nobody = replace(TOLD, person=None, person_rows=None)
    assert len(read_examples(str(tmp_path / "own.toml"), nobody).x) == 20, "all of a client is protected, whoever's a row is"
    with pytest.raises(UsageError, match="person = 'hospital', and the server proposes None"):
        Held.read(str(tmp_path / "own.toml"), nobody, by_row=True)


RUN = {"method": "dp-sgd", "rounds": 3, "noise": 1.5, "delta": 1e-3, "set": {"local_steps": None, "rate": 0.1}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(place=tmp_path_factory.mktemp("persons") / "world", clock=Clock(), config=RUN)


def naming(made: World, column: str | None = "patient_id", rows: int | None = 3) -> Proposal:
    run = replace(made.proposal.run, unit="record" if column is None else "person")
    return replace(made.proposal, run=run, examples=replace(made.proposal.examples, person=column, person_rows=rows))


def test_the_column_is_named_to_whoever_agrees(made: World) -> None:
    told = agree(naming(made))
    assert told.plan is not None
    assert (told.plan.unit, told.plan.releases[0].noise.std) == (Unit.PERSON, agree(made.proposal).plan.releases[0].noise.std)  # type: ignore[union-attr]
    said = words(told, 0)
    assert any("Protected is one person: all rows of theirs at a client together" in line for line in said)
    assert any("no person's rows lie at more than one client" in line for line in said)
    assert any("at most 3 of them are used" in line for line in said)
    assert any("one row, one record" in line for line in words(agree(made.proposal), 0))
    assert any("patient_id, which says whose a row is and never leaves" in line for line in words(told, 0))
    assert not any("whose a row is" in line for line in words(agree(made.proposal), 0))
    allowed = Policy(epsilon=1e9, roster=told.proposal.members.fingerprint, features=("x",), target="y")
    assert allowed.objection(agree(made.proposal)) is None
    assert "a column that is read would be patient_id" in str(allowed.objection(told))
    assert replace(allowed, features=("x", "patient_id")).objection(told) is None


@pytest.mark.parametrize(("column", "said"), [("patient_id", None), ("age", "age"), (None, r"\(a row\)")])
def test_a_policy_says_which_person_is_protected(made: World, column: str | None, said: str | None) -> None:
    """One that says no less than the epsilon would agree to protect single rows, or anything for a person."""
    proposal = naming(made, column, 3 if column is not None else None)
    policy = Policy(roster=proposal.members.fingerprint, person="patient_id")
    objection = policy.objection(agree(proposal))
    if said is None:
        assert objection is None
    else:
        assert re.search(f"the person that is protected would be {said}, and may be patient_id alone", str(objection))


def test_a_description_of_persons_is_no_yes_to_rows(made: World, tmp_path: Path) -> None:
    held = load_file(made.data(0))
    save_file(held | {"patient_id": torch.arange(len(held["y"])) // 3}, tmp_path / "own.safetensors")
    (tmp_path / "own.toml").write_text('train = "own.safetensors"\nperson = "patient_id"\n')
    made.members[0] = made.member(0, source=str(tmp_path / "own.toml"))
    assert made.propose(0, naming(made).to_json()).head["kind"] == "yes"
    assert made.propose(0, naming(made, None, None).to_json()).head["kind"] == "no"


def test_a_proposal_of_persons_says_how_many_rows_count(made: World) -> None:
    proposal = naming(made)
    assert Proposal.read(proposal.to_json()).examples == proposal.examples
    for wrong in ({"person": None}, {"person_rows": None}, {"person_rows": 0}, {"person_rows": 2.5}, {"person": 3}):
        value = json.loads(proposal.to_json())
        value["examples"] |= wrong
        with pytest.raises(DataError, match="not one that Hush writes"):
            Proposal.read(json.dumps(value, sort_keys=True, separators=(",", ":")))


def test_what_does_not_say_who_is_protected_is_refused(made: World) -> None:
    for run, column in (("record", "patient_id"), ("person", None), (None, None), (None, "patient_id")):
        proposal = naming(made, column, None if column is None else 3)
        with pytest.raises(UsageError, match="person"):
            agree(replace(proposal, run=replace(proposal.run, unit=run)))


def test_a_client_trains_on_its_persons(made: World, tmp_path: Path) -> None:
    x, y = made.task.test.x[:9], made.task.test.y[:9]  # type: ignore[union-attr]
    ids = torch.tensor([4, 4, 4, 4, 5, 5, 6, 7, 7])
    save_file({"x": x.contiguous(), "y": y.contiguous(), "patient_id": ids}, tmp_path / "own.safetensors")
    told = naming(made)
    held = Held.read(str(tmp_path / "own.safetensors"), told.examples)
    assert held.records(told.examples) == 4
    task = task_of(told, told.model(), held)
    placed = place_data(task, torch.device("cpu"), torch.float32, apart=True)
    assert placed.train.sizes.tolist() == [4]
    assert placed.train.x.shape[:2] == (4, 3)
    nobody = place_data(
        stand_in_task(told, told.model(), held.records(told.examples)), torch.device("cpu"), torch.float32, apart=True
    )
    assert nobody.train.x.shape == placed.train.x.shape  # and takes as long


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


def test_real_clients_train_on_persons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: each client's table names its persons, and the server learns one clip of each at most."""
    real = examples_of
    named = {"person": "patient_id", "person_rows": 2}
    monkeypatch.setattr(propose, "examples_of", lambda *given: replace(real(*given), **named))
    monkeypatch.setattr(World, "_resolved", lambda self: _with_persons(self, resolved_by_rows))
    world = World(place=tmp_path / "world", clock=Clock(), config=RUN)
    result = world.train()
    assert (result.unit, result.rounds) == ("person", 3)
    assert result.guarantee is not None
    assert "no person's rows lie at more than one client" in result.guarantee.assumptions
    assert world.proposal.examples.person == "patient_id"


resolved_by_rows = World._resolved


def _with_persons(world: World, resolved: Any) -> Any:
    """Its clients' tables say whose each row is: three rows of every person."""
    experiment, _ = resolved(world)
    for number in range(world.clients):
        table = load_file(world.data(number))
        save_file(table | {"patient_id": torch.arange(len(table["x"])) // 3}, world.data(number))
    experiment = replace(experiment, config=replace(experiment.config, unit="person"))
    return experiment, propose.task_of(experiment, None)
