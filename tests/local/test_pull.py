"""BLUR: its gradient by hand and by finite differences, its effect on an update, and where its norm comes from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush import Round, UsageError, methods
from hush.core import LocalUpdate, Method, Public, Shard, Trained, chain
from hush.local import DpSgd, FlatModel, L2Clip, Sgd
from hush.local.pull import pull_back
from hush.own import OwnSecrets
from hush.random import keys_of
from hush.secret import Secret
from hush.server import Average
from hush.transforms import AdaptiveClip, Clip, Gaussian, RandK
from tests.conftest import make_task

F64 = torch.float64


def test_by_hand() -> None:
    """3-4-5: one client outside of a norm of 4, one inside, one on the edge, which counts as inside."""
    away = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 4.0]], dtype=F64)
    gradient = pull_back(torch.ones(3, 2, dtype=F64), away, 0.0, 0.5, 4.0)
    assert gradient.tolist() == [[2.5, 3.0], [1.0, 1.0], [1.0, 1.0]]
    both = pull_back(torch.zeros(3, 2, dtype=F64), away, 0.1, 0.5, 4.0)
    assert torch.allclose(both, torch.tensor([[1.8, 2.4], [0.03, 0.04], [0.0, 0.4]], dtype=F64))
    assert pull_back(torch.ones(3, 2, dtype=F64), away, 0.0, 0.5, None).tolist() == [[1.0, 1.0]] * 3


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.0, 3.0), st.floats(0.01, 3.0), st.floats(0.1, 5.0))
def test_finite_differences(seed: int, prox: float, blur: float, limit: float) -> None:
    """The gradient of (prox/2)|a|^2 + (blur/2) max(0, |a|^2 - S^2), away from its edge."""
    g = torch.Generator().manual_seed(seed)
    away = torch.randn(1, 4, generator=g, dtype=F64) * 2
    if abs(float(away.norm()) - limit) < 1e-3:
        return

    def penalty(a: torch.Tensor) -> float:
        square = float(a.square().sum())
        return prox / 2 * square + blur / 2 * max(0.0, square - limit**2)

    found = pull_back(torch.zeros(1, 4, dtype=F64), away, prox, blur, limit)[0]
    for i in range(4):
        step = torch.zeros(1, 4, dtype=F64)
        step[0, i] = 1e-5
        assert float(found[i]) == pytest.approx((penalty(away + step) - penalty(away - step)) / 2e-5, rel=1e-6, abs=1e-6)


class Slope(torch.nn.Module):
    """A loss w.x: its gradient is the example, whatever the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


def slopes(rows: torch.Tensor, **settings: float) -> torch.Tensor:
    """The update of one client that meets these gradients, one a step."""
    learner = FlatModel(Slope(), lambda out, y: out + 0 * y, dtype=F64)
    local = Sgd(lr=0.5, batch_size=1, epochs=1, **settings)  # type: ignore[arg-type]
    shard = Shard(rows, torch.zeros(len(rows), dtype=F64), torch.tensor([0]), torch.tensor([len(rows)]))
    order = [int(batch.rows[0, 0]) for batch in local.schedule(shard, torch.tensor([5]))]
    inverse = torch.empty(len(rows), dtype=torch.int64)
    inverse[order] = torch.arange(len(rows))
    shuffled = shard._replace(x=rows[inverse])  # so that step q meets row q
    return local(learner, torch.zeros(3, dtype=F64), shuffled, Round(0, 0, 1.0), torch.tensor([5]), None).updates[0]


def test_lemma_2_with_the_product_put_right() -> None:
    """update = sum_q eta g_q prod_{j > q} (1 - lambda eta [outside at j]), not (1 - lambda eta)^q as printed."""
    g = torch.Generator().manual_seed(1)
    rows, eta, lam, limit = torch.randn(12, 3, generator=g, dtype=F64), 0.5, 0.4, 1.0
    update = slopes(rows, blur=lam, blur_limit=limit)
    outside, walked = [], torch.zeros(3, dtype=F64)
    for row in rows:
        outside.append(float(walked.norm()) > limit)
        walked = walked + eta * (row - lam * walked * outside[-1])
    assert 0 < sum(outside) < len(rows)
    expected = torch.zeros(3, dtype=F64)
    for q in range(len(rows)):
        factor = 1.0
        for j in range(q + 1, len(rows)):
            factor *= 1 - lam * eta * outside[j]
        expected += eta * rows[q] * factor
    assert torch.allclose(update, expected, atol=1e-12)
    as_printed = sum((eta * rows[q] * (1 - lam * eta) ** q for q in range(len(rows))), torch.zeros(3, dtype=F64))
    assert not torch.allclose(update, as_printed, atol=1e-2)


def test_updates_get_smaller() -> None:
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(2), dtype=F64) + 1
    norms = [float(slopes(rows, blur=lam, blur_limit=2.0).norm()) for lam in (0.0, 0.2, 0.6, 1.9)]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > 10
    assert norms[-1] < 6


@dataclass(frozen=True)
class Curious(LocalUpdate):
    """Notes the room that it is told."""

    seen: list[float | None] = field(default_factory=list)

    @property
    def needs_room(self) -> bool:
        return True

    def __call__(
        self, learner: FlatModel, params: torch.Tensor, data: Shard, rnd: Round, keys: torch.Tensor, public: Public
    ) -> Trained:
        self.seen.append(rnd.room)
        return Trained(torch.ones(len(keys), params.numel()), torch.zeros(len(keys)))


def test_the_norm_is_the_clip_that_follows() -> None:
    for parts, expected in (
        ((Clip(0.3), Gaussian(1.0)), 0.3),
        ((Clip(2.0), Clip(0.5), Gaussian(1.0)), 0.5),
        ((RandK(0.25), Clip(1.0), Gaussian(1.0)), 0.5),  # a quarter of the coordinates hold half of the norm, times 4
    ):
        local = Curious()
        hush.simulate(Method("m", local, chain(*parts), Average()), make_task(), rounds=1, cohort=6, seed=1, diagnostics=True)
        assert all(room == pytest.approx(expected) for room in local.seen)


def test_an_adaptive_clip_takes_the_norm_along() -> None:
    local = Curious()
    method = Method("m", local, chain(AdaptiveClip(1.0, lr=2.0), Gaussian(0.01)), Average())
    hush.simulate(method, make_task(), rounds=4, cohort=6.0, seed=1, chunk=6)
    told = [room for room in local.seen if room is not None]
    assert told[0] == 1.0
    assert told[-1] > 1.5  # every update is longer than the clip, so that it grows


def test_bit_for_bit_without_it() -> None:
    """lambda = 0 and c = 0 are DP-FedAvg."""
    plain, zero = (
        hush.simulate(replace(methods.build(name, **more), name="either"), make_task(), rounds=3, cohort=4, seed=3, noise_seed=1)
        for name, more in (
            ("dp-fedavg", {"noise": 1.0}),
            ("dp-fedavg+blur+lus", {"noise": 1.0, "blur": 0.0, "sparsity": 0.0}),
        )
    )
    assert all(torch.equal(plain.state_dict[key], zero.state_dict[key]) for key in plain.state_dict)


def test_it_is_part_of_dp_sgd_as_well() -> None:
    task = make_task()
    learner, train = task.learner("cpu", F64), task.placed_train("cpu", F64)
    ids = torch.arange(3)
    shard = train.shard(ids)._replace(own=OwnSecrets.simulated(Secret(bytes(32)), ids.tolist()))
    free = DpSgd(lr=0.5, batch_size=2, steps=30, clip=L2Clip(1.0), noise=0.0)
    held = replace(free, blur=1.0, blur_limit=0.5)
    norms = [
        local(learner, learner.initial(), shard, Round(0, 0, 3.0), keys_of(0, ids), None).updates.norm(dim=1).max()
        for local in (free, held)
    ]
    assert norms[1] < norms[0]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="blur_limit"):
        methods.build("fedavg+blur")
    assert methods.build("fedavg+blur", blur_limit=1.0).name == "fedavg+blur"
    with pytest.raises(UsageError, match="below 1"):
        Sgd(lr=0.5, blur=2.0)
    with pytest.raises(UsageError, match="not be negative"):
        Sgd(blur=-0.1)
    with pytest.raises(UsageError, match="blur_limit must be positive"):
        Sgd(blur=0.1, blur_limit=0.0)
