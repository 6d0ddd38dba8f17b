"""A run is one piece of data: to JSON and TOML and back without loss, and every field of it reaches what runs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hush.config import RunConfig
from hush.engines.judge import best_by, is_judged, un_noised
from hush.engines.run import Run
from hush.errors import HushError
from hush.experiment import Experiment, resolve
from hush.privacy.ledger import Ledger

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
KINDS = {str: words, int: st.integers(-(2**62), 2**62), float: numbers, bool: st.booleans()}


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    options = getattr(kind, "__args__", (kind,))
    return st.one_of(*(st.none() if option is type(None) else KINDS[option] for option in options))


plain = {key: any_value(kind) for key, kind in RunConfig.kinds().items() if key not in ("set", "chunk")}
settings = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.one_of(*KINDS.values()), max_size=4)


@given(st.fixed_dictionaries({}, optional=plain), settings)
def test_json_and_toml_and_back_without_loss(values: dict[str, Any], own: dict[str, Any]) -> None:
    optional = {key for key, kind in RunConfig.kinds().items() if type(None) in getattr(kind, "__args__", ())}
    said = {k: None if k in optional and isinstance(v, str) and v.lower() == "none" else v for k, v in values.items()}
    config = RunConfig(**said, set=own)
    assert RunConfig.read(json.loads(json.dumps(config.to_dict()))) == config
    assert RunConfig.read(tomllib.loads(config.to_toml())) == config


def test_a_resolved_run_is_resolved() -> None:
    """Everything is filled in, so that it makes the same objects without being resolved again."""
    experiment = resolve(RunConfig(method="fed-smp-top-k", epsilon=4.0))
    again = Experiment.of(RunConfig.read(json.loads(json.dumps(experiment.config.to_dict()))))
    assert (again.config, again.method, again.cohort) == (experiment.config, experiment.method, experiment.cohort)
    assert experiment.config.set["lr"] == 0.1
    assert experiment.config.set["momentum"] == 0.5  # the data set's
    assert experiment.config.set["batch_size"] == 4
    assert (experiment.config.rounds, experiment.config.cohort, experiment.config.public) == (60, 100.0, 150)


BASE = RunConfig(method="dp-fedavg", clients=40, cohort=10.0, rounds=2, noise=1.0)
OTHER: dict[str, Any] = {
    "unit": "person",
    "federation": "ABCDE",
    "begins_with": "0" * 64,
    "method": "fedavg",
    "data": "mnist",
    "model": "logistic",
    "clients": 50,
    "cohort": 20.0,
    "rounds": 3,
    "noise": 2.0,
    "epsilon": 4.0,
    "budget": 3.0,
    "delta": 1e-4,
    "sampling": "fixed",
    "participations": 2,
    "partition": "dirichlet:0.1",
    "evaluation": "clients",
    "validation": 10,
    "public": 30,
    "test_examples": 20,
    "start": "processes",
    "seed": 3,
    "device": "cuda:7",
    "memory": "1MiB",
    "chunk": 3,
    "dtype": "float64",
    "secure": True,
    "sum_bits": 20,
    "tolerate": 0.3,
    "corrupted": 0.2,
    "threat": "malicious",
    "masks": "amortised",
    "noise_mode": "secure",
    "noise_seed": 5,
    "diagnostics": True,
    "ledger": "LEDGER",
    "population": "people",
    "rollback_protection": False,
    "dropout": 0.2,
    "eval_every": 2,
    "track_test": True,
    "set": {"momentum": 0.9},
}


def seen(config: RunConfig) -> dict[str, str]:
    """What a run does, not what its configuration says; or why there is none."""
    try:
        experiment = resolve(config)
        run: Run = experiment.set_up(experiment.task(Path("/nowhere")))
    except HushError as refusal:
        return {"refused": str(refusal)}
    data, terms = run.data, run.privacy.federation.terms if run.privacy.federation is not None else None
    clients_of_pool = Path(run.config.ledger).name if run.config.ledger else ""
    told = {
        "objects": (run.method, run.cohort, run.rounds, run.chunk, run.privacy.plan, run.privacy.delta, run.privacy.budget),
        "data": (data.task.name, data.train.sizes.tolist(), data.train.x.dtype, data.learner.dtype, data.learner.device),
        "labels": data.train.y[:60].tolist(),
        "held": [None if e is None else len(e.x) for e in (data.validation, data.test)],
        "public": None if data.server.public is None else len(data.server.public.x),
        "weights": (data.learner.dim, float(data.learner.initial().double().sum())),
        "sum": terms,
        "judged": ([is_judged(run, r) for r in (1, 2, 3)], best_by(run), un_noised(run)),
        "noise": (run.identity.secure, run.privacy.apart, run.privacy.refused),
        "charged": (clients_of_pool, run.config.population, run.config.rollback_protection),
        "lost": run.config.dropout,
    }
    return {key: repr(value) for key, value in told.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", [f.name for f in fields(RunConfig) if f.name not in ("from_python", "code")])
def test_every_field_reaches_the_run(key: str, tmp_path: Path) -> None:
    """Another value is another run, or a refusal that names the field."""
    torch.manual_seed(0)
    base = BASE
    if key in ("sum_bits", "tolerate", "corrupted", "threat", "masks"):
        base = replace(BASE, secure=True)
    if key in ("population", "rollback_protection"):
        base = replace(BASE, ledger=str(tmp_path / "book.db"))
        Ledger(tmp_path / "book.db").close()
    if key == "masks":
        base = replace(base, cohort=40.0)
    other = str(tmp_path / "one.db") if OTHER[key] == "LEDGER" else OTHER[key]
    changed = replace(base, **{key: other} | ({"noise": None} if key in ("epsilon", "method") else {}))
    first = seen(base)
    assert "refused" not in first
    assert first != seen(changed), key
