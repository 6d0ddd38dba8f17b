"""A certificate is recomputed from the run's own settings, and what was changed since is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush import DataError, FixedSize, Poisson, methods, plan_of
from hush.certify import runs_in, verify_run
from hush.privacy.accountant import account
from hush.privacy.attack import risk, trade_off
from hush.privacy.certificate import digest
from hush.report.certificate_page import certificate_page
from tests.cli.test_cli import FAST, shared_run
from tests.cli.test_cli import hush as command
from tests.conftest import make_task


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run for all tests: they read it, and change copies of it."""
    out = tmp_path_factory.mktemp("finished") / "r"
    shared_run("run", "dp-fedavg", *FAST, "--epsilon", "1", "--out", str(out))
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "r")


def wrong(path: Path) -> set[str]:
    return {check.name for check in verify_run(path)[1] if check.passed is False}


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_a_run_verifies(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, checks = verify_run(run)
    assert [check.name for check in checks if check.passed] == [
        "configuration",
        "result",
        "model",
        "page",
        "figures",
        "facts",
        "plan",
        "ledger",
    ]
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 0
    assert "recomputed from the plan" in out
    code, out, _ = command(capsys, "certify", str(run), "--json")
    assert json.loads(out)["verified"] is True
    assert certificate["guarantee"]["epsilon"] <= 1
    for key in ("protected", "hidden", "against"):
        assert certificate["statement"][key]


def set_epsilon(c: dict[str, Any]) -> None:
    c["guarantee"]["epsilon"] = 0.5


def set_noise(c: dict[str, Any]) -> None:
    """A louder noise in the plan, and the figures as they were."""
    c["plan"]["phases"][0]["releases"][0]["noise"]["std"] *= 2


@pytest.mark.parametrize(
    ("file", "change", "found"),
    [
        ("certificate.json", set_epsilon, {"figures", "plan", "result"}),
        ("certificate.json", set_noise, {"figures", "facts", "plan", "ledger"}),
        ("certificate.json", lambda c: c["plan"].update(kind="Nonsense"), {"figures", "facts", "plan", "ledger"}),
        ("certificate.json", lambda c: c["attack"].update(membership_advantage=0.0), {"figures"}),
        ("certificate.json", lambda c: c["statement"].update(against="everybody"), {"figures"}),
        ("certificate.json", lambda c: c["configuration"].update(clients=9), {"configuration", "facts"}),
        ("certificate.json", lambda c: c.update(cohort=1.0), {"facts", "result"}),
        ("certificate.json", lambda c: c.update(sampling="secret"), {"facts", "result"}),
        ("certificate.json", lambda c: c.update(noise_multiplier=99.0), {"facts", "result"}),
        ("certificate.json", lambda c: c.update(claimed_epsilon=0.1), {"facts", "result"}),
        ("certificate.json", lambda c: c.update(rounds_charged=2), {"facts", "ledger", "result"}),
        ("certificate.json", lambda c: c.update(run_id="0" * 16), {"ledger", "result"}),
        ("result.json", lambda c: c.update(epsilon=0.5), {"result"}),
        ("result.json", lambda c: c.update(epsilon_server=0.1), {"result"}),
        ("result.json", lambda c: c.update(noise_multiplier=99.0), {"result"}),
        ("result.json", lambda c: c.update(noise_mode="secure"), {"result"}),
        ("result.json", lambda c: c.update(un_noised=[]), {"result"}),
        ("certificate.json", lambda c: c.update(no_server_guarantee=None), {"plan"}),
        ("config.json", lambda c: c["specs"][0].update(clients=6000), {"plan"}),
        ("config.json", lambda c: c["specs"][0].update(sampling="fixed"), {"plan"}),
    ],
)
def test_what_was_changed_is_found(run: Path, file: str, change: Callable[[dict[str, Any]], None], found: set[str]) -> None:
    edit(run / file, change)
    assert wrong(run) - {"page"} == found


def test_a_forgery_that_agrees_with_itself_is_found_by_the_ledger(run: Path) -> None:
    """Settings, plan and every figure for forty times the noise; what was charged tells what really ran."""
    from hush.privacy.certificate import proof_to_dict
    from hush.privacy.settle import Proof
    from hush.privacy.written import plan_from_dict

    certificate = json.loads((run / "certificate.json").read_text())
    plan = plan_from_dict(certificate["plan"])
    noise = 40 * plan.noise_multiplier
    louder = plan.with_noise(noise)
    delta = certificate["guarantee"]["delta"]
    forged = proof_to_dict(Proof(louder, account(louder, delta), None, certificate["no_server_guarantee"], None))
    certificate |= forged | {"noise_multiplier": noise, "claimed_epsilon": None}
    parts = certificate["configuration"]["pipeline"]
    parts[-1] = re.sub(r"multiplier=[0-9.]+", f"multiplier={noise}", parts[-1])
    certificate["configuration_sha256"] = digest(certificate["configuration"])
    (run / "certificate.json").write_text(json.dumps(certificate))
    edit(run / "result.json", lambda r: r.update(epsilon=certificate["guarantee"]["epsilon"], noise_multiplier=noise))
    edit(run / "config.json", lambda c: c["specs"][0].update(noise=noise, epsilon=None))
    assert certificate["guarantee"]["epsilon"] < 0.2
    assert "ledger" in wrong(run)


def test_the_page_that_is_filed_is_checked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run / "certificate.html"
    honest = page.read_text()
    page.write_text(re.sub(r"epsilon [0-9.]+ at", "epsilon 0.10 at", honest))
    assert page.read_text() != honest
    assert wrong(run) == {"page"}
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 2
    assert "does NOT hold" in out


def test_missing_evidence_is_not_called_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "ledger.sqlite").unlink()
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 1
    assert "not verified in full" in out
    _, out, _ = command(capsys, "certify", str(run), "--json")
    assert json.loads(out)["verified"] is False


def test_another_model_and_a_ledger_cut_short_are_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "model.safetensors").write_bytes(b"something else")
    assert wrong(run) == {"model"}
    (run / "ledger.sqlite").write_bytes(b"nothing" * 100)
    assert wrong(run) == {"model", "ledger"}
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 2
    assert "WRONG model" in out


def test_runs_without_a_guarantee_and_of_several_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command(capsys, "compare", "fedavg", "dp-fedavg", *FAST, "--noise", "4", "--out", str(tmp_path / "c"))
    code, out, _ = command(capsys, "certify", str(tmp_path / "c"))
    assert code == 0, out
    assert "no privacy guarantee" in out
    assert len(runs_in(tmp_path / "c")) == 2
    command(capsys, "run", "dp-fedavg", *FAST, "--noise", "4", "--seeds", "2", "--out", str(tmp_path / "s"))
    code, out, _ = command(capsys, "certify", str(tmp_path / "s"), "--json")
    assert code == 0
    assert len(json.loads(out)["runs"]) == 2
    with pytest.raises(DataError, match="no run directory"):
        runs_in(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no certificate"):
        runs_in(tmp_path / "empty")


def test_shares_of_discrete_noise_are_derived_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Their correction depends on the number of entries, which the certificate tells."""
    command(capsys, "run", "ddgauss", *FAST, "--set", "shares=true", "--out", str(tmp_path / "d"))
    code, out, _ = command(capsys, "certify", str(tmp_path / "d"))
    assert code == 0, out


def test_a_run_from_python_says_what_cannot_be_checked(tmp_path: Path) -> None:
    hush.simulate(methods.dp_fedavg(noise=4.0), make_task(sizes=(3,) * 20), rounds=3, cohort=5, out=tmp_path / "p")
    assert {check.name for check in verify_run(tmp_path / "p")[1] if check.passed is None} == {"plan"}
    book = tmp_path / "shared.db"
    with pytest.warns(UserWarning, match="is new in"):
        hush.simulate(
            methods.dp_fedavg(noise=4.0),
            make_task(sizes=(3,) * 20),
            rounds=3,
            cohort=5,
            out=tmp_path / "q",
            ledger=hush.Ledger(book),
        )
    assert {check.name for check in verify_run(tmp_path / "q")[1] if check.passed is None} == {"plan", "ledger"}
    assert {check.name for check in verify_run(tmp_path / "q", book)[1] if check.passed is None} == {"plan"}
    certificate, checks = verify_run(tmp_path / "p")
    assert {check.name: check.passed for check in checks}["plan"] is None
    assert not wrong(tmp_path / "p")
    assert certificate["configuration_sha256"] == digest(certificate["configuration"])


def test_attack_figures_follow_from_the_profile() -> None:
    """One Gaussian round of shift 1: advantage 2 Phi(1/2) - 1, true positives Phi(1 + Phi^-1(0.01))."""
    plan = plan_of(methods.dp_fedavg(noise=1.0), Poisson(100), 100, 1)
    found = risk(plan)
    assert found.advantage == pytest.approx(0.38292, abs=1e-4)
    assert found.true_positives == pytest.approx(0.09235, abs=2e-3)
    assert found.true_positives >= 0.0923  # a bound: never below the best attack
    rates = np.linspace(0, 1, 21)
    curve = trade_off(plan, rates)
    assert (curve >= rates - 1e-12).all()
    assert (np.diff(curve) >= -1e-12).all()
    louder = plan_of(methods.dp_fedavg(noise=4.0), Poisson(100), 100, 1)
    assert (trade_off(louder, rates) <= curve + 1e-9).all()


def test_the_page_answers_an_officers_questions(tmp_path: Path) -> None:
    method = methods.fed_smp_rand_k(noise=1.0)
    result = hush.simulate(method, make_task(sizes=(3,) * 20), rounds=3, cohort=FixedSize(5), delta=0.2, out=tmp_path / "p")
    page = certificate_page(json.loads((tmp_path / "p" / "certificate.json").read_text()))
    assert result.guarantee is not None
    for words in (
        "everything that one client holds",
        "It holds if",
        "Against the server",
        "violated",
        "permits publishing",
        "SHA-256",
    ):
        assert words in page
    bare = hush.simulate(methods.fedavg(), make_task(), rounds=1, cohort=3)
    assert "No guarantee" in certificate_page(bare.certificate())


def test_epsilon_at_other_deltas_is_that_of_the_accountant(tmp_path: Path) -> None:
    result = hush.simulate(methods.dp_fedavg(noise=1.0), make_task(sizes=(3,) * 20), rounds=3, cohort=5)
    assert result.proof is not None
    for row in result.certificate()["epsilon_at"]:
        assert row["epsilon"] == account(result.proof.plan, row["delta"]).epsilon
