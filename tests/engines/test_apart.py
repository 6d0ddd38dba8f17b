"""Nobody's row depends on a neighbour: to the last bit where noise or sum are secure; and nobody's data is a row of zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hush
from hush import methods
from hush.core import Public, Round, Shard, Trained
from hush.engines import simulation, summing
from hush.engines.diagnostics import Recorder
from hush.engines.run import Run
from hush.errors import NoGuarantee
from hush.local import FlatModel, Sgd, frozen
from hush.privacy.plan import is_private
from hush.privacy.shares import SecureSum
from hush.secret import Secret
from tests.conftest import make_task

SIZES = (7, 3, 18, 1, 12, 4, 30, 9, 5, 16, 2, 11, 26, 6, 8, 3, 14, 1, 10, 21)
VICTIM = 6
"""The largest: without it batches are narrower, fewer steps are made, and another client is the longest."""
PARTS = ["dp-fedavg+blur+lus", "dp-fedavg+sketch", "ddgauss+sketch+blur"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


class Kept(Recorder):
    """Holds on to the updates, before they are rounded to whole numbers, in which a last bit would hide."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.updates: list[Tensor] = []

    def trained(self, updates: Tensor, losses: Tensor) -> None:
        self.updates.append(updates)


def without_guarantee(method: hush.Method) -> bool:
    return not is_private(method)


def ready(method: hush.Method, task: hush.Task, **how: Any) -> Run:
    settings: dict[str, Any] = {"rounds": 2, "cohort": hush.FixedSize(task.train.count), "device": "cpu"} | how
    if is_private(method):
        settings |= {"privacy": hush.Budget(8.0, 1e-3)}
    return simulation.set_up(method, task, **settings).drawing(Secret(bytes(32)))


def rows(run: Run, who: list[int] | None = None) -> dict[int, tuple[Tensor, Tensor]]:
    """What each client trained and sent in a first round."""
    rnd, params, kept = run.round(0), run.data.learner.initial(), Kept()
    public = run.method.prepare(params, run.method.init(params), rnd, run.data.server)
    ids = torch.arange(run.data.train.count) if who is None else torch.tensor(who)
    sent = {}
    for part, encoded, _ in summing._contributions(run, run.method, params, ids, rnd, public, kept):
        sent |= {client: (update, row) for client, update, row in zip(part.tolist(), kept.updates[-1], encoded, strict=True)}
    return sent


def changed(task: hush.Task, how: str) -> hush.Task:
    """The same task with other data of the victim."""
    train = task.train
    parts = [(train.x[train.owner == i], train.y[train.owner == i]) for i in range(train.count)]
    x, y = parts[VICTIM]
    parts[VICTIM] = {
        "nothing": (x[:0], y[:0]),
        "other": (-100 * x[:4], y[:4]),
        "more": (x.repeat(3, *[1] * (x.dim() - 1)), y.repeat(3)),
    }[how]
    return replace(task, clients=parts)


def differing(a: dict[int, tuple[Tensor, Tensor]], b: dict[int, tuple[Tensor, Tensor]]) -> set[int]:
    return {
        i
        for i in a
        if i in b and not all(torch.equal(p.view(torch.uint8), q.view(torch.uint8)) for p, q in zip(a[i], b[i], strict=True))
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*methods.METHODS, *PARTS])
def test_with_secure_noise_a_row_is_its_clients_own_to_the_last_bit(name: str) -> None:
    method = methods.build(name, **({"k": 5, "cols": 40} if "sketch" in name or name.startswith(("dpsfl", "fetch")) else {}))
    if without_guarantee(method):
        pytest.skip("it has no noise, and no mode of it")
    task = make_task(sizes=SIZES, features=9)
    first = rows(ready(method, task, noise_mode="secure"))
    assert differing(first, rows(ready(method, changed(task, "nothing"), noise_mode="secure"))) == {VICTIM}
    for how in ("other", "more"):
        assert differing(first, rows(ready(method, changed(task, how), noise_mode="secure"))) <= {VICTIM}
    alone = ready(method, task, noise_mode="secure")
    assert differing(first, rows(alone, [3, 8, 15])) == set()


def image_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3))


def frozen_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 3))
    model[0].requires_grad_(False)
    return model


class Looping(nn.Module):
    """What cannot be vectorised trains one client after another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", [image_model, frozen_model, Looping, lambda: nn.Linear(9, 3)])
@pytest.mark.parametrize(
    "settings", [{"local_epochs": 5}, {"local_steps": 1}, {"local_epochs": 6, "momentum": 0.9, "batch_size": 64}]
)
def test_so_it_is_for_every_kind_of_model_and_for_long_training(
    model: Callable[[], nn.Module], settings: dict[str, Any], device: str
) -> None:
    task = make_task(sizes=SIZES, features=9, model=model())
    task = replace(task, clients=hush.Clients(100 * task.train.x, task.train.y, task.train.sizes))
    method = methods.dp_fedavg(lr=0.05, **settings)
    how: dict[str, Any] = {"secure_sum": SecureSum(), "device": device}
    first = rows(ready(method, task, **how))
    for change in ("nothing", "other", "more"):
        assert differing(first, rows(ready(method, changed(task, change), **how))) <= {VICTIM}


def channels_last(x: Tensor) -> Tensor:
    """The same values, laid out with the channels next to each other; with a single channel by its strides alone."""
    _, channels, height, width = x.shape
    return torch.empty_strided(x.shape, (channels * height * width, 1, width * channels, channels)).copy_(x)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("frozen", [False, True])
def test_how_one_clients_images_lie_in_memory_changes_nothing_for_others(channels: int, frozen: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(16 * 36, 3))
    model[0].requires_grad_(not frozen)
    plain = [(torch.randn(n, channels, 8, 8), torch.arange(n) % 3) for n in SIZES]
    last = [(channels_last(x), y) for x, y in plain]

    def sent(parts: list[tuple[Tensor, Tensor]]) -> dict[int, tuple[Tensor, Tensor]]:
        method = methods.dp_fedavg(lr=0.1, local_epochs=3)
        return rows(ready(method, hush.Task(model, parts), noise_mode="secure"))

    for parts, others in ((plain, last), (last, plain)):
        first, (x, y) = sent(parts), others[VICTIM]
        for own, differ in (((x, y), set()), ((x[:0], y[:0]), {VICTIM}), ((torch.zeros(0, *x.shape[1:]), y[:0]), {VICTIM})):
            assert differing(first, sent([own if i == VICTIM else part for i, part in enumerate(parts)])) == differ


@pytest.mark.filterwarnings("ignore")
def test_how_much_a_client_has_does_not_decide_how_frozen_layers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(sizes=SIZES, features=9, model=frozen_model())
    monkeypatch.setattr(frozen, "_MOST", 4 * 40 * sum(SIZES))  # as many as there are, and none more
    first, more = (ready(methods.dp_fedavg(), t, noise_mode="secure") for t in (task, changed(task, "more")))
    assert [run.data.learner.whole is not None for run in (first, more)] == [True, True]
    assert differing(rows(first), rows(more)) <= {VICTIM}
    with monkeypatch.context() as patch:
        patch.setattr(frozen, "_FEW", 39)
        wide = [ready(methods.dp_fedavg(), t, noise_mode="secure") for t in (task, changed(task, "nothing"))]
    assert [run.data.learner.whole for run in wide] == [None, None]
    fast = [ready(methods.dp_fedavg(), t, noise_mode="fast").data.learner.whole is not None for t in (task, changed(task, "more"))]
    assert fast == [True, False]  # where memory alone counts


def test_how_many_threads_share_a_product_does_not_follow_from_who_is_there() -> None:
    """A lone pass had all threads of the machine, two passes one each: last bits then told whether somebody else took part."""
    drawn = torch.Generator().manual_seed(1)
    parts = [(torch.randn(8, 3, 32, 32, generator=drawn), torch.randint(0, 10, (8,), generator=drawn)) for _ in range(2)]
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 256, 64), nn.ReLU()
    task = hush.Task(nn.Sequential(*layers, nn.Linear(64, 10)), parts)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = ready(methods.dp_fedavg(lr=0.1, batch_size=16, local_epochs=3), task, noise_mode="secure")
        assert run.chunk == 1
        both, alone = rows(run), rows(run, [0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(both[0][1], alone[0][1])


def test_without_slots_shapes_follow_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an attacker used: where shapes change with a neighbour's data, so do last bits, and long training makes them large."""
    task = make_task(sizes=SIZES, features=9, model=nn.Linear(9, 3))
    task = replace(task, clients=hush.Clients(100 * task.train.x, task.train.y, task.train.sizes))
    method, right = methods.dp_fedavg(lr=0.01, local_epochs=50), FlatModel.gradients
    seen: set[tuple[int, ...]] = set()
    monkeypatch.setattr(FlatModel, "gradients", lambda self, params, x, *more: seen.add(x.shape) or right(self, params, x, *more))
    shapes, sent = {}, {}
    for mode in ("fast", "secure"):
        for how in ("", "nothing"):
            run = ready(method, changed(task, how) if how else task, noise_mode=mode)
            seen.clear()
            sent[mode, how], shapes[mode, how] = rows(run), set(seen)
    assert shapes["fast", ""] != shapes["fast", "nothing"]
    assert shapes["secure", ""] == shapes["secure", "nothing"]
    assert {shape[0] for shape in shapes["secure", ""]} == {8, 2}  # slots; a trial of two clients together
    assert differing(sent["secure", ""], sent["secure", "nothing"]) == {VICTIM}


@pytest.mark.filterwarnings("ignore")
def test_slots_hold_more_clients_than_there_are_slots() -> None:
    """Every client once, whatever their numbers; and the same sum as without slots, up to rounding to the grid."""
    task, method = make_task(sizes=SIZES, features=9), methods.dp_fedavg(lr=0.05)
    for chunk in (1, 3, 8, 64):
        run = ready(method, task, noise_mode="secure", chunk=chunk)
        assert run.chunk == chunk
        found = rows(run)
        assert sorted(found) == list(range(len(SIZES)))
        plain = rows(ready(method, task, noise_mode="fast"))
        assert all(torch.allclose(found[i][0], plain[i][0], atol=1e-5) for i in found)


@dataclass(frozen=True)
class Leaning(Sgd):
    """Local training in which a neighbour shows in the last bit: too little for a trial with a tolerance."""

    def __call__(self, learner: FlatModel, params: Tensor, data: Shard, rnd: Round, keys: Tensor, public: Public) -> Trained:
        trained = super().__call__(learner, params, data, rnd, keys, public)
        more = 1 + 2.0**-22 * bool((data.size > 0).sum() > 1)
        return trained._replace(updates=trained.updates * more)


def test_a_row_that_leans_on_a_neighbour_by_a_bit_is_refused_where_noise_is_secure() -> None:
    private = methods.dp_fedavg(noise=1.0, clip=1e3)
    method = replace(private, local=Leaning())
    task = make_task(sizes=SIZES)
    hush.simulate(method, task, rounds=1, cohort=hush.FixedSize(len(SIZES)))  # by rounding alone, which fast noise excludes
    with pytest.raises(NoGuarantee, match="who trains beside it"):
        hush.simulate(method, task, rounds=1, cohort=hush.FixedSize(len(SIZES)), noise_mode="secure")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*methods.METHODS, "dp-fedavg+lus", "dp-fedavg+sketch"])
@pytest.mark.parametrize("how", [{}, {"noise_mode": "secure"}, {"secure_sum": SecureSum()}], ids=["fast", "secure", "summed"])
def test_a_client_without_data_adds_a_row_of_zeros_before_noise(name: str, how: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"k": 5, "cols": 40} if "sketch" in name or name.startswith(("dpsfl", "fetch")) else {}
    if "clip_quantile" in methods.settings_of(name):
        settings["clip_quantile"] = 0.5
    method = methods.build(name, **settings)
    if how and (without_guarantee(method) or ("secure_sum" in how and name in ("fed-spa", "dp-fed", "cpfed", "dp-sgd", "cpsgd"))):
        pytest.skip("it has no such mode")
    task = changed(make_task(sizes=SIZES, features=9), "nothing")
    run = ready(method, task, cohort=hush.Rotation(task.train.count), **how)
    quiet = [part for part in run.method.pipeline.parts if type(part).cover is hush.Transform.cover]
    local = run.method.local
    if hasattr(local, "noise"):
        local = replace(local, noise=0.0)
    method = replace(run.method, local=local, pipeline=hush.chain(*quiet))
    silent = replace(run, method=method, privacy=replace(run.privacy, plan=None))
    sent = rows(silent)
    assert not bool(sent[VICTIM][1].any())
    assert all(bool(row.any()) for i, (_, row) in sent.items() if i != VICTIM)
