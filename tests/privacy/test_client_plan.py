"""What `hush epsilon` says of clients is what the objects that run say."""

from __future__ import annotations

import pytest

from hush import NoGuarantee, methods, plan_of
from hush.cohort import NAMES, Cohort, make_cohort
from hush.privacy.client_plan import clip_and_noise
from hush.privacy.guarantee import Relation
from hush.privacy.vocabulary import Plan


@pytest.mark.parametrize("relation", [None, *Relation])
@pytest.mark.parametrize("sampling", NAMES)
def test_the_plan_from_numbers_is_that_of_the_method(sampling: str, relation: Relation | None) -> None:
    cohort = make_cohort(sampling, 50, 3)

    def read() -> Plan:
        return plan_of(methods.dp_fedavg(clip=1.0, noise=1.3), cohort, 1000, 20, relation)

    def told() -> Plan:
        return clip_and_noise(1.3, cohort, 1000, 20, relation)

    try:
        plan = read()
    except NoGuarantee as why:
        with pytest.raises(NoGuarantee, match=str(why)[:40]):
            told()
    else:
        assert told() == plan


def test_a_kind_of_cohort_of_ones_own_says_nothing() -> None:
    class Own(Cohort):
        pass

    with pytest.raises(NoGuarantee, match="no proved accounting"):
        clip_and_noise(1.0, Own(5), 100, 1)
