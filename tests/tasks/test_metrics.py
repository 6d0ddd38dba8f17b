"""Metrics against their definitions, written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hush
from hush import UsageError
from hush.tasks.metrics import METRICS, auc, macro_f1, mae, named, perplexity, rmse
from tests.conftest import make_task


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_is_how_often_a_member_is_ahead(rows: list[tuple[int, bool]]) -> None:
    scores, member = torch.tensor([float(s) for s, _ in rows]), torch.tensor([int(m) for _, m in rows])
    inside, outside = scores[member == 1], scores[member == 0]
    if not len(inside) or not len(outside):
        assert math.isnan(auc(scores, member))
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in inside.tolist() for b in outside.tolist()]
    expected = sum(pairs) / len(pairs)
    assert auc(scores, member) == pytest.approx(expected)
    two = torch.stack([torch.zeros(len(scores)), scores], 1)
    assert auc(two, member) == pytest.approx(expected)
    assert auc(scores[:, None], member) == pytest.approx(expected)


def test_auc_of_several_classes_is_the_mean_of_one_against_the_rest() -> None:
    outputs = torch.tensor([[2.0, 1, 0], [0, 3, 0], [1, 0, 1], [0, 2, 2], [5, 0, 0]])
    targets = torch.tensor([0, 1, 2, 2, 0])
    share = outputs.double().softmax(1)
    expected = [auc(share[:, c], (targets == c).long()) for c in range(3)]
    assert auc(outputs, targets) == pytest.approx(sum(expected) / 3)
    assert auc(outputs, torch.tensor([0, 1, 0, 1, 0])) == pytest.approx(
        (auc(share[:, 0], torch.tensor([1, 0, 1, 0, 1])) + auc(share[:, 1], torch.tensor([0, 1, 0, 1, 0]))) / 2
    )  # a class that does not occur has no curve


def test_macro_f1_by_hand() -> None:
    targets = torch.tensor([0, 0, 0, 1, 1, 2])
    answers = torch.tensor([0, 0, 1, 1, 0, 0])
    outputs = nn.functional.one_hot(answers, 4).float()
    # class 0: precision 2/4, recall 2/3; class 1: 1/2 and 1/2; class 2: never right; class 3 does not occur
    assert macro_f1(outputs, targets) == pytest.approx((2 * (0.5 * 2 / 3) / (0.5 + 2 / 3) + 0.5 + 0.0) / 3)
    assert macro_f1(torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1, 0, 0])) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_perplexity_counts_tokens_and_not_padding() -> None:
    even = torch.zeros(3, 7, 4)  # seven tokens, all alike
    assert perplexity(even, torch.zeros(3, 4, dtype=torch.int64)) == pytest.approx(7.0)
    padded = torch.zeros(3, 4, dtype=torch.int64)
    padded[0, 1:] = -100
    even[0, 3, 1:] = 50.0  # what is said of padding does not count
    assert perplexity(even, padded) == pytest.approx(7.0)


def test_errors_of_a_regression() -> None:
    outputs, targets = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([1.0, 1.0, 1.0])
    assert rmse(outputs, targets) == pytest.approx(math.sqrt(20 / 3))
    assert mae(outputs, targets) == pytest.approx(2.0)
    with pytest.raises(UsageError, match="no difference"):
        rmse(torch.zeros(3, 2), targets)


def test_metrics_by_name_or_function() -> None:
    def share_of_ones(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((targets == 1).double().mean())

    assert list(named(("auc", "macro-f1", share_of_ones))) == ["auc", "macro_f1", "share_of_ones"]
    assert named({"mine": share_of_ones}) == {"mine": share_of_ones}
    assert named("auc") == {"auc": METRICS["auc"]}
    with pytest.raises(UsageError, match="did you mean 'rmse'"):
        make_task(metrics=("rsme",))
    with pytest.raises(UsageError, match="a name or a function"):
        named((3,))  # type: ignore[arg-type]
    task = make_task(metrics=("macro_f1", share_of_ones))
    result = hush.simulate(hush.methods.fedavg(), task, rounds=2, cohort=4)
    assert set(result.test_metrics) == {"macro_f1", "share_of_ones"} == set(result.validation_metrics)
    assert result.test_metrics["share_of_ones"] == float((task.test.y == 1).double().mean())  # type: ignore[union-attr]
    assert set(result.history[-1]["validation_metrics"]) == {"macro_f1", "share_of_ones"}


def test_a_figure_that_is_not_defined_is_null() -> None:
    task = make_task(classes=2, metrics=("auc",))
    alone = (task.test.x, torch.zeros_like(task.test.y))  # type: ignore[union-attr]
    task = make_task(classes=2, metrics=("auc",), test=alone)
    assert hush.simulate(hush.methods.fedavg(), task, rounds=1, cohort=4).test_metrics == {"auc": None}


def test_regression_is_judged_by_its_error() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = (x @ torch.tensor([1.0, -2.0, 0.5]))[:, None]
    task = hush.Task(nn.Linear(3, 1), [(x[i : i + 6], y[i : i + 6]) for i in range(0, 60, 6)], (x, y), loss=nn.MSELoss())
    result = hush.simulate(hush.methods.fedavg(lr=0.1), task, rounds=30, cohort=10)
    assert result.test_metrics["rmse"] == pytest.approx(math.sqrt(result.test_loss))  # type: ignore[arg-type]
    assert "root mean square error" in result.sentence()


class EveryToken(nn.Module):
    """Logits for the token after each of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.long()).movedim(-1, 1)


@pytest.mark.parametrize("padding", [-100, 4, -1])
def test_next_token_tasks_ignore_padding(padding: int) -> None:
    """The loss, the gradient, accuracy and perplexity are those of the texts without their padding."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 4, (6, 8), generator=g)
    y = torch.roll(x, -1, 1)
    cut = y.clone()
    cut[:, 5:] = padding
    loss = nn.CrossEntropyLoss(ignore_index=padding) if padding != -100 else None
    clients = hush.Clients(x, cut, torch.tensor([4, 2]))
    torch.manual_seed(0)
    model = EveryToken()
    padded = hush.Task(model, clients, (x, cut), loss=loss, metrics=("perplexity",))
    short = hush.Task(model, hush.Clients(x[:, :5], y[:, :5], torch.tensor([4, 2])), (x[:, :5], y[:, :5]), metrics=("perplexity",))
    ours, plain = (hush.simulate(hush.methods.fedavg(lr=0.5), task, rounds=3, cohort=2) for task in (padded, short))
    for key in ("test_loss", "test_accuracy", "train_loss"):
        assert getattr(ours, key) == pytest.approx(getattr(plain, key), rel=1e-5)
    assert ours.test_metrics["perplexity"] == pytest.approx(plain.test_metrics["perplexity"], rel=1e-5)
    assert ours.test_metrics["perplexity"] == pytest.approx(math.exp(plain.test_loss), rel=1e-5)  # type: ignore[arg-type]
