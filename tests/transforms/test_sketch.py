"""A sketch as a station of the pipeline: FetchSGD's server, what is bounded, what travels."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.core import Bound, Method, Round, Wire, chain
from hush.errors import UsageError
from hush.local.sgd import Sgd
from hush.secret import Secret
from hush.server import Average, Momentum
from hush.sketch import Hashes, hashes_of, largest_norm, sketch, unsketch
from hush.transforms import AdaptiveClip, Clip, CountSketch, Gaussian

SECRET = Secret(bytes(32))
DIM = 700


def run(part: CountSketch, totals: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What a server applies over some rounds, and its state at the end."""
    state, applied = dict(part.init(DIM)), []
    for index, total in enumerate(totals):
        out, after = part.decode(total, state, Round(index, 17 + index, 1.0), None, SECRET)
        applied.append(out)
        state = dict(after)
    return torch.stack(applied), state


def tables(part: CountSketch, rounds: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(rounds, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return part.encode(x, Round(0, 0, 1.0), torch.zeros(rounds, dtype=torch.int64), None)


@pytest.mark.filterwarnings("ignore:.*grow without bound")
def test_the_server_is_fetchsgd_s() -> None:
    """Algorithm 1, written down once more: the learning rate acts inside the error feedback."""
    part = CountSketch(rows=3, cols=120, k=9, lr=0.3, momentum=0.7, lr_decay=0.9)
    totals = tables(part, 6)
    applied, state = run(part, totals)
    h = part.hashes(Round(0, 0, 1.0), DIM, torch.device("cpu"))
    u = e = torch.zeros(3 * 120, dtype=torch.float64)
    for t, s in enumerate(totals):
        u = 0.7 * u + s
        e = e + 0.3 * 0.9**t * u
        estimate = unsketch(e, h)
        delta = torch.zeros_like(estimate)
        for i in estimate.abs().topk(9).indices.tolist():  # coordinates of one counter tie: which of them is not said
            delta[i] = estimate[i]
        assert torch.allclose(applied[t], delta, atol=1e-12)
        e = e - sketch(delta[None], h)[0]
    assert torch.allclose(state["error"], e)
    assert torch.allclose(state["momentum"], u)


@pytest.mark.filterwarnings("ignore:.*grow without bound")
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 40), momentum=st.sampled_from([0.0, 0.5]), rounds=st.integers(1, 6))
def test_error_feedback_conserves_what_was_not_applied(seed: int, k: int, momentum: float, rounds: int) -> None:
    """All that came in, less a sketch of all that was applied, is what the error holds."""
    part = CountSketch(rows=5, cols=150, k=k, lr=0.5, momentum=momentum)
    totals = tables(part, rounds, seed)
    applied, state = run(part, totals)
    came, u = torch.zeros_like(totals[0]), torch.zeros_like(totals[0])
    for total in totals:
        u = momentum * u + total
        came += 0.5 * u
    h = part.hashes(Round(0, 0, 1.0), DIM, torch.device("cpu"))
    assert torch.allclose(state["error"], came - sketch(applied.sum(0)[None], h)[0], atol=1e-9)


def test_everything_arrives_in_the_end() -> None:
    """A vector that comes once and nothing after it: round by round, all of it is applied."""
    part = CountSketch(rows=5, cols=400, k=40)
    x = torch.zeros(DIM, dtype=torch.float64)
    x[::9] = torch.arange(1.0, 79.0, dtype=torch.float64)
    first = part.encode(x[None], Round(0, 0, 1.0), torch.zeros(1, dtype=torch.int64), None)
    applied, _ = run(part, torch.cat([first, torch.zeros(9, first.shape[1], dtype=torch.float64)]))
    assert (applied != 0).sum(1).max() <= 40
    assert torch.allclose(applied.sum(0), x, atol=1e-6)


def test_fresh_hashes_differ_and_carry_nothing() -> None:
    part = CountSketch(rows=3, cols=100, k=5, fresh=True)
    x, keys = torch.randn(1, DIM, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    first, second = (part.encode(x, Round(0, seed, 1.0), keys, None) for seed in (1, 2))
    assert not torch.allclose(first, second)
    assert set(part.init(DIM)) == {"dim"}
    with pytest.raises(UsageError, match="same hashes"):
        CountSketch(fresh=True, momentum=0.5)


def test_what_travels() -> None:
    part = CountSketch(rows=5, cols=500_000, k=50_000)
    assert part.wire(Wire(7_000_000)).entries == 2_500_000
    method = Method("m", Sgd(1.0, epochs=None, steps=1), chain(part), Average())
    assert method.uplink(7_000_000).bytes == 10_000_000
    assert method.answer_bytes(7_000_000) == math.ceil(50_000 * (32 + 23) / 8)
    # who comes in 2 of 100 rounds loads the model twice; who comes in all of them, every update
    assert method.downloads(7_000_000, 100, 2) == min(2 * 28_000_000, 100 * 343_750)
    assert method.downloads(7_000_000, 100, 100) == 100 * 343_750
    dense = Method("m", Sgd(1.0, epochs=None, steps=1), chain(part), Momentum())
    assert dense.downloads(7_000_000, 100, 100) == 100 * 28_000_000  # momentum moves every coordinate
    assert CountSketch(cols=0.07, k=0.007).wire(Wire(1000)).entries == 5 * 70


def test_a_clip_after_the_sketch_bounds_it() -> None:
    pipeline = chain(CountSketch(rows=5, cols=60, k=4), Clip(1.5), Gaussian(2.0))
    assert pipeline.parts[-1].std == 3.0  # type: ignore[attr-defined]
    rows = torch.randn(20, DIM, dtype=torch.float64) * torch.logspace(-3, 9, 20, dtype=torch.float64)[:, None]
    sent = pipeline.encode(rows, Round(0, 0, 1.0), torch.zeros(20, dtype=torch.int64), (None,) * 3)
    assert float(sent.norm(dim=1).max()) <= 1.5


def test_a_clip_before_it_is_paid_for_by_the_proved_norm() -> None:
    pipeline = chain(Clip(1.5), CountSketch(rows=5, cols=60, k=4), Gaussian(2.0))
    with pytest.raises(UsageError, match="not set"):
        _ = pipeline.parts[-1].std  # type: ignore[attr-defined]
    told = pipeline.sized(DIM)
    part = told.parts[1]
    assert isinstance(part, CountSketch)
    norm = largest_norm(part.hashes(Round(0, 0, 1.0), DIM, torch.device("cpu")))
    assert norm > 1.5
    assert told.parts[-1].std == pytest.approx(2.0 * 1.5 * norm)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="sqrt"):
        chain(Clip(1.5), CountSketch(fresh=True), Gaussian(2.0))
    with pytest.raises(UsageError, match="sqrt"):
        chain(AdaptiveClip(1.5), CountSketch(), Gaussian(2.0))
    assert CountSketch().bound(Bound()) == Bound()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rows": 0}, "rows"),
        ({"cols": 1.5}, "cols"),
        ({"k": 0}, "k is"),
        ({"lr": 0}, "learning rate"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_mistakes(settings: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CountSketch(**settings)  # type: ignore[arg-type]


def test_the_proved_norm_holds_in_floats() -> None:
    """Tens of thousands of coordinates in each counter, along their signs: adding them up in float32 errs by more than 2^-20."""
    part = CountSketch(rows=1, cols=2, k=1).sized(200_000)
    assert isinstance(part, CountSketch)
    h = part.hashes(Round(0, 0, 1.0), 200_000, torch.device("cpu"))
    x = h.sign[0].float()[None] / math.sqrt(200_000)
    sent = sketch(x, h).double().norm()
    assert part.norm is not None
    assert float(sent) <= part.norm * float(x.double().norm())
    assert part.norm < 1.05 * float(sent)


def test_a_sketch_with_hashes_of_its_own_is_bounded_by_them() -> None:
    class Narrow(CountSketch):
        def hashes(self, rnd: Round, dim: int, device: torch.device) -> Hashes:
            return hashes_of(1, self.rows, 4, dim, device)

    part = Narrow(rows=2, cols=300, k=2).sized(DIM)
    assert isinstance(part, CountSketch)
    assert part.norm == largest_norm(hashes_of(1, 2, 4, DIM, torch.device("cpu")))


def test_a_clip_after_what_is_not_proved_counts_alone() -> None:
    assert Clip(10.0).bound(Bound(0.5, unproved="a paper says so")) == Bound(10.0)
    assert Clip(10.0).bound(Bound(0.5)) == Bound(0.5)


@pytest.mark.parametrize(
    ("part", "grows"),
    [
        (CountSketch(), False),
        (CountSketch(rows=5, cols=100, k=30), True),
        (CountSketch(rows=3, cols=100, k=10), True),
        (CountSketch(rows=9, cols=100, k=30), False),
        (CountSketch(rows=5, cols=100, k=30, fresh=True), False),
        (CountSketch(rows=5, cols=0.5, k=0.3), False),
    ],
    ids=["usual", "too many", "too few rows", "more rows", "nothing carried over", "a wide table"],
)
def test_more_coordinates_than_a_table_can_tell_apart_are_warned_of(part: CountSketch, grows: bool) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        part.init(1000)
    assert any("grow without bound" in str(w.message) for w in said) == grows
