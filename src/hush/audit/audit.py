"""The audit of a method: structural checks, the whole claimed profile under attack, and one real training with canaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from hush.audit.stage import Stage
from hush.audit.statistics import EPS, against_profile, one_run_epsilon, proved_roc, roc
from hush.audit.structural import Check, structural_checks
from hush.audit.training import CANARIES, guess, watch_training
from hush.cohort import Bounded, Cohort, FixedSize, Poisson, SecretParticipation
from hush.core import Method
from hush.engines.judge import clip_of
from hush.errors import NoGuarantee, UsageError
from hush.privacy.accountant import account, profile
from hush.privacy.attack import trade_off
from hush.privacy.plan import needs_noise, plan_of, with_noise
from hush.privacy.vocabulary import Plan
from hush.secret import Secret
from hush.tasks.task import Task

DELTA = 1e-5
"""At which the staged attacks report epsilon."""
_RATES = np.concatenate([np.linspace(0.0, 0.05, 51), np.linspace(0.06, 1.0, 95)])
_ENTRIES = 4_000_000
"""Clients times entries of a stage: what a round of it costs."""


@dataclass(frozen=True)
class Scene:
    """One staged attack: so many rounds, with so large a share of the clients, against so many victims."""

    rounds: int
    rate: float
    victims: int


SCENES = (Scene(2, 1.0, 20_000), Scene(10, 0.3, 10_000))
"""The first is sharpest on noise and clip, the second sees sampling."""


@dataclass(frozen=True)
class Attack:
    """What an attack found, beside what is claimed."""

    name: str
    victims: int
    epsilon_found: float
    epsilon_claimed: float
    delta: float
    passed: bool
    detail: str
    found: np.ndarray = field(repr=False)
    proved: np.ndarray = field(repr=False)
    claimed: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        names = ("found", "proved", "claimed")
        curves = {"false_positives": _RATES.tolist()} | {name: getattr(self, name).tolist() for name in names}
        return {key: value for key, value in values.items() if key not in names} | {"trade_off": curves}


@dataclass(frozen=True)
class Audit:
    """Everything that was tried on a method."""

    method: str
    cohort: str
    noise_multiplier: float
    checks: tuple[Check, ...]
    attacks: tuple[Attack, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and all(attack.passed for attack in self.attacks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "cohort": self.cohort,
            "noise_multiplier": self.noise_multiplier,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
            "attacks": [attack.to_dict() for attack in self.attacks],
        }


def rates() -> np.ndarray:
    """The false-positive rates of an attack's curves."""
    return _RATES


def audit(
    method: Method,
    cohort: Cohort | None = None,
    task: Task | None = None,
    rounds: int = 20,
    rate: float = 0.1,
    scenes: tuple[Scene, ...] = SCENES,
    tell: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Attack `method` as it runs; `cohort` says which kind of taking part is claimed (default Poisson).

    With a `task`, one training of `rounds` rounds with canaries follows. `tell` hears what is going on.
    """
    if not isinstance(method, Method):
        raise UsageError(f"An audit takes a hush.Method, such as hush.methods.dp_fedavg(), not {method!r}.")
    if cohort is not None and not isinstance(cohort, Cohort):
        raise UsageError(f"cohort is the kind that is claimed, such as hush.Poisson(10), not {cohort!r}.")
    if needs_noise(method):
        method = with_noise(method, 1.0)
    with _one_thread():
        return _audit(method, cohort or Poisson(1), task, rounds, rate, scenes, tell)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A stage is thousands of small steps, at which threads wait for each other more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _audit(
    method: Method,
    kind: Cohort,
    task: Task | None,
    rounds: int,
    rate: float,
    scenes: tuple[Scene, ...],
    tell: Callable[[str], None],
) -> Audit:
    plan = plan_of(method, cohort_like(kind, 100, 1.0, 1), 100, 1)  # refuses what claims nothing
    clients = _stage_size(method)
    tell("structural checks")
    checks = structural_checks(method, lambda count, rate: cohort_like(kind, count, rate, 10**9), clients)
    attacks = []
    for scene in scenes:
        tell(f"attack on {scene.rounds} rounds at rate {scene.rate:g}")
        attacks.append(_attack(method, kind, scene, clients))
    if task is not None:
        tell("training with canaries")
        attacks.append(_training(method, kind, task, rounds, rate))
    return Audit(method.name, type(kind).__name__, plan.noise_multiplier, tuple(checks), tuple(attacks))


def cohort_like(kind: Cohort, clients: int, rate: float, rounds: int) -> Cohort:
    """The same kind of taking part, in another population and at another rate."""
    size = max(1.0, float(round(rate * clients)))
    if type(kind) is Bounded:
        return Bounded(size, max(1, math.ceil(rate * rounds)))
    for known in (Poisson, FixedSize, SecretParticipation):
        if type(kind) is known:
            return known(size)
    raise NoGuarantee(f"{type(kind).__name__} claims nothing that could be audited.", "Use a cohort that is accounted for.")


def _stage_size(method: Method) -> int:
    """As many clients as the cost of a round allows: each needs an entry that is published."""
    published = method.uplink(10_000).entries / 10_000
    return max(100, min(2000, int(math.sqrt(_ENTRIES * min(1.0, published)))))


def _attack(method: Method, kind: Cohort, scene: Scene, clients: int) -> Attack:
    """Victims of a huge update, in or out by the auditor's coin; the sign alternates, so that noise which repeats cancels."""
    cohort = cohort_like(kind, clients, scene.rate, scene.rounds)
    plan = plan_of(method, cohort, clients, scene.rounds)
    stage = Stage(method, cohort, clients, secret=Secret.fresh())
    present: list[np.ndarray] = []
    absent: list[np.ndarray] = []
    while min(sum(len(part) for part in arm) for arm in (present, absent)) < scene.victims:
        members = torch.rand(clients) < 0.5
        now, scores = stage.start(), torch.zeros(clients, dtype=torch.float64)
        for index in range(scene.rounds):
            sign = 1.0 if index % 2 == 0 else -1.0
            now, release = stage.play(now, members, sign)
            scores += sign * release.values[torch.arange(clients) % len(release.values)]
        present.append(scores[members].numpy())
        absent.append(scores[~members].numpy())
    there, away = np.concatenate(present), np.concatenate(absent)
    finding = against_profile(there, away, profile(plan, EPS), DELTA)
    told = f"margin {finding.margin:+.3f}; above 0 falsifies the claim"
    return _result(
        f"{scene.rounds} rounds at rate {scene.rate:g}", plan, DELTA, there, away, finding.epsilon, finding.margin <= 0, told
    )


def _training(method: Method, kind: Cohort, task: Task, rounds: int, rate: float) -> Attack:
    """Guesses about canaries in one real training."""
    size = 10.0 * (clip_of(method, {f"pipeline.{k}": v for k, v in method.pipeline.init(8).items()}) or 1.0)
    seen = watch_training(method, task, lambda clients: cohort_like(kind, clients, rate, rounds), rounds, size)
    guesses, right = guess(seen.members, seen.scores)
    found = one_run_epsilon(CANARIES, guesses, right, seen.delta)
    claimed = account(seen.plan, seen.delta).epsilon
    told = f"{right} of {guesses} guesses about {CANARIES} canaries right, in one training of {rounds} rounds at rate {rate:g}"
    return _result("one training", seen.plan, seen.delta, seen.present, seen.absent, found, found <= claimed, told)


def _result(
    name: str, plan: Plan, delta: float, present: np.ndarray, absent: np.ndarray, found: float, passed: bool, told: str
) -> Attack:
    return Attack(
        name=name,
        victims=min(len(present), len(absent)),
        epsilon_found=found,
        epsilon_claimed=account(plan, delta).epsilon,
        delta=delta,
        passed=passed,
        detail=told,
        found=roc(present, absent, _RATES),
        proved=proved_roc(present, absent, _RATES),
        claimed=trade_off(plan, _RATES),
    )
