"""Names, settings, and what a method costs on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hush
from hush import UsageError, methods
from hush.server import Adam, Averaged, Momentum
from hush.tasks.models import build_model

CNN = 1_663_370


@pytest.mark.parametrize(
    ("name", "settings", "megabytes"),
    [
        ("fed-smp-top-k", {"ratio": 0.005}, "0.10"),
        ("fed-smp-rand-k", {"ratio": 0.005}, "0.10"),
        ("fed-smp-rand-k", {"ratio": 0.1}, "2.00"),
        ("fedavg-rand-k", {"ratio": 0.1}, "2.00"),
        ("fed-smp-top-k", {"ratio": 1.0}, "19.96"),
        ("dp-fedavg", {}, "19.96"),
        ("fedavg", {}, "19.96"),
    ],
)
def test_cost_column_of_fed_smp_table_1(name: str, settings: dict[str, float], megabytes: str) -> None:
    """Counted bytes of one message, times the expected participations of 180 rounds at r/n = 1/60."""
    method = methods.build(name, **settings)
    assert f"{method.uplink(CNN).bytes * 180 * 100 / 6000 / 1e6:.2f}" == megabytes


def test_bytes_are_those_of_the_tensors_that_travel() -> None:
    """`wire` against what `contribute` really returns, for every method."""
    from hush.engines import simulation
    from hush.own import OwnSecrets
    from hush.random import keys_of
    from tests.conftest import make_task

    for name in methods.METHODS:
        settings = {key: value for key, value in {"noise": 1.0, "trials": 8192}.items() if key in methods.settings_of(name)}
        run = simulation.set_up(methods.build(name, **settings), make_task(), rounds=1, cohort=3)
        params, rnd = run.data.learner.initial(), run.round(0)
        public = run.method.prepare(params, run.method.init(params), rnd, run.data.server)
        ids = torch.arange(3)
        own = OwnSecrets.simulated(run.identity.secret, ids.tolist())
        data = run.data.train.shard(ids)._replace(own=own)
        encoded, _ = run.method.contribute(run.data.learner, params, data, rnd, keys_of(0, ids), public)
        wire = run.method.uplink(run.data.learner.dim)
        assert encoded[0].numel() == wire.entries
        bits = 8 * encoded.element_size()
        if wire.integer:  # packed: all that a client can send must fit
            low, high = encoded.min(), encoded.max()
            bits = wire.bits
            assert -(2 ** (bits - 1)) <= int(low)
            assert int(high) < 2 ** (bits - 1)
        assert wire.bytes == -(-wire.entries * bits // 8), name


def test_the_papers_cnn_has_its_parameters() -> None:
    model = build_model("fed-smp-cnn", torch.Size((1, 28, 28)), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == CNN


def test_one_short_file_each() -> None:
    folder = Path(methods.__file__).parent
    for name in methods.METHODS:
        lines = (folder / f"{name.replace('-', '_')}.py").read_text().splitlines()
        assert len(lines) < 60
        assert lines[0].startswith('"""')


def test_common_settings_reach_their_stations() -> None:
    method = methods.build(
        "dp-fedavg", lr=0.3, lr_decay=0.9, lr_decay_every=5, momentum=0.2, batch_size=7, local_steps=4, prox=0.1, max_local_steps=9
    )
    local = method.local
    expected = "lr=0.3, batch_size=7, epochs=None, steps=4, momentum=0.2, decay=0.9, every=5, prox=0.1, most=9, blur=0.0"
    assert repr(local) == f"Sgd({expected}, blur_limit=None)"
    assert methods.build("fedavg", server="momentum", server_lr=0.5).server == Momentum(0.5, 0.9)
    assert methods.build("fedavg", server="adam", average_iterates=0.8).server == Averaged(Adam(0.01, 0.9), 0.8)
    with pytest.raises(UsageError, match="average, momentum, adam or fed-spa"):
        methods.build("fedavg", server="sgd")


def test_public_steps_choose_between_the_papers_two_readings() -> None:
    by_steps = methods.fed_smp_top_k(public_steps=10, local_epochs=5).pipeline.parts[0]
    by_epochs = methods.fed_smp_top_k(public_steps=0, local_epochs=5).pipeline.parts[0]
    assert by_steps.training.steps == 10  # type: ignore[attr-defined]
    assert by_epochs.training.epochs == 5  # type: ignore[attr-defined]
    with pytest.raises(UsageError):
        methods.fed_smp_top_k(public_steps=-1)


@pytest.mark.parametrize(("name", "near"), [("fedav", "fedavg"), ("fedsmp-topk", "fed-smp-top-k"), ("DP-FedAvg", "dp-fedavg")])
def test_unknown_names_suggest_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{near}'"):
        methods.build(name)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'ratio'"):
        methods.build("fed-smp-rand-k", ration=0.1)
    with pytest.raises(UsageError):
        methods.build("fedavg", clip=1.0)


def test_a_method_is_an_expression() -> None:
    """What adding one must look like."""
    own = hush.Method(
        "mine",
        methods.fedavg(lr=0.1).local,
        hush.chain(hush.transforms.RandK(0.5), hush.transforms.Clip(1.0), hush.transforms.Gaussian(1.0)),
        Momentum(0.5),
    )
    assert hush.plan_of(own, hush.Poisson(5), 50, 3).noise_multiplier == 1.0
