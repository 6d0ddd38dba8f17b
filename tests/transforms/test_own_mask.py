"""Each client's own random mask: k of d, uniform, the same on both sides, another one every round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hush import UsageError
from hush.core import Round, Wire, chain
from hush.random import keys_of
from hush.transforms.own_mask import OwnRandK

RND = Round(0, 1, 1.0)


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(0, 5), st.integers(0, 2**40))
def test_unpacking_puts_back_what_was_sent_and_zero_elsewhere(dim: int, ratio: float, clients: int, seed: int) -> None:
    part, keys = OwnRandK(ratio), keys_of(seed, torch.arange(clients))
    x = torch.randn(clients, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    sent = part.encode(x, RND, keys, dim)
    assert sent.shape == (clients, part.kept(dim))
    back = part.unpack(sent, RND, keys, dim)
    places = part.places(keys, dim)
    assert torch.equal(back.gather(1, places), x.gather(1, places))
    assert int((back != 0).sum()) <= clients * part.kept(dim)
    assert bool((places.diff(dim=1) > 0).all())
    assert torch.equal(part.places(keys[:1], dim), places[:1])  # a lone client has the same


def test_every_coordinate_is_as_likely_and_clients_differ() -> None:
    places = OwnRandK(0.25).places(keys_of(3, torch.arange(4000)), 20)
    counts = np.bincount(places.flatten().numpy(), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-4
    pairs = np.zeros(20)
    for row in places.numpy():
        pairs[row] += 5 in row
    rest = np.delete(pairs, 5)
    assert stats.chisquare(rest).pvalue > 1e-4
    assert not torch.equal(places[0], places[1])
    assert not torch.equal(OwnRandK(0.25).places(keys_of(4, torch.arange(1)), 20), places[:1])


def test_only_values_travel() -> None:
    wire = chain(OwnRandK(0.05)).wire(Wire(21_840))
    assert (wire.entries, wire.bytes, wire.summed) == (1092, 4368, 21_840)
    with pytest.raises(UsageError, match="ratio"):
        OwnRandK(0.0)
