"""Small tasks, a home of the tests' own, and secrets that repeat from one session of tests to the next."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from itertools import count
from pathlib import Path

import pytest
import torch

import hush
from hush.privacy import accountant
from hush.secret import Secret

os.environ["HF_HUB_OFFLINE"] = "1"  # read once, by the first import: set later, a missing data set is looked for on the network
torch.set_num_threads(1)  # two pytest workers share two cores


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["HUSH_HOME"] = str(tmp_path_factory.mktemp("hush-home"))
    os.environ["HUSH_CACHE"] = str(tmp_path_factory.mktemp("hush-cache"))


@pytest.fixture(autouse=True)
def _fresh_secrets_by_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is repeated draws the same noise and cohorts: fresh secrets follow from its name and from how many it drew."""
    drawn = count()
    name = request.node.nodeid.encode()
    monkeypatch.setattr(Secret, "fresh", lambda: Secret(hashlib.sha256(name + next(drawn).to_bytes(8, "big")).digest()))


@pytest.fixture
def one_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run draws the same secret, which no user can have it do: runs that differ in nothing else can then be compared."""
    monkeypatch.setattr(Secret, "fresh", lambda: Secret(b"k" * 32))


@pytest.fixture(autouse=True, scope="session")
def _losses_of_many_plans_are_kept() -> None:
    """The accountant keeps the last 32 losses; the tests ask for the same plans again and again, with others in between."""
    accountant._cached_loss = lru_cache(maxsize=200)(accountant._cached_loss.__wrapped__)  # type: ignore[attr-defined]


@pytest.fixture
def real_data() -> Path:
    """Verified data sets, where the environment names them; every other test runs without."""
    folder = Path(os.environ.get("HUSH_DATA", ""))
    if not os.environ.get("HUSH_DATA") or not (folder / "fashion-mnist").is_dir():
        pytest.skip("HUSH_DATA does not point at the real data sets")
    return folder


def make_task(
    sizes: tuple[int, ...] = (5, 3, 8, 1, 6, 4), seed: int = 0, features: int = 6, classes: int = 3, **more: object
) -> hush.Task:
    """A linear problem with clients of unequal size."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(features, classes, generator=g)

    def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, features, generator=g)
        return x, (x @ truth).argmax(1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(features, 5), torch.nn.Tanh(), torch.nn.Linear(5, classes))
    parts = [draw(n) for n in sizes]
    values = {"model": model, "test": draw(60), "validation": draw(40), "public": draw(20)} | more
    return hush.Task(clients=parts, **values)  # type: ignore[arg-type]
