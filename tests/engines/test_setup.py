"""Python is as kind as the command line: what cannot be meant gets one sentence, with what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hush
from hush.engines.setup import config_of, set_up
from hush.errors import UsageError
from tests.conftest import make_task


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"epsilon": 8}, r"write privacy=hush.Budget\(epsilon=8\)"),
        ({"noise": 1.0}, r"it is the method's: hush.methods.dp_fedavg\(noise=1.2\)"),
        ({"sampling": "poisson"}, r"write cohort=hush.Poisson\(50\)"),
        ({"lr": 0.1}, "settings of training are the method's"),
        ({"seeed": 1}, "did you mean 'seed'"),
        ({"rounds": None}, "rounds must be a whole number"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"privacy": 8}, r"privacy is a hush.Budget\(epsilon=...\), not 8"),
        ({"secure_sum": True}, r"secure_sum is a hush.SecureSum\(\)"),
        ({"ledger": 5}, "ledger is a file"),
        ({"memory": 5}, "memory must be"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"chunk": 0}, "chunk must be a number from 1"),
        ({"dtype": int}, "dtype must be float32 or float64"),
        ({"device": 3}, "Hush does not run on a device '3'"),
        ({"noise_seed": "x"}, "noise_seed must be a whole number"),
        ({"cohort": hush.Poisson("5")}, "A cohort of 5 out of 6 clients is not possible"),  # type: ignore[arg-type]
        ({"out": 5}, "out is a folder"),
    ],
)
def test_a_slip_in_python_gets_one_sentence(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hush.simulate(hush.methods.dp_fedavg(noise=1.0), make_task(), **{"rounds": 1} | keywords)


def test_a_method_that_was_not_called_and_rounds_that_were_forgotten() -> None:
    with pytest.raises(UsageError, match="call it, with its settings as keywords"):
        hush.simulate(hush.methods.dp_fedavg, make_task(), rounds=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="How many rounds"):
        hush.simulate(hush.methods.dp_fedavg(noise=1.0), make_task())  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="made of transforms"):
        hush.chain(3)  # type: ignore[arg-type]


def test_keywords_become_the_same_piece_of_data_as_flags() -> None:
    """The user's own objects are named in it; what the method was made of is in it as it is."""
    task, cohort = make_task(), hush.Bounded(3, 2)
    summed = hush.SecureSum(bits=20, corrupted=0.2)
    config = config_of(
        hush.methods.dp_fedavg(lr=0.3),
        task,
        cohort,
        {"rounds": 4, "cohort": cohort, "privacy": hush.Budget(2.0, 1e-3), "secure_sum": summed, "dtype": torch.float64},
    )
    assert (config.method, config.data, config.model, config.from_python) == ("dp-fedavg", "own", "own", "task")
    assert (config.sampling, config.cohort, config.participations, config.rounds) == ("bounded", 3, 2, 4)
    assert (config.epsilon, config.budget, config.delta, config.dtype) == (2.0, None, 1e-3, "float64")
    assert (config.secure, config.sum_bits, config.corrupted, config.set["lr"]) == (True, 20, 0.2, 0.3)
    assert hush.SecureSum.of_config(config) == summed
    hand_made = hush.Method("mine", hush.methods.fedavg().local, hush.chain(), hush.methods.fedavg().server)
    run = set_up(hand_made, task, rounds=1, cohort=3)
    assert (run.config.method, run.config.from_python, dict(run.config.set)) == ("mine", "method, task", {})


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    method = hush.methods.dp_fedavg(lr=np.float32(0.25), batch_size=np.int64(3), clip=torch.tensor(0.5))
    for cohort, rounds in ((np.int64(3), np.int64(2)), (hush.FixedSize(np.int32(3)), np.int16(2)), (np.float32(3), np.uint8(2))):
        out = tmp_path / f"{cohort}"
        budget = hush.Budget(epsilon=np.float32(8), delta=np.float64(0.01))
        hush.simulate(
            method, make_task(), rounds=rounds, cohort=cohort, privacy=budget, seed=np.int64(1), dropout=np.float16(0.25), out=out
        )
        run = json.loads((out / "certificate.json").read_text())["configuration"]["run"]
        assert (run["set"]["lr"], run["set"]["batch_size"], run["set"]["clip"]) == (0.25, 3, 0.5)
        assert (run["rounds"], run["cohort"], run["epsilon"], run["seed"], run["dropout"]) == (2, 3.0, 8.0, 1, 0.25)
    with pytest.raises(UsageError, match="batch_size must be a whole number"):
        hush.methods.dp_fedavg(batch_size=np.float32(0.5))
