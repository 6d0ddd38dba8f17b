"""Clients judge the model, in one entry more under the same noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.core import Bound, Round, Transform, chain
from hush.errors import UsageError
from hush.local.scored import Scored
from hush.local.sgd import Sgd
from hush.privacy.plan import plan_of
from hush.random import keys_of
from hush.secret import Secret
from hush.transforms import Clip, Gaussian, Score

RND = Round(0, 0, 4.0)
SECRET = Secret(bytes(32))


def sent(pipeline: Any, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    keys = keys_of(0, torch.arange(len(rows)))
    return pipeline.send(rows, RND, keys, (None,) * len(pipeline.parts), None, None, scores)


@given(
    rows=st.lists(st.lists(st.floats(allow_nan=True, width=32), min_size=3, max_size=3), min_size=1, max_size=4),
    score=st.floats(allow_nan=True, allow_infinity=True, width=32),
    share=st.floats(1e-3, 1.0),
    clip=st.floats(1e-6, 1e6),
)
def test_no_row_outgrows_the_bound(rows: list[list[float]], score: float, share: float, clip: float) -> None:
    pipeline = chain(Clip(clip), Score(share))
    made = sent(pipeline, torch.tensor(rows), torch.full((len(rows),), score))
    assert made.shape == (len(rows), 4)
    assert float(made.double().norm(dim=1).max()) <= pipeline.bound(Bound()).l2


def test_the_bound_is_the_root_of_both_squares_and_the_noise_takes_its_scale_from_it() -> None:
    pipeline = chain(Clip(2.0), Score(0.5), Gaussian(3.0))
    assert pipeline.bound(Bound()).l2 == pytest.approx(math.hypot(2.0, 0.5))  # half of share * clip
    assert pipeline.parts[2].std == pytest.approx(3.0 * math.hypot(2.0, 0.5))  # type: ignore[attr-defined]


def test_the_mean_comes_back_and_the_update_is_untouched() -> None:
    pipeline = chain(Clip(1.0), Score(0.4))
    rows, scores = torch.tensor([[0.1, 0.2], [0.3, 0.0], [0.0, 0.0], [0.0, 0.5]]), torch.tensor([0.0, 1.0, 0.5, 0.9])
    total = sent(pipeline, rows, scores).double().sum(0)
    update, state = pipeline.decode(total, {"1.accuracy": torch.tensor(0.0)}, RND, (None, None), SECRET)
    assert torch.allclose(update, rows.double().sum(0))
    assert float(state["1.accuracy"]) == pytest.approx(0.6, abs=1e-6)


def test_epsilon_is_that_of_the_same_multiplier_without_a_score() -> None:
    with_score, without = (hush.methods.dp_fedavg(noise=1.3, score=share) for share in (0.3, 0.0))
    plans = [plan_of(method, 10, 100, 5) for method in (with_score, without)]
    assert hush.account(plans[0], 1e-3).epsilon == pytest.approx(hush.account(plans[1], 1e-3).epsilon)


def test_an_entry_of_ones_own_beside_the_update_states_its_bound() -> None:
    class Loud(Transform):
        def beside(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return x * 100

    with pytest.raises(UsageError, match="Loud changes the updates and states no bound"):
        chain(Clip(1.0), Loud(), Gaussian(1.0))


def test_nobody_trains_on_what_it_judges_by() -> None:
    x = torch.arange(40.0)[:, None].expand(40, 3).contiguous()
    y = (torch.arange(40) % 2).long()
    task = hush.Task(torch.nn.Linear(3, 2), [(x[:25], y[:25]), (x[25:], y[25:])])
    seen: list[tuple[list[int], list[int]]] = []

    class Watching(Sgd):
        def __call__(self, learner: Any, params: Any, data: Any, rnd: Any, keys: Any, public: Any) -> Any:
            seen.append((data.start.tolist(), data.size.tolist()))
            return super().__call__(learner, params, data, rnd, keys, public)

    learner = task.learner()
    data = task.placed_train("cpu", torch.float32).shard(torch.tensor([0, 1]))
    trained = Scored(Watching(epochs=None, steps=1))(learner, learner.initial(), data, RND, keys_of(0, torch.arange(2)), None)
    assert seen[0] == ([0, 25], [23, 14])  # of 25 and 15 examples the last two, and the last one
    held = [slice(23, 25), slice(39, 40)]
    wanted = [float((learner.predictions(learner.initial()[None], x[h])[0].argmax(1) == y[h]).float().mean()) for h in held]
    assert trained.scores is not None
    assert trained.scores.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("diagnostics", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_what_clients_say_is_near_the_truth(diagnostics: bool) -> None:
    task = hush.load_task("digits", clients=40)
    method = hush.methods.dp_fedavg(noise=0.05, score=1.0, lr=0.5, local_epochs=3)
    result = hush.simulate(method, task, rounds=12, cohort=hush.FixedSize(40), noise_seed=1, diagnostics=diagnostics)
    assert result.validation_accuracy is not None
    assert result.clients_accuracy == pytest.approx(result.validation_accuracy, abs=0.12)
    assert result.history[-1]["clients_accuracy"] == result.clients_accuracy
    assert result.clients_accuracy > 0.6  # not what nobody's word would give, one half


def test_numbers_have_no_right_answers() -> None:
    x = torch.randn(20, 3)
    task = hush.Task(torch.nn.Linear(3, 1), [(x, x[:, :1])], loss=torch.nn.MSELoss())
    with pytest.raises(UsageError, match="no classes"):
        hush.simulate(hush.methods.dp_fedavg(noise=1.0, score=0.5), task, rounds=1, cohort=1)
