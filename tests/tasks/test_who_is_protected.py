"""What is used without noise is really nobody's, or is said to be somebody's; and a client's row is that client's alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hush
from hush import Round, UsageError, methods
from hush.local import FlatModel, Sgd
from hush.random import keys_of
from hush.tasks.clients import Clients, Examples
from hush.tasks.deal import deal
from tests.cli.test_cli import hush as command
from tests.conftest import make_task
from tests.tasks.test_deal import raw

F64 = torch.float64


def census(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Few kinds of rows, so that most are met again: nobody was copied."""
    g = torch.Generator().manual_seed(seed)
    x = F.one_hot(torch.randint(0, 3, (rows, 3), generator=g), 3).flatten(1).float()
    return x, x[:, 0].long()


@pytest.mark.parametrize("part", ["test", "validation", "public"])
def test_equal_rows_that_chance_explains_are_nobodys(part: str) -> None:
    x, y = census(400, 0)
    parts = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 400, 10)]
    task = hush.Task(nn.Linear(9, 2), parts, **{part: census(100, 1)})  # type: ignore[arg-type]
    assert hush.simulate(methods.dp_fedavg(noise=1.0), task, rounds=1, cohort=10).epsilon is not None


@pytest.mark.parametrize("part", ["test", "validation", "public"])
@pytest.mark.parametrize("copied", ["one", "half", "one row a thousand times"])
def test_rows_of_clients_are_refused_however_few(part: str, copied: str) -> None:
    task = make_task()
    x, y = task.train.x, task.train.y
    other = torch.randn(21, 6, generator=torch.Generator().manual_seed(9))
    taken = {"one": x[:1], "half": x[:20], "one row a thousand times": x[:1].expand(1000, -1)}[copied]
    held = (torch.cat([taken, other]), torch.zeros(len(taken) + 21, dtype=torch.int64))
    with pytest.raises(UsageError, match=f"{part} examples are among those that clients train on"):
        hush.simulate(
            methods.dp_fedavg(noise=1.0),
            hush.Task(task.model, hush.Clients(x, y, task.train.sizes), **{part: held}),
            rounds=1,
            cohort=2,
        )  # type: ignore[arg-type]


def test_private_methods_run_on_adult_with_its_defaults(real_data: Path) -> None:
    task = hush.load_task("adult", public=400, folder=real_data)
    for method in (methods.dp_fedavg(noise=1.0, local_steps=1), methods.fed_smp_top_k(noise=1.0, local_steps=1, public_steps=2)):
        assert hush.simulate(method, task, rounds=1, cohort=10).epsilon is not None


def test_natural_clients_who_are_taken_out_are_said_to_be_unprotected() -> None:
    dealt = deal(raw(), "natural", None, 15, 12, 0, "central")
    assert dealt.of_clients == ("validation", "public")
    assert any("nothing is proved for them" in line for line in dealt.caveats)
    task = hush.Task(
        nn.Linear(1, 5),
        Clients(dealt.clients.x.float(), dealt.clients.y, dealt.clients.sizes),
        validation=Examples(dealt.validation.x.float(), dealt.validation.y),  # type: ignore[union-attr]
        caveats=dealt.caveats,
        of_clients=dealt.of_clients,
    )
    result = hush.simulate(methods.dp_fedavg(noise=1.0), task, rounds=1, cohort=5)
    assert {"validation_accuracy", "validation_loss", "best_test_accuracy"} <= set(result.un_noised)
    assert result.certificate()["caveats"][:-1] == list(dealt.caveats)  # the last one is of the model's weights
    untouched = deal(raw(), "natural", None, 0, 0, 0, "central")
    assert untouched.of_clients == untouched.caveats == ()


def test_invented_clients_are_said_to_be_invented(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    by_hand = deal(raw(), "iid", 10, 0, 0, 0, "central")
    assert any("by nature are spread over them, and nothing is proved for these" in line for line in by_hand.caveats)
    args = ("--rounds", "1", "--clients", "40", "--cohort", "8", "--noise", "1", "--out", str(tmp_path / "r"))
    assert command(capsys, "run", "dp-fedavg", *args)[0] == 0
    page = (tmp_path / "r" / "certificate.html").read_text()
    assert "the clients are simulated: examples were dealt by &#x27;iid&#x27;" in page
    assert json.loads((tmp_path / "r" / "certificate.json").read_text())["caveats"]
    (tmp_path / "t.csv").write_text("u,y,a\n" + "".join(f"{i % 4},{i % 2},{i}\n" for i in range(40)))
    (tmp_path / "t.toml").write_text('train = "t.csv"\nclient = "u"\ntarget = "y"\nclasses = 2\n')
    code, _, err = command(capsys, "run", "dp-fedavg", "--data", str(tmp_path / "t.toml"), "--partition", "iid", "--clients", "5")
    assert code == 2
    assert "t.toml says who its clients are" in err


def test_a_round_that_clients_picked_is_a_view_of_them() -> None:
    task = make_task()
    own = hush.Task(task.model, task.train, task.test, validation=[(torch.randn(2, 6), torch.zeros(2, dtype=torch.int64))] * 6)
    result = hush.simulate(methods.dp_fedavg(noise=1.0), own, rounds=2, cohort=3)
    assert "best_test_accuracy" in result.un_noised
    assert "test_accuracy" not in result.un_noised


class Looked(nn.Module):
    """Rows of a table by a number that is computed, from inputs that need not be whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(8, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table((x[:, 0] * 2 + x[:, 1]).long()))


def test_an_index_beyond_the_table_never_reads_another_clients_weights() -> None:
    """vmap would look it up in the next client's table: with neighbours and alone, every other client must train the same."""
    learner = FlatModel(Looked(), lambda o, y: F.cross_entropy(o, y, reduction="none"), dtype=F64)
    x = torch.tensor([[0.0, 3.0], [3.0, 1.0], [2.9, 2.9], [1.0, 0.0]], dtype=F64)  # the third client asks for row 8 of 0 to 7
    y = torch.tensor([0, 1, 0, 1])
    clients = hush.Clients(x, y, torch.ones(4, dtype=torch.int64))
    local, rnd, keys = Sgd(lr=0.1, batch_size=1, epochs=2), Round(0, 0, 4.0), keys_of(0, torch.arange(4))
    together = local(learner, learner.initial(), clients.shard(torch.arange(4)), rnd, keys, None).updates
    assert together[2].isnan().any()
    for i in (0, 1, 3):
        alone = local(learner, learner.initial(), clients.shard(torch.tensor([i])), rnd, keys[i : i + 1], None).updates
        assert torch.equal(alone[0], together[i])
        assert together[i].norm() > 0
    result = hush.simulate(methods.dp_fedavg(noise=1.0), hush.Task(Looked(), clients), rounds=2, cohort=4)
    assert result.rounds == 2  # such a client contributes zero, and the others go on


class Centred(nn.Module):
    """A model whose examples affect each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x - x.mean(0))


def test_neighbours_in_a_batch_are_found_where_the_first_examples_are_alike() -> None:
    x = torch.randn(12, 6)
    x[1:4] = x[0]
    task = hush.Task(Centred(), hush.Clients(x, torch.arange(12) % 3, torch.tensor([4, 8])))
    with pytest.warns(UserWarning, match="examples of a batch affect each other"):
        hush.simulate(methods.fedavg(), task, rounds=1, cohort=2)
    x[0] = torch.nan  # nor where the first one is no number
    learner = task.learner()
    with pytest.warns(UserWarning, match="examples of a batch affect each other"):
        learner.probe(x, torch.arange(12) % 3)
    assert not learner.vectorised


@pytest.mark.parametrize("part", ["test", "validation", "public"])
def test_a_client_that_holds_its_rows_twice_does_not_explain_them_elsewhere(part: str) -> None:
    """Equal rows of one client say nothing of how often strangers meet."""
    task = make_task()
    pieces = zip(task.train.x.split(task.train.sizes.tolist()), task.train.y.split(task.train.sizes.tolist()), strict=True)
    twice = [(x.repeat(2, 1), y.repeat(2)) for x, y in pieces]
    held = hush.Task(task.model, twice, **{part: (task.train.x, task.train.y)})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{part} examples are among those that clients train on"):
        hush.simulate(methods.dp_fedavg(noise=1.0), held, rounds=1, cohort=2)
