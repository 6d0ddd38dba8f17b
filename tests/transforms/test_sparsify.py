from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hush import Round, UsageError, Wire, chain
from hush.core import Server
from hush.local import Sgd
from hush.secret import Secret
from hush.tasks.task import whole
from hush.transforms import RandK, TopK
from hush.transforms.sparsify import kept
from tests.conftest import make_task

SECRET = Secret(b"k" * 32)


def rnd(seed: int) -> Round:
    return Round(0, seed, 1.0)


def decoded(t: RandK, x: torch.Tensor, seed: int) -> torch.Tensor:
    encoded = t.encode(x, rnd(seed), torch.arange(len(x)), None)
    return t.decode(encoded.sum(0), t.init(x.shape[1]), rnd(seed), None, SECRET)[0]


def test_rand_k_is_unbiased_and_a_wrong_scale_would_show() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 0.5, 4.0]])
    mean = torch.stack([decoded(RandK(0.4), x, seed) for seed in range(4000)]).mean(0)
    assert torch.allclose(mean, x[0], atol=0.35)
    assert not torch.allclose(mean * 0.8, x[0], atol=0.35)


@settings(max_examples=30)
@given(st.integers(0, 2**62), st.integers(2, 200), st.floats(0.01, 1.0))
def test_rand_k_sends_k_values_of_a_mask_both_sides_derive(seed: int, dim: int, ratio: float) -> None:
    t = RandK(ratio)
    x = torch.arange(1.0, dim + 1)[None]
    k = kept(ratio, dim)
    encoded = t.encode(x, rnd(seed), torch.arange(1), None)
    assert encoded.shape == (1, k) == (1, t.wire(Wire(dim)).entries)
    dense = decoded(t, x, seed)
    assert int((dense != 0).sum()) == k
    assert torch.allclose(dense[dense != 0], x[0][dense != 0] * dim / k)


@settings(max_examples=30)
@given(st.integers(0, 2**62))
def test_encode_of_a_cohort_is_encode_of_each_client_alone(seed: int) -> None:
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(seed % 1000))
    keys = torch.arange(6)
    t = RandK(0.3)
    together = t.encode(x, rnd(seed), keys, None)
    for i in range(6):
        assert torch.equal(t.encode(x[i : i + 1], rnd(seed), keys[i : i + 1], None)[0], together[i])


def test_masks_are_uniform_over_coordinates() -> None:
    hits = torch.zeros(40)
    for seed in range(3000):
        hits[RandK(0.25).mask(rnd(seed), 40, torch.device("cpu"))] += 1
    assert float(((hits - 750) ** 2 / 750).sum()) < 40 * 0.75 * 2.2  # chi-square with 39 degrees, scaled by 1 - k/d


def test_two_masks_in_a_row_are_independent() -> None:
    """Each alone is unbiased, so both together must be: coordinate 0 has mean 1, not 1.9."""
    pipeline = chain(RandK(0.5), RandK(0.5))
    ones, total = torch.ones(1, 40), torch.zeros(40)
    for seed in range(2000):
        encoded = pipeline.encode(ones, rnd(seed), torch.arange(1), (None, None))
        total += pipeline.decode(encoded[0], pipeline.init(40), rnd(seed), (None, None), SECRET)[0]
    assert torch.allclose(total / 2000, torch.ones(40), atol=0.2)
    with pytest.raises(UsageError, match="must come before"):
        chain(RandK(0.5), TopK(0.5, Sgd()))


def test_top_k_takes_the_coordinates_that_move_most_on_public_data() -> None:
    task = make_task()
    learner = task.learner()
    public = task.placed("public", "cpu", torch.float32)
    assert public is not None
    training = Sgd(lr=0.1, batch_size=5, epochs=3)
    t = TopK(0.2, training)
    server = Server(learner, whole(public))
    mask = t.prepare(learner.initial(), t.init(learner.dim), rnd(9), server)
    k = kept(0.2, learner.dim)
    assert len(mask) == k == len(set(mask.tolist()))

    # the same training by the client-side station, on the same examples with the same key
    from hush.random import derive, keys_of

    keys = keys_of(derive(9, 1), torch.zeros(1, dtype=torch.int64))
    update = training(learner, learner.initial(), whole(public), rnd(9), keys, None).updates[0]
    assert set(mask.tolist()) == set(update.abs().topk(k).indices.tolist())

    x = torch.randn(4, learner.dim)
    encoded = t.encode(x, rnd(9), torch.arange(4), mask)
    assert torch.equal(encoded, x[:, mask])  # no scaling
    dense, _ = t.decode(encoded.sum(0), t.init(learner.dim), rnd(9), mask, SECRET)
    assert torch.equal(dense[mask], encoded.sum(0))
    assert int((dense != 0).sum()) <= k
    with pytest.raises(UsageError, match="public examples"):
        t.prepare(learner.initial(), {}, rnd(9), Server(learner, None))


def test_the_mask_costs_downlink_and_never_more_than_a_bitmap() -> None:
    assert TopK(0.005, Sgd()).broadcast(1_663_370) == 8317 * 21
    assert TopK(0.5, Sgd()).broadcast(1000) == 1000
    assert RandK(0.1).broadcast(1000) == 0


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.0001, float("nan")])
def test_ratio_outside_its_range(ratio: float) -> None:
    with pytest.raises(UsageError, match="ratio must lie in"):
        RandK(ratio)
