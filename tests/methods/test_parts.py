"""Names made of parts: everything goes with everything, and the guarantee is derived from what came out."""

from __future__ import annotations

import itertools

import pytest

import hush
from hush import UsageError, methods
from hush.local import Sgd
from hush.local.saliency import Saliency
from hush.privacy.accountant import account
from hush.privacy.plan import plan_of
from hush.server import Adam, Average, Averaged, Momentum
from hush.transforms import AdaptiveClip, Clip, FreeMask, Gaussian, RandK, TopK
from tests.conftest import make_task

SPARSE = {"": (), "+lus": (), "+rand-k": (RandK,), "+top-k": (TopK,), "+saliency": (TopK,), "+free-mask": (FreeMask,)}
PULLS = ("", "+blur", "+prox")
CLIPS = {"": Clip, "+adaptive": AdaptiveClip}
SERVERS = {"": Average, "+momentum": Momentum, "+adam": Adam, "+averaged": Averaged}


def test_every_combination_is_built_and_accounted() -> None:
    plans = {}
    for (sparse, masks), pull, (clip, clipping), (server, step) in itertools.product(
        SPARSE.items(), PULLS, CLIPS.items(), SERVERS.items()
    ):
        name = f"dp-fedavg{sparse}{pull}{clip}{server}"
        method = methods.build(name, noise=1.0)
        assert method.name == name
        assert tuple(type(part) for part in method.pipeline.parts) == (*masks, clipping, Gaussian)
        assert isinstance(method.server, step)
        local = method.local.local if isinstance(method.local, Saliency) else method.local
        assert isinstance(method.local, Saliency) == (sparse == "+lus")
        assert isinstance(local, Sgd)
        assert (local.blur, local.prox) == (0.4 * (pull == "+blur"), 0.1 * (pull == "+prox"))
        plans[name] = plan_of(method, 10, 100, 20)
    assert len(plans) == 6 * 3 * 2 * 4
    # the noise covers the update and the clip's bit as one vector of norm 1 in its own units, so all are one mechanism
    epsilons = {account(plan, 1e-3).epsilon for plan in {str(plan): plan for plan in plans.values()}.values()}
    assert max(epsilons) - min(epsilons) < 1e-6


@pytest.mark.parametrize(
    "name",
    ["dp-fedavg+lus+blur+adaptive+adam", "dp-fedavg+free-mask+prox+averaged", "dp-fedavg+saliency+blur+momentum", "ddgauss+rand-k"],
)
def test_some_of_them_run(name: str) -> None:
    result = hush.simulate(methods.build(name, noise=1.0), make_task(), rounds=2, cohort=4)
    assert result.method == name
    assert result.epsilon is not None


def test_a_part_is_a_setting_that_may_be_set() -> None:
    by_name, by_hand = methods.build("dp-fedavg+blur+lus"), methods.dp_fedavg(blur=0.4, sparsity=0.7)
    assert (by_name.local, by_name.pipeline, by_name.server) == (by_hand.local, by_hand.pipeline, by_hand.server)
    other = methods.build("dp-fedavg+blur+lus", blur=0.1, sparsity=0.5)
    assert (other.local, other.pipeline) == (methods.dp_fedavg(blur=0.1, sparsity=0.5).local, by_hand.pipeline)
    assert methods.build("dp-fedavg+rand-k", ratio=0.3).pipeline == methods.fed_smp_rand_k(ratio=0.3).pipeline
    assert methods.build("fed-smp-top-k+blur").local == Sgd(lr=0.1, blur=0.4)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'blur'"):
        methods.build("dp-fedavg+blurr")
    with pytest.raises(UsageError, match="Two parts of the name"):
        methods.build("dp-fedavg+rand-k+top-k")
    with pytest.raises(UsageError, match="fedavg has no setting 'clip_quantile'"):
        methods.build("fedavg+adaptive")
    with pytest.raises(UsageError, match="fed-spa has no setting 'sparsity'"):
        methods.build("fed-spa+lus")
    with pytest.raises(UsageError, match="ratio goes with mask="):
        methods.dp_fedavg(ratio=0.1)
    with pytest.raises(UsageError, match="explore goes with mask=free"):
        methods.build("dp-fedavg+rand-k", explore=0.1)
    with pytest.raises(UsageError, match="which shall it be"):
        methods.build("dp-fedavg+free-mask", mask="top-k")
    with pytest.raises(UsageError, match="mask must be"):
        methods.dp_fedavg(mask="best")


def test_blur_lus_claims_no_figure() -> None:
    """Its theorem names constants that it does not give."""
    result = hush.simulate(methods.build("dp-fedavg+blur+lus", noise=1.0), make_task(), rounds=2, cohort=3)
    assert result.claimed_epsilon is None
    assert result.claim is not None
    assert "c2 is not given" in result.claim.why


def test_the_shared_saliency_mask_keeps_what_saliency_keeps() -> None:
    """Top-k of an update of which only the salient coordinates are left is those coordinates, layer by layer."""
    import torch

    task = make_task()
    run = hush.engines.simulation.set_up(methods.build("dp-fedavg+saliency", noise=1.0, ratio=0.5), task, rounds=1, cohort=3)
    params, rnd = run.data.learner.initial(), run.round(0)
    (mask, *_) = run.method.prepare(params, run.method.init(params), rnd, run.data.server)
    for layer in run.data.learner.layers:
        inside = ((mask >= layer.start) & (mask < layer.stop)).sum()
        assert abs(int(inside) - (layer.stop - layer.start) / 2) <= 1
    assert isinstance(mask, torch.Tensor)
