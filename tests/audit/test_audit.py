"""An audit passes what is right and fails every planted bug, on the code that really runs."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import hush
from hush import Bounded, FixedSize, Method, Poisson, methods
from hush.audit import Audit, audit
from hush.audit.audit import Scene
from hush.audit.statistics import EPS, against_profile, one_run_epsilon, roc, scale_alarm
from hush.audit.training import guess
from hush.cohort import Cohort, SecretParticipation
from hush.core import Public, Round, State
from hush.engines.diagnostics import Watched
from hush.errors import NoGuarantee
from hush.privacy.accountant import account, profile
from hush.privacy.bounds import L2Ball
from hush.privacy.plan import plan_of, with_secure_noise
from hush.privacy.vocabulary import Everyone, GaussianNoise, Phase, Plan, Release
from hush.secret import Secret
from hush.tasks.build import load_task
from hush.transforms import AdaptiveClip, Clip, ExactNoise, Gaussian, RandK
from hush.transforms.sparsify import spread

SMALL = (Scene(2, 1.0, 6000), Scene(10, 0.3, 3000))
Decoded = tuple[Tensor, State]


@pytest.fixture(autouse=True)
def _small_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand clients instead of two thousand; `make soak` has whole audits."""
    # the package's name `audit` is the function, so the module is asked for by its path
    monkeypatch.setattr(importlib.import_module("hush.audit.audit"), "_ENTRIES", 1_000_000)


def failed(report: Audit) -> set[str]:
    return {c.name for c in report.checks if not c.passed} | {a.name for a in report.attacks if not a.passed}


@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp-rand-k", "fed-smp-top-k"])
def test_the_private_methods_pass(name: str) -> None:
    report = audit(methods.build(name, clip=0.5, noise=1.0), scenes=SMALL)
    assert report.passed, failed(report)
    for attack in report.attacks:
        assert 0.5 < attack.epsilon_found < attack.epsilon_claimed
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("make", "cohort"),
    [
        (lambda: with_secure_noise(methods.dp_fedavg(noise=1.0), Poisson(1)), Poisson(1)),
        (lambda: with_secure_noise(methods.fed_smp_rand_k(noise=1.0), SecretParticipation(1)), SecretParticipation(1)),
        (lambda: methods.dp_fedavg(noise=1.0, clip_quantile=0.5), FixedSize(1)),
        (lambda: methods.dp_fedavg(noise=2.0), Bounded(1, 1)),
    ],
    ids=["secure", "secret-skellam", "adaptive-fixed", "bounded"],
)
def test_other_noises_clips_and_cohorts_pass(make: Callable[[], Method], cohort: Cohort) -> None:
    report = audit(make(), cohort, scenes=SMALL)
    assert report.passed, failed(report)


def gaussian(change: Callable[[Gaussian, Tensor, Tensor, Round], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """A bug in how noise is added: `change` gets the part, the sum and the right noise."""

    def decode(self: Gaussian, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> Decoded:
        return total + change(self, total, secret.noise(rnd.index, total, self.std), rnd), state

    return lambda patch: patch.setattr(Gaussian, "decode", decode)


def noise_reused(patch: pytest.MonkeyPatch) -> None:
    def decode(self: Gaussian, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> Decoded:
        return total + secret.noise(0, total, self.std), state

    patch.setattr(Gaussian, "decode", decode)


def noise_from_a_public_seed(patch: pytest.MonkeyPatch) -> None:
    def decode(self: Gaussian, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> Decoded:
        return total + torch.randn(total.shape, dtype=total.dtype) * self.std, state

    patch.setattr(Gaussian, "decode", decode)


def clip_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clip, "encode", lambda self, x, rnd, keys, public: x)


def clip_by_the_largest_entry(patch: pytest.MonkeyPatch) -> None:
    """Another norm, which one big entry does not tell apart from the right one."""

    def encode(self: Clip, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        x = torch.nan_to_num(x, 0.0, 0.0, 0.0)
        return x * (self.norm / x.abs().amax(1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)

    patch.setattr(Clip, "encode", encode)


def sampling_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Poisson, "draw", lambda self, index, clients, state, secret: (torch.arange(clients), state))


def mask_from_private_data(patch: pytest.MonkeyPatch) -> None:
    masks: dict[tuple[int, int], Tensor] = {}

    def encode(self: RandK, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        count = max(1, round(self.ratio * x.shape[1]))
        masks.setdefault((rnd.index, x.shape[1]), x.abs().sum(0).topk(count).indices.sort().values)
        return x[:, masks[rnd.index, x.shape[1]]]

    def decode(self: RandK, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> Decoded:
        dim = int(state["dim"])
        return spread(total, masks.get((rnd.index, dim), self.mask(rnd, dim, total.device)), dim), state

    patch.setattr(RandK, "encode", encode)
    patch.setattr(RandK, "decode", decode)


def bit_left_out(patch: pytest.MonkeyPatch) -> None:
    """The adaptive clip sends its bit ten times as loud as its bound says."""
    right = AdaptiveClip.encode

    def encode(self: AdaptiveClip, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        y = right(self, x, rnd, keys, public)
        return torch.cat([y[:, :-1], 10 * y[:, -1:]], 1)

    patch.setattr(AdaptiveClip, "encode", encode)


def diagnostics_drop_the_noise(patch: pytest.MonkeyPatch) -> None:
    """A bug outside of the pipeline: what watches it in simulation does not pass the noise on."""
    right = Watched.decode

    def decode(self: Watched, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> Decoded:
        return (total, state) if isinstance(self.part, Gaussian) else right(self, total, state, rnd, public, secret)

    patch.setattr(Watched, "decode", decode)


def secrets_are_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Secret, "fresh", lambda: Secret(bytes(32)))


def cohorts_from_a_public_seed(patch: pytest.MonkeyPatch) -> None:
    def draw(self: Poisson, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        coins = torch.rand(clients, generator=torch.Generator().manual_seed(index))
        return torch.nonzero(coins < self.size / clients).flatten(), state

    patch.setattr(Poisson, "draw", draw)


def every_cohort_twice(patch: pytest.MonkeyPatch) -> None:
    right = Poisson.draw
    patch.setattr(Poisson, "draw", lambda self, index, *rest: right(self, index // 2, *rest))


def factor_rounded(patch: pytest.MonkeyPatch) -> None:
    """As Hush clipped at first: of a row that is huge beside the clip, float32 rounds the factor, and at worst doubles it."""

    def encode(self: Clip, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        norms = x.double().norm(dim=1)
        finite = torch.isfinite(norms)
        scale = torch.where(finite, (self.norm * (1 - 2.0**-20) / norms.clamp_min(1e-300)).clamp_max(1.0), 0.0)
        return torch.where(finite[:, None], x, 0.0) * scale[:, None].to(x.dtype)

    patch.setattr(Clip, "encode", encode)


DENSE = {"name": "dp-fedavg", "noise": 1.0}
BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, object], set[str]]] = {
    "noise halved": (gaussian(lambda s, t, n, r: n / 2), DENSE, {"noise scale", "2 rounds at rate 1", "10 rounds at rate 0.3"}),
    "noise 1% low": (gaussian(lambda s, t, n, r: 0.99 * n), DENSE, {"noise scale"}),
    "noise 15% low": (gaussian(lambda s, t, n, r: 0.85 * n), DENSE, {"noise scale"}),
    "noise on the support only": (gaussian(lambda s, t, n, r: n * (t != 0)), DENSE, {"every entry noised", "2 rounds at rate 1"}),
    "noise grows with the sum": (gaussian(lambda s, t, n, r: n * (1 + (t != 0))), DENSE, {"noise constant in the cohort"}),
    "the same noise in every entry": (gaussian(lambda s, t, n, r: n[:1].expand_as(n)), DENSE, {"noise fresh in each entry"}),
    "noise reused": (noise_reused, DENSE, {"noise fresh in each round", "2 rounds at rate 1"}),
    "noise from a public seed": (noise_from_a_public_seed, DENSE, {"noise independent of public seeds"}),
    "clip skipped": (clip_skipped, DENSE, {"clip", "2 rounds at rate 1"}),
    "clip by another norm": (clip_by_the_largest_entry, DENSE, {"clip"}),
    "factor rounded": (factor_rounded, DENSE | {"clip": 1e-7}, {"clip"}),
    "sampling skipped": (sampling_skipped, DENSE, {"sampling rate", "10 rounds at rate 0.3"}),
    "mask from private data": (mask_from_private_data, {"name": "fed-smp-rand-k", "noise": 1.0}, {"published entries are public"}),
    "diagnostics drop the noise": (diagnostics_drop_the_noise, DENSE, {"every entry noised"}),
    "secrets are known": (
        secrets_are_known,
        DENSE,
        {"noise independent of public seeds", "cohorts independent of public seeds"},
    ),
    "cohorts from a public seed": (cohorts_from_a_public_seed, DENSE, {"cohorts independent of public seeds"}),
    "every cohort used twice": (every_cohort_twice, DENSE, {"cohorts fresh in each round"}),
    "a bit too loud": (bit_left_out, DENSE | {"clip_quantile": 0.5}, {"clip"}),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, settings, expected = BUGS[bug]
    method = methods.build(**settings)  # type: ignore[arg-type]
    plant(monkeypatch)
    attacks = tuple(scene for scene in SMALL if f"{scene.rounds} rounds at rate {scene.rate:g}" in expected)
    report = audit(method, scenes=attacks)
    assert not report.passed
    assert expected <= failed(report), failed(report)


def test_missing_noise_is_caught_behind_a_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(self: ExactNoise, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> Decoded:
        return total, state

    monkeypatch.setattr(ExactNoise, "decode", decode)
    report = audit(methods.ddgauss(noise=1.0), scenes=SMALL[:1])
    assert {"noise scale", "every entry noised", "2 rounds at rate 1"} <= failed(report)


def test_a_cap_that_is_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: Bounded, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        return torch.nonzero(secret.coins("cohort", index, clients) < self.size / clients).flatten(), state

    monkeypatch.setattr(Bounded, "draw", draw)
    report = audit(methods.dp_fedavg(noise=1.0), Bounded(1, 1), scenes=())
    assert failed(report) == {"participation"}


def test_a_method_that_claims_nothing_is_not_audited() -> None:
    with pytest.raises(NoGuarantee):
        audit(methods.fedavg())


def test_one_training_with_canaries() -> None:
    task = load_task("digits", clients=100)
    loud = audit(methods.dp_fedavg(noise=0.6, lr=0.1), task=task, rounds=8, rate=0.5, scenes=())
    (attack,) = loud.attacks
    assert loud.passed
    assert 0.3 < attack.epsilon_found < attack.epsilon_claimed
    assert attack.victims > 100


def test_one_training_finds_noise_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian(lambda s, t, n, r: n / 50)(monkeypatch)
    task = load_task("digits", clients=100)
    report = audit(methods.dp_fedavg(noise=3.0, lr=0.1), Poisson(1), task=task, rounds=1, rate=1.0, scenes=())
    assert "one training" in failed(report)


# -- the statistics by themselves --


def gaussian_plan(shift: float) -> Plan:
    return Plan((Phase((Release(L2Ball(1.0), GaussianNoise(1 / shift)),), Everyone(), 1),), 100)


def test_no_false_alarm_at_the_exact_boundary_and_power_beyond_it() -> None:
    """Scores that are just what is claimed pass in every one of 40 runs; 25% less noise is found in every one of 10."""
    g = np.random.default_rng(0)
    deltas = profile(gaussian_plan(1.0), EPS)
    for _ in range(40):
        finding = against_profile(g.normal(1.0, 1, 10_000), g.normal(0, 1, 10_000), deltas, 1e-5)
        assert finding.margin <= 0
        assert finding.epsilon < 4.377  # the exact epsilon of shift 1
    for _ in range(10):
        assert against_profile(g.normal(1 / 0.75, 1, 10_000), g.normal(0, 1, 10_000), deltas, 1e-5).margin > 0


def test_the_profile_audit_sees_either_direction_and_either_tail() -> None:
    g = np.random.default_rng(1)
    deltas = profile(gaussian_plan(0.5), EPS)
    there, away = g.normal(1.5, 1, 10_000), g.normal(0, 1, 10_000)
    for a, b in ((there, away), (away, there), (-there, -away), (-away, -there)):
        assert against_profile(a, b, deltas, 1e-5).margin > 0


def test_one_run_epsilon_is_a_lower_bound() -> None:
    """Randomised response with epsilon 2, guessed as well as can be: the bound stays below it in 95% of runs."""
    g = np.random.default_rng(2)
    chance = math.exp(2) / (1 + math.exp(2))
    found = [one_run_epsilon(400, 400, int(g.binomial(400, chance)), 1e-9) for _ in range(200)]
    assert np.mean(np.array(found) > 2.0) <= 0.05
    assert np.median(found) > 1.5
    assert one_run_epsilon(400, 200, 100, 1e-5) == 0.0
    assert one_run_epsilon(400, 200, 200, 1e-5) > one_run_epsilon(400, 200, 200, 1e-3)


def test_guesses_and_curves() -> None:
    members = np.array([True] * 50 + [False] * 50)
    assert guess(members, members.astype(float)) == (50, 50)
    assert guess(members, -members.astype(float)) == (50, 0)
    rates = np.array([0.0, 0.5, 1.0])
    assert roc(np.array([3.0, 4.0]), np.array([1.0, 2.0]), rates).tolist() == [1.0, 1.0, 1.0]
    assert not scale_alarm(100_000.0, 100_000)
    assert scale_alarm(97_000.0, 100_000)
    assert scale_alarm(103_000.0, 100_000)


def test_the_public_name() -> None:
    assert hush.audit is not None
    plan = plan_of(methods.dp_fedavg(noise=1.0), Poisson(30), 100, 10)
    assert account(plan, 1e-5).epsilon > 5
