"""Records against the server in a federation: what a client reads, what both sides count, and what the certificate says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from hush.certify import verify_run
from hush.engines.rundir import RunDir
from hush.errors import HushError
from hush.federation.consent import words
from hush.federation.diary import Diary, _itself
from hush.federation.proposal import agree
from hush.local import per_example
from hush.local.flat import FlatModel
from hush.local.ghost import Step
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import Ledger
from hush.report.pages import write_pages
from tests.federation.conftest import MakeWorld

RUN = {"method": "dp-sgd", "rounds": 3, "noise": 1.5, "delta": 1e-3, "set": {"local_steps": None, "rate": 0.1}}


def test_both_sides_count_records(world: MakeWorld) -> None:
    made = world(**RUN)
    result = made.train()
    assert (result.unit, result.view, result.relation) == ("record", "secagg", "zero-out")
    assert result.epsilon is not None
    ledger = Ledger(made.folder(0) / "ledger.sqlite")
    (pool,) = ledger.populations.values()
    ledger.close()
    assert (pool.name, str(pool.unit), pool.size) == ("test, by record", "record", 1)
    assert abs(pool.spent(1e-3) - result.epsilon) < 1e-3
    said = "\n".join(words(agree(made.proposal), 0))
    assert "one record of one client" in said
    assert "each with the chance 0.1" in said


@pytest.mark.parametrize(("batch", "minds"), [(10, 4), (36, 0)])
def test_a_client_with_more_records_than_a_sum_has_room_for_says_so_to_its_owner(batch: int, minds: int, world: MakeWorld) -> None:
    made = world(**RUN | {"rounds": 1, "set": {"local_steps": None, "rate": 0.1, "batch_size": batch}})
    made.train()
    assert sum("may wrap around" in line for line in made.heard) == minds
    assert not any(b"wrap" in answer for _, answer in made.post.log), "how many records it holds is nobody else's"
    assert f"room for about {batch} of a client's" in "\n".join(words(agree(made.proposal), 0))


def test_a_certificate_claims_no_number_of_records_that_nobody_knows(world: MakeWorld) -> None:
    made = world(**RUN)
    write_pages(RunDir(made.out), made.train())
    page = (made.out / "certificate.html").read_text()
    assert "holds the fewest" not in page
    assert "each with the chance 0.1" in page
    assert f"of the roster {made.server.members.fingerprint}" in page
    assert all(check.passed is not False for check in verify_run(made.out).checks)


def test_a_client_may_protect_records_in_one_run_and_itself_in_another(world: MakeWorld, tmp_path: Path) -> None:
    """Two statements that do not add up: each has a page of its own in the client's ledger."""
    made = world(**RUN)
    made.train()
    for number in range(4):
        made.restart(number)
    other = world(place=tmp_path / "other", method="dp-fedavg", rounds=2, noise=3.0, delta=1e-3)
    for number in range(4):
        (made.folder(number) / "ledger.sqlite").rename(other.folder(number) / "ledger.sqlite")
    other.train()
    ledger = Ledger(other.folder(0) / "ledger.sqlite")
    assert {str(pool.unit) for pool in ledger.populations.values()} == {"record", "client"}
    ledger.close()


def test_the_certificate_holds(world: MakeWorld) -> None:
    made = world(**RUN)
    made.train()
    checks = verify_run(made.out).checks
    assert all(check.passed is not False for check in checks), checks
    assert not any("the smallest client" in check.detail for check in checks), "nobody knows how many it holds"


@pytest.mark.parametrize("config", [RUN, {"sampling": "secret", "cohort": 2.0, "noise": 3.0}, {"noise": 3.0}])
def test_a_clients_own_ledger_says_what_was_proved(config: dict[str, Any], world: MakeWorld) -> None:
    """Of coins that a client throws alone, too; and one that cannot be read counts for nothing where the diary is lost."""
    made = world(**config)
    made.train()
    told = agree(made.proposal)
    assert told.proof is not None
    assert told.proof.server is not None
    (made.folder(0) / "diary.json").unlink()
    before = Diary(made.folder(0), "test").before(agree(replace(made.proposal, name="ab")))
    assert before.epsilon == pytest.approx(told.proof.server.epsilon, rel=0.01)
    assert before.delta == told.delta


def test_records_and_persons_have_pages_of_their_own(world: MakeWorld) -> None:
    """Otherwise a client that protected records once could never protect persons."""
    plan = agree(world(**RUN).proposal).own_plan
    assert plan is not None
    names = {_itself("study", replace(plan, unit=unit))[0] for unit in Unit}
    assert names == {"study", "study, by record", "study, by person"}


def test_a_client_tries_by_itself_that_records_do_not_affect_each_other(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum is as long as its records' clips only where none changes with who else is in the batch: on its machine, too."""
    made, each = world(**RUN), per_example._each

    def mixed(learner: FlatModel, params: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        gradients, losses = each(learner, params, step)
        others = step.counts.sum(1, keepdim=True).to(gradients)[..., None]
        return gradients * (1 + others), losses

    monkeypatch.setattr(per_example, "_each", mixed)
    with pytest.raises(HushError, match="broke off"):
        made.train()
    assert any("a record's gradient changes with who else is in the batch" in line for line in made.heard)
    assert not any("takes part in sum" in line for line in made.heard)
