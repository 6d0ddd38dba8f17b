"""1,797 handwritten digits of 8 x 8 pixels that come with Hush."""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from hush.tasks.clients import Examples
from hush.tasks.raw import Raw


def read_digits(paths: Mapping[str, Path]) -> Raw:
    """The split is fixed: 1,500 to train on, 297 to test."""
    raw = resources.files("hush.tasks").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(io.StringIO(gzip.decompress(raw).decode()), delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    x = torch.from_numpy(table[:, :-1] / 16.0).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    return Raw(Examples(x[:1500], y[:1500]), Examples(x[1500:], y[1500:]))
