"""A clip that follows the norms, pays for its bit, and keeps its bound whatever the clip is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hush
from hush import Poisson, Round, UsageError, methods
from hush.core import Bound, Server, chain
from hush.random import keys_of
from hush.rows import l2
from hush.secret import Secret
from hush.transforms import AdaptiveClip, Discretize, ExactNoise, Gaussian
from tests.conftest import make_task

RND = Round(0, 1, 10.0)
KEYS = keys_of(0, torch.arange(4))


def encode(part: AdaptiveClip, x: torch.Tensor, clip: float) -> torch.Tensor:
    return part.encode(x, RND, keys_of(0, torch.arange(len(x))), clip)


def test_three_numbers_by_hand() -> None:
    part = AdaptiveClip(start=2.0, quantile=0.5, lr=0.2, weight=0.4)
    x = torch.tensor([[3.0, 4.0], [0.6, 0.8], [math.nan, 1.0]], dtype=torch.float64)
    y = encode(part, x, 2.0)
    # a row of norm 5 is clipped to 2, in units of 2, and says "outside"; one of norm 1 is halved and says "inside"
    expected = torch.tensor([[0.6, 0.8, -0.2], [0.3, 0.4, 0.2], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(y, expected, atol=1e-5)
    total = torch.tensor([9.0, -3.0, 0.8], dtype=torch.float64)
    decoded, state = part.decode(total, part.init(2), RND, 2.0, Secret.fresh())
    assert decoded.tolist() == [18.0, -6.0]
    # 0.8 / (0.4 * 10) + 1/2 = 0.7 of the clients were inside: the clip shrinks by exp(-0.2 * 0.2)
    assert float(state["clip"]) == pytest.approx(2.0 * math.exp(-0.04))


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-6, 1e6),
    st.floats(0.01, 2.0),
    st.lists(st.floats(-1e12, 1e12) | st.just(math.inf) | st.just(math.nan), min_size=6, max_size=6),
)
def test_the_bound_holds_for_every_clip_and_every_row(clip: float, weight: float, values: list[float]) -> None:
    part = AdaptiveClip(weight=weight)
    for dtype in (torch.float64, torch.float32):
        y = encode(part, torch.tensor(values, dtype=dtype).reshape(2, 3), clip)
        assert bool((l2(y) <= part.bound(Bound()).l2).all())


def test_the_clip_finds_the_quantile() -> None:
    """With norms spread evenly from 0 to 1 and little noise, the clip settles at the quantile asked for."""
    for quantile in (0.2, 0.5, 0.8):
        part = AdaptiveClip(start=10.0, quantile=quantile)
        pipeline = chain(part, Gaussian(0.01))
        state = pipeline.init(3)
        norms = torch.linspace(0.01, 1.0, 100, dtype=torch.float64)
        rows = torch.nn.functional.normalize(torch.randn(100, 3, dtype=torch.float64), dim=1) * norms[:, None]
        for index in range(150):
            rnd = Round(index, 1, 100.0)
            public = pipeline.prepare(torch.zeros(3), state, rnd, Server(None, None))  # type: ignore[arg-type]
            total = pipeline.encode(rows, rnd, keys_of(0, torch.arange(100)), public).sum(0)
            _, state = pipeline.decode(total, state, rnd, public, Secret.fresh())
        assert float(state["0.clip"]) == pytest.approx(quantile, abs=0.08)


def test_a_run_reports_the_clip_it_ended_with() -> None:
    task = make_task(sizes=(4,) * 40)
    common = {"rounds": 30, "cohort": 20, "eval_every": 30}
    result = hush.simulate(methods.dp_fedavg(noise=1.0, clip=100.0, clip_quantile=0.5), task, **common)
    assert result.clip is not None
    assert result.clip < 50.0
    seeded = [
        hush.simulate(methods.dp_fedavg(noise=1.0, clip=100.0, clip_quantile=0.5), task, noise_seed=1, **common) for _ in "ab"
    ]
    assert seeded[0].clip == seeded[1].clip != result.clip
    plain = hush.simulate(methods.dp_fedavg(noise=1.0, clip=100.0), task, **common)
    assert plain.clip == 100.0
    assert result.epsilon == pytest.approx(plain.epsilon, rel=1e-6)
    assert result.uplink_bytes_per_client > plain.uplink_bytes_per_client  # one entry more


def test_it_composes_with_masks_integers_and_resume(tmp_path: object) -> None:
    for build in (methods.fed_smp_rand_k, methods.fed_smp_top_k):
        method = build(ratio=0.3, noise=1.0, clip_quantile=0.5)
        for mode in ("fast", "secure"):
            result = hush.simulate(method, make_task(sizes=(4,) * 30), rounds=3, cohort=Poisson(10), noise_mode=mode)
            assert result.epsilon is not None
    exact = chain(AdaptiveClip(weight=0.4), Discretize(), ExactNoise(1.0))
    assert exact.bound(Bound()).bit == pytest.approx(0.4 / math.sqrt(1.04) * 2**18)


@pytest.mark.parametrize("bad", [{"start": 0.0}, {"start": math.nan}, {"quantile": 1.0}, {"lr": 0.0}, {"weight": 3.0}])
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        AdaptiveClip(**bad)
