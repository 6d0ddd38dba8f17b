"""FetchSGD, DPSFL, DPSFL-AC, DPFL and ADPFL: what each claims, pays for and refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hush
from hush import methods
from hush.cohort import Bounded, Poisson, Rotation
from hush.core import Round
from hush.errors import NoGuarantee, UsageError
from hush.privacy.accountant import account
from hush.privacy.guarantee import Relation, View
from hush.privacy.plan import plan_of
from hush.secret import Secret
from hush.transforms import AdaptiveClip, HistoryClip
from hush.transforms.clip import Clip
from tests.conftest import make_task

SECRET = Secret(b"s" * 32)


@settings(max_examples=300, deadline=None)
@given(
    g=st.lists(st.floats(-50, 50).filter(lambda v: v == 0 or abs(v) > 1e-6), min_size=2, max_size=8),
    clip=st.floats(0.01, 100),
    theta=st.floats(0.0, 0.99),
    chosen=st.sets(st.integers(0, 7), min_size=1),
)
def test_the_papers_bit_is_a_threshold_on_the_norm(g: list[float], clip: float, theta: float, chosen: set[int]) -> None:
    """Clipping only scales, so for any coordinates: ||top(clip(g)) - top(g)|| <= theta ||top(g)|| iff ||g|| <= C / (1 - theta)."""
    x = torch.tensor([g], dtype=torch.float64)
    top = x[:, [i for i in chosen if i < len(g)] or [0]]
    norm = float(x.norm())
    assume(float(top.norm()) > 0 and abs(norm - clip / (1 - theta)) > 1e-4 * norm)
    clipped = top * min(1.0, clip / norm)
    bit = bool((clipped - top).norm() <= theta * top.norm() + 1e-12 * norm)
    sent = AdaptiveClip(clip, 0.9, 0.01, tolerance=theta).encode(x, Round(0, 0, 1.0), torch.zeros(1, dtype=torch.int64), clip)
    assert bit == (norm <= clip / (1 - theta)) == bool(sent[0, -1] > 0)


def test_the_clip_is_updated_as_in_the_paper() -> None:
    """C <- C exp(-eta_C (mean bit - gamma)), by hand: 3 of 4 clients inside."""
    part = AdaptiveClip(1.5, 0.9, 0.01, tolerance=0.5)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.9, 0.0], [3.1, 0.0]], dtype=torch.float64)
    rnd = Round(0, 0, 4.0)
    total = part.encode(x, rnd, torch.zeros(4, dtype=torch.int64), 1.5).sum(0)
    _, state = part.decode(total, part.init(2), rnd, 1.5, SECRET)
    assert float(state["clip"]) == pytest.approx(1.5 * math.exp(-0.01 * (0.75 - 0.9)), rel=1e-6)


def epsilon(method: hush.Method, **more: object) -> float:
    return account(plan_of(method, Poisson(10), 100, 20, **more), 1e-5).epsilon  # type: ignore[arg-type]


def test_the_sketch_costs_what_the_gaussian_costs() -> None:
    """Clipped in sketch space its sensitivity is C, whatever its size; rounds are composed; the bit of AC costs a little more."""
    plain = epsilon(methods.dp_fedavg(clip=1.0, noise=1.3))
    for name in ("dpsfl", "dpfl", "adpfl"):
        assert epsilon(methods.build(name, noise=1.3)) == pytest.approx(plain)
    assert plain < epsilon(methods.dpsfl_ac(noise=1.3)) or epsilon(methods.dpsfl_ac(noise=1.3)) == pytest.approx(plain, rel=0.02)
    one = account(plan_of(methods.dpsfl(noise=1.3), Poisson(10), 100, 1), 1e-5).epsilon
    assert plain > 2 * one


def test_a_clip_before_the_sketch_needs_a_model_and_costs_no_less() -> None:
    method = methods.dpsfl(noise=1.3, clip_in="gradient", rows=5, cols=60, k=4)
    with pytest.raises(NoGuarantee, match="collide"):
        epsilon(method)
    enrolled = hush.Enrolled(100, dim=900)
    plan = plan_of(method, Poisson(10), enrolled, 20)
    told = method.sized(900).pipeline.parts[-1]
    assert told.std > 1.3 * 1.5 * 1.5  # type: ignore[attr-defined]
    assert account(plan, 1e-5).epsilon == pytest.approx(epsilon(methods.dpsfl(noise=1.3)))
    result = hush.simulate(method, make_task(), rounds=2, cohort=3)
    assert result.epsilon is not None


def test_the_papers_own_has_a_claim_and_no_epsilon() -> None:
    method = methods.dpsfl(noise=2.0, clip_in="paper", rows=5, cols=30, k=4)
    result = hush.simulate(method, make_task(sizes=(4,) * 12), rounds=3, cohort=5)
    assert result.epsilon is None
    assert result.claimed_epsilon is not None
    rho = 1 / (2 * 2.0**2)
    assert result.claimed_epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(100)))  # one round of three
    with pytest.raises(NoGuarantee, match="collide"):
        hush.simulate(
            methods.dpsfl(clip_in="paper"), make_task(sizes=(4,) * 12), rounds=3, cohort=5, privacy=hush.Budget(epsilon=4.0)
        )


@pytest.mark.parametrize("name", ["dpsfl", "dpsfl-ac", "dpfl", "adpfl"])
def test_noise_on_messages_covers_clients_from_the_server(name: str) -> None:
    method = methods.build(name, noise=3.0, noise_by="messages")
    plan = plan_of(method, Rotation(10), 100, 20)
    assert (plan.view, plan.relation) == (View.MESSAGES, Relation.ZERO_OUT)
    # turns: nobody comes more than twice in 20 rounds of 10 out of 100
    assert account(plan, 1e-5).epsilon == pytest.approx(account(plan_of(method, Bounded(10, 2), 100, 20), 1e-5).epsilon, rel=0.01)
    # whoever sends is seen, so Poisson cohorts amplify nothing: a client may come every time
    assert account(plan_of(method, Poisson(10), 100, 20), 1e-5).epsilon > account(plan, 1e-5).epsilon
    with pytest.raises(NoGuarantee, match="adding or removing"):
        account(plan_of(method, Rotation(10), 100, 20, Relation.ADD_REMOVE), 1e-5)


def test_noise_on_messages_really_is_there() -> None:
    task = make_task(sizes=(3,) * 64)
    quiet, loud = (
        hush.simulate(
            methods.dpfl(noise=z, noise_by="messages", clip=1.0, server="average", server_lr=1.0), task, rounds=1, cohort=64
        )
        for z in (1e-6, 50.0)
    )
    a, b = (torch.cat([p.flatten() for p in r.state_dict.values()]) for r in (quiet, loud))
    # 64 messages' noise of 50 each, over 64
    expected = 50.0 / 8
    assert 0.7 * expected < float((a - b).std()) < 1.3 * expected
    assert loud.view == "messages"


def test_shares_are_for_secure_sums() -> None:
    plan = plan_of(methods.dpsfl(noise=2.0, noise_by="shares"), Rotation(10), 100, 20)
    assert plan.view is View.SECAGG
    with pytest.raises(UsageError, match="noise_by"):
        methods.dpsfl(noise_by="nobody")


def test_without_noise_only_the_clip_is_left_and_nothing_is_proved() -> None:
    """Figure 3: FetchSGD, what clipping does to it, and then noise. A clip that cuts nothing leaves FetchSGD, bit for bit."""
    task, run = make_task(sizes=(12,) * 20), {"rounds": 5, "cohort": 20, "noise_seed": 1}
    table = {"cols": 0.4, "k": 0.2}
    kinds = ("dpsfl", {"clip": 1e6, "noise_by": "none"}), ("fetchsgd", {}), ("dpsfl", {"clip": 0.01, "noise_by": "none"})
    wide, plain, tight = (hush.simulate(methods.build(name, **table, **own), task, **run) for name, own in kinds)  # type: ignore[arg-type]
    unclipped, fetched, clipped = (torch.cat([p.flatten() for p in one.state_dict.values()]) for one in (wide, plain, tight))
    assert torch.equal(unclipped, fetched)
    assert not torch.equal(clipped, fetched)
    assert all(result.epsilon is None and result.guarantee is None for result in (wide, tight))
    for name in ("dpsfl", "dpsfl-ac", "dpfl", "adpfl"):
        bare = methods.build(name, noise_by="none")
        assert hush.simulate(bare, task, rounds=2, cohort=20).epsilon is None
        with pytest.raises(NoGuarantee, match="adds no noise"):
            hush.simulate(bare, task, rounds=2, cohort=20, privacy=hush.Budget(8.0))
        with pytest.raises(UsageError, match="noise_by=none"):
            methods.build(name, noise_by="none", noise=1.0)


def test_history_is_what_was_released() -> None:
    """ADPFL's next clip is a function of the noised sum alone, follows it, and stays between its limits."""
    part = HistoryClip(2.0, factor=3.0, memory=0.5).covered(0.1)
    assert isinstance(part, HistoryClip)
    rnd, state = Round(0, 0, 10.0), part.init(4)
    strong = torch.tensor([4.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    out, after = part.decode(strong, state, rnd, 2.0, SECRET)
    assert torch.allclose(out, 2.0 * strong)
    assert float(after["clip"]) == 2.0  # never above where it started
    _, after = part.decode(strong / 4, state, rnd, 2.0, SECRET)
    norm = 2.0 * math.sqrt(25.0 / 16 - 4 * 0.01) / 10
    assert float(after["clip"]) == pytest.approx(0.5 * 2.0 + 0.5 * 3.0 * norm)
    _, silent = part.decode(torch.full((4,), 0.05, dtype=torch.float64), state, rnd, 2.0, SECRET)
    assert float(silent["clip"]) == 2.0  # no more than noise: it says nothing
    _, low = part.decode(torch.full((4,), 0.3, dtype=torch.float64), {"clip": torch.tensor(0.021)}, rnd, 0.021, SECRET)
    assert float(low["clip"]) == pytest.approx(0.02)
    assert part.bound(hush.core.Bound()).l2 == 1.0
    x = torch.randn(6, 4, dtype=torch.float64) * 100
    keys = torch.zeros(6, dtype=torch.int64)
    assert torch.allclose(part.encode(x, rnd, keys, 0.5), Clip(0.5).encode(x, rnd, keys, None) / 0.5, atol=1e-6)


def test_history_knows_the_noise_that_it_takes_off() -> None:
    given = methods.adpfl(noise=2.0).pipeline.parts[0]
    assert isinstance(given, HistoryClip)
    assert (given.std, given.messages) == (2.0, False)
    assert methods.adpfl(noise=2.0, noise_by="messages").pipeline.parts[0].messages  # type: ignore[attr-defined]
    run = hush.simulate(methods.adpfl(), make_task(), rounds=2, cohort=3, privacy=hush.Budget(epsilon=4.0))
    assert run.noise_multiplier is not None


def test_noise_by_a_clients_own_history_is_refused() -> None:
    with pytest.raises(NoGuarantee, match="own past gradients"):
        methods.adpfl(history="local")


def test_gradients_ignore_what_data_sets_suggest_for_longer_training() -> None:
    from hush.config import RunConfig
    from hush.experiment import resolve

    local = resolve(RunConfig(method="dpsfl", data="digits", epsilon=8.0)).method.local
    assert (local.lr, local.steps, local.momentum) == (1.0, 1, 0.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["fetchsgd", "dpsfl", "dpsfl-ac", "dpfl", "adpfl", "dp-fedavg+sketch", "ddgauss+sketch+blur"])
def test_all_of_them_learn(name: str) -> None:
    """Little noise and a sketch with room: the linear task is learned."""
    settings = {"noise": 0.3, "clip": 2.0} if name != "fetchsgd" else {}
    if name not in ("dpfl", "adpfl"):
        settings |= {"cols": 0.4, "k": 0.2}
    if name.startswith("d") and "+" in name:
        settings |= {"lr": 0.5}
    if name.startswith("ddgauss"):
        settings |= {"bits": 20}  # of 105 sums in 40 rounds, one may otherwise wrap around by chance
    task = make_task(sizes=(12,) * 60)
    result = hush.simulate(methods.build(name, **settings), task, rounds=40, cohort=60, noise_seed=1)
    start = hush.simulate(methods.build(name, **settings), task, rounds=1, cohort=60, noise_seed=1)
    assert result.test_accuracy > max(0.6, start.test_accuracy)


@pytest.mark.parametrize("name", ["cover", "unpack"])
def test_a_part_that_changes_messages_elsewhere_states_a_bound_or_has_none(name: str) -> None:
    """Clients' own noise and the server's unpacking change rows, too: neither inherits the promise of `encode`."""

    class Boost(hush.Transform):
        pass

    setattr(Boost, name, lambda self, x, *_: 100 * x)
    method = methods.fedavg()
    with pytest.raises(UsageError, match="states no bound"):
        method.with_pipeline(Clip(1.0), Boost(), hush.transforms.Gaussian(1.0))
    with pytest.raises(NoGuarantee, match="after the noise"):
        epsilon(method.with_pipeline(Clip(1.0), hush.transforms.Gaussian(1.0), Boost()))


def test_secure_noise_on_a_sketch_that_is_clipped_before() -> None:
    method = methods.dpsfl(clip_in="gradient", noise=1.0, cols=30, k=3)
    result = hush.simulate(method, make_task(), rounds=1, cohort=3, noise_mode="secure")
    assert result.epsilon is not None
    assert result.noise_mode == "secure"


@pytest.mark.parametrize("name", ["dpsfl", "dpsfl-ac", "fetchsgd", "dpfl", "adpfl"])
def test_what_a_search_varies(name: str) -> None:
    from hush.config import RunConfig
    from hush.tuning.space import default_space

    space = default_space(RunConfig(method=name, data="digits"))
    assert set(space) == {"server_lr"} | ({"clip"} if name != "fetchsgd" else set())
