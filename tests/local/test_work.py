"""How much of what clients of unequal size compute is their own: counted from sizes, and equal to what is computed."""

from __future__ import annotations

import pytest
import torch

import hush
from hush.core import Shard
from hush.local.sgd import Sgd
from hush.random import keys_of
from tests.conftest import make_task


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(
    "local", [Sgd(batch_size=4), Sgd(batch_size=4, epochs=3, most=5), Sgd(batch_size=8, epochs=None, steps=7)], ids=str
)
def test_work_is_what_the_schedule_computes(local: Sgd, slots: bool) -> None:
    size = torch.tensor([21, 9, 8, 3, 0])
    size = size[local.steps_of(size).argsort(descending=True, stable=True)]
    x = torch.zeros(int(size.sum()), 2)
    shard = Shard(x, x[:, 0], torch.cumsum(size, 0) - size, size, slots=slots)
    real = [batch.real for batch in local.schedule(shard, keys_of(0, torch.arange(5)))]
    steps = local.steps_of(size)
    own = sum(int(r[steps[: len(r)] > step].sum()) for step, r in enumerate(real))  # who has finished waits
    assert local.work(size, slots) == (sum(r.numel() for r in real), own)


def test_wasted_work_is_told_where_sizes_may_be() -> None:
    task = make_task(sizes=(9, 4, 2, 7))
    result = hush.simulate(hush.methods.fedavg(batch_size=4), task, rounds=2, cohort=hush.FixedSize(4), chunk=4)
    assert result.wasted_work == pytest.approx(1 - 22 / (4 * (3 + 1 + 1 + 2)))
    assert "wasted_work" in result.un_noised
    private = hush.simulate(hush.methods.dp_fedavg(noise=1.0, batch_size=4), task, rounds=2, cohort=4)
    assert private.wasted_work is None
