"""Whole audits of what takes long to audit: `make soak`."""

from __future__ import annotations

import pytest
from tests.audit.test_record_audit import PROVED

from hush import methods
from hush.audit import audit

CLIENT_LEVEL = ["dp-fedavg", "fed-smp-rand-k", "fed-smp-top-k", "ddgauss", "skellam", "dp-fedavg+lus", "dp-fedavg+free-mask"]


@pytest.mark.parametrize("name", CLIENT_LEVEL)
def test_client_level_methods_pass(name: str) -> None:
    report = audit(methods.build(name, noise=1.0))
    assert report.passed, [check for check in report.checks if not check.passed]


@pytest.mark.parametrize("name", PROVED)
def test_what_is_proved_of_records_passes(name: str) -> None:
    report = audit(PROVED[name]())
    assert report.passed, [check for check in report.checks if not check.passed]
