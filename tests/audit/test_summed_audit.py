"""The audit of records under a secure sum passes what is right, and catches what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hush
from hush import methods
from hush.audit.audit import audit
from hush.audit.findings import Audit, Scene
from hush.audit.summed_records import neighbour_check, watch_sums
from hush.cohort import FixedSize, Rotation
from hush.core import Method
from hush.local import record_gradients, records
from hush.local.per_example import encoded_sums
from hush.privacy.shares import SecureSum, as_summed, with_secure_sum
from hush.privacy.vocabulary import Enrolled
from hush.transforms import Discretize, ExactNoise

SCENES = (Scene(1, 1.0, 3000), Scene(2, 0.3, 1600))


def secured(**more: Any) -> Method:
    settings: dict[str, Any] = {"noise": 1.0, "rate": 0.2, "batch_size": 5} | more
    return as_summed(with_secure_sum(methods.dp_sgd(**settings), Rotation(20), Enrolled(20), SecureSum(), 0.0))


def audited(method: Method | None = None, scenes: tuple[Scene, ...] = SCENES, task: hush.Task | None = None) -> Audit:
    return audit(method or secured(), Rotation(20), task, rounds=4, scenes=scenes)


def wrong(found: Audit) -> set[str]:
    return {check.name for check in found.checks if not check.passed} | {one.name for one in found.attacks if not one.passed}


@pytest.mark.parametrize("mask", [{}, {"mask": "rand-k", "ratio": 0.5}], ids=["dense", "rand-k"])
def test_what_is_right_passes(mask: dict[str, Any]) -> None:
    found = audited(secured(**mask), task=hush.load_task("digits", clients=20) if not mask else None)
    assert wrong(found) == set()
    assert found.noise_multiplier == 1.0
    assert found.attacks[0].epsilon_found > 0.3, "an attack that finds nothing proves nothing"


def test_shares_that_add_up_to_too_little_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = ExactNoise.decode

    def weak(self: ExactNoise, total: Tensor, *more: Any) -> Any:
        noisy, state = drawn(self, total, *more)
        return total + (noisy - total) // 2, state

    monkeypatch.setattr(ExactNoise, "decode", weak)
    found = wrong(audited(scenes=SCENES[:1]))
    assert "noise scale" in found
    assert "1 rounds, a record in 1 of the steps" in found


def test_a_record_that_counts_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(learner: Any, at: Tensor, x: Tensor, y: Tensor, real: Tensor, keys: Tensor, numbers: Tensor, *more: Any) -> Any:
        x, y, real, numbers = (torch.cat([rows, rows], 1) for rows in (x, y, real, numbers))
        return encoded_sums(learner, at, x, y, real, keys, numbers, *more)

    monkeypatch.setattr(record_gradients, "encoded_sums", twice)
    assert "clip" in wrong(audited(scenes=()))


@pytest.mark.parametrize(
    ("planted", "caught"),
    [
        (lambda words, client, size, rate: np.flatnonzero(np.random.default_rng(client).random(size) < rate), "coins drawn anew"),
        (lambda words, client, size, rate: np.arange(size)[: max(1, round(rate * size))], "coins of their own"),
        (
            lambda words, client, size, rate: np.arange(size) if words.take(client, 1)[0] < rate * 2.0**64 else np.arange(0),
            "coins of their own",
        ),
        (
            lambda words, client, size, rate: np.flatnonzero(
                words.take(client, size) < np.uint64(min(2**64 - 1, int(1.3 * rate * 2.0**64)))
            ),
            "rate of the coins",
        ),
    ],
    ids=["guessable", "always the first", "one coin a client", "too often"],
)
def test_coins_that_tell_are_caught(planted: Any, caught: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_by_coin", planted)
    assert caught in wrong(audited(scenes=()))


def test_a_redraw_that_depends_on_the_whole_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rounding that is checked on the sum would: what one record adds then depends on all."""
    sums = record_gradients.RecordGradients.messages

    def checked(self: Any, *given: Any) -> Any:
        trained = sums(self, *given)
        long = trained.updates.double().norm(dim=1) > 2**20
        return trained._replace(updates=torch.where(long[:, None], trained.updates // 2, trained.updates))

    monkeypatch.setattr(record_gradients.RecordGradients, "messages", checked)
    assert not neighbour_check(secured(), hush.load_task("digits", clients=20)).passed


def test_a_row_longer_than_the_clip_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Discretize.encode
    monkeypatch.setattr(Discretize, "encode", lambda self, *given: (encode(self, *given).double() * 1.01).long())
    assert "clip" in wrong(audited(scenes=()))


def test_canaries_show_where_there_is_hardly_any_noise() -> None:
    """The attack on a training sees something where something can be seen."""
    method = secured(noise=1e-3, rate=1.0, lr=0.01)
    seen = watch_sums(method, FixedSize(20), hush.load_task("digits", clients=20), 10)
    inside, outside = seen.scores[seen.members], seen.scores[~seen.members]
    assert inside.min() > outside.max()
