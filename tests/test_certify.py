"""A certificate is recomputed from the run's own settings, and what was changed since is found."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush import DataError, FixedSize, Poisson, certify, methods, plan_of
from hush.certify import runs_in, verify_run
from hush.config import RunConfig
from hush.engines import simulation
from hush.engines.result import released
from hush.engines.rundir import RunDir
from hush.experiment import resolve
from hush.privacy.accountant import account
from hush.privacy.attack import risk, trade_off
from hush.privacy.certificate import digest, proof_to_dict
from hush.privacy.ledger import Ledger
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
    certificate, checks, said, unchecked = verify_run(run)
    names = ["model", "result", "secrets", "configuration", "page", "figures", "settings", "ledger"]
    assert [check.name for check in checks if check.passed] == names
    of_it = {leaf.split(".")[0] for leaf in said} - {"configuration"}
    assert of_it == {"data", "model", "rounds", "rounds_aborted", "hush_version", "caveats", "un_noised", "computed", "result"}
    assert {leaf for leaf in said if leaf.startswith("configuration")} == {"configuration.parameters"}  # of the model
    assert {"report.html", "config.device"} <= set(unchecked)
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 0
    assert "recomputed from the plan" in out
    assert "not checked: report.html, config.device" in out
    code, out, _ = command(capsys, "certify", str(run), "--json")
    assert json.loads(out)["verified"] is True
    assert json.loads(out)["said_by_the_author"] == said
    assert json.loads(out)["not_checked"] == unchecked
    assert certificate["guarantee"]["epsilon"] <= 1
    for key in ("protected", "hidden", "against"):
        assert certificate["statement"][key]


def test_a_run_of_an_older_form_says_who_wrote_it_and_what_to_do(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.json").write_text(json.dumps({"specs": [], "seeds": 1}))
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 1
    assert re.search(r"config.json has format 1, and this Hush \(.*\) reads 2: use the Hush that wrote it, .* Hush 0.* wrote", out)
    edit(run / "certificate.json", lambda certificate: certificate.pop("format"))
    code, _, err = command(capsys, "certify", str(run))
    assert (code, "has format 1, written by Hush 0" in err) == (2, True), err
    assert "use the Hush that wrote it, or run it again with this one." in err


def test_an_older_accounting_of_skellam_noise_is_said_not_called_false(run: Path) -> None:
    def older(certificate: dict[str, Any]) -> None:
        certificate["computed"]["method"] = "Renyi divergences at integer orders"
        certificate["plan"]["phases"][0]["releases"][0]["noise"] = {"kind": "SkellamNoise", "std": 1.0}

    edit(run / "certificate.json", older)
    with pytest.raises(DataError, match=r"accounts Skellam noise by Renyi divergences, .* use the Hush that wrote it"):
        verify_run(run)


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
        ("certificate.json", lambda c: c.update(epsilon_replaced=0.01), {"figures"}),  # of clients there is none
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
        return value * 0.5 + 1 if value != 2 else 3
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
    honest, as_text = json.loads, json.dumps
    if path.suffix == ".jsonl":
        honest, as_text = (
            lambda text: list(map(json.loads, text.splitlines())),
            lambda rows: "\n".join(map(json.dumps, rows)) + "\n",
        )
    honest = honest(path.read_text())
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
            yield ".".join(map(str, leaf)), as_text(value)


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A secure run on a shared ledger: every part of a certificate is there."""
    out = tmp_path_factory.mktemp("summed")
    book = str(out / "people.db")
    shared_run("ledger", "create", book, "--population", "p", "--clients", "40", "--epsilon", "50", "--relation", "zero-out")
    flags = ["--secure", "--tolerate", "0.2", "--ledger", book, "--population", "p", "--clients", "40", "--cohort", "10"]
    shared_run("run", "dp-fedavg", "--rounds", "3", "--noise", "3", *flags, "--out", str(out / "r"))
    return out / "r"


@pytest.mark.parametrize("file", ["certificate.json", "result.json", "certificate.html", "config.json", "rounds.jsonl"])
def test_every_leaf_that_is_changed_is_found(summed: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it is on the list of what is not checked, which is short."""
    copied = shutil.copytree(summed, tmp_path / "r")
    assert not wrong(copied)
    for name in SLOW:
        monkeypatch.setattr(certify, name, cached(getattr(certify, name)))
    tried, missed = 0, set[str]()
    for leaf, text in changes(copied / file):
        (copied / file).write_text(text)
        found = verify_run(copied)
        if all(check.passed for check in found.checks):
            assert f"config.{leaf.removeprefix('runs.0.')}" in found.unchecked, leaf
            missed.add(leaf)
        tried += 1
    assert tried > (6 if file == "rounds.jsonl" else 30)
    assert missed <= ({"runs.0.device", "runs.0.memory", "data_dir"} if file == "config.json" else set())


CHANGED: dict[str, Any] = {
    **{"method": "fed-smp-rand-k", "data": "mnist", "model": "mlp", "clients": 59, "cohort": 13.0, "rounds": 4, "noise": 0.3},
    **{"epsilon": 2.0, "budget": 2.0, "delta": 1e-5, "sampling": "fixed", "participations": 2, "partition": "dirichlet:0.1"},
    **{"evaluation": "clients", "validation": 7, "public": 9, "test_examples": 5, "start": "public", "seed": 5, "dtype": "float64"},
    **{"dropout": 0.5, "secure": True, "noise_mode": "secure", "noise_seed": 7, "diagnostics": True, "ledger": "ledger.sqlite"},
    **{"population": "others", "rollback_protection": False, "eval_every": 3, "track_test": True, "from_python": "task"},
}


def test_settings_that_still_read_well_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)  # where the ledger would be found
    for name in SLOW:
        monkeypatch.setattr(certify, name, cached(getattr(certify, name)))
    honest = (run / "config.json").read_text()
    for key, value in [*CHANGED.items(), ("set", {"lr": 0.5})]:
        (run / "config.json").write_text(honest)
        edit(run / "config.json", lambda c, key=key, value=value: c["runs"][0].update({key: value}))  # type: ignore[misc]
        assert not all(check.passed for check in verify_run(run).checks), key
    (run / "config.json").write_text(honest)
    edit(run / "config.json", lambda c: c.update(seeds=9))
    assert wrong(run) == {"settings"}


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
    parts[-1]["multiplier"] = certificate["configuration"]["run"]["noise"] = noise
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
    certificate, checks, said, _ = verify_run(tmp_path / "p")
    assert {check.name: check.passed for check in checks}["settings"] is None
    assert {"plan", "configuration", "method", "clients"} <= {leaf.split(".")[0] for leaf in said}
    assert not wrong(tmp_path / "p")
    assert certificate["configuration_sha256"] == digest(certificate["configuration"])


def test_settings_that_somebody_wrote_by_hand_are_not_what_ran(tmp_path: Path) -> None:
    """Data and model of one's own under the names of others."""
    asked = resolve(RunConfig(method="dp-fedavg", noise=1.0, rounds=1, clients=60, cohort=12.0, model="logistic"))
    task = make_task(sizes=(1,) * 60, name="digits", model_name="logistic")
    hush.simulate(asked.method, task, rounds=1, cohort=asked.cohort, out=tmp_path)
    for from_python in ("task", None):
        ran = asked.config.to_dict() | {"from_python": from_python}
        (tmp_path / "config.json").write_text(json.dumps({"format": 2, "runs": [ran], "seeds": 1, "data_dir": None}))
        found = {check.name for check in verify_run(tmp_path).checks if not check.passed}
        assert found == {"settings"}, from_python


@pytest.mark.parametrize("name", ["run.json", "checkpoint.safetensors", ".checkpoint.safetensors.draft"])
def test_a_secret_that_is_left_does_not_hold(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / name).write_bytes(b"key")
    pages = {page: (run / page).read_text() for page in ("certificate.html", "report.html")}
    (run / "certificate.html").unlink()  # as SIGKILL leaves a run whose result is on disk
    (run / "report.html").unlink()
    assert wrong(run) == {"secrets"}
    code, out, _ = command(capsys, "certify", str(run))
    assert (code, "does NOT hold" in out, name in out) == (2, True, True)
    assert command(capsys, "run", "--resume", str(run))[0] == 0
    assert not (run / name).exists()
    assert (run / "certificate.html").read_text() == pages["certificate.html"]
    assert (run / "report.html").is_file()
    assert not wrong(run)


def swap(run: Path, **words: Any) -> dict[str, Any]:
    """Another model and other words, in model, certificate, page and result; and what a release of them would say."""
    (run / "model.safetensors").write_bytes(b"another")
    words |= {"model_sha256": hashlib.sha256(b"another").hexdigest()}
    edit(run / "certificate.json", lambda c: c.update(words))
    edit(run / "result.json", lambda r: r.update({key: value for key, value in words.items() if key in r}))
    certificate, result = (json.loads((run / name).read_text()) for name in ("certificate.json", "result.json"))
    (run / "certificate.html").write_text(certificate_page(certificate))
    return {"run": certificate["run_id"], "sha256": released(certificate, result, RunDir(run))}


@contextmanager
def elsewhere(run: Path) -> Iterator[None]:
    """Another machine, which remembers nothing of this one's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUSH_HOME", str(run.with_name("another-home")))
        yield


def append(run: Path, now: dict[str, Any]) -> None:
    """A release more in a run's ledger, by somebody who got the folder."""
    with elsewhere(run):
        book = Ledger(run / "ledger.sqlite", own=True)
        book.release(population="digits", **now)
        book.close()


def test_a_second_release_that_says_something_else_is_found(run: Path) -> None:
    """Anybody can append to a ledger; what was released first is still there."""
    honest = json.loads((run / "certificate.json").read_text())
    now = swap(run, caveats=[], data="patients")
    assert "another model and certificate and result was released" in detail(run, "ledger")
    append(run, now)
    assert wrong(run) == {"ledger"}
    assert "2 releases are there" in detail(run, "ledger")
    (run / "result.json").unlink()  # nor does it help to leave the result out
    assert wrong(run) == {"ledger"}
    assert honest["caveats"]


def test_a_release_that_was_repeated_after_a_kill_verifies(run: Path) -> None:
    certificate, result = (json.loads((run / name).read_text()) for name in ("certificate.json", "result.json"))
    append(run, {"run": certificate["run_id"], "sha256": released(certificate, result, RunDir(run))})
    assert not wrong(run)
    assert "2 times the same" in detail(run, "ledger")


def detail(run: Path, name: str) -> str:
    return next(check.detail for check in verify_run(run).checks if check.name == name)


def test_a_swapped_model_is_found_without_a_result(run: Path) -> None:
    swap(run, caveats=[])
    (run / "result.json").unlink()
    assert wrong(run) == {"ledger"}


@pytest.mark.parametrize("change", ["an earlier entry", "another delta", "another head", "one word more", "nobody"])
def test_what_all_runs_spent_is_that_of_the_runs_end(summed: Path, tmp_path: Path, change: str) -> None:
    """These lines are not in the hash of the certificate, since others go on; they follow from the ledger."""
    run = shutil.copytree(summed, tmp_path / "r")
    certificate = json.loads((run / "certificate.json").read_text())
    together = certificate["population"]
    book = Ledger(summed.parent / "people.db", look=True)
    if change == "an earlier entry":
        at = together["ledger_entries"] - 1
        pool = book.populations_at(at)["p"]
        together |= {"ledger_entries": at, "ledger_head": book.hash_of(at), "epsilon": pool.spent(together["delta"])}
    elif change == "another delta":
        together |= {"delta": 0.5, "epsilon": book.populations_at(together["ledger_entries"])["p"].spent(0.5)}
    elif change == "another head":
        together["ledger_head"] = book.hash_of(2)
    else:
        together["note"] = "certified by the authorities"
    book.close()
    together = None if change == "nobody" else together
    edit(run / "certificate.json", lambda c: c.update(population=together))
    edit(run / "result.json", lambda r: r.update(population=together))
    (run / "certificate.html").write_text(certificate_page(certificate | {"population": together}))
    assert "ledger" in wrong(run)


def test_verifying_leaves_no_trace(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a forged copy first still believes the true one."""
    forged = shutil.copytree(run, tmp_path / "forged")
    append(forged, swap(forged, data="patients"))
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "receiver"))
    files = {path: path.read_bytes() for path in run.iterdir()}
    assert wrong(forged) == {"ledger"}
    for at in (forged, run):
        shared_run("ledger", "verify", str(at / "ledger.sqlite"))
        shared_run("ledger", "show", str(at / "ledger.sqlite"))
    assert not wrong(run)
    assert not (tmp_path / "receiver").exists()
    assert {path: path.read_bytes() for path in run.iterdir()} == files


def test_a_ledger_that_was_written_anew_is_found_where_the_run_was_made(run: Path, tmp_path: Path) -> None:
    """The same run, charged and released again in a ledger of another name; a folder that is moved or copied stays what it is."""
    certificate = json.loads((run / "certificate.json").read_text())
    (run / "ledger.sqlite").unlink()
    now = swap(run)
    with elsewhere(run):
        book = Ledger(run / "ledger.sqlite", own=True)
        account = book.open_run(certificate["run_id"], "digits", plan_from_dict(certificate["plan"]))
        for index in range(3):
            account.charge(index, "x")
        account.release(**now["sha256"])
        book.close()
        assert not wrong(run)  # a machine that never saw the run
    assert wrong(run) == {"ledger"}
    assert "charged in another ledger" in detail(run, "ledger")


def test_a_folder_may_be_moved(run: Path, tmp_path: Path) -> None:
    assert not wrong(run.rename(tmp_path / "elsewhere"))


@pytest.mark.parametrize("aborted", [3, None])
def test_no_guarantee_is_no_way_around_the_ledger(run: Path, aborted: int | None) -> None:
    """'Nothing was released', of a run that was charged three times."""
    gone = dict.fromkeys(
        ("guarantee", "server_guarantee", "no_server_guarantee", "statement", "plan", "computed", "attack", "noise")
    )
    edit(run / "certificate.json", lambda c: c.update(gone | {"epsilon_at": None, "claim": None, "rounds_aborted": aborted}))
    none = dict.fromkeys(("epsilon", "delta", "unit", "relation", "view", "epsilon_server", "noise_mode"))
    edit(run / "result.json", lambda r: r.update(none | {"rounds_aborted": aborted}))
    (run / "certificate.html").write_text(certificate_page(json.loads((run / "certificate.json").read_text())))
    assert wrong(run) == {"ledger"}
    edit(run / "certificate.json", lambda c: c.update(secure_sum={}))
    assert "3 rounds of this run are charged there" in detail(run, "ledger")
    (run / "ledger.sqlite").unlink()
    assert {check.name: check.passed for check in verify_run(run).checks}.get("ledger", "no claim") in (None, "no claim")


@pytest.mark.parametrize("file", ["certificate.json", "result.json", "config.json"])
def test_a_key_that_stands_there_twice_is_refused(run: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (run / file).read_text()
    (run / file).write_text('{"format": 2, "guarantee": {"epsilon": 0.1}, "epsilon": 0.1,' + text[1:])
    code, out, err = command(capsys, "certify", str(run))
    assert code in (1, 2)
    assert "stands there twice" in out + err


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
        (page(0.25, 10), "<div class=weak>", ("ahead of guessing", "epsilon is", "accuses 1 in 100")),
        (page(0.9, 10, delta=0.009), "<div class=weak>", ("accuses 1 in 100",)),
        (page(0.15, 400), "<div class=weak>", ("epsilon is",)),  # where few are drawn, an attacker is seldom right at all
        (page(3.0, 200, delta=0.006), "<div class=weak>", ("not below 1/200",)),
        (page(5.0, 50, delta=0.015), "<div class=weak>", ("delta is 0.015",)),
        (page(0.25, 10, delta=0.18), "<div class=weak>", ("ahead of guessing", "epsilon is", "accuses 1 in 100", "not below 1/10")),
    ):
        assert lead in made[0]
        for said in ("ahead of guessing", "epsilon is", "accuses 1 in 100", "not below 1/", "delta is 0.015"):
            expected = any(said in word for word in words)
            assert all((said in text) is expected for text in made)
    bare = hush.simulate(methods.fedavg(), make_task(), rounds=1, cohort=3)
    assert "<div class=no>" in certificate_page(bare.certificate())


def test_epsilon_at_other_deltas_is_that_of_the_accountant(tmp_path: Path) -> None:
    result = hush.simulate(methods.dp_fedavg(noise=1.0), make_task(sizes=(3,) * 20), rounds=3, cohort=5)
    assert result.proof is not None
    for row in result.certificate()["epsilon_at"]:
        assert row["epsilon"] == account(result.proof.plan, row["delta"]).epsilon
