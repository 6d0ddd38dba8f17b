"""SIGKILL at any moment: what is on disk never says less than what was drawn. `make soak` does it fifty times."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import hush
from hush import UsageError
from hush.certify import verify_run
from hush.engines import charging, simulation
from hush.engines import round as one_round
from hush.engines.rundir import RunDir
from hush.privacy.ledger import Ledger, LedgerError, RunAccount
from hush.secret import Secret
from tests.conftest import make_task
from tests.faults import Child

ROUNDS = 40
pytestmark = pytest.mark.filterwarnings("ignore:.*is new in")


def charged(child: Child) -> dict[str, int]:
    """Charges of each run on the shared ledger."""
    book = Ledger(child.ledger)
    counts = {run: s.charges for pool in book.populations.values() for run, s in pool.runs.items()}
    book.close()
    return counts


def survive(child: Child, chance: random.Random, kills: int) -> dict[str, Any]:
    """Kill, look, kill again, finish; every look must find at least as many charges as draws."""
    before = charged(child) if child.ledger.is_file() else {}
    for _ in range(kills):
        child.kill_somewhere(chance)
        now = charged(child)
        new = sum(now.values()) - sum(before.values())
        drawn = child.draws() if child.mode == "secure" else list(dict.fromkeys(child.draws()))
        assert new >= len(drawn), (child.mode, new, len(drawn))
    left = child.out / "run.json"
    kept = json.loads(left.read_text()) if left.is_file() else None
    result = child.finish() | {"kept": kept}
    new = sum(charged(child).values()) - sum(before.values())
    drawn = child.draws() if child.mode == "secure" else list(dict.fromkeys(child.draws()))
    assert new >= len(drawn)
    assert result["rounds_charged"] == new
    return result


@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_killed_runs_never_under_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    chance = random.Random(mode)
    ledger = tmp_path / "shared.db"
    child = Child(tmp_path / "run", ledger, mode, 0, ROUNDS)
    result = survive(child, chance, kills=1)  # make soak kills more often
    if mode == "fast":
        key = bytes.fromhex(result["kept"]["secret"])
        monkeypatch.setattr(Secret, "fresh", lambda: Secret(key))
    whole = Child(tmp_path / "whole", tmp_path / "other.db", mode, 0, ROUNDS).finish()
    assert not (tmp_path / "run" / "run.json").exists()
    assert result["run_id"] == result["kept"]["run_id"]
    if mode == "fast":  # the very same run, to the last bit
        for key in ("epsilon", "rounds_charged", "test_loss", "test_accuracy"):
            assert result[key] == whole[key]
        assert (tmp_path / "run" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
        assert result["rounds_charged"] == ROUNDS
    else:  # an interrupted round is drawn anew, and charged again
        assert int(str(result["rounds_charged"])) >= len(child.draws()) >= ROUNDS
        assert float(str(result["epsilon"])) >= float(str(whole["epsilon"]))
        assert result["test_loss"] != whole["test_loss"]
    certificate, checks, _, _ = verify_run(tmp_path / "run")
    assert all(check.passed is not False for check in checks), checks
    assert certificate["rounds_charged"] == result["rounds_charged"]
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["population"]["runs"] == 1


def crash_in(round: int, mode: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Train until the noise of `round` is about to be drawn, and die there: paid for, and not drawn."""
    right = charging.charge

    def charge(run: Any, account: Any, now: Any, total: Any) -> int:
        charges = right(run, account, now, total)
        if now.round == round:
            raise KeyboardInterrupt
        return charges

    with monkeypatch.context() as patch:
        patch.setattr(charging, "charge", charge)
        with pytest.raises(KeyboardInterrupt):
            train_some(mode, **settings)


def train_some(mode: str, **settings: Any) -> hush.Result:
    task = make_task(sizes=(3,) * 40)
    return hush.simulate(
        hush.methods.dp_fedavg(noise=1.0, lr=0.1), task, cohort=8, noise_mode=mode, resume=True, **{"rounds": 6} | settings
    )


def test_another_ledger_cannot_be_given_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was spent in the first would be forgotten in the second."""
    first, second = tmp_path / "a.db", tmp_path / "b.db"
    crash_in(4, "fast", monkeypatch, out=tmp_path / "r", ledger=first)
    with pytest.raises(hush.DataError, match="not the ledger that the run was charged in"):
        train_some("fast", out=tmp_path / "r", ledger=second)
    result = train_some("fast", out=tmp_path / "r", ledger=first)
    assert result.rounds_charged == 6
    with pytest.raises(UsageError, match="charged elsewhere"):
        train_some("fast", out=tmp_path / "r", ledger=second)
    assert train_some("fast", out=tmp_path / "r", ledger=first).rounds_charged == 6


def test_a_deleted_ledger_is_missed_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_in(4, "secure", monkeypatch, out=tmp_path / "r")
    (tmp_path / "r" / "ledger.sqlite").unlink()
    with pytest.raises(hush.DataError, match="not the ledger"):
        train_some("secure", out=tmp_path / "r")


def test_a_budget_that_ends_a_run_counts_what_was_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Ledger(tmp_path / "l.db")
    book.set_budget("own", 40, 6.0, 1e-3)
    book.close()
    for _ in range(3):
        crash_in(2, "secure", monkeypatch, out=tmp_path / "r", ledger=tmp_path / "l.db", delta=1e-3, rounds=200)
    result = train_some("secure", out=tmp_path / "r", ledger=tmp_path / "l.db", delta=1e-3, rounds=200)
    again = Ledger(tmp_path / "l.db").populations["own"]
    (run,) = again.runs.values()
    assert result.rounds_charged == run.charges == result.rounds + 3
    assert result.epsilon == pytest.approx(again.spent(1e-3), rel=0.01)
    assert result.stopped is not None
    assert again.spent(1e-3) <= 6.0


def test_a_runs_own_budget_counts_what_was_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = hush.Budget(4.0, 1e-3)
    for _ in range(4):
        crash_in(1, "secure", monkeypatch, out=tmp_path / "r", privacy=budget, rounds=100)
    result = train_some("secure", out=tmp_path / "r", privacy=budget, rounds=100)
    assert result.rounds_charged == result.rounds + 4
    assert result.epsilon is not None
    assert result.epsilon <= 4.0
    assert result.stopped is not None
    assert "the budget of this run" in result.stopped


def test_no_key_is_left_behind_and_that_of_secure_noise_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []
    monkeypatch.setattr(Secret, "fresh", lambda: keys.append(os.urandom(32)) or Secret(keys[-1]))  # type: ignore[func-returns-value]
    for mode in ("fast", "secure"):
        crash_in(4, mode, monkeypatch, out=tmp_path / mode)
        files = {path.name: path.read_bytes() for path in (tmp_path / mode).iterdir()}
        holding = {name for name, content in files.items() for key in keys if key in content or key.hex().encode() in content}
        assert holding == ({"run.json"} if mode == "fast" else set())
        assert (tmp_path / mode / "run.json").stat().st_mode & 0o077 == 0
        train_some(mode, out=tmp_path / mode)
        files = {path.name: path.read_bytes() for path in (tmp_path / mode).iterdir()}
        assert not {name for name, content in files.items() for key in keys if key in content or key.hex().encode() in content}


@pytest.mark.filterwarnings("ignore:Round .* of this run was released before")
@pytest.mark.parametrize("by", ["rounding", "much"])
def test_the_same_noise_is_never_put_on_two_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """A loss that was edited between crash and resume changes the sum of a round that was released: it gets noise of its own."""
    how: dict[str, Any] = {"rounds": 2, "cohort": 8, "out": tmp_path / "run", "resume": True}
    right, more, kept = one_round.plain_sum, 0.0, list[torch.Tensor]()
    monkeypatch.setattr(one_round, "plain_sum", lambda *args: right(*args) + more)

    def released() -> torch.Tensor:
        """Up to the moment after the noise of the second round was drawn, and before anything of that round is on disk."""

        def crash(self: RunDir, name: str, record: dict[str, Any]) -> None:
            if record["round"] == 2:
                raise KeyboardInterrupt
            append(self, name, record)

        append = RunDir.append
        with monkeypatch.context() as patch:
            patch.setattr(RunDir, "append", crash)
            patch.setattr(one_round, "judge", lambda run, now: kept.append(now.params) or judge(run, now))
            with pytest.raises(KeyboardInterrupt):
                hush.simulate(hush.methods.dp_fedavg(noise=50.0), make_task(sizes=(4,) * 16), **how)
        return kept[-1]

    judge = one_round.judge
    first = released()
    assert torch.equal(released(), first)  # the very same sum: one release, paid for once
    more = 1e-9 if by == "rounding" else 1.0
    with pytest.warns(UserWarning, match="drawn afresh, and charged again"):
        other = released()
    # independent noise of std 50/8 on each of 53 weights in one round; the same noise would leave at most 1/8 on each
    assert 0.6 < float((other - first).norm()) / (50 / 8 * (2 * 53) ** 0.5) < 1.5
    result = hush.simulate(hush.methods.dp_fedavg(noise=50.0), make_task(sizes=(4,) * 16), **how)
    assert result.rounds_charged == 4  # and once more, since that noise was kept nowhere


def weights(result: hush.Result) -> torch.Tensor:
    return torch.cat([value.flatten() for value in result.state_dict.values()])


@pytest.mark.parametrize("other", ["another machine", "no memory"])
def test_a_folder_that_was_copied_halfway_draws_noise_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The same noise would cover two sums: this machine's memory and the other's know nothing of each other."""
    right, more = one_round.plain_sum, 0.0
    monkeypatch.setattr(one_round, "plain_sum", lambda *args: right(*args) + more)
    how: dict[str, Any] = {"rounds": 4, "cohort": 8, "resume": True}
    task, method = make_task(sizes=(4,) * 16), hush.methods.dp_fedavg(noise=50.0)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hush.simulate(method, task, out=tmp_path / "here", on_round=stop, **how)
    for place in ("there", "again"):
        shutil.copytree(tmp_path / "here", tmp_path / place)
    here = hush.simulate(method, task, out=tmp_path / "here", **how)
    with pytest.raises(LedgerError, match="older copy"):  # on this machine
        hush.simulate(method, task, out=tmp_path / "again", **how)
    assert all(check.passed is not False for check in verify_run(tmp_path / "here").checks)
    more = 1.0
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / ("file" if other == "no memory" else "home")))

    def stop_again(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="does not remember this run"), pytest.raises(KeyboardInterrupt):
        hush.simulate(method, task, out=tmp_path / "there", on_round=stop_again, **how)
    assert "secret" not in json.loads((tmp_path / "there" / "run.json").read_text())  # for good
    there = hush.simulate(method, task, out=tmp_path / "there", **how)
    # two rounds of noise of std 50/8 on each of 53 weights, in both; the same noise would leave at most a client's worth of each
    assert 0.6 < float((weights(here) - weights(there)).norm()) / (50 / 8 * (4 * 53) ** 0.5) < 1.5
    assert all(check.passed is not False for check in verify_run(tmp_path / "there").checks)


def test_one_run_that_is_trained_twice_is_two_runs(tmp_path: Path) -> None:
    run = simulation.set_up(hush.methods.dp_fedavg(noise=5.0), make_task(), rounds=1, cohort=3)
    first, second = simulation.train(run), simulation.train(run, out=tmp_path / "r")
    assert first.run_id != second.run_id
    assert float((weights(first) - weights(second)).norm()) > 1  # noise of std 5/3 each
    again = simulation.set_up(hush.methods.dp_fedavg(noise=5.0), make_task(), rounds=1, cohort=3, noise_seed=1)
    assert torch.equal(weights(simulation.train(again)), weights(simulation.train(again)))  # which has no guarantee


@pytest.mark.parametrize("after", ["release", "model.safetensors", "certificate.json", "result.json"])
def test_a_run_that_is_killed_at_its_end_is_released_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """The ledger knows what is given out before it can be read; and no secret is left in a complete run's folder."""
    write, release, out = RunDir.write_bytes, RunAccount.release, tmp_path / "r"

    def killed_after_release(self: RunAccount, **sha256: str) -> None:
        assert not (out / "model.safetensors").exists()
        release(self, **sha256)
        if after == "release":
            raise KeyboardInterrupt

    def killed(self: RunDir, name: str, data: bytes, mode: int = 0o644) -> None:
        write(self, name, data, mode)
        if name == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunAccount, "release", killed_after_release)
        patch.setattr(RunDir, "write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            train_some("fast", out=out)
    assert (out / "run.json").is_file()
    if (out / "certificate.json").is_file():
        assert {check.name for check in verify_run(out).checks if check.passed is False} == {"secrets"}
    train_some("fast", out=out)
    assert not RunDir(out).secrets
    book = Ledger(out / "ledger.sqlite", look=True)
    (run,) = book.populations["own"].runs.values()
    assert len(run.released) == (1 if after == "result.json" else 2)
    assert len({json.dumps(told.sha256) for told in run.released}) == 1
    assert all(check.passed is not False for check in verify_run(out).checks)


def test_a_run_that_was_killed_before_its_first_charge_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder may have been copied then, too: each copy draws a secret of its own, and keeps it."""
    with monkeypatch.context() as patch:
        patch.setattr(charging, "charge", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_some("fast", out=tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    secrets = [json.loads((tmp_path / "a" / "run.json").read_text())["secret"]]
    for name in "ab":
        monkeypatch.setenv("HUSH_HOME", str(tmp_path / f"home-{name}"))
        crash_in(2, "fast", monkeypatch, out=tmp_path / name)
        secrets.append(json.loads((tmp_path / name / "run.json").read_text())["secret"])
        assert train_some("fast", out=tmp_path / name).rounds_charged == 6
    assert len(set(secrets)) == 3
