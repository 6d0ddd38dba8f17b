"""Audits of methods whose clients take turns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hush import methods
from hush.audit import audit
from hush.cohort import Rotation
from hush.core import State
from hush.secret import Secret


def test_a_rotation_passes_and_one_that_repeats_itself_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit(methods.cpfed_output(noise=1.0), Rotation(1), scenes=()).passed

    def draw(self: Rotation, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        return torch.arange(int(self.size)), state

    monkeypatch.setattr(Rotation, "draw", draw)
    report = audit(methods.cpfed_output(noise=1.0), Rotation(1), scenes=())
    assert {"participation", "turns fresh"} <= {check.name for check in report.checks if not check.passed}
