"""What clients draw by themselves: nobody else's, never twice, and the same in any chunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from hush.audit.statistics import scale_alarm
from hush.own import OwnSecrets
from hush.secret import Secret

SECRET = Secret(bytes(range(32)))
LIKE = torch.zeros(1)


def test_normals_are_normal_and_a_wrong_scale_is_noticed() -> None:
    for like in (LIKE, LIKE.double()):
        z = OwnSecrets.simulated(SECRET, [4]).normals("x", 0, 100_001, like).draw()[0].double().numpy()
        assert len(z) == 100_001
        assert stats.kstest(z, "norm").pvalue > 1e-4
        assert not scale_alarm(float((z**2).sum()), len(z))
        assert scale_alarm(float(((1.02 * z) ** 2).sum()), len(z))
        assert abs(np.corrcoef(z[:50_000], z[50_001:])[0, 1]) < 0.02  # the cosines and sines of the same words
        assert np.isfinite(z).all()


def test_draws_depend_on_client_round_and_purpose_alone() -> None:
    def first(ids: list[int], label: str = "x", index: int = 0, secret: Secret = SECRET) -> torch.Tensor:
        return OwnSecrets.simulated(secret, ids).normals(label, index, 7, LIKE).draw()[0]

    assert torch.equal(first([5]), OwnSecrets.simulated(SECRET, [9, 5]).normals("x", 0, 7, LIKE).draw()[1])
    others = [first([6]), first([5], "y"), first([5], index=1), first([5], secret=Secret(bytes(32)))]
    assert all(not torch.allclose(first([5]), other) for other in others)


def test_every_step_draws_anew() -> None:
    normals = OwnSecrets.simulated(SECRET, [1, 2]).normals("x", 0, 1000, LIKE)
    steps = torch.stack([normals.draw() for _ in range(20)]).reshape(40, 1000).double()
    overlap = (steps @ steps.T / 1000).fill_diagonal_(0).abs().max()
    assert float(overlap) < 6 / 1000**0.5


@pytest.mark.parametrize("count", [1, 2, 5])
def test_words_go_on_where_they_stopped(count: int) -> None:
    own = OwnSecrets.simulated(SECRET, [3])
    whole = own.words("records", 2).take(0, 10)
    stream = own.words("records", 2)
    parts = np.concatenate([stream.take(0, count) for _ in range(10 // count)])
    assert np.array_equal(whole[: len(parts)], parts)


def test_secrets_do_not_show() -> None:
    own = OwnSecrets.simulated(SECRET, [0, 1])
    assert SECRET.key.hex() not in repr(own)
    assert repr(own.secrets[0].key) not in repr(own)
    assert len(own) == 2
    assert own.pick([1]).secrets == own.secrets[1:]
