from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hush
from hush import Round, UsageError, Wire, chain
from hush.core import Bound, Server
from hush.local import Sgd
from hush.secret import Secret
from hush.tasks.task import Examples, whole
from hush.transforms import Gaussian
from hush.transforms.votes import Ballot, Votes, nearest_shares
from tests.conftest import make_task

SECRET = Secret(b"k" * 32)
RND = Round(0, 9, 4.0)
TRAINING = Sgd(lr=0.5, batch_size=4, epochs=20)


def staged(queries: int = 20, **more: object) -> tuple[Votes, Ballot]:
    """Votes on the small task's 20 public examples of 3 classes, and what a round asks."""
    task = make_task(**more)  # type: ignore[arg-type]
    learner, public = task.learner(), task.placed("public", "cpu", torch.float32)
    assert public is not None
    votes = Votes(TRAINING, queries).fitted(len(public.x), 3)
    return votes, votes.prepare(learner.initial(), votes.init(learner.dim), RND, Server(learner, whole(public)))


def test_votes_by_hand() -> None:
    """A linear model without bias: weights [[a, b], [c, d]] answer x = (1, 0) with (a, c) and (0, 1) with (b, d)."""
    model = nn.Linear(2, 2, bias=False)
    x = torch.eye(2)
    task = hush.Task(model=model, clients=[(x, torch.tensor([0, 1]))], public=(x, torch.tensor([0, 1])))
    learner, votes = task.learner(), Votes(TRAINING).fitted(2, 2)
    params = torch.tensor([1.0, 2.0, 3.0, 4.0])
    ballot = votes.prepare(params, votes.init(4), RND, Server(learner, whole(Examples(x, torch.zeros(2)))))
    models = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [5.0, 5.0, 0.0, 0.0]])
    sent = votes.encode(params - models, RND, torch.arange(3), ballot)
    assert sent.tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0]]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-6, 1e6), st.sampled_from([torch.float32, torch.float64]), st.integers(1, 20))
def test_every_row_is_one_hot_and_as_long_as_the_bound(seed: int, size: float, dtype: torch.dtype, queries: int) -> None:
    votes, ballot = staged(queries)
    x = torch.randn(5, len(ballot.params), generator=torch.Generator().manual_seed(seed)).to(dtype) * size
    sent = votes.encode(x, RND, torch.arange(5), ballot)
    assert sent.dtype == dtype
    assert sent.shape == (5, votes.wire(Wire(x.shape[1])).entries)
    rows = sent.reshape(5, queries, 3)
    assert bool(((rows == 0) | (rows == 1)).all())
    assert bool((rows.sum(2) == 1).all())
    assert sent.double().square().sum(1).tolist() == [queries] * 5
    assert votes.bound(Bound()).l2 == math.sqrt(queries)


def test_a_client_votes_the_same_alone_and_in_a_cohort() -> None:
    votes, ballot = staged()
    x = torch.randn(6, len(ballot.params), generator=torch.Generator().manual_seed(0))
    together = votes.encode(x, RND, torch.arange(6), ballot)
    alone = [votes.encode(x[i : i + 1], RND, torch.arange(1), ballot)[0] for i in range(6)]
    assert torch.equal(torch.stack(alone), together)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_broken_model_votes_for_nothing_and_harms_nobody(value: float) -> None:
    votes, ballot = staged()
    x = torch.zeros(3, len(ballot.params))
    x[1] = value
    sent = votes.encode(x, RND, torch.arange(3), ballot)
    assert float(sent[1].abs().sum()) == 0
    assert sent[0].sum() == sent[2].sum() == 20


def test_the_labels_of_public_examples_are_never_read() -> None:
    """A whole round but its noise, which depends on a digest of all data, with the true labels and with garbage."""
    task = make_task()
    public, learner = task.placed("public", "cpu", torch.float32), task.learner()
    assert public is not None
    votes, updates = Votes(TRAINING, 20, 3), []
    for labels in (public.y, (public.y + 1) % 3, torch.full((20, 7), math.nan)):
        ballot = votes.prepare(learner.initial(), votes.init(1), RND, Server(learner, whole(Examples(public.x, labels))))
        sent = votes.encode(torch.ones(4, learner.dim), RND, torch.arange(4), ballot)
        updates.append(votes.decode(sent.sum(0), votes.init(1), RND, ballot, SECRET)[0])
    assert torch.equal(updates[0], updates[1])
    assert torch.equal(updates[0], updates[2])


def test_without_noise_the_server_learns_the_majority() -> None:
    _, ballot = staged()
    truth = torch.arange(20) % 2  # what most say, on which a model can agree with every example by heart
    others = (truth + 1) % 3
    counts = 30.0 * nn.functional.one_hot(truth, 3) + 5.0 * nn.functional.one_hot(others, 3)
    rich = Votes(Sgd(lr=1.0, batch_size=20, epochs=600), 20, 3)
    update, _ = rich.decode(counts.flatten().double(), rich.init(1), Round(0, 9, 35.0), ballot, SECRET)
    learned = ballot.learner.predictions((ballot.params - update / 35.0).float()[None], ballot.x)[0].argmax(1)
    assert float((learned == truth).double().mean()) >= 0.9
    again, _ = rich.decode(counts.flatten().double(), rich.init(1), Round(0, 9, 35.0), ballot, SECRET)
    assert torch.equal(update, again)  # nothing is drawn but from the round's public seed


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 100.0))
def test_nearest_shares(seed: int, size: float) -> None:
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    shares = nearest_shares(x)
    assert bool((shares >= 0).all())
    assert torch.allclose(shares.sum(1), torch.ones(7, dtype=torch.float64))
    assert torch.equal(shares.argmax(1), x.argmax(1))
    others = torch.rand(200, 7, 5, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    others /= others.sum(2, keepdim=True)
    assert bool(((shares - x).norm(dim=1) <= (others - x).norm(dim=2) + 1e-9).all())
    assert nearest_shares(torch.tensor([[0.7, 0.3, 0.0]])).tolist() == [[pytest.approx(0.7), pytest.approx(0.3), 0.0]]


def test_past_counts_are_remembered_and_an_integer_sum_will_do() -> None:
    votes, ballot = staged()
    once = torch.ones(60)
    state = votes.decode(once.long(), votes.init(1), RND, ballot, SECRET)[1]
    state = votes.decode(2 * once, state, RND, ballot, SECRET)[1]
    assert torch.allclose(state["counts"], torch.full((20, 3), 2.8, dtype=torch.float64))
    assert float(state["weight"]) == pytest.approx(1.8)


def test_fitted_takes_what_the_task_has() -> None:
    pipeline = chain(Votes(TRAINING), Gaussian(2.0))
    method = hush.Method("mine", Sgd(), pipeline, hush.server.Average())
    told = method.fitted(150, 7)
    assert told.uplink(10**6).entries == 1050
    assert told.pipeline.parts[1].std == 2 * math.sqrt(150)  # type: ignore[attr-defined]
    assert told.fitted(10**6, 7).uplink(5).entries == 1050  # it only ever asks less
    plain = hush.methods.dp_fedavg()
    assert plain.fitted(150, 7) is plain
    fewer, ballot = staged(queries=8)
    assert (fewer.queries, len(ballot.x)) == (8, 8)


def test_what_cannot_be_voted_on_is_refused() -> None:
    task = make_task()
    learner, public = task.learner(), task.placed("public", "cpu", torch.float32)
    assert public is not None
    server, start = Server(learner, whole(public)), learner.initial()
    with pytest.raises(UsageError, match="the task has 20"):
        Votes(TRAINING, 21, 3).prepare(start, {}, RND, server)
    with pytest.raises(UsageError, match="the task has 0"):
        Votes(TRAINING, 21, 3).prepare(start, {}, RND, Server(learner, None))
    with pytest.raises(UsageError, match="takes a classifier"):
        Votes(TRAINING, 20, 4).prepare(start, {}, RND, server)
    nll = make_task(loss=nn.NLLLoss()).learner()
    with pytest.raises(UsageError, match="use cross-entropy"):
        Votes(TRAINING, 20, 3).prepare(start, {}, RND, Server(nll, whole(public)))
    with pytest.raises(UsageError, match="queries must be"):
        Votes(TRAINING, 0)
    with pytest.raises(UsageError, match="memory must lie"):
        Votes(TRAINING, memory=1.0)


def test_what_travels_down_is_counted_where_it_travels() -> None:
    assert Votes(TRAINING).broadcast(1000) == 0
    assert Votes(TRAINING, 100, bits_per_query=512).broadcast(1000) == 51200
