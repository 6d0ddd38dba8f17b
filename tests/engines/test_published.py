"""What a run leaves behind follows from what its noise covers, from settings, and from how many clients there are; nothing else."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

import hush
from hush import methods
from hush.engines import simulation
from hush.engines.rundir import RunDir
from hush.report.page import run_page
from hush.secret import Secret
from tests.conftest import make_task

OF_THE_MODEL = {
    *("test_accuracy", "best_test_accuracy", "test_loss", "validation_accuracy", "validation_loss"),
    *("test_metrics", "validation_metrics", "clip"),
}
"""Figures of the released model on examples of nobody, and of noised sums: post-processing."""
TIME = {"seconds", "seconds_per_round"}
DRAWN = {"run_id", "model_sha256"}


def flat(value: Any, path: str = "") -> dict[str, Any]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {} if inside else {path: value}
    for key, item in inside:
        found |= flat(item, f"{path}.{key}" if path else str(key))
    return found


def left_behind(folder: Path) -> dict[str, dict[str, Any]]:
    """Every value of every file."""
    read = {name: flat(json.loads((folder / name).read_text())) for name in ("result.json", "certificate.json")}
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    read["rounds.jsonl"] = flat(rounds)
    with safe_open(folder / "model.safetensors", "pt") as f:
        read["model.safetensors"] = {"names": sorted(f.keys()), "notes": f.metadata()}
    book = hush.Ledger(folder / "ledger.sqlite", own=True)
    bodies = [json.loads(body) for (body,) in book._db.execute("SELECT body FROM entries")]
    book.close()
    volatile = ("time", "id", "attempt", "run", "sha256")
    read["ledger.sqlite"] = flat([{key: value for key, value in body.items() if key not in volatile} for body in bodies])
    assert {path.name for path in folder.iterdir()} == {*read}
    return read


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "secure"])
@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp-rand-k", "ddgauss", "dpsfl-ac", "adpfl", "dp-sgd"])
def test_two_runs_on_other_data_leave_the_same_but_for_what_is_noised(name: str, mode: str, tmp_path: Path) -> None:
    """Other examples, other sizes, other labels; as many clients, and the same settings."""
    sizes = [(5, 3, 8, 1, 6, 4) * 5, (2, 9, 40, 1, 7, 11) * 5]
    if name == "dp-sgd":  # whose statement is about records: how many a client holds is no secret, and says so
        sizes = [(5,) * 30, (5,) * 30]
    left = []
    for seed, each in enumerate(sizes):
        public = make_task(sizes=(1,), seed=99)
        task = make_task(sizes=each, seed=seed, model=public.model, test=public.test, validation=public.validation)
        settings = {"k": 5, "cols": 40} if name.startswith("dpsfl") else {}
        out = tmp_path / str(seed)
        hush.simulate(methods.build(name, **settings), task, rounds=3, cohort=6, privacy=hush.Budget(8.0), noise_mode=mode, out=out)
        left.append(left_behind(out))
    for file, one in left[0].items():
        other = left[1][file]
        allowed = OF_THE_MODEL | TIME | DRAWN
        differing = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
        assert {key for key in differing if not set(key.split(".")) & allowed} == set(), file
    certificate = left[0]["certificate.json"]
    assert certificate["configuration.records"] == (5 if name == "dp-sgd" else None)
    assert left[0]["result.json"]["train_loss"] is None


def with_nan(clients: int) -> hush.Task:
    """The first so many of ten clients hold nothing but NaN."""
    task = make_task(sizes=(4,) * 10)
    x = task.train.x.clone()
    x[: 4 * clients] = math.nan
    return hush.Task(task.model, hush.Clients(x, task.train.y, task.train.sizes))


def said(method: hush.Method, task: hush.Task, **how: Any) -> list[str]:
    """What a run says on the terminal, warnings and its last sentence."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            hush.simulate(method, task, rounds=1, cohort=10, **how)
        except hush.Diverged as error:
            warnings.warn(str(error), stacklevel=1)
    return [str(w.message) for w in heard]


def test_under_a_guarantee_nobody_is_told_how_many_clients_returned_nan() -> None:
    """One that all did is a fact about each of them; how many did, when the model diverges, is a count without noise."""
    quiet, loud = methods.dp_fedavg(noise=20.0), methods.dp_fedavg(noise=20.0, server_lr=1e30, clip=1e20)
    assert said(quiet, with_nan(10)) == said(quiet, with_nan(9)) == []
    first, *others = (said(loud, with_nan(clients)) for clients in range(4))
    assert "became NaN" in first[0]
    assert all(other == first for other in others)
    for how in ({"diagnostics": True}, {"noise_seed": 1}):
        assert "every client returned NaN" in said(quiet, with_nan(10), **how)[0]
    assert "(3 of its clients returned such)" in said(loud, with_nan(3), diagnostics=True)[0]


def test_the_digest_of_the_data_and_the_secret_go_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, for its owner alone; afterwards nothing tells whether a bit of the data changed."""
    seen: list[set[str]] = []
    right = RunDir.append

    def look(self: RunDir, name: str, record: dict[str, Any]) -> None:
        right(self, name, record)
        seen.append({path.name for path in self.path.iterdir() if path.stat().st_mode & 0o077 == 0})

    monkeypatch.setattr(RunDir, "append", look)
    monkeypatch.setattr(Secret, "fresh", lambda: Secret(b"k" * 32))
    certificates = []
    for at in (0.0, 1e-3):
        task = make_task(sizes=(3,) * 20)
        x = task.train.x.clone()
        x[0, 0] += at
        changed = hush.Task(task.model, hush.Clients(x, task.train.y, task.train.sizes), task.test, task.validation)
        out = tmp_path / str(at)
        hush.simulate(methods.dp_fedavg(noise=1.0), changed, rounds=2, cohort=4, out=out)
        certificates.append(json.loads((out / "certificate.json").read_text()))
        assert not list(out.glob("*.draft"))
    assert all("run.json" in names for names in seen)
    a, b = certificates
    assert {key for key in a if a[key] != b[key]} <= {"run_id", "model_sha256"}
    assert a["run_id"] != b["run_id"]
    assert a["run_id"][:4] != b["run_id"][:4]


def test_where_the_weights_came_from_is_told_as_training_began() -> None:
    """Somebody else's weights that are put back before the end were trained from all the same."""
    task = hush.load_task("digits", "logistic", clients=60)
    first = {name: value.clone() for name, value in task.model.state_dict().items()}
    task.model.load_state_dict({name: value + 1 for name, value in first.items()})
    run = simulation.set_up(methods.dp_fedavg(noise=1.0, local_steps=1), task, rounds=1, cohort=4)
    task.model.load_state_dict(first)
    assert any("what that cost is not in this number" in line for line in simulation.train(run).caveats)
    own = simulation.set_up(methods.dp_fedavg(noise=1.0, local_steps=1), task, rounds=1, cohort=4)
    assert not any("what that cost is not in this number" in line for line in simulation.train(own).caveats)


def test_noise_from_a_seed_has_no_epsilon_of_the_papers_either() -> None:
    how: dict[str, Any] = {"rounds": 1, "cohort": hush.FixedSize(5)}
    secret = hush.simulate(methods.fed_smp_rand_k(noise=2.0), make_task(sizes=(3,) * 20), **how)
    known = hush.simulate(methods.fed_smp_rand_k(noise=2.0), make_task(sizes=(3,) * 20), noise_seed=1, **how)
    assert secret.claimed_epsilon is not None
    assert known.claimed_epsilon is None
    assert known.certificate()["claim"] is None


def test_the_page_warns_of_figures_without_noise_wherever_there_are_some() -> None:
    own = make_task(sizes=(3,) * 20)
    each = replace(own, test=[(own.test.x[i : i + 1], own.test.y[i : i + 1]) for i in range(20)])  # type: ignore[union-attr]
    told = [run_page(hush.simulate(methods.dp_fedavg(noise=2.0), task, rounds=1, cohort=4), []) for task in (own, each)]
    assert ["un-noised views of the clients' data" in page for page in told] == [False, True]
