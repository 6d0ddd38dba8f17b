"""Audits of sketches: correct ones pass, planted bugs and the paper's own claim do not."""

from __future__ import annotations

import pytest
import torch

from hush import methods
from hush.audit import audit
from hush.audit.findings import Scene
from hush.audit.structural import structural_checks
from hush.cohort import FixedSize, Poisson
from hush.core import Method
from hush.errors import NoGuarantee
from hush.transforms import CountSketch, Gaussian
from hush.transforms.noise import Noise

QUICK = (Scene(1, 1.0, 1500),)


WIDE = {"noise": 1.0, "rows": 2, "cols": 0.9, "k": 0.05}
"""A sketch in which many coordinates stand apart, so that a small stage suffices."""


def failed(method: Method) -> set[str]:
    """The structural checks that find something."""
    return {
        check.name
        for check in structural_checks(method, lambda clients, rate: Poisson(max(1.0, rate * clients)), 100)
        if not check.passed
    }


@pytest.mark.parametrize("name", ["dpsfl", "dpsfl-ac"])
def test_what_is_correct_passes(name: str) -> None:
    assert failed(methods.build(name, **WIDE)) == set()


def test_too_little_noise_is_seen_whatever_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Gaussian.decode
    monkeypatch.setattr(
        Gaussian, "decode", lambda self, total, *rest: (total + 0.9 * (right(self, total, *rest)[0] - total), rest[0])
    )
    assert "noise scale" in failed(methods.dpsfl_ac(clip=1 / 0.9, **WIDE))


def test_a_counter_without_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Gaussian.decode

    def bare(self: Noise, total: torch.Tensor, *rest: object) -> object:
        noised, state = right(self, total, *rest)  # type: ignore[arg-type]
        noised[0] = total[0]
        return noised, state

    monkeypatch.setattr(Gaussian, "decode", bare)
    assert "every entry noised, in the table" in failed(methods.dpsfl(**WIDE))


def test_the_papers_claim_falls() -> None:
    found = audit(methods.dpsfl(clip_in="paper", noise=1.0), FixedSize(1), scenes=QUICK)
    assert not found.passed
    (attack,) = found.attacks
    assert "2." in attack.detail or "1." in attack.detail  # how many times as long as the clip


def test_what_cannot_be_audited_says_so() -> None:
    with pytest.raises(NoGuarantee, match="another model"):
        audit(methods.dpsfl(clip_in="gradient", noise=1.0), scenes=QUICK)
    with pytest.raises(NoGuarantee, match="reads sums"):
        audit(methods.dpsfl(noise_by="messages", noise=1.0), scenes=QUICK)

    class Mine(CountSketch):
        pass

    method = methods.dpsfl(noise=1.0)
    mine = method.with_pipeline(Mine(), *method.pipeline.parts[1:])
    with pytest.raises(NoGuarantee, match="CountSketch itself"):
        audit(mine, scenes=QUICK)
