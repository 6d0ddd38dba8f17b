"""The audit of persons: of 1 to 50 rows, none is found above the claim; without the column that names them, they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hush
from hush import methods
from hush.audit import audit
from hush.audit import records as staged
from hush.audit.canary_records import watch_records
from hush.audit.findings import Scene
from hush.audit.record_audit import MOST_ROWS, attack_records
from hush.audit.record_checks import neighbour_check
from hush.audit.training import by_guesses
from hush.cohort import Rotation
from hush.tasks import persons
from hush.tasks.clients import Clients

SCENE = Scene(1, 1.0, 1000)


def table(clients: int = 150) -> hush.Task:
    """Persons of 1 to 50 rows."""
    g = torch.Generator().manual_seed(0)
    counts = torch.randint(1, MOST_ROWS + 1, (clients, 8), generator=g)
    counts[:, 2:] = counts[:, 2:] // 10 + 1
    x = torch.randn(int(counts.sum()), 6, generator=g)
    ids = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
    return hush.Task(nn.Linear(6, 2), Clients(x, (x[:, 0] > 0).long(), counts.sum(1), ids))


def test_a_person_of_fifty_rows_is_not_found_above_the_claim() -> None:
    attack = attack_records(methods.dp_sgd(noise=1.0), SCENE, MOST_ROWS, by_person=True)
    assert attack.passed
    assert attack.epsilon_found > 0.5  # one clip of hers is there, and shows
    assert attack.name.endswith("persons of 1 to 50 rows")


def test_a_person_of_fifty_rows_is_found_where_the_column_is_left_out() -> None:
    attack = attack_records(methods.dp_sgd(noise=1.0), SCENE, MOST_ROWS, by_person=False)
    assert not attack.passed
    assert attack.epsilon_found > attack.epsilon_claimed


def test_a_grouping_that_splits_persons_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the most that count become another person's, so that the victim is five of them."""

    def split(train: Clients, most: int) -> persons.Grouped:
        assert train.persons is not None
        rows = torch.arange(len(train.x))
        first = torch.searchsorted(train.persons, train.persons)  # they come person after person
        return persons.grouped(replace(train, persons=100 * train.persons + (rows - first) // most), most)

    monkeypatch.setattr(staged, "grouped", split)
    assert not attack_records(methods.dp_sgd(noise=1.0), SCENE, MOST_ROWS, by_person=True).passed


@pytest.mark.parametrize(("unit", "passed"), [("person", True), ("record", False)])
def test_a_canary_person_in_one_training(unit: str, passed: bool) -> None:
    """50 rows alike: as one person within the claim; as 50 records, the column left out, far above what is claimed of one."""
    task = table().seen_by(unit)
    method = methods.dp_sgd(noise=8.0, batch_size=50, lr=0.5)
    found = by_guesses(watch_records(method, Rotation(150), task, 4, MOST_ROWS), "canaries")
    assert found.passed is passed
    assert passed or found.epsilon_found > 1.5 * found.epsilon_claimed


def test_a_persons_rows_move_a_step_of_the_tasks_own_model_by_one_clip() -> None:
    task = table(3)
    check = neighbour_check(methods.dp_sgd(noise=1.0), task.seen_by("person"))
    assert check.passed
    assert "one person" in check.name


def test_an_audit_of_a_table_with_persons_is_about_persons() -> None:
    report = audit(methods.dp_sgd(noise=1.0), Rotation(30), table(30), rounds=2, scenes=(Scene(1, 1.0, 200),))
    assert report.passed
    assert ["persons of 1 to 50 rows" in one.name for one in report.attacks] == [True, False]
    rows = audit(methods.dp_sgd(noise=1.0), Rotation(30), table(30), rounds=2, scenes=(Scene(1, 1.0, 200),), unit="record")
    assert not any("person" in one.name for one in rows.attacks)
    assert np.isfinite(rows.attacks[0].epsilon_found)
