"""A certificate is recomputed from the run's own settings, and what was changed since is found."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush import DataError, FixedSize, Poisson, certify, methods, plan_of
from hush.certify import runs_in, verify_run
from hush.engines import simulation
from hush.privacy.accountant import account
from hush.privacy.attack import risk, trade_off
from hush.privacy.certificate import digest, proof_to_dict
from hush.privacy.written import plan_from_dict
from hush.report.certificate_page import certificate_page
from hush.report.page import run_page
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
    return {check.name for check in verify_run(path).checks if check.passed is False}


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_a_run_verifies(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, checks, said = verify_run(run)
    names = ["model", "result", "configuration", "page", "figures", "settings", "ledger"]
    assert [check.name for check in checks if check.passed] == names
    of_it = {leaf.split(".")[0] for leaf in said}
    assert of_it == {"data", "model", "rounds", "rounds_aborted", "hush_version", "caveats", "un_noised", "computed", "result"}
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 0
    assert "recomputed from the plan" in out
    code, out, _ = command(capsys, "certify", str(run), "--json")
    assert json.loads(out)["verified"] is True
    assert json.loads(out)["said_by_the_author"] == said
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
        ("certificate.json", set_epsilon, {"figures", "settings", "result"}),
        ("certificate.json", set_noise, {"figures", "settings"}),
        ("certificate.json", lambda c: c["plan"].update(kind="Nonsense"), {"figures", "settings"}),
        ("certificate.json", lambda c: c["attack"].update(membership_advantage=0.0), {"figures", "settings"}),
        ("certificate.json", lambda c: c["statement"].update(against="everybody"), {"figures", "settings"}),
        ("certificate.json", lambda c: c["configuration"].update(clients=9), {"configuration", "settings"}),
        ("certificate.json", lambda c: c.update(cohort=1.0), {"settings", "result"}),
        ("certificate.json", lambda c: c.update(sampling="secret"), {"settings", "result"}),
        ("certificate.json", lambda c: c.update(noise_multiplier=99.0), {"figures", "settings", "result"}),
        ("certificate.json", lambda c: c.update(claimed_epsilon=0.1), {"figures", "settings", "result"}),
        ("certificate.json", lambda c: c.update(rounds_charged=2), {"figures", "result"}),
        ("certificate.json", lambda c: c.update(run_id="0" * 16), {"result"}),
        ("certificate.json", lambda c: c.update(no_server_guarantee=None), {"settings"}),
        ("result.json", lambda c: c.update(epsilon=0.5), {"result"}),
        ("result.json", lambda c: c.update(epsilon_server=0.1), {"result"}),
        ("result.json", lambda c: c.update(test_accuracy=0.99), set()),
        ("config.json", lambda c: c["runs"][0].update(clients=6000), {"settings"}),
        ("config.json", lambda c: c["runs"][0].update(sampling="fixed"), {"settings"}),
    ],
)
def test_what_was_changed_is_found(run: Path, file: str, change: Callable[[dict[str, Any]], None], found: set[str]) -> None:
    edit(run / file, change)
    assert wrong(run) - {"page"} == found | ({"ledger"} if file != "config.json" else set())


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inside or not value:
        yield path
    for key, item in inside:
        yield from leaves(item, (*path, key))


def mutated(value: Any) -> Any:
    """Something else of the same kind, so that it still reads well."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 0.5 + 1
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    return {None: "something", "[]": ["something"], "{}": {"some": "thing"}}[json.dumps(value) if value is not None else None]


def changes(path: Path) -> Iterator[tuple[str, str]]:
    """A file with one value changed, or with a list or a line of a list taken out: which value, and the new text."""
    if path.suffix == ".html":
        honest = path.read_text()
        for number in list(re.finditer(r"\d+\.\d+|\b[a-z]{5,}\b", honest[honest.index("<h1>") :]))[::4]:
            at = honest.index("<h1>") + number.start()
            yield number[0], honest[:at] + mutated(number[0]) + honest[at + len(number[0]) :]
        return
    honest = json.loads(path.read_text())
    for leaf in leaves(honest):
        for taken_out in (False, True)[: 1 + isinstance(leaf[-1], int)]:
            value = copy.deepcopy(honest)
            inner = value
            for key in leaf[:-1]:
                inner = inner[key]
            if taken_out:
                del inner[leaf[-1]]
            else:
                inner[leaf[-1]] = mutated(inner[leaf[-1]])
            yield ".".join(map(str, leaf)), json.dumps(value)


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A secure run on a shared ledger: every part of a certificate is there."""
    out = tmp_path_factory.mktemp("summed")
    book = str(out / "people.db")
    shared_run("ledger", "create", book, "--population", "p", "--clients", "40", "--epsilon", "50", "--relation", "zero-out")
    flags = ["--secure", "--tolerate", "0.2", "--ledger", book, "--population", "p", "--clients", "40", "--cohort", "10"]
    shared_run("run", "dp-fedavg", "--rounds", "3", "--noise", "3", *flags, "--out", str(out / "r"))
    return out / "r"


@pytest.mark.parametrize("file", ["certificate.json", "result.json", "certificate.html"])
def test_every_leaf_that_is_changed_is_found(summed: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = shutil.copytree(summed, tmp_path / "r")
    assert not wrong(copied)
    for name in SLOW:
        monkeypatch.setattr(certify, name, cached(getattr(certify, name)))
    tried = 0
    for leaf, text in changes(copied / file):
        (copied / file).write_text(text)
        assert wrong(copied), leaf
        tried += 1
    assert tried > 30


def test_without_a_ledger_every_leaf_is_derived_or_is_the_authors_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "ledger.sqlite").unlink()
    (run / "result.json").unlink()
    for name in SLOW:
        monkeypatch.setattr(certify, name, cached(getattr(certify, name)))
    for leaf, text in changes(run / "certificate.json"):
        (run / "certificate.json").write_text(text)
        found = verify_run(run)
        differing = {check.name for check in found.checks if check.passed is False} - {"page"}
        own = (leaf, f"{leaf}.0", leaf.rpartition(".")[0])  # a list that became longer, or empty
        assert differing or set(own) & set(found.said), leaf


SLOW = ("account", "proof_to_dict", "settle_privacy", "certify", "_figures", "_settings")
"""What is asked the same a thousand times."""


def cached(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    def asked(*args: Any) -> Any:
        key = repr(args)
        if key not in known:
            known[key] = function(*args)
        return copy.deepcopy(known[key])

    return asked


@pytest.mark.filterwarnings("ignore:Clients that join 1 times")
def test_rounds_that_were_drawn_twice_cannot_be_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four rounds is drawn twice: a client may have been in both, and that costs more than eight rounds of its coins."""
    task, method, out = make_task(sizes=(3,) * 40), methods.dp_fedavg(noise=1.0, lr=0.1), tmp_path / "r"
    how: dict[str, Any] = {
        "rounds": 4,
        "cohort": hush.Bounded(8, 1),
        "out": out,
        "resume": True,
        "noise_mode": "secure",
        "delta": 1e-3,
    }
    right = simulation.play_round
    for stop in range(4):

        def crash(run: Any, now: Any, charge: Any, stop: int = stop) -> Any:
            played = right(run, now, charge)
            if now.round == stop:
                raise KeyboardInterrupt
            return played

        with monkeypatch.context() as patch:
            patch.setattr(simulation, "play_round", crash)
            with pytest.raises(KeyboardInterrupt):
                hush.simulate(method, task, **how)
    result = hush.simulate(method, task, **how)
    assert (result.rounds_charged, result.rounds_counted) == (8, 4)
    assert not wrong(out)
    certificate = json.loads((out / "certificate.json").read_text())
    once = hush.simulate(method, task, **how | {"rounds": 8, "out": tmp_path / "once"})
    assert once.epsilon < result.epsilon  # type: ignore[operator]
    forged = certificate | proof_to_dict(once.proof) | {"rounds_counted": 8}
    (out / "certificate.json").write_text(json.dumps(forged))
    edit(out / "result.json", lambda r: r.update(rounds_counted=8, epsilon=once.epsilon))
    assert "ledger" in wrong(out)
    assert "different rounds" in next(check.detail for check in verify_run(out).checks if check.name == "ledger")


def test_a_forgery_that_agrees_with_itself_is_found_by_the_ledger(run: Path) -> None:
    """Settings, plan and every figure for forty times the noise; what was charged tells what really ran."""
    from hush.privacy.settle import Proof

    certificate = json.loads((run / "certificate.json").read_text())
    plan = plan_from_dict(certificate["plan"])
    noise = 40 * plan.noise_multiplier
    louder = plan.with_noise(noise)
    delta = certificate["guarantee"]["delta"]
    forged = proof_to_dict(Proof(louder, account(louder, delta), None, certificate["no_server_guarantee"], None))
    certificate |= forged | {"noise_multiplier": noise, "claimed_epsilon": None}
    parts = certificate["configuration"]["pipeline"]
    parts[-1]["multiplier"] = noise
    certificate["configuration_sha256"] = digest(certificate["configuration"])
    (run / "certificate.json").write_text(json.dumps(certificate))
    edit(run / "result.json", lambda r: r.update(epsilon=certificate["guarantee"]["epsilon"], noise_multiplier=noise))
    edit(run / "config.json", lambda c: c["runs"][0].update(noise=noise, epsilon=None))
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
    edit(run / "certificate.json", lambda c: c.update(model_sha256=hashlib.sha256(b"something else").hexdigest()))
    assert wrong(run) == {"page", "ledger"}  # the ledger knows which model was released
    (run / "ledger.sqlite").write_bytes(b"nothing" * 100)
    assert wrong(run) == {"page", "ledger"}
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 2
    assert "WRONG ledger" in out


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
    assert {check.name for check in verify_run(tmp_path / "p").checks if check.passed is None} == {"settings"}
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
    assert {check.name for check in verify_run(tmp_path / "q").checks if check.passed is None} == {"settings", "ledger"}
    assert {check.name for check in verify_run(tmp_path / "q", book).checks if check.passed is None} == {"settings"}
    certificate, checks, said = verify_run(tmp_path / "p")
    assert {check.name: check.passed for check in checks}["settings"] is None
    assert {"plan", "configuration", "method", "clients"} <= {leaf.split(".")[0] for leaf in said}
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


def test_the_pages_colour_is_what_the_number_means() -> None:
    """Green promises something; amber says what it does not; red is no guarantee."""

    def page(noise: float, clients: int, delta: float | None = None) -> tuple[str, str]:
        method = methods.dp_fedavg(noise=noise, local_steps=1)
        result = hush.simulate(method, make_task(sizes=(1,) * clients), rounds=1, cohort=10, delta=delta)
        return certificate_page(result.certificate()), run_page(result, [])

    for made, lead, words in (
        (page(3.0, 200), "<div class=yes>", ()),
        (page(0.1, 10), "<div class=weak>", ("ahead of guessing",)),
        (page(3.0, 200, delta=0.006), "<div class=weak>", ("not below 1/200",)),
        (page(5.0, 50, delta=0.015), "<div class=weak>", ("delta is 0.015",)),
        (page(0.1, 10, delta=0.18), "<div class=weak>", ("ahead of guessing", "not below 1/10")),
    ):
        assert lead in made[0]
        for said in ("ahead of guessing", "not below 1/", "delta is 0.015"):
            expected = any(said in word for word in words)
            assert all((said in text) is expected for text in made)
    bare = hush.simulate(methods.fedavg(), make_task(), rounds=1, cohort=3)
    assert "<div class=no>" in certificate_page(bare.certificate())


def test_epsilon_at_other_deltas_is_that_of_the_accountant(tmp_path: Path) -> None:
    result = hush.simulate(methods.dp_fedavg(noise=1.0), make_task(sizes=(3,) * 20), rounds=3, cohort=5)
    assert result.proof is not None
    for row in result.certificate()["epsilon_at"]:
        assert row["epsilon"] == account(result.proof.plan, row["delta"]).epsilon
