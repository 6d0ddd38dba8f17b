"""What clients agreed to lies beside the certificate that names it: nobody swaps one without the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hush import certify
from hush.certify import Check, Verified, verify_run
from hush.engines.rundir import RunDir
from hush.errors import UsageError
from hush.federation import kept
from hush.federation.proposal import Proposal
from tests.federation.conftest import MakeWorld
from tests.federation.test_consent import OWN
from tests.federation.world import World, changed
from tests.test_certify import SLOW, cached, changes


def trained(made: World) -> Path:
    """A whole run, kept as `hush server` keeps it."""
    kept.keep(RunDir(made.out), made.proposal)
    made.train(resume=True)
    return made.out


def of_proposal(found: Verified) -> Check:
    return next(check for check in found.checks if check.name == "proposal")


def test_the_certificate_names_the_proposal_and_its_roster(world: MakeWorld) -> None:
    made = world(rounds=1)
    found = verify_run(trained(made))
    assert all(check.passed for check in found.checks), found.checks
    ran = found.certificate["configuration"]
    assert ran["proposal"] == made.proposal.digest.hex()
    assert ran["run"]["federation"] == made.proposal.members.fingerprint
    assert "configuration.proposal" not in found.said
    assert kept.FILE not in found.unchecked


def test_also_of_a_run_that_has_no_guarantee(world: MakeWorld) -> None:
    made = world(rounds=1, noise_seed=1)
    found = verify_run(trained(made))
    assert of_proposal(found).passed
    assert all(check.passed is not False for check in found.checks)
    assert "configuration.proposal" not in found.said


SWAPS: dict[str, tuple[Callable[[Proposal], Proposal], str]] = {
    "of another run": (lambda p: replace(p, name="0" * 32), ""),
    "of other columns": (lambda p: replace(p, examples=replace(p.examples, features=("age",))), ""),
    "of more rounds": (lambda p: changed(p, rounds=30), "something else of run"),
    "of less noise": (lambda p: changed(p, noise=0.1, set=dict(p.run.set) | {"noise": 0.1}), "something else of run"),
    "of another model": (lambda p: replace(p, parameters=p.parameters + 1), "something else of parameters"),
    "of another roster": (lambda p: replace(p, members=replace(p.members, cards=p.members.cards[::-1])), "another roster"),
}
"""Another proposal, and what is found of it where the certificate names it, too."""


@pytest.mark.parametrize(("swap", "still"), SWAPS.values(), ids=SWAPS)
def test_another_proposal_is_found(swap: Callable[[Proposal], Proposal], still: str, world: MakeWorld) -> None:
    made = world(rounds=1, noise_seed=1)
    out, other = trained(made), swap(made.proposal)
    (out / kept.FILE).write_text(other.to_json())
    assert of_proposal(verify_run(out)).passed is False
    certificate = json.loads((out / "certificate.json").read_text())
    certificate["configuration"]["proposal"] = other.digest.hex()
    told = kept.against_proposal(RunDir(out), certificate)
    assert still in "".join(told)
    assert bool(told) == bool(still)


def test_a_proposal_that_is_missing_is_not_called_verified(world: MakeWorld) -> None:
    out = trained(world(rounds=1, noise_seed=1))
    (out / kept.FILE).unlink()
    found = verify_run(out)
    assert of_proposal(found).passed is None
    assert "configuration.proposal" in found.said


@pytest.mark.parametrize("file", ["certificate.json", "config.json", kept.FILE])
def test_every_leaf_that_is_changed_is_found(file: str, world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it is on the list of what is not checked."""
    out = shutil.copytree(trained(world(rounds=1)), tmp_path / "copied")
    (out / "certificate.html").unlink(missing_ok=True)
    for name in SLOW:
        monkeypatch.setattr(certify, name, cached(getattr(certify, name)))
    missed = set[str]()
    tried = 0
    for leaf, text in changes(out / file):
        (out / file).write_text(text)
        found = verify_run(out)
        if all(check.passed for check in found.checks):
            assert f"config.{leaf.removeprefix('runs.0.')}" in found.unchecked, leaf
            missed.add(leaf)
        tried += 1
    assert tried > 30
    assert missed <= ({"runs.0.device", "runs.0.memory", "runs.0.chunk", "data_dir"} if file == "config.json" else set())


def test_a_certificate_that_names_no_proposal_is_not_one_of_real_clients(world: MakeWorld) -> None:
    out = trained(world(rounds=1))
    certificate = json.loads((out / "certificate.json").read_text())
    del certificate["configuration"]["proposal"]
    (out / "certificate.json").write_text(json.dumps(certificate))
    wrong = {check.name for check in verify_run(out).checks if check.passed is False}
    assert {"proposal", "settings", "configuration"} <= wrong


# -- going on ----------------------------------------------------------------------------------------------------------------------


def test_what_was_kept_is_gone_on_with_from_any_folder(world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are told a file's name; the server must find it again."""
    (tmp_path / "mine.py").write_text(OWN)
    name = f"{tmp_path / 'mine.py'}:mine"
    made = world(method=name, own_code=name, rounds=1)
    folder = RunDir(tmp_path / "run")
    kept.keep(folder, made.proposal)
    monkeypatch.chdir(made.place)
    again = kept.kept(folder)
    assert again.run.method == name
    assert again.digest == made.proposal.digest
    assert made.ready(again)


def test_a_folder_whose_files_disagree_is_not_gone_on_with(world: MakeWorld) -> None:
    made = world()
    folder = RunDir(made.out)
    with pytest.raises(UsageError, match="holds no run of a federation"):
        kept.kept(folder)
    kept.keep(folder, made.proposal)
    assert kept.kept(folder) == made.proposal
    (made.out / kept.FILE).write_text(changed(made.proposal, rounds=30).to_json())
    with pytest.raises(UsageError, match=r"config\.json and proposal\.json in .* describe different runs"):
        kept.kept(folder)
