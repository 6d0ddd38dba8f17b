"""Runs that protect records: interrupted and resumed, with a ledger, at the cap."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hush
from hush import methods
from hush.cohort import Rotation
from hush.core import Method, Round, Shard
from hush.engines import round as round_
from hush.engines import summing
from hush.engines.run import Run
from hush.local.grid import Ball
from hush.local.per_example import MOST
from tests.conftest import make_task


class Stop(Exception):
    pass


def in_pieces(method: Method, rounds: int, out: Path, cohort: hush.Rotation, **more: Any) -> hush.Result:
    """Stopped after every single round, and resumed."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] < rounds:
            raise Stop

    for _ in range(rounds):
        try:
            return hush.simulate(
                method, make_task(sizes=(6,) * 8), rounds=rounds, cohort=cohort, out=out, resume=True, on_round=stop, **more
            )
        except Stop:
            pass
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (methods.cpsgd(trials=2**16), {}),
        (methods.cpfed_output(noise=2.0), {"noise_mode": "secure"}),
        (methods.fed_spa(noise=2.0, local_steps=1, batch_size=3), {"noise_mode": "secure"}),
    ],
    ids=["cpsgd", "cpfed-output", "fed-spa"],
)
def test_a_resumed_rotation_gives_nobody_a_second_turn(
    method: Method, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact noise comes with a fresh secret at every resumption; the order of the turn must not."""
    joined: Counter[int] = Counter()
    real = summing.clients_of

    def watched(run: Run, ids: Tensor, rnd: Round) -> tuple[Shard, Tensor]:
        there = ids[ids >= 0].tolist()  # a trial of one client beside empty slots is none of its turns
        joined.update(there if len(there) == 2 else ())
        return real(run, ids, rnd)

    monkeypatch.setattr(summing, "clients_of", watched)
    result = in_pieces(method, 8, tmp_path / "r", Rotation(2), **more)
    assert set(joined.values()) == {2}  # two turns of four rounds
    assert result.rounds_charged == 8
    assert result.proof is not None
    assert result.proof.plan.phases[0].times == 2


@pytest.mark.usefixtures("one_secret")
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    method = methods.fed_spa(noise=1.0, ratio=0.4, local_steps=3, batch_size=3, server_lr=0.1)
    whole = hush.simulate(method, make_task(sizes=(6,) * 8), rounds=5, cohort=Rotation(3))
    pieces = in_pieces(method, 5, tmp_path / "r", Rotation(3))
    assert all(torch.equal(whole.state_dict[name], pieces.state_dict[name]) for name in whole.state_dict)
    assert whole.epsilon == pieces.epsilon


class Killed(BaseException):
    """As a process ends that somebody kills: after a round was paid for, and before anything was kept of it."""


def test_the_secret_of_exact_noise_dies_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file holds it, and a round that was cut short is drawn with another and charged again."""
    method = methods.cpfed(noise=2.0, local_steps=2, batch_size=3)
    secrets: list[bytes] = []
    sums: list[Tensor] = []
    real = round_.plain_sum

    def dies(run: Run, *rest: Any) -> Tensor:
        secrets.append(run.identity.secret.key)
        sums.append(real(run, *rest))
        return sums[-1]

    finish, left = Method.finish, [1]

    def once(self: Method, *rest: Any) -> Any:
        if left:
            left.pop()
            raise Killed
        return finish(self, *rest)

    monkeypatch.setattr(round_, "plain_sum", dies)
    monkeypatch.setattr(Method, "finish", once)
    how: dict[str, Any] = {"rounds": 2, "cohort": Rotation(2), "out": tmp_path / "r", "resume": True, "noise_mode": "secure"}
    task = make_task(sizes=(6,) * 8)
    with pytest.raises(Killed):
        hush.simulate(method, task, **how)
    assert not any(secrets[0].hex().encode() in path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file())
    result = hush.simulate(method, task, **how)
    assert secrets[0] != secrets[1]
    assert not torch.allclose(sums[0], sums[1])
    assert result.rounds_charged == 3
    assert result.noise_mode == "secure"


def test_a_record_that_moves_another_is_refused_where_noise_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a few whole numbers in a million, which no audit of the noise would show."""
    real = Ball.encode

    def leaning(self: Ball, rows: Tensor) -> Tensor:
        own = rows.double().abs().view(-1, MOST, rows.shape[1]).sum((1, 2))  # of each client
        whole = real(self, rows)
        whole[:, 0] += (own * 1000).long().repeat_interleave(MOST) % 3
        return whole

    monkeypatch.setattr(Ball, "encode", leaning)
    method = methods.dp_sgd(noise=1.0)
    task = make_task(sizes=(100,) * 8)
    hush.simulate(method, task, rounds=1, cohort=Rotation(2))
    with pytest.raises(hush.UsageError, match="who else is in the batch"):
        hush.simulate(method, task, rounds=1, cohort=Rotation(2), noise_mode="secure")


def test_a_budget_counts_turns_as_they_come() -> None:
    """Four rounds are one turn: the first costs as much as all four."""
    method = methods.dp_fed(noise=4.0, batch_size=2)
    task = make_task(sizes=(6,) * 8)
    one = hush.simulate(method, task, rounds=4, cohort=Rotation(2), delta=1e-4)
    assert one.epsilon is not None
    assert [row["epsilon"] for row in one.history[:3]] == [pytest.approx(one.history[3]["epsilon"])] * 3
    capped = hush.simulate(method, task, rounds=12, cohort=Rotation(2), privacy=hush.Budget(1.02 * one.epsilon, 1e-4))
    assert capped.rounds == 4
    assert capped.epsilon == pytest.approx(one.epsilon, rel=1e-6)


def test_small_clients_are_warned_of() -> None:
    result = hush.simulate(methods.dp_fed(noise=4.0, batch_size=10), make_task(sizes=(6,) * 8), rounds=2, cohort=Rotation(2))
    assert result.guarantee is not None
    assert any("no more than a batch" in line for line in result.guarantee.warnings)


def test_half_precision_is_refused() -> None:
    with pytest.raises(hush.UsageError, match="float32"):
        hush.simulate(methods.dp_fed(noise=1.0), make_task(), rounds=1, dtype=torch.bfloat16)
