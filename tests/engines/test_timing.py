"""What a dry run makes of a few timed steps."""

from __future__ import annotations

import pytest
import torch

from hush.cohort import FixedSize
from hush.engines.timing import Costs, _parts, measured


def test_a_chunk_costs_what_its_clients_and_steps_cost_and_who_has_finished_costs_nothing() -> None:
    def trial(clients: int, steps: int) -> float:  # 10 ms and 1 ms a client; a step 3 ms and 0.5 ms a client
        return 0.010 + 0.001 * clients + steps * (0.003 + 0.0005 * clients)

    costs = measured(trial, most=40, longest=5)
    assert costs.of([5] * 40) == pytest.approx(trial(40, 5))
    assert costs.of([5, 5, 1, 1]) == pytest.approx(0.014 + (0.003 + 0.002) + 4 * (0.003 + 0.001))
    assert costs.of([5]) == pytest.approx(trial(1, 5))


def test_what_takes_long_is_tried_with_two_clients_and_what_makes_one_step_with_one() -> None:
    asked = []

    def trial(clients: int, steps: int) -> float:
        asked.append((clients, steps))
        return 1.0 * clients * steps

    assert measured(trial, most=40, longest=5).of([7] * 10) == pytest.approx(70)
    assert {clients for clients, _ in asked} == {2}
    asked.clear()
    assert measured(trial, most=1, longest=1).of([1]) == pytest.approx(1)
    assert set(asked) == {(1, 1)}


def test_no_cost_is_negative() -> None:
    assert Costs((2, 20), (0.1, 0.05), (0.02, 0.01)).of([3] * 60) > 0
    assert Costs((2, 20), (0.0, 0.05), (0.001, 0.1)).of([3]) >= 0


def test_chunks_are_those_of_a_cohort_of_usual_sizes() -> None:
    steps = torch.tensor([1] * 50 + [10] * 50)
    assert _parts(steps, FixedSize(4), 3, apart=False) == [[10, 10, 1], [1]]
    assert all(part == [10, 10, 10] for part in _parts(steps, FixedSize(4), 3, apart=True))
    assert sum(map(len, _parts(steps, FixedSize(50), 8, apart=True))) >= 50
