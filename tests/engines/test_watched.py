"""Diagnostics look on and change nothing."""

from __future__ import annotations

import torch

import hush
from hush.core import Round, Transform, chain
from hush.engines.diagnostics import Recorder, watched
from hush.local.sgd import Sgd
from hush.random import keys_of
from hush.transforms import AdaptiveClip, Gaussian


def test_a_client_without_data_sends_nothing_also_where_somebody_looks_on() -> None:
    method = hush.Method("bit", Sgd(), chain(Transform(), AdaptiveClip(1.0, 0.5), Gaussian(1.0)), hush.server.Average())
    for one in (method, watched(method, Recorder(2.0))):
        keys, absent = keys_of(0, torch.arange(2)), torch.tensor([False, True])
        rows = one.pipeline.send(torch.ones(2, 3), Round(0, 0, 2.0), keys, (None, 1.0, None), None, absent)
        assert bool(rows[0].any())
        assert not bool(rows[1].any())
