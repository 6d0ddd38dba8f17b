"""Chunks on several cores come to what they come to one after another, in their order, and stop together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import hush
from hush.engines.memory import chunks_at_once
from hush.engines.threads import at_once
from hush.local import Sgd
from hush.local.flat import FlatModel
from hush.secret import Secret
from tests.conftest import make_task


@pytest.fixture(autouse=True)
def one_thread_a_product() -> Iterator[None]:
    """As in a chunk's own thread, so that nothing else than the chunks is another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("hush.engines.threads.torch.get_num_threads", lambda: count)
    monkeypatch.setattr("hush.engines.threads.torch.set_num_threads", lambda count: None)


@pytest.mark.parametrize("mode", ["fast", "secure"])
@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp-rand-k", "dp-fedavg+lus", "fed-spa"])
def test_the_same_bits_on_any_number_of_cores(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Secret, "fresh", lambda: Secret(bytes(range(32))))  # everybody draws the same
    task = make_task(sizes=(9, 3, 8, 1, 6, 4, 7, 2))
    told: dict[str, Any] = {"rounds": 3, "cohort": hush.FixedSize(8), "chunk": 2, "noise_mode": mode}
    method = hush.methods.build(name, noise=1.0)
    models = []
    for count in (1, 3):
        cores(monkeypatch, count)
        models.append(torch.cat([value.flatten() for value in hush.simulate(method, task, **told).state_dict.values()]))
    assert torch.equal(*models)


def parts(count: int) -> list[Tensor]:
    return [torch.tensor([number]) for number in range(count)]


def a_learner() -> FlatModel:
    return FlatModel(torch.nn.Linear(2, 2), lambda outputs, y: (outputs - y).square().sum(1))


def test_they_work_side_by_side_with_models_of_their_own_and_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 2)
    both, learners = threading.Barrier(2, timeout=20), set()

    def work(part: Tensor, learner: FlatModel) -> int:
        both.wait()  # nobody comes here alone
        learners.add(id(learner.module))
        return int(part)

    assert list(at_once(work, parts(6), a_learner(), hush.methods.fedavg(), 9)) == list(range(6))
    assert len(learners) == 2


def test_what_fails_in_one_fails_the_round_and_the_rest_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 2)
    begun = []

    def work(part: Tensor, learner: FlatModel) -> int:
        begun.append(int(part))
        if int(part) == 1:
            raise hush.UsageError("no")
        return int(part)

    with pytest.raises(hush.UsageError, match="no"):
        list(at_once(work, parts(50), a_learner(), hush.methods.fedavg(), 9))
    assert len(begun) < 50


@dataclass(frozen=True)
class Somebodys(Sgd):
    """Not Hush's: nobody knows what it shares between threads."""


@pytest.mark.parametrize("why", ["others", "one by one", "one core", "no memory"])
def test_what_is_not_made_for_threads_has_one(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 1 if why == "one core" else 4)
    method, learner = hush.methods.fedavg(), a_learner()
    if why == "others":
        method = replace(method, local=Somebodys())
    if why == "one by one":
        learner.vectorised = False
    assert set(at_once(lambda part, own: threading.get_ident(), parts(4), learner, method, 1 if why == "no memory" else 9)) == {
        threading.get_ident()
    }


def test_chunks_at_once_fit_into_the_memory() -> None:
    learner = FlatModel(torch.nn.Linear(1000, 1000), lambda outputs, y: outputs.sum(1))
    assert chunks_at_once(learner, 5, "1GiB") > chunks_at_once(learner, 20, "1GiB") >= 1
    assert chunks_at_once(learner, 10, "1KiB") == 1
    assert chunks_at_once(learner, 1, None) > chunks_at_once(learner, 1, "512MiB")
