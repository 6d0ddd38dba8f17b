from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import dataclass, replace
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
from hush.local import FlatModel
from hush.secret import Secret
from hush.server import Average
from tests.conftest import make_task

SECRET = Secret(b"k" * 32)
SIZES = (5, 3, 8, 1, 6, 4, 2, 7, 5, 3, 3, 9)
PRIVATE = {"clip": 0.5, "noise": 0.8, "lr": 0.2, "batch_size": 3, "momentum": 0.4}


def weights(result: hush.Result) -> torch.Tensor:
    return torch.cat([p.flatten() for p in result.state_dict.values()])


@pytest.mark.parametrize("name", list(methods.METHODS))
def test_the_result_does_not_depend_on_the_chunk(name: str) -> None:
    settings = {k: v for k, v in (PRIVATE | {"trials": 2**16}).items() if k in methods.settings_of(name)}
    method = methods.build(name, **settings)
    task = make_task(sizes=SIZES)
    runs = [hush.simulate(method, task, rounds=3, cohort=6, chunk=c, noise_seed=1, dtype=torch.float64) for c in (1, 2, 5, 100)]
    for other in runs[1:]:
        assert (weights(runs[0]) - weights(other)).abs().max() < 1e-9


def test_float32_differs_by_rounding_alone() -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)
    a, b = (hush.simulate(method, task, rounds=3, cohort=6, chunk=c, noise_seed=1) for c in (1, 100))
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
    method = hush.Method("constant", Constant(0.5), hush.chain(), Average())
    ready = (simulation.set_up(method, task, rounds=1, cohort=cohort, noise_seed=i) for i in range(256))
    drawn = ((len(cohort.draw(0, len(SIZES), {}, run.identity.secret)[0]), run) for run in ready)
    came, run = next((came, run) for came, run in drawn if came != 4)
    result = simulation.train(run)
    moved = task.learner().initial() - weights(result)
    assert torch.allclose(moved, torch.full_like(moved, 0.5 * came / 4), atol=1e-6)


def test_an_empty_cohort_still_gets_its_noise() -> None:
    task = make_task(sizes=SIZES)
    method = methods.dp_fedavg(clip=1.0, noise=2.0)
    ready = (simulation.set_up(method, task, rounds=1, cohort=1, noise_seed=i, dtype=torch.float64) for i in range(256))
    run = next(run for run in ready if not len(run.cohort.draw(0, 12, {}, run.identity.secret)[0]))
    result, secret = simulation.train(run), run.identity.secret
    moved = task.learner(dtype=torch.float64).initial() - weights(result)
    expected = secret.part("1").noise(0, torch.zeros_like(moved), 2.0)
    assert torch.allclose(moved, expected, atol=1e-12)
    assert result.train_loss is None


def test_private_methods_learn() -> None:
    sizes = (10,) * 60
    for name in methods.METHODS:
        if not methods.recipe_of(name).settings.follows_data:
            continue  # tests/methods/test_sketch_methods.py
        wanted = {
            "clip": 1.0,
            "noise": 0.8,
            "ratio": 0.5,
            "lr": 0.5,
            "trials": 2**12,
            "server_lr": 0.1 if name == "fed-spa" else 1.0,
        }
        method = methods.build(name, **methods.taken(name, wanted))
        rounds = {"ae-dpfl": 5, "fed-spa": 12, "dp-fed": 12, "cpfed": 12}.get(name, 30)  # fewer where a round takes longer
        result = hush.simulate(method, make_task(sizes=sizes), rounds=rounds, cohort=30, noise_seed=1, eval_every=rounds)
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
        hush.simulate(methods.dp_fedavg(noise=0.5), task, rounds=4, cohort=10, privacy=Budget(0.1))


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


def test_a_model_that_becomes_nan_stops_with_a_sentence_and_keeps_what_was_done(tmp_path: Path) -> None:
    explosive = make_task(model=nn.Linear(6, 3), loss=lambda outputs, targets: outputs.pow(2).sum(1))
    with pytest.raises(Diverged, match="NaN or infinit"), warnings.catch_warnings(action="ignore"):
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
    result = hush.simulate(methods.fed_smp_top_k(ratio=0.3, **PRIVATE), make_task(sizes=SIZES), rounds=4, cohort=11, out=out)
    names = {p.name for p in out.iterdir()}
    files = {"rounds.jsonl", "model.safetensors", "result.json", "certificate.json", "ledger.sqlite"}
    assert names == files
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
    assert result.train_loss is None
    assert result.certificate()["un_noised"] == []
    asked = tmp_path / "asked"
    run = (methods.fed_smp_top_k(ratio=0.3, **PRIVATE), make_task(sizes=SIZES))
    result = hush.simulate(*run, rounds=4, cohort=11, out=asked, diagnostics=True)
    details = [json.loads(line) for line in (asked / "diagnostics.jsonl").read_text().splitlines()]
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
    assert result.train_loss is not None
    assert "train_loss" not in result.certificate()
    assert result.certificate()["un_noised"] == ["train_loss", "wasted_work"]
    with pytest.raises(UsageError, match="already holds a complete run"):
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
    hush.simulate(method, task, rounds=1, cohort=FixedSize(8), out=tmp_path, noise_seed=1)
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
    papers = hush.simulate(method, task, rounds=12, cohort=6, track_test=True, noise_seed=1)
    assert papers.best_by == "test"
    assert papers.best_test_accuracy == max(r["test_accuracy"] for r in papers.history)
    assert papers.test_accuracy == papers.history[-1]["test_accuracy"]
    ours = hush.simulate(method, task, rounds=12, cohort=6, noise_seed=1)
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
    monkeypatch.setattr(Secret, "fresh", lambda: Secret(b"k" * 32))
    settings = {"average_iterates": 0.5, "server": "momentum", "lr": 0.2} | ({"noise": 0.8} if name != "fedavg" else {})
    method, task = methods.build(name, **settings), make_task(sizes=SIZES)
    common: dict[str, Any] = {"rounds": 6, "cohort": Bounded(4, participations=3), "diagnostics": True}
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
    monkeypatch.setattr(Secret, "fresh", lambda: Secret(b"other" * 8))  # what the folder kept is what counts
    again = hush.simulate(method, task, out=tmp_path / "killed", resume=True, **common)
    assert torch.equal(weights(whole), weights(again))
    same = [{k: v for k, v in r.to_dict().items() if not k.startswith(("seconds", "run_id"))} for r in (whole, again)]
    assert same[0] == same[1]
    assert (tmp_path / "whole" / "rounds.jsonl").read_text() == (tmp_path / "killed" / "rounds.jsonl").read_text()
    assert (tmp_path / "whole" / "diagnostics.jsonl").read_text() == (tmp_path / "killed" / "diagnostics.jsonl").read_text()
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert not left & {"checkpoint.safetensors", "run.json"}  # the secret of the noise, and a digest of the data


def test_resume_refuses_another_run(tmp_path: Path) -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)

    def stop(record: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        hush.simulate(method, task, rounds=3, cohort=4, out=tmp_path, on_round=stop)
    checkpoint, kept = tmp_path / "checkpoint.safetensors", tmp_path / "run.json"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (checkpoint, kept))
    with pytest.raises(hush.DataError, match="other initial weights and other data"):
        hush.simulate(method, make_task(sizes=SIZES, seed=1), rounds=3, cohort=4, out=tmp_path, resume=True)
    for other in ({"cohort": 5}, {"seed": 1}, {"noise_mode": "secure"}, {"noise_seed": 1}, {"rounds": 4}):
        with pytest.raises(hush.DataError, match="a run with other settings: it cannot go on"):
            hush.simulate(method, task, **{"rounds": 3, "cohort": 4} | other, out=tmp_path, resume=True)  # type: ignore[arg-type]
    anew = replace(task, model=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    with pytest.raises(hush.DataError, match=r"other initial weights: call torch.manual_seed before building the model"):
        hush.simulate(method, anew, rounds=3, cohort=4, out=tmp_path, resume=True)
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(hush.DataError, match="damaged"):
        hush.simulate(method, task, rounds=3, cohort=4, out=tmp_path, resume=True)
    kept.unlink()
    with pytest.raises(hush.DataError, match=r"without its run\.json"):
        hush.simulate(method, task, rounds=3, cohort=4, out=tmp_path, resume=True)


def test_no_two_runs_share_noise_but_those_without_a_guarantee() -> None:
    """The very same run twice; and one whose loss reads an array that no fingerprint of its code would see."""
    weight = [1.0]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weight[0] * nn.functional.cross_entropy(outputs, targets, reduction="none")

    task, method = make_task(sizes=SIZES, loss=loss), methods.dp_fedavg(noise=50.0, lr=0.1)

    def released(**more: Any) -> hush.Result:
        return hush.simulate(method, task, rounds=1, cohort=FixedSize(len(SIZES)), **more)

    first, again = released(), released()
    weight[0] = 2.0
    other = released()
    std = 50.0 / len(SIZES)
    for a, b in ((first, again), (first, other)):
        assert 0.7 < float((weights(a) - weights(b)).norm()) / (std * math.sqrt(2 * 53)) < 1.4
    assert len({run.run_id for run in (first, again, other)}) == 3
    seeded, repeated, elsewhere = (released(noise_seed=seed) for seed in (7, 7, 8))
    assert torch.equal(weights(seeded), weights(repeated))
    assert not torch.equal(weights(seeded), weights(elsewhere))
    for run in (seeded, elsewhere):
        assert run.epsilon is None
        assert run.guarantee is None
        assert "noise_seed" in (run.no_guarantee or "")
        assert run.certificate()["guarantee"] is None
    with pytest.raises(UsageError, match="nobody can repeat"):
        released(noise_seed=7, noise_mode="secure")
    with pytest.raises(hush.NoGuarantee, match="without a proof"):
        released(noise_seed=7, ledger="ledger.db")
    with pytest.raises(UsageError, match="no keyword of simulate, named 'secret'"):
        released(secret=Secret(bytes(32)), noise_mode="secure")
    plain = [hush.simulate(methods.fedavg(lr=0.1), task, rounds=2, cohort=4) for _ in range(2)]
    assert torch.equal(*map(weights, plain))  # nothing is promised, and nothing is lost by repeating


def test_a_client_contributes_one_row_of_its_own() -> None:
    @dataclass(frozen=True)
    class Many(LocalUpdate):
        def __call__(self, learner: Any, params: Any, data: Any, rnd: Any, keys: Any, public: Any) -> Trained:
            return Trained(torch.ones(50 * len(data.size), len(params)), torch.zeros(50 * len(data.size)))

    @dataclass(frozen=True)
    class Centre(hush.Transform):
        def encode(self, x: torch.Tensor, rnd: Any, keys: torch.Tensor, public: Any) -> torch.Tensor:
            return x - x.mean(0)

    method = methods.dp_fedavg(noise=1.0)
    with pytest.raises(UsageError, match="exactly one row"):
        hush.simulate(replace(method, local=Many()), make_task(), rounds=1, cohort=FixedSize(6))
    mixing = method.with_pipeline(Centre(), *method.pipeline.parts)
    with pytest.raises(UsageError, match="affect each other's rows"):
        hush.simulate(mixing, make_task(), rounds=1, cohort=FixedSize(6))


def test_a_lone_nan_client_does_not_end_a_private_run(tmp_path: Path) -> None:
    task = make_task(sizes=(4,) * 8)
    x = task.train.x.clone()
    x[4:8] = math.nan
    spoiled = hush.Task(model=task.model, clients=hush.Clients(x, task.train.y, task.train.sizes), validation=task.validation)
    with warnings.catch_warnings(action="ignore"):
        result = hush.simulate(
            methods.fed_smp_rand_k(noise=4.0), spoiled, rounds=25, cohort=1, out=tmp_path, eval_every=25, diagnostics=True
        )
    assert result.rounds == 25
    details = [json.loads(line) for line in (tmp_path / "diagnostics.jsonl").read_text().splitlines()]
    assert sum(d["not_finite"] for d in details) > 0


def test_a_finished_folder_is_never_overwritten(tmp_path: Path) -> None:
    done = hush.simulate(methods.dp_fedavg(noise=1.0), make_task(), rounds=1, cohort=3, out=tmp_path)
    again = hush.simulate(methods.dp_fedavg(noise=1.0), make_task(), rounds=1, cohort=3, out=tmp_path, resume=True)
    assert again.to_dict() == done.to_dict()  # the same run: its result is read back
    assert again.guarantee == done.guarantee
    assert all(torch.equal(done.state_dict[name], value) for name, value in again.state_dict.items())
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(UsageError, match="complete run"):
        hush.simulate(methods.fedavg(), make_task(), rounds=1, cohort=3, out=tmp_path, resume=True)
    assert (tmp_path / "result.json").read_bytes() == before


def test_public_examples_that_clients_hold_are_refused() -> None:
    task = make_task()
    held = hush.Task(model=task.model, clients=task.train, public=(task.train.x[:6], task.train.y[:6]))
    with pytest.raises(UsageError, match="are among those that clients train on"):
        hush.simulate(methods.fed_smp_top_k(noise=1.0), held, rounds=1, cohort=3)
    result = hush.simulate(methods.fed_smp_top_k(noise=1.0), task, rounds=1, cohort=3)
    assert result.guarantee is not None
    assert any("public examples" in line for line in result.guarantee.assumptions)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_figures_of_clients_own_examples_are_refused(part: str) -> None:
    task = make_task()
    held = hush.Task(task.model, task.train, **{part: (task.train.x[:6], task.train.y[:6])})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{part} examples are among those that clients train on"):
        hush.simulate(methods.dp_fedavg(noise=1.0), held, rounds=1, cohort=3)
    hush.simulate(methods.fedavg(), held, rounds=1, cohort=3)  # where nothing is promised, nothing is broken


def test_bounded_participation_says_when_nobody_is_left() -> None:
    with pytest.warns(UserWarning, match="last for about 2 of 9 rounds"):
        hush.simulate(methods.dp_fedavg(noise=1.0), make_task(), rounds=9, cohort=Bounded(3, participations=1))


def test_misspelt_settings_are_refused_in_python_too() -> None:
    with pytest.raises(UsageError, match="no setting of dp-fedavg 'lrr'"):
        methods.dp_fedavg(lrr=0.1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="out="):
        hush.simulate(methods.fedavg(), make_task(), rounds=1, resume=True)
    with pytest.raises(UsageError, match="eval_every"):
        hush.simulate(methods.fedavg(), make_task(), rounds=1, eval_every=0)


def test_refusals_come_before_training() -> None:
    class Unknown(Poisson):
        pass

    task, method = make_task(), methods.dp_fedavg(noise=1.0)
    for wrong in ({"cohort": Unknown(3)}, {"delta": 0.0}, {"delta": 2.0}, {"rounds": 2.5}, {"privacy": Budget(5.0, 0.0)}):
        with pytest.raises((NoGuarantee, UsageError)):
            simulation.set_up(method, task, **{"rounds": 2, "cohort": 3, **wrong})


def test_resuming_under_a_smaller_budget_is_refused(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 8:
            raise Killed

    task, method = make_task(sizes=(3,) * 40), methods.dp_fedavg(noise=2.0)
    with pytest.raises(Killed):
        hush.simulate(method, task, rounds=10, cohort=8, out=tmp_path, on_round=stop)
    four_rounds = hush.account(hush.plan_of(method, Poisson(8), 40, 4), hush.privacy.guarantee.default_delta(40)).epsilon
    with pytest.raises(UsageError, match="past the 4"):
        hush.simulate(method, task, rounds=10, cohort=8, out=tmp_path, resume=True, privacy=Budget(1.02 * four_rounds))


def test_bytes_of_bounded_participation_and_of_lost_clients() -> None:
    task = make_task(sizes=(3,) * 10)
    with warnings.catch_warnings(action="ignore"):
        once = hush.simulate(methods.fedavg(), task, rounds=40, cohort=Bounded(5, participations=1))
    message = once.parameters * 4
    assert once.uplink_bytes_per_client == pytest.approx(message, rel=1e-3)  # 20 expected coins, one participation
    lossy = hush.simulate(methods.fedavg(), task, rounds=4, cohort=5, dropout=0.25)
    assert lossy.uplink_bytes_per_client == pytest.approx(4 * 0.5 * 0.75 * message)
    assert lossy.downlink_bytes_per_client == pytest.approx(4 * 0.5 * message)


def test_regression_as_papers_report_it_has_no_accuracy() -> None:
    task = make_task(model=nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), loss=lambda o, t: (o - t).square())
    result = hush.simulate(methods.fedavg(lr=0.01), task, rounds=2, cohort=6, track_test=True)
    assert result.best_test_accuracy is None
    assert result.test_loss is not None


def test_dropped_clients_never_change_the_noise() -> None:
    task, method = make_task(sizes=SIZES), methods.dp_fedavg(**PRIVATE)
    result = hush.simulate(method, task, rounds=2, cohort=12, dropout=0.9, noise_seed=1)
    full = hush.simulate(method, task, rounds=2, cohort=12, noise_seed=1)
    assert result.epsilon == full.epsilon
    with pytest.raises(UsageError):
        hush.simulate(method, task, rounds=1, dropout=1.0)


def test_memory_bounds_the_chunk_not_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(sizes=(4,) * 10)
    learner, train = task.learner(), task.train
    local = methods.fedavg(batch_size=4).local
    small, large = (chunk_size(learner, local, train.x, train.y, m) for m in (2**14, 2**24))
    assert small < large
    assert chunk_size(learner, local, train.x, train.y, 1) == 1
    sizes = []
    monitor = simulation.set_up(methods.fedavg(batch_size=4), task, rounds=1, cohort=10, memory="20kB")
    right = FlatModel.gradients
    monkeypatch.setattr(
        FlatModel, "gradients", lambda self, params, x, *more: sizes.append(len(x)) or right(self, params, x, *more)
    )
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
