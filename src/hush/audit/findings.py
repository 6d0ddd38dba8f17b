"""What an audit found: structural checks and attacks, beside what is claimed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from hush.audit.statistics import EPS, against_profile, proved_roc, roc
from hush.audit.structural import Check
from hush.privacy.accountant import account, profile
from hush.privacy.attack import trade_off
from hush.privacy.vocabulary import Plan

DELTA = 1e-5
"""At which the staged attacks report epsilon."""
_RATES = np.concatenate([np.linspace(0.0, 0.05, 51), np.linspace(0.06, 1.0, 95)])


@dataclass(frozen=True)
class Scene:
    """One staged attack: so many rounds, with so large a share of the clients, against so many victims."""

    rounds: int
    rate: float
    victims: int


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
    claimed: bool = False
    """Whether a paper's own claim was put to the test, for which nothing is proved."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and all(attack.passed for attack in self.attacks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "cohort": self.cohort,
            "noise_multiplier": self.noise_multiplier,
            "claimed_by_paper": self.claimed,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
            "attacks": [attack.to_dict() for attack in self.attacks],
        }


def rates() -> np.ndarray:
    """The false-positive rates of an attack's curves."""
    return _RATES


Scored = tuple[Tensor, Tensor]
"""Scores of victims, and which of them were in."""
Arms = tuple[np.ndarray, np.ndarray]
"""Scores of those who were in, and of those who were not."""
Curve = Callable[[np.ndarray], np.ndarray]
"""The highest true-positive rates that a claim allows, at some false-positive rates."""


def found(name: str, claimed: float, curve: Curve, delta: float, arms: Arms, epsilon: float, told: str, passed: bool) -> Attack:
    """An attack's scores as figures and curves, beside the `curve` that is claimed."""
    present, absent = arms
    return Attack(
        name=name,
        victims=min(len(present), len(absent)),
        epsilon_found=epsilon,
        epsilon_claimed=claimed,
        delta=delta,
        passed=passed,
        detail=told,
        found=roc(present, absent, _RATES),
        proved=proved_roc(present, absent, _RATES),
        claimed=curve(_RATES),
    )


def told_apart(played: Iterable[Scored], victims: float = math.inf) -> Arms:
    """The scores of all rounds, or of as many as give so many `victims` in either arm."""
    present: list[np.ndarray] = []
    absent: list[np.ndarray] = []
    for scores, members in played:
        present.append(scores[members].numpy())
        absent.append(scores[~members].numpy())
        if min(sum(map(len, present)), sum(map(len, absent))) >= victims:
            break
    return np.concatenate(present), np.concatenate(absent)


def against_plan(name: str, plan: Plan, arms: Arms, more: str = "") -> Attack:
    """An attack's scores against the whole profile that a plan claims."""
    finding = against_profile(*arms, profile(plan, EPS), DELTA)
    told = f"margin {finding.margin:+.3f}; above 0 falsifies the claim{more}"
    claimed = account(plan, DELTA).epsilon
    return found(name, claimed, lambda r: trade_off(plan, r), DELTA, arms, finding.epsilon, told, finding.margin <= 0)
