"""The free mask: chosen by what was released, never by anything else."""

from __future__ import annotations

import pytest
import torch

import hush
from hush import Round, UsageError, methods
from hush.core import Bound, Server, Wire
from hush.random import keys_of
from hush.secret import Secret
from hush.transforms import FreeMask
from tests.conftest import make_task

DIM = 200


def server() -> Server:
    return Server(make_task().learner("cpu"), None)


def mask(part: FreeMask, m: torch.Tensor, index: int = 0) -> torch.Tensor:
    chosen = part.prepare(torch.zeros(DIM), {"m": m}, Round(index, 100 + index, 10.0), server())
    assert isinstance(chosen, torch.Tensor)
    return chosen


def test_at_first_everything_is_drawn() -> None:
    part = FreeMask(0.1)
    first, second = (mask(part, torch.zeros(DIM, dtype=torch.float64), index) for index in (0, 1))
    assert len(first) == len(set(first.tolist())) == 20
    assert first.tolist() == sorted(first.tolist())
    assert first.tolist() != second.tolist()
    assert first.tolist() == mask(part, torch.zeros(DIM, dtype=torch.float64), 0).tolist()


def test_later_the_largest_and_some_others() -> None:
    part = FreeMask(0.1, explore=0.25)
    m = torch.zeros(DIM, dtype=torch.float64)
    m[50:70] = torch.arange(20) + 1.0
    m[60] = -100.0
    chosen = set(mask(part, m).tolist())
    assert len(chosen) == 20
    assert set(range(55, 70)) <= chosen  # the fifteen largest in size
    others = [set(mask(part, m, index).tolist()) - set(range(55, 70)) for index in range(40)]
    assert all(len(other) == 5 for other in others)
    assert len(set().union(*others)) > 100  # sooner or later, everything is tried


def test_it_learns_from_what_was_noised_alone() -> None:
    part = FreeMask(0.1, memory=0.5)
    state = dict(part.init(DIM))
    chosen, rnd = torch.arange(0, DIM, 10), Round(0, 1, 10.0)
    total = torch.arange(20).double()
    out, state = part.decode(total, state, rnd, chosen, Secret.fresh())  # type: ignore[assignment]
    assert torch.equal(out[chosen], total)
    assert out.count_nonzero() == 19
    assert torch.equal(state["m"][chosen], total / 2)
    _, state = part.decode(total[:1], state, rnd, torch.tensor([190]), Secret.fresh())  # type: ignore[assignment]
    assert float(state["m"][190]) == 19 / 4
    assert float(state["m"][180]) == 9.0  # what was not sent keeps its own
    assert state.keys() == {"m"}


def test_bytes_and_bound() -> None:
    part = FreeMask(0.1)
    assert part.wire(Wire(DIM)).entries == 20
    assert part.broadcast(DIM) == 20 * 8
    assert FreeMask(0.5).broadcast(DIM) == DIM
    assert part.bound(Bound(2.0)).l2 == 2.0
    x = torch.randn(4, DIM)
    encoded = part.encode(x, Round(0, 0, 1.0), keys_of(0, torch.arange(4)), torch.arange(5, 25))
    assert torch.equal(encoded, x[:, 5:25])


def test_a_run_with_it() -> None:
    """Its privacy is DP-FedAvg's, it needs no public examples, and a tenth of the bytes leave."""
    sizes = (10,) * 40
    task = make_task(sizes=sizes, public=None)
    common = {"rounds": 25, "cohort": 30, "seed": 2, "eval_every": 25}
    free = hush.simulate(methods.build("dp-fedavg+free-mask", noise=0.05, lr=0.5, ratio=0.5), task, **common)
    dense = hush.simulate(methods.dp_fedavg(noise=0.05, lr=0.5), task, **common)
    assert free.epsilon == dense.epsilon
    assert free.uplink_bytes_per_client < 0.51 * dense.uplink_bytes_per_client
    assert (free.test_accuracy or 0) > 0.5  # chance: a third; 0.63 to 0.92 with twelve seeds


def test_refusals() -> None:
    with pytest.raises(UsageError, match="explore"):
        FreeMask(0.1, explore=0.0)
    with pytest.raises(UsageError, match="memory"):
        FreeMask(0.1, memory=1.0)
    with pytest.raises(UsageError, match="ratio"):
        FreeMask(0.0)
