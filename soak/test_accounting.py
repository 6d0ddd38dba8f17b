"""Figures at the step at which they are printed, where that takes long: `make soak`."""

from __future__ import annotations

import math

import pytest
from tests.privacy.test_accountant import DELTA, paper

from hush import FixedSize, NoGuarantee, account
from hush.privacy.guarantee import Relation


@pytest.mark.parametrize(("relation", "noise"), [*((relation, 0.2) for relation in Relation), (Relation.ADD_REMOVE, 0.01)])
def test_hardly_any_noise_is_a_large_number_or_a_refusal(relation: Relation, noise: float) -> None:
    try:
        epsilon = account(paper(FixedSize(100), noise, rounds=1, relation=relation), DELTA).epsilon
    except NoGuarantee:
        epsilon = math.inf
    assert epsilon > 50
