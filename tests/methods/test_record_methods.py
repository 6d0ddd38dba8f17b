"""The record-level family as methods: limits that must be FedAvg, the papers' costs, and their words beside the proved form."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import hush
from hush import NoGuarantee, UsageError, methods
from hush.cohort import FixedSize, Rotation
from hush.core import Method
from hush.local.as_written import CpfedAsWritten, FedSpaAsWritten
from hush.local.dp_sgd import DpSgd
from hush.local.per_example import CoordinateClip, L2Clip
from hush.local.sgd import Sgd
from hush.secret import Secret
from hush.server import Average, FedSpaAdam
from tests.conftest import make_task

SECRET = Secret(bytes(range(32)))


def weights(result: hush.Result) -> torch.Tensor:
    return torch.cat([p.flatten() for p in result.state_dict.values()])


def train(method: Method, rounds: int = 4, sizes: tuple[int, ...] = (6,) * 8, noise_seed: int | None = 1) -> hush.Result:
    task = make_task(sizes=sizes)
    return hush.simulate(method, task, rounds=rounds, cohort=FixedSize(len(sizes)), noise_seed=noise_seed, dtype=torch.float64)


def test_without_noise_mask_and_adaptivity_fed_spa_is_fedavg() -> None:
    """p = 1, sigma = 0, beta = beta2 = 0 and kappa -> infinity with lr_g = kappa: the server adds the mean update.

    Batches of all records, so that both read the same.
    """
    plain = replace(methods.fedavg(), local=Sgd(lr=0.2, batch_size=6, steps=3, epochs=None))
    for kappa in (1e4, 1e8):
        spa = methods.fed_spa(
            ratio=1.0,
            clip=1e6,
            noise=0.0,
            lr=0.2,
            batch_size=6,
            local_steps=3,
            kappa=kappa,
            server_lr=kappa,
            server_momentum=0.0,
            server_beta2=0.0,
        )
        assert (weights(train(spa)) - weights(train(plain))).abs().max() < 20 / kappa
    for name in ("dp-fed", "cpfed"):
        same = methods.build(name, clip=1e6, noise=0.0, lr=0.2, batch_size=6, local_steps=3)
        assert (weights(train(same)) - weights(train(plain))).abs().max() < 1e-12


def test_the_server_keeps_to_equations_6() -> None:
    """Two steps of three numbers by hand; v follows u^2 and not the update's square."""
    server = FedSpaAdam(lr=0.1, beta=0.5, beta2=0.75, kappa=0.2)
    theta, update = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.4, -0.8, 0.0])
    state = server.init(theta)
    for _ in range(2):
        theta, state = server.step(theta, update, state)
    u1 = 0.2
    v1 = 0.75 * 0.04 + 0.25 * u1**2
    u2 = 0.5 * u1 + 0.5 * 0.4
    v2 = 0.75 * v1 + 0.25 * u2**2
    expected = 1.0 - 0.1 * u1 / (math.sqrt(v1) + 0.2) - 0.1 * u2 / (math.sqrt(v2) + 0.2)
    assert float(theta[0]) == pytest.approx(expected, rel=1e-6)
    assert float(theta[2]) == 3.0
    for bad in ({"kappa": 0.0}, {"beta": 1.0}, {"beta2": 1.0}, {"lr": 0.0}):
        with pytest.raises(UsageError):
            FedSpaAdam(**bad)


@pytest.mark.parametrize(("ratio", "megabytes"), [(0.05, "0.0197"), (0.1, "0.0393"), (0.4, "0.1572"), (1.0, "0.3931")])
def test_cost_column_of_fed_spa_table_1(ratio: float, megabytes: str) -> None:
    """Counted bytes of one message, times the participations of 45 rounds at r = 0.1."""
    message = methods.fed_spa(ratio=ratio).uplink(21_840)
    assert f"{message.bytes * Rotation(10).expected_participations(45, 100) / 1e6:.4f}" == megabytes
    assert methods.dp_fed().uplink(21_840).bytes == methods.fed_spa(ratio=1.0).uplink(21_840).bytes


def test_cpsgd_counts_its_true_bits() -> None:
    """p = log2(m + b)/32 in the paper; a whole number of bits on the wire."""
    method = methods.cpsgd(levels=101, trials=4000)
    assert method.uplink(1000).bits == 13  # 4101 values
    assert method.uplink(1000).bytes == math.ceil(13 * 1000 / 8)
    rotated = methods.cpsgd(levels=101, trials=4000, rotate=True)
    assert rotated.uplink(1000).entries == 1024


def test_papers_words_run_with_a_claim_and_without_a_number() -> None:
    for method, told in ((methods.fed_spa(mode="paper", noise=3.0), "Fed-SPA"), (methods.cpfed(mode="paper", noise=3.0), "CPFed")):
        assert train(method).claimed_epsilon is None  # whoever knows the seed takes the noise off: the paper supposes a secret
        result = train(method, noise_seed=None)
        assert result.epsilon is None
        assert result.guarantee is None
        assert result.claimed_epsilon is not None
        assert result.no_guarantee is not None
        assert told in result.no_guarantee
        certificate = result.certificate()
        assert certificate["guarantee"] is None
        assert certificate["claim"]["epsilon"] == result.claimed_epsilon
        with pytest.raises(NoGuarantee):
            hush.simulate(method, make_task(), rounds=2, privacy=hush.Budget(3.0))


def test_fed_spa_as_written_takes_its_threshold_from_the_data() -> None:
    """sqrt(d) times the median absolute entry of an initial round's gradients."""
    method = methods.fed_spa(mode="paper", noise=3.0)
    assert isinstance(method.local, FedSpaAsWritten)
    assert method.local.clip is None
    result = train(method)
    assert result.clip is not None
    assert 0 < result.clip < 100
    assert result.configuration["local"]["clip"]["kind"] == "L2Clip"
    given = methods.fed_spa(mode="paper", noise=3.0, clip=0.7)
    assert train(given).clip == 0.7


def test_fed_spa_as_written_clips_before_the_mask_and_cpfed_not_at_all() -> None:
    spa = methods.fed_spa(ratio=0.25, mode="paper", noise=2.0, clip=1.0)
    assert isinstance(spa.local, DpSgd)
    assert spa.local.std(1000) == pytest.approx(2.0 * math.sqrt(2 * 0.25))
    cpfed = methods.cpfed(mode="paper", noise=2.0, clip=1.5)
    assert isinstance(cpfed.local, CpfedAsWritten)
    assert cpfed.local.std(1000) == 3.0
    assert (spa.local.records, cpfed.local.records) == ("fixed", "fixed")


def test_settings_reach_their_stations() -> None:
    method = methods.fed_spa(ratio=0.2, clip=0.3, clip_per="coordinate", batch_size=7, local_steps=9, lr=0.4, momentum=0.1)
    assert isinstance(method.local, DpSgd)
    assert method.local.clip == CoordinateClip(0.3)
    assert (method.local.batch_size, method.local.steps, method.local.lr, method.local.momentum) == (7, 9, 0.4, 0.1)
    assert isinstance(method.server, FedSpaAdam)
    assert isinstance(methods.fed_spa(server="average").server, Average)
    assert isinstance(methods.dp_fed().local, DpSgd)
    assert methods.dp_fed(clip=2.0).local.clip == L2Clip(2.0)  # type: ignore[attr-defined]
    assert "local_epochs" not in methods.settings_of("fed-spa")
    assert "local_epochs" in methods.settings_of("cpfed-output")
    for name, wrong in (
        ("fed-spa", {"mode": "published"}),
        ("fed-spa", {"clip_per": "layer"}),
        ("dp-fed", {"clip": 0.0}),
        ("dp-sgd", {"local_steps": 2}),
        ("cpsgd", {"local_steps": 2}),
        ("fed-spa", {"batches": "shuffled"}),
    ):
        with pytest.raises(UsageError):
            methods.build(name, **wrong)
