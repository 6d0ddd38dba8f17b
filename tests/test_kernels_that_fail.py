"""Where Triton cannot compile, PyTorch's own arithmetic does the work, and one sentence says so."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from hush import kernels

CARD = torch.device("cuda")


@pytest.fixture
def _card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of which only the questions are asked."""
    kernels._work_on.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch, "ones", lambda *size, device: None)
    monkeypatch.setattr(kernels, "find_spec", lambda name: name)
    monkeypatch.delenv("HUSH_KERNELS", raising=False)


def compiled_by(monkeypatch: pytest.MonkeyPatch, norms: object) -> None:
    monkeypatch.setitem(sys.modules, "hush.kernels.rows", SimpleNamespace(norms=norms))


@pytest.mark.usefixtures("_card")
def test_without_a_compiler_pytorch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def norms(x: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

    compiled_by(monkeypatch, norms)
    with pytest.warns(UserWarning, match=r"\(Failed to find C compiler\.\), so a cohort trains by PyTorch's"):
        assert not kernels.kernels_for(CARD)
    assert not kernels.kernels_for(CARD)  # and is said once


@pytest.mark.usefixtures("_card")
def test_they_are_there_unless_they_are_turned_off_or_the_card_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_by(monkeypatch, lambda x: x)
    assert kernels.kernels_for(CARD)
    assert not kernels.kernels_for(torch.device("cpu"))
    monkeypatch.setenv("HUSH_KERNELS", "0")
    assert not kernels.kernels_for(CARD)
    monkeypatch.delenv("HUSH_KERNELS")
    kernels._work_on.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not kernels.kernels_for(CARD)
    kernels._work_on.cache_clear()
