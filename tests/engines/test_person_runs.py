"""Runs that protect persons: what is counted, what is said, and a person at several clients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hush
from hush import NoGuarantee, UsageError, methods
from hush.cohort import Rotation
from hush.privacy.accountant import account
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.plan import plan_of
from hush.privacy.record_plan import ONE_CLIENT, ONE_ROW
from hush.privacy.vocabulary import Enrolled, Persons
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.tasks.clients import Clients
from tests.cli.test_cli import hush as command
from tests.tasks.test_persons import describe, with_patients


def task(ids: torch.Tensor | None, **more: Any) -> hush.Task:
    """Two clients of 40 rows each."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=g)
    torch.manual_seed(0)
    return hush.Task(nn.Linear(4, 2), Clients(x, (x[:, 0] > 0).long(), torch.tensor([40, 40]), ids), **more)


APART = torch.arange(80) // 4
"""Ten persons at each client, four rows each."""
SHARED = APART % 10
"""The same ten at both."""


def test_persons_are_counted_and_rows_are_not() -> None:
    method = methods.dp_sgd(noise=2.0, batch_size=4)
    people = hush.simulate(method, task(APART), rounds=4, cohort=1)
    assert (people.unit, people.configuration["records"], people.configuration["records_in_all"]) == ("person", 10, 20)
    rows = hush.simulate(method, task(APART), rounds=4, cohort=1, unit="record")
    assert (rows.unit, rows.configuration["records"], rows.configuration["rows_of_a_person"]) == ("record", 40, None)
    unnamed = hush.simulate(method, task(None), rounds=4, cohort=1)
    assert unnamed.unit == "record"
    for told, line in ((people, ONE_CLIENT), (rows, ONE_ROW), (unnamed, ONE_ROW)):
        assert line in told.guarantee.assumptions  # type: ignore[union-attr]
    assert ONE_ROW not in people.guarantee.assumptions  # type: ignore[union-attr]
    assert people.certificate()["statement"]["protected"] == "one person: all rows of theirs at a client together"
    expected = account(plan_of(method, Rotation(1), Enrolled(2, 10, 20, 10, Persons(10)), 4), people.delta or 0)
    assert people.epsilon == expected.epsilon
    same = account(plan_of(method, Rotation(1), Enrolled(2, 10, 20, 10), 4), people.delta or 0)
    assert people.epsilon == same.epsilon  # a person costs what a record of as many costs


def test_a_person_at_several_clients_is_composed_over_all_of_them() -> None:
    method = methods.dp_sgd(noise=2.0, batch_size=4)
    one = hush.simulate(method, task(APART), rounds=4, cohort=1, delta=1e-3)
    both = hush.simulate(method, task(SHARED), rounds=4, cohort=1, delta=1e-3)
    assert both.proof is not None
    assert both.proof.plan.phases[0].times == 2 * one.proof.plan.phases[0].times  # type: ignore[union-attr]
    assert both.epsilon > one.epsilon  # type: ignore[operator]
    longer = hush.simulate(method, task(APART), rounds=8, cohort=1, delta=1e-3)
    assert both.epsilon == longer.epsilon  # twice the rounds of one client, under the same noise
    assert any("no more than 2" in line or "more than 2 clients" in line for line in both.guarantee.assumptions)  # type: ignore[union-attr]
    assert any("make the names differ" in line for line in both.guarantee.warnings)  # type: ignore[union-attr]
    assert not any("make the names differ" in line for line in one.guarantee.warnings)  # type: ignore[union-attr]
    assert plan_from_dict(plan_to_dict(both.proof.plan)) == both.proof.plan


def test_a_sum_that_holds_a_person_several_times_has_no_proof() -> None:
    plan = plan_of(methods.dp_sgd(noise=2.0, batch_size=4), Rotation(1), Enrolled(2, 10, 20, 10, Persons(10, 2)), 4)
    with pytest.raises(NoGuarantee, match="several clips of that person"):
        account(replace(plan, view=View.RELEASED, relation=Relation.ZERO_OUT, noise_per_local_step=False), 1e-3)
    with pytest.raises(NoGuarantee, match="lies at one client"):
        account(replace(plan, unit=Unit.RECORD, sampled=Unit.RECORD), 1e-3)


def test_only_methods_for_records_have_persons() -> None:
    assert hush.simulate(methods.dp_fedavg(noise=1.0), task(APART), rounds=1, cohort=2).unit == "client"
    with pytest.raises(UsageError, match="dp-fedavg does not protect a person"):
        hush.simulate(methods.dp_fedavg(noise=1.0), task(APART), rounds=1, cohort=2, unit="person")
    with pytest.raises(UsageError, match="no person can be protected"):
        hush.simulate(methods.dp_sgd(noise=1.0), task(None), rounds=1, cohort=2, unit="person")
    with pytest.raises(UsageError, match="unit"):
        hush.simulate(methods.dp_sgd(noise=1.0), task(APART), rounds=1, cohort=2, unit="client")


def test_a_run_goes_on_with_the_same_persons_alone(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        raise Stop

    method = methods.dp_sgd(noise=2.0, batch_size=4)
    with pytest.raises(Stop):
        hush.simulate(method, task(APART), rounds=3, cohort=1, out=tmp_path / "r", on_round=stop)
    with pytest.raises(hush.HushError, match="data"):
        hush.simulate(method, task(SHARED), rounds=3, cohort=1, out=tmp_path / "r", resume=True)
    assert hush.simulate(method, task(APART), rounds=3, cohort=1, out=tmp_path / "r", resume=True).rounds == 3


@pytest.mark.parametrize(
    "method",
    [methods.cpsgd(trials=2**16), methods.cpfed(noise=1.0), methods.dp_fed(noise=1.0, clip_per="coordinate", batches="fixed")],
    ids=lambda m: m.name,
)
def test_other_methods_for_records_protect_persons_too(method: hush.Method) -> None:
    result = hush.simulate(method, task(APART), rounds=2, cohort=1)
    assert (result.unit, result.view) == ("person", "messages")


def test_persons_under_exact_noise() -> None:
    result = hush.simulate(methods.dp_sgd(noise=1.0), task(APART), rounds=2, cohort=1, noise_mode="secure")
    assert (result.unit, result.noise_mode) == ("person", "secure")
    assert any("each person's norm was checked in integers" in line for line in result.guarantee.assumptions)  # type: ignore[union-attr]


def test_frozen_layers_are_computed_once_for_every_row() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    own = hush.Task(model, task(APART).train, test=(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64)))
    result = hush.simulate(methods.dp_sgd(noise=1.0), own, rounds=2, cohort=2)
    assert result.unit == "person"
    assert set(result.state_dict) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_patients(600, 0, per_hospital=40).to_csv(tmp_path / "visits.csv", index=False)
    path = describe(tmp_path, "visits.csv", 'person = "patient_id"')
    run = ("run", "dp-sgd", "--data", path, "--noise", "2", "--rounds", "2", "--json", "--out")
    code, out, err = command(capsys, *run, str(tmp_path / "people"))
    assert code == 0
    assert json.loads(out)["unit"] == "person"
    assert "one row, one record" not in err
    assert command(capsys, "certify", str(tmp_path / "people"))[0] == 0
    page = (tmp_path / "people" / "certificate.html").read_text()
    assert "Rows of a person" in page
    assert "one person: all rows of theirs" in page
    code, out, err = command(capsys, *run, str(tmp_path / "rows"), "--unit", "record")
    assert (code, json.loads(out)["unit"]) == (0, "record")
    assert "one row, one record: a person with k rows is covered k times less" in err
    describe(tmp_path, "visits.csv")
    code, out, err = command(capsys, "run", "dp-sgd", "--data", path, "--noise", "2", "--dry-run")
    assert "one row, one record: a person with k rows is covered k times less" in err
    code, _, err = command(capsys, *run, str(tmp_path / "none"), "--unit", "person")
    assert code == 2
    assert 'person = "patient_id"' in err
    code, out, err = command(capsys, "run", "dp-sgd", "--noise", "2", "--rounds", "1", "--dry-run")
    assert "one row" not in err  # digits are nobody's table


def test_epsilon_of_persons(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--records", "100", "--batch", "10", "--rounds", "9", "--noise", "3", "--delta", "1e-4"]
    code, out, _ = command(capsys, "epsilon", "--unit", "person", *flags)
    assert code == 0
    assert "for each person" in out
    assert f"if {ONE_CLIENT}" in out
    _, rows, _ = command(capsys, "epsilon", "--unit", "record", *flags)
    assert f"if {ONE_ROW}" in rows
    book = str(tmp_path / "book.db")
    code, out, _ = command(
        capsys, "ledger", "create", book, "--population", "p", "--unit", "person", "--records", "100", "--epsilon", "4",
        "--delta", "1e-4",
    )  # fmt: skip
    assert (code, "each person of clients" in out) == (0, True)
    assert "persons, 100 or more" in command(capsys, "ledger", "show", book)[1]


def test_persons_share_a_ledger_with_persons_alone(tmp_path: Path) -> None:
    method = methods.dp_sgd(noise=2.0, batch_size=4)
    book = hush.Ledger(tmp_path / "book.db")
    book.set_budget("p", 10, 1000.0, 1e-3, Relation.REPLACE_ONE, unit=Unit.PERSON)
    for _ in range(2):
        told = hush.simulate(method, task(SHARED), rounds=2, cohort=1, delta=1e-3, ledger=book, population="p")
    assert told.population is not None
    assert told.population["epsilon"] > told.epsilon  # type: ignore[operator]
    with pytest.raises(NoGuarantee, match="person as its unit"):
        hush.simulate(method, task(SHARED), rounds=2, cohort=1, delta=1e-3, ledger=book, population="p", unit="record")


def test_persons_under_a_secure_sum() -> None:
    """One clip of each in a sum of all clients; a person at two of them would be two."""
    x = torch.randn(120, 4)
    sizes = torch.full((6,), 20)

    def run(ids: torch.Tensor, unit: str | None = None) -> hush.Result:
        own = hush.Task(nn.Linear(4, 2), Clients(x, (x[:, 0] > 0).long(), sizes, ids))
        method = methods.dp_sgd(noise=2.0, batch_size=2, rate=0.4)
        return hush.simulate(method, own, rounds=2, cohort=6, delta=1e-3, secure_sum=hush.SecureSum(), unit=unit)

    people = run(torch.arange(120) // 4)
    assert (people.unit, people.view, people.configuration["records"]) == ("person", "secagg", 5)
    assert ONE_CLIENT in people.guarantee.assumptions  # type: ignore[union-attr]
    rows = run(torch.arange(120) // 4, "record")
    assert ONE_ROW in rows.guarantee.assumptions  # type: ignore[union-attr]
    assert rows.epsilon == people.epsilon  # at the same chance and clip
    with pytest.raises(NoGuarantee, match="several clips of that person"):
        run(torch.arange(120) % 30)
