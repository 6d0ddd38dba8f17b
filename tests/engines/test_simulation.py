from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hush
from hush import Bounded, Budget, Diverged, FixedSize, NoGuarantee, Poisson, UsageError, methods
from hush.core import LocalUpdate, Trained
from hush.engines import simulation
from hush.engines.memory import chunk_size, parse_bytes
from hush.privacy.secret import Secret
from hush.server import Average
from tests.conftest import make_task

SECRET = Secret(b"k" * 32)
SIZES = (5, 3, 8, 1, 6, 4, 2, 7, 5, 3, 3, 9)
PRIVATE = {"clip": 0.5, "noise": 0.8, "lr": 0.2, "batch_size": 3, "momentum": 0.4}


def weights(result: hush.Result) -> torch.Tensor:
    return torch.cat([p.flatten() for p in result.state_dict.values()])


@pytest.mark.parametrize("name", list(methods.METHODS))
def test_the_result_does_not_depend_on_the_chunk(name: str) -> None:
    settings = {k: v for k, v in PRIVATE.items() if k in methods.settings_of(name)}
    method = methods.build(name, **settings)
    task = make_task(sizes=SIZES)
    runs = [hush.simulate(method, task, rounds=3, cohort=6, chunk=c, secret=SECRET, dtype=torch.float64) for c in (1, 2, 5, 100)]
    for other in runs[1:]:
        assert (weights(runs[0]) - weights(other)).abs().max() < 1e-9


def test_float32_differs_by_rounding_alone() -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)
    a, b = (hush.simulate(method, task, rounds=3, cohort=6, chunk=c, secret=SECRET) for c in (1, 100))
    assert (weights(a) - weights(b)).abs().max() < 1e-5


@dataclass(frozen=True)
class Constant(LocalUpdate):
    """Every client's update is the same known vector."""

    value: float

    def __call__(self, learner: Any, params: torch.Tensor, data: Any, rnd: Any, keys: torch.Tensor, public: Any) -> Trained:
        rows = len(data.size)
        return Trained(torch.full((rows, len(params)), self.value), torch.zeros(rows))


def test_sums_are_divided_by_the_constant_expected_cohort() -> None:
    """theta <- theta - (1/r) sum x: r is the expected size, however many came."""
    task = make_task(sizes=SIZES)
    cohort = Poisson(4)
    came = len(cohort.draw(0, len(SIZES), {}, SECRET)[0])
    assert came != 4
    method = hush.Method("constant", Constant(0.5), hush.chain(), Average())
    result = hush.simulate(method, task, rounds=1, cohort=cohort, secret=SECRET)
    moved = task.learner().initial() - weights(result)
    assert torch.allclose(moved, torch.full_like(moved, 0.5 * came / 4), atol=1e-6)


def test_an_empty_cohort_still_gets_its_noise() -> None:
    task = make_task(sizes=SIZES)
    secret = next(s for i in range(5000) if not len(Poisson(1).draw(0, 12, {}, s := Secret(bytes([i % 256, i // 256]) * 16))[0]))
    result = hush.simulate(methods.dp_fedavg(clip=1.0, noise=2.0), task, rounds=1, cohort=1, secret=secret, dtype=torch.float64)
    moved = task.learner(dtype=torch.float64).initial() - weights(result)
    expected = secret.gaussian(0, len(moved), 2.0, like=moved)
    assert torch.allclose(moved, expected, atol=1e-12)
    quiet = hush.simulate(methods.fedavg(), task, rounds=1, cohort=1, secret=secret)
    assert quiet.train_loss is None


def test_private_methods_learn() -> None:
    sizes = (10,) * 60
    for name in methods.METHODS:
        settings = {k: v for k, v in {"clip": 1.0, "noise": 0.5, "ratio": 0.5, "lr": 0.5}.items() if k in methods.settings_of(name)}
        result = hush.simulate(methods.build(name, **settings), make_task(sizes=sizes), rounds=30, cohort=30, secret=SECRET)
        assert result.test_accuracy is not None
        assert result.test_accuracy > 0.75, name


def test_a_budget_finds_the_noise() -> None:
    task = make_task(sizes=(4,) * 50)
    result = hush.simulate(methods.dp_fedavg(), task, rounds=10, cohort=10, privacy=Budget(3.0, 1e-3))
    assert result.epsilon is not None
    assert 2.95 <= result.epsilon <= 3.0
    assert result.delta == 1e-3
    assert result.rounds == 10
    assert result.stopped is None
    assert result.view == "released"
    assert result.epsilon_server is None


def test_a_budget_stops_before_the_round_that_would_exceed_it() -> None:
    task = make_task(sizes=(4,) * 50)
    result = hush.simulate(methods.dp_fedavg(noise=1.0), task, rounds=40, cohort=10, privacy=Budget(3.0))
    assert 0 < result.rounds < 40
    assert result.epsilon is not None
    assert result.epsilon <= 3.0
    assert result.stopped is not None
    plan = hush.plan_of(methods.dp_fedavg(noise=1.0), Poisson(10), 50, result.rounds + 1)
    assert hush.account(plan, result.delta or 0).epsilon > 3.0
    assert len(result.history) == result.rounds
    with pytest.raises(UsageError, match="Not one round fits"):
        hush.simulate(methods.dp_fedavg(noise=0.1), task, rounds=4, cohort=10, privacy=Budget(0.1))


def test_what_has_no_guarantee_gets_no_number() -> None:
    task = make_task()
    with pytest.raises(NoGuarantee, match="adds no noise"):
        hush.simulate(methods.fedavg(), task, rounds=1, privacy=Budget(1.0))
    with pytest.raises(UsageError, match="needs noise"):
        hush.simulate(methods.dp_fedavg(), task, rounds=1)
    result = hush.simulate(methods.fedavg(), task, rounds=1, cohort=3)
    privacy = (result.epsilon, result.delta, result.unit, result.view, result.noise_multiplier, result.claimed_epsilon)
    assert privacy == (None,) * 6
    assert result.certificate()["guarantee"] is None


def test_fixed_size_is_accounted_for_what_it_is() -> None:
    task = make_task(sizes=(2,) * 40)
    method = methods.dp_fedavg(noise=2.0)
    fixed, poisson, capped = (
        hush.simulate(method, task, rounds=5, cohort=c) for c in (FixedSize(10), Poisson(10), Bounded(10, participations=2))
    )
    assert fixed.epsilon is not None
    assert poisson.epsilon is not None
    assert fixed.epsilon > 1.5 * poisson.epsilon
    assert (fixed.sampling, poisson.sampling, capped.sampling) == ("fixed", "poisson", "bounded")


def test_a_model_that_returns_nan_stops_with_a_sentence_and_keeps_what_was_done(tmp_path: Path) -> None:
    class Nan(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * math.nan

    with pytest.raises(Diverged, match=r"All \d+ clients of round 1"):
        hush.simulate(methods.dp_fedavg(noise=1.0), make_task(model=Nan(6, 3)), rounds=3, cohort=6)
    explosive = make_task(model=nn.Linear(6, 3), loss=lambda outputs, targets: outputs.pow(2).sum(1))
    with pytest.raises(Diverged, match="NaN or infinit"):
        hush.simulate(methods.fedavg(lr=1e4), explosive, rounds=20, cohort=FixedSize(6), out=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()  # the rounds before the last are kept


def test_one_client_with_nan_costs_that_client_alone() -> None:
    task = make_task(sizes=(4,) * 12)
    x = task.train.x.clone()
    x[:4] = math.nan
    spoiled = hush.Task(model=task.model, clients=hush.Clients(x, task.train.y, task.train.sizes), test=task.test)
    result = hush.simulate(methods.dp_fedavg(clip=1.0, noise=0.1, lr=0.5), spoiled, rounds=40, cohort=12)
    assert torch.isfinite(weights(result)).all()
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.5


def test_a_run_writes_what_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = hush.simulate(methods.fed_smp_top_k(ratio=0.3, **PRIVATE), make_task(sizes=SIZES), rounds=4, cohort=5, out=out)
    names = {p.name for p in out.iterdir()}
    assert names == {"rounds.jsonl", "diagnostics.jsonl", "model.safetensors", "result.json", "certificate.json"}
    saved = json.loads((out / "result.json").read_text())
    contract = [
        "method",
        "data",
        "model",
        "clients",
        "cohort",
        "rounds",
        "seed",
        "parameters",
        "test_accuracy",
        "best_test_accuracy",
        "test_loss",
        "train_loss",
        "validation_accuracy",
        "epsilon",
        "epsilon_server",
        "delta",
        "unit",
        "relation",
        "view",
        "noise_multiplier",
        "clip",
        "claimed_epsilon",
        "uplink_bytes_per_client",
        "downlink_bytes_per_client",
        "seconds",
        "seconds_per_round",
        "device",
        "hush_version",
    ]
    assert set(contract) <= set(saved)
    assert saved == json.loads(json.dumps(result.to_dict()))
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == [1, 2, 3, 4]
    public = {"round", "uplink_bytes_per_client", "validation_accuracy", "validation_loss", "test_accuracy", "test_loss", "epsilon"}
    assert set(rounds[-1]) == public  # no cohort size, no training loss: nothing un-noised
    assert [r["epsilon"] for r in rounds] == sorted(r["epsilon"] for r in rounds)
    assert rounds[-1]["test_accuracy"] is None  # the test set is read once, at the end
    assert result.best_by == "validation"
    details = [json.loads(line) for line in (out / "diagnostics.jsonl").read_text().splitlines()]
    wanted = [
        "clipped_fraction",
        "clip_bias",
        "median_update_norm",
        "noise_norm",
        "signal_norm",
        "compression_error",
        "train_loss",
        "client_accuracy_std",
    ]
    assert all(d[key] is not None for d in details for key in wanted)
    assert all(d["un_noised"] for d in details)
    assert "train_loss" not in json.dumps(result.certificate())
    with pytest.raises(UsageError, match="already holds a run"):
        hush.simulate(methods.fedavg(), make_task(), rounds=1, out=out)


def test_diagnostics_say_what_happened(tmp_path: Path) -> None:
    """Against norms taken by hand, on updates that are known."""
    task = make_task(sizes=(3,) * 8)
    dim = task.learner().dim
    norm = 0.5 * math.sqrt(dim)
    method = hush.Method(
        "known",
        Constant(0.5),
        hush.chain(hush.transforms.RandK(0.5), hush.transforms.Clip(norm), hush.transforms.Gaussian(1.0)),
        Average(),
    )
    hush.simulate(method, task, rounds=1, cohort=FixedSize(8), out=tmp_path, secret=SECRET)
    (d,) = [json.loads(line) for line in (tmp_path / "diagnostics.jsonl").read_text().splitlines()]
    k = round(0.5 * dim)
    assert d["participants"] == 8
    assert d["median_update_norm"] == pytest.approx(norm, rel=1e-5)
    entering = 0.5 * dim / k * math.sqrt(k)
    assert d["median_norm_at_clip"] == pytest.approx(entering, rel=1e-5)
    assert d["clipped_fraction"] == 1.0
    assert d["clip_bias"] == pytest.approx(entering - norm, rel=1e-4)
    assert d["signal_norm"] == pytest.approx(norm, rel=1e-4)
    assert d["noise_norm"] == pytest.approx(norm * math.sqrt(k) / 8, rel=0.5)
    dropped, scaled = (dim - k) * 0.25, k * (0.5 * dim / k - 0.5) ** 2
    assert d["compression_error"] == pytest.approx(math.sqrt(dropped + scaled), rel=1e-4)


def test_best_rounds_are_picked_by_validation_or_as_papers_do() -> None:
    task = make_task(sizes=(6,) * 20)
    method = methods.dp_fedavg(clip=1.0, noise=2.0, lr=0.5)
    papers = hush.simulate(method, task, rounds=12, cohort=6, track_test=True, secret=SECRET)
    assert papers.best_by == "test"
    assert papers.best_test_accuracy == max(r["test_accuracy"] for r in papers.history)
    assert papers.test_accuracy == papers.history[-1]["test_accuracy"]
    ours = hush.simulate(method, task, rounds=12, cohort=6, secret=SECRET)
    assert ours.best_test_accuracy is not None
    best = max(range(12), key=lambda i: (ours.history[i]["validation_accuracy"], i))
    assert ours.best_test_accuracy == papers.history[best]["test_accuracy"]


class Killed(Exception):
    pass


@pytest.mark.parametrize("stage", ["before the records", "between records and checkpoint", "after the checkpoint"])
@pytest.mark.parametrize("name", ["fedavg", "fed-smp-top-k"])
def test_a_killed_run_resumes_to_the_identical_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, name: str
) -> None:
    settings = {"average_iterates": 0.5, "server": "momentum", "lr": 0.2} | ({"noise": 0.8} if name != "fedavg" else {})
    method, task = methods.build(name, **settings), make_task(sizes=SIZES)
    common: dict[str, Any] = {"rounds": 6, "cohort": Bounded(4, participations=3)}
    whole = hush.simulate(method, task, out=tmp_path / "whole", **common)

    def die(at: int) -> Any:
        count = 0

        def maybe(original: Any) -> Any:
            def step(self: Any, *args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == at:
                    raise Killed
                return original(self, *args, **kwargs)

            return step

        return maybe

    from hush.engines.rundir import RunDir

    with monkeypatch.context() as patch:
        if stage == "before the records":
            patch.setattr(RunDir, "append", die(5)(RunDir.append))
        elif stage == "between records and checkpoint":
            patch.setattr(RunDir, "write_tensors", die(3)(RunDir.write_tensors))
        on_round = None
        if stage == "after the checkpoint":

            def on_round(record: dict[str, Any]) -> None:
                if record["round"] == 3:
                    raise Killed

        with pytest.raises(Killed):
            hush.simulate(method, task, out=tmp_path / "killed", on_round=on_round, **common)
    with (tmp_path / "killed" / "rounds.jsonl").open("a") as f:
        f.write('{"round": 4, "half')  # what a power cut leaves
    again = hush.simulate(method, task, out=tmp_path / "killed", resume=True, **common)
    assert torch.equal(weights(whole), weights(again))
    same = [{k: v for k, v in r.to_dict().items() if not k.startswith("seconds")} for r in (whole, again)]
    assert same[0] == same[1]
    assert (tmp_path / "whole" / "rounds.jsonl").read_text() == (tmp_path / "killed" / "rounds.jsonl").read_text()
    assert (tmp_path / "whole" / "diagnostics.jsonl").read_text() == (tmp_path / "killed" / "diagnostics.jsonl").read_text()
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()  # it held the key of the noise


def test_resume_refuses_another_run(tmp_path: Path) -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)

    def stop(record: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        hush.simulate(method, task, rounds=3, cohort=4, out=tmp_path, on_round=stop)
    checkpoint = tmp_path / "checkpoint.safetensors"
    assert checkpoint.stat().st_mode & 0o077 == 0
    with pytest.raises(hush.DataError, match="other settings or other data"):
        hush.simulate(method, make_task(sizes=SIZES, seed=1), rounds=3, cohort=4, out=tmp_path, resume=True)
    with pytest.raises(hush.DataError, match="another machine"):
        hush.simulate(method, task, rounds=3, cohort=4, out=tmp_path, resume=True, secret=Secret.fresh())
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(hush.DataError, match="damaged"):
        hush.simulate(method, task, rounds=3, cohort=4, out=tmp_path, resume=True)


def test_runs_repeat_on_one_machine_and_a_changed_example_gets_fresh_noise() -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)

    def noise_key(task: hush.Task, **change: Any) -> bytes:
        return simulation.set_up(method, task, rounds=2, **{"cohort": 4, **change}).secret.key

    first, second = (hush.simulate(method, task, rounds=2, cohort=4) for _ in range(2))
    assert torch.equal(weights(first), weights(second))
    x = task.train.x.clone()
    x[0, 0] += 1e-6
    changed = hush.Task(task.model, hush.Clients(x, task.train.y, task.train.sizes), task.test, task.validation, task.public)
    keys = {noise_key(task), noise_key(changed), noise_key(task, seed=1), noise_key(task, cohort=5)}
    assert len(keys) == 4


def test_dropped_clients_never_change_the_noise() -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)
    result = hush.simulate(method, task, rounds=2, cohort=12, dropout=0.9, secret=SECRET)
    full = hush.simulate(method, task, rounds=2, cohort=12, secret=SECRET)
    assert result.epsilon == full.epsilon
    with pytest.raises(UsageError):
        hush.simulate(method, task, rounds=1, dropout=1.0)


def test_memory_bounds_the_chunk_not_the_cohort() -> None:
    task = make_task(sizes=(4,) * 10)
    learner, train = task.learner(), task.train
    local = methods.fedavg(batch_size=4).local
    small, large = (chunk_size(learner, local, train.x, train.y, m) for m in (2**14, 2**24))
    assert small < large
    assert chunk_size(learner, local, train.x, train.y, 1) == 1
    sizes = []
    monitor = simulation.set_up(methods.fedavg(batch_size=4), task, rounds=1, cohort=10, memory="20kB")
    original = monitor.learner.gradients

    def counting(params: torch.Tensor, *rest: torch.Tensor) -> Any:
        sizes.append(len(params))
        return original(params, *rest)

    monitor.learner.gradients = counting  # type: ignore[method-assign]
    simulation.train(monitor)
    assert 1 <= max(sizes) == monitor.chunk < 10


@pytest.mark.parametrize(("text", "size"), [("2GiB", 2**31), ("500MB", 500 * 2**20), ("1.5g", 3 * 2**29), ("64", 64)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "1.2.3GB", "0"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


def test_the_sentence() -> None:
    task = make_task(sizes=(4,) * 50)
    dense = hush.simulate(methods.dp_fedavg(noise=1.0), task, rounds=3, cohort=10)
    sparse = hush.simulate(methods.fed_smp_rand_k(noise=1.0, ratio=0.1), task, rounds=3, cohort=10)
    said = sparse.sentence(dense)
    assert re.fullmatch(
        r"\d+% accuracy; \(eps=[\d.]+, delta=[\d.e-]+\) for each client against anyone who reads the model; "
        r"[\d.e-]+ MB sent per client, [\d.]+x less than DP-FedAvg",
        said,
    )
    assert "no privacy guarantee" in hush.simulate(methods.fedavg(), task, rounds=1, cohort=10).sentence()
