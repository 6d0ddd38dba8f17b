"""Features of nobody's images: what is drawn, which directions are found, and that clients train the last layer alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hush
from hush import methods
from hush.errors import UsageError
from hush.local import frozen
from hush.report.certificate_page import certificate_page
from hush.secret import Secret
from hush.tasks.clients import Examples
from hush.tasks.start import features, start_from
from hush.tasks.start.discriminant import Spread, directions
from hush.tasks.start.processes import Draws, Silhouettes
from tests.conftest import make_task

SHAPE = (1, 12, 12)
SECRET = Secret(b"f" * 32)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_KINDS", 60)
    monkeypatch.setattr(features, "_IMAGES", 1500)


def small(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 20), nn.ReLU(), nn.Linear(20, classes))


def test_drawn_images() -> None:
    x, kinds = Silhouettes(30, seed=1).draw(200, (3, 16, 20), Draws(2))
    assert x.shape == (200, 3, 16, 20)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    again, same = Silhouettes(30, seed=1).draw(200, (3, 16, 20), Draws(2))
    assert torch.equal(x, again)
    assert torch.equal(kinds, same)
    # images of a kind are more alike than images of different kinds
    flat = Silhouettes(30, seed=1).draw(600, SHAPE, Draws(3))
    rows, of = flat[0].flatten(1), flat[1]
    own = torch.stack([rows[of == k].var(0).sum() for k in range(30) if int((of == k).sum()) > 1]).mean()
    assert float(own) < 0.8 * float(rows.var(0).sum())


def test_the_spread_of_labelled_features() -> None:
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 1.0], [10.0, 3.0]])
    spread = Spread.of(x, torch.tensor([0, 0, 2, 2]))  # nothing is of kind 1
    assert torch.allclose(spread.mean, torch.tensor([5.5, 1.0]))
    assert torch.allclose(spread.within, torch.tensor([[0.5, 0.0], [0.0, 0.5]]))
    assert torch.allclose(spread.kinds, torch.tensor([[-4.5, -1.0], [4.5, 1.0]]))
    both = spread.mixed(Spread(torch.zeros(2), torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])))
    assert torch.allclose(both.within, 0.75 * torch.eye(2))
    assert torch.allclose(both.kinds[2:].norm(), torch.tensor(2.0))


def test_directions_tell_kinds_apart_and_are_equally_spread_within_them() -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 6
    means = torch.zeros(6, 5)
    means[:, 1] = torch.arange(6.0)  # kinds differ along the second axis, where others are far louder
    x = means[labels] + torch.randn(3000, 5, generator=g) * torch.tensor([9.0, 0.5, 4.0, 1.0, 2.0])
    spread = Spread.of(x, labels)
    found = directions(spread, 5, 1e-6).float()
    first = found[:, 0] / found[:, 0].norm()
    assert abs(float(first[1])) > 0.99
    inside = (x - x.mean(0)) @ found
    rest = inside - torch.stack([inside[labels == k].mean(0) for k in range(6)])[labels]
    assert torch.allclose(rest.T @ rest / len(rest), torch.eye(5), atol=0.02)


@pytest.mark.parametrize("how", ["processes", "public"])
def test_only_the_last_layer_is_trained(how: str) -> None:
    public = Examples(torch.rand(30, *SHAPE), torch.arange(30) % 3)
    model = start_from(how, small(), SHAPE, public, in_bytes=False)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"head.weight", "head.bias"}
    x, _ = Silhouettes(60, seed=5).draw(300, SHAPE, Draws(4))
    with torch.no_grad():
        seen = model[:2](x)
    assert seen.shape == (300, 20)
    assert 0.4 < float(seen.norm(dim=1).mean()) < 2.5
    assert not model(x).any()  # the last layer starts at zero
    clients = [(torch.rand(8, *SHAPE), torch.randint(0, 3, (8,))) for _ in range(12)]
    task = hush.Task(model=model, clients=clients, test=(torch.rand(20, *SHAPE), torch.randint(0, 3, (20,))))
    result = hush.simulate(methods.dp_fedavg(clip=0.1, noise=1.0), task, rounds=2, cohort=6, noise_seed=1)
    assert result.parameters == 63
    assert set(result.state_dict) == set(model.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(result.state_dict[name], value) == (name not in trained), name
    model.load_state_dict(result.state_dict)


def test_frozen_layers_seen_once_or_every_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = start_from("processes", small(), SHAPE, None, in_bytes=False)
    g = torch.Generator().manual_seed(3)
    clients = [(torch.rand(8, *SHAPE, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(12)]
    held = (torch.rand(20, *SHAPE, generator=g), torch.randint(0, 3, (20,), generator=g))
    task = hush.Task(model=model, clients=clients, test=held, validation=held)
    settings = {"rounds": 3, "cohort": 6, "noise_seed": 1}
    once = hush.simulate(methods.dp_fedavg(clip=0.1, noise=1.0, lr=1.0), task, **settings)
    monkeypatch.setattr(frozen, "split", lambda _: None)
    each = hush.simulate(methods.dp_fedavg(clip=0.1, noise=1.0, lr=1.0), task, **settings)
    assert once.test_loss == pytest.approx(each.test_loss, rel=1e-4)
    for name, value in once.state_dict.items():
        assert torch.allclose(value, each.state_dict[name], atol=1e-5), name


def test_what_can_be_computed_beforehand() -> None:
    def model(*layers: nn.Module) -> nn.Sequential:
        whole = nn.Sequential(*layers)
        whole[0].requires_grad_(False)
        return whole

    parts = frozen.split(model(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert parts is not None
    assert [len(part) for part in parts] == [2, 1]
    nested = nn.Sequential(nn.Flatten(), model(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert frozen.split(nested) is not None
    assert frozen.split(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))) is None  # nothing is frozen
    assert frozen.split(nn.Sequential(nn.Flatten(), nn.Linear(3, 4))) is None  # nothing to gain
    assert frozen.split(model(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2))) is None  # drawn anew every time
    tied = model(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = nn.Parameter(tied[0].weight.data)
    assert frozen.split(tied) is not None
    tied[2].bias = tied[0].bias  # frozen in one place and used in the other
    assert frozen.split(tied) is None
    assert frozen.split(nn.Linear(3, 2)) is None
    assert frozen.seen_by(nn.Sequential(nn.Linear(3, 4)), torch.zeros(0, 3)) is None


def test_mistakes() -> None:
    for model, why in (
        (nn.Linear(144, 3), "no such chain"),
        (nn.Sequential(nn.Flatten()), "ends in Flatten"),
        (nn.Sequential(nn.Conv2d(1, 3, 12)), "ends in Conv2d"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(10, 3)), "nn.Flatten"),
    ):
        with pytest.raises(UsageError, match=why):
            start_from("processes", model, SHAPE, None, in_bytes=False)
    with pytest.raises(UsageError, match="leave the steps out"):
        start_from("processes:5", nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), SHAPE, None, in_bytes=False)
    with pytest.raises(UsageError, match="for images"):
        start_from("processes", small(), (14,), None, in_bytes=False)
    with pytest.raises(UsageError, match="--public"):
        start_from("public", small(), SHAPE, None, in_bytes=False)
    with pytest.raises(UsageError, match="labels"):
        start_from("public", small(), SHAPE, Examples(torch.rand(4, *SHAPE), torch.rand(4)), in_bytes=False)
    with pytest.raises(UsageError, match="processes:2500"):
        start_from("processes:many", small(), SHAPE, None, in_bytes=False)
    with pytest.raises(UsageError, match="start"):
        start_from("proceses", small(), SHAPE, None, in_bytes=False)


def test_what_was_learned_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path))
    first = start_from("processes:2", small(), SHAPE, None, in_bytes=False)
    (kept,) = (tmp_path / "starts").iterdir()
    stamp = kept.stat().st_mtime_ns
    again = start_from("processes:2", small(), SHAPE, None, in_bytes=False)
    assert kept.stat().st_mtime_ns == stamp
    assert torch.equal(first.body[0].weight, again.body[0].weight)
    assert not torch.equal(first.body[0].weight, small()[0].weight)
    kept.write_bytes(kept.read_bytes()[:100])  # cut short: learned again
    third = start_from("processes:2", small(), SHAPE, None, in_bytes=False)
    assert torch.allclose(first.body[0].weight, third.body[0].weight, atol=1e-4)
    assert kept.stat().st_size > 100


def test_by_name(tmp_path: Path) -> None:
    """The command line's way: a task of the catalogue, and what it says about itself."""
    task = hush.load_task("digits", "mlp", public=100, start="public")
    assert any("start public" in note for note in task.notes)
    assert any("features" in caveat for caveat in task.caveats)
    plain = hush.load_task("digits", "mlp")
    assert plain.enrolled.dim > task.enrolled.dim
    assert make_task().caveats == ()


def test_weights_that_hush_did_not_make_are_said_to_have_cost_something() -> None:
    """Its own starting weights, and features of nobody's images, cost nobody anything; those of another run, or a user's, may."""

    def told(task: hush.Task) -> bool:
        result = hush.simulate(methods.dp_fedavg(noise=1.0, local_steps=1), task, rounds=1, cohort=4)
        page = certificate_page(result.certificate())
        said = any("what that cost is not in this number" in line for line in result.caveats)
        assert ("what that cost is not in this number" in page) is said
        return said

    first = hush.load_task("digits", "logistic", clients=100)
    assert not told(first)
    assert not told(hush.load_task("digits", "mlp", clients=100, start="processes"))
    assert told(make_task())
    again = hush.load_task("digits", "logistic", clients=100)
    again.model.load_state_dict(hush.simulate(methods.dp_fedavg(noise=1.0), first, rounds=1, cohort=4).state_dict)
    assert told(again)
    frozen_too = hush.load_task("digits", "mlp", clients=100)
    layer = next(m for m in frozen_too.model.modules() if isinstance(m, nn.Linear))
    nn.init.ones_(layer.requires_grad_(False).weight)
    assert told(frozen_too)


class Centre(nn.Module):
    """Mixes the examples of a batch, hence clients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Follows(nn.Module):
    """Remembers earlier examples."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("m", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.m.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.m


def test_a_frozen_layer_that_mixes_examples_never_sees_two_clients() -> None:
    def model(layer: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 6).requires_grad_(False), layer, nn.Linear(6, 3))

    assert frozen.split(model(Centre())) is None
    settings = {"rounds": 1, "cohort": 3, "noise_seed": 1}
    with pytest.warns(UserWarning, match="one after another"):
        hush.simulate(methods.dp_fedavg(clip=1.0, noise=1.0), make_task(model=model(Centre())), **settings)
    with pytest.raises(UsageError, match="changes the buffer"):
        hush.simulate(methods.dp_fedavg(clip=1.0, noise=1.0), make_task(model=model(Follows())), **settings)


def test_models_that_are_no_plain_chain_run_as_before() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5, self.training)

    unused = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3))
    unused.register_parameter("extra", nn.Parameter(torch.zeros(2)))
    hooked = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3))
    hooked[0].register_forward_hook(lambda *_: None)
    for model in (
        unused,
        hooked,
        nn.Sequential(nn.Linear(6, 5).requires_grad_(False), Halves(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Flatten(0), nn.Linear(5, 3)),
    ):
        assert frozen.split(model) is None
