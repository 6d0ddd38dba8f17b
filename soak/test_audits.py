"""Whole audits of what takes long to audit: `make soak`."""

from __future__ import annotations

import pytest

from hush import methods
from hush.audit import audit


@pytest.mark.parametrize("name", ["ddgauss", "skellam", "dp-fedavg+lus", "dp-fedavg+free-mask"])
def test_the_newer_client_level_methods_pass(name: str) -> None:
    report = audit(methods.build(name, noise=1.0))
    assert report.passed, [check for check in report.checks if not check.passed]
