"""What was simulated is what a federation trains: the same integers in every sum, the same model to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hush import methods
from hush.engines.federation import SecureRound
from hush.engines.result import Result
from hush.engines.simulation import train
from hush.errors import HushError
from hush.experiment import resolve
from hush.federation import letters
from hush.federation.propose import Rehearsal, ready
from hush.federation.server import RemoteFederation
from hush.methods.parts import COMBINATIONS
from tests.federation.conftest import MakeWorld
from tests.federation.world import World, config_of

NO_NOISE = "{} adds no noise: .* Choose a private method, such as dp-fedavg"
STEPS = "{} makes 2 noisy steps a round.*one step a round"
REFUSED = {
    **dict.fromkeys(("fedavg", "fedavg-rand-k", "fedavg-top-k", "fetchsgd"), NO_NOISE),
    **dict.fromkeys(("fed-spa", "dp-fed", "cpfed"), STEPS),
    "cpsgd": "{} covers every message.*a secure sum would add nothing.*dp-sgd",
    "ae-dpfl": "{}: its clients answer the server's public examples, which do not travel to them. Choose dp-fedavg",
}
"""Why they run in simulation alone, and what to take instead."""
STEPS_OF_ITS_OWN = ("dpsfl", "dpsfl-ac", "dpfl", "adpfl")
TRAVELS = [name for name in methods.METHODS if name not in REFUSED]
PARTS = [
    *(name for name in COMBINATIONS if "blur+lus" in name),
    *("dp-fedavg+adaptive", "dp-fedavg+free-mask", "dp-fedavg+saliency+adam", "dp-fedavg+prox+averaged+momentum"),
    *("dp-fedavg+sketch", "skellam+top-k", "dp-sgd+rand-k+momentum"),
]
RECORDS = {"local_steps": None, "rate": 0.2}
"""Of methods that protect records: nobody knows how many of them clients hold."""


def settings_of(name: str, **more: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"local_steps": None} if name in STEPS_OF_ITS_OWN else {}
    own = RECORDS if name.startswith("dp-sgd") else own
    return {"method": name, "noise_seed": 3, "rounds": 2, "set": own} | more


class Sums:
    """Every sum that was opened, on either path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.simulated: list[torch.Tensor] = []
        self.federated: list[torch.Tensor] = []
        opened, summed = SecureRound.open, RemoteFederation.sum_of

        def open_(one: SecureRound) -> torch.Tensor:
            self.simulated.append(opened(one))
            return self.simulated[-1]

        def sum_of(one: RemoteFederation, *given: Any) -> Any:
            told = summed(one, *given)
            assert told.total is not None
            self.federated.append(told.total)
            return told

        monkeypatch.setattr(SecureRound, "open", open_)
        monkeypatch.setattr(RemoteFederation, "sum_of", sum_of)


def simulated(world: World) -> Result:
    """The same run with every client in this process, one after the other."""
    asked = config_of(**world.config)
    usual = {"cohort": float(world.clients)} if asked.cohort is None else {}
    told = replace(asked, secure=True, clients=world.clients, sampling=asked.sampling or "rotation", chunk=1, **usual)
    experiment = resolve(told)
    return train(experiment.set_up(experiment.task(None)))


def agree(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Sums(monkeypatch)
    here, there = simulated(world), world.train()
    assert len(sums.federated) == world.proposal.run.rounds
    for one, other in zip(sums.simulated, sums.federated, strict=True):
        assert one.dtype == other.dtype == torch.int64
        assert torch.equal(one, other)
        assert one.count_nonzero()
    assert here.state_dict.keys() == there.state_dict.keys()
    assert all(torch.equal(value, there.state_dict[key]) for key, value in here.state_dict.items())
    assert here.test_accuracy == there.test_accuracy


@pytest.mark.parametrize("name", TRAVELS + PARTS)
def test_a_method_trains_the_same_model_on_real_clients(name: str, world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(world(**settings_of(name)), monkeypatch)


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_that_cannot_travel_says_why(name: str, world: MakeWorld) -> None:
    """Where it is proposed, and not in its first round."""
    noise = {"noise": None} if name in ("fedavg", "fedavg-rand-k", "fedavg-top-k", "fetchsgd", "cpsgd") else {}
    own = {"set": {"local_steps": None}} if name in ("cpsgd", "fetchsgd") else {}
    with pytest.raises(HushError, match=REFUSED[name].format(name)):
        world(**settings_of(name, **noise, **own)).ready()


def test_a_client_refuses_by_itself_what_needs_examples_that_it_does_not_have(world: MakeWorld) -> None:
    made = world(noise_seed=1)
    other = replace(made.proposal, run=replace(made.proposal.run, method="ae-dpfl", set={"noise": 1.0}))
    answer = made.propose(0, other.to_json())
    assert answer.head["kind"] == "refused"
    assert "public examples, which do not travel" in answer.head["why"]


def test_a_rehearsal_finds_what_the_server_would_refuse_and_asks_nobody(world: MakeWorld) -> None:
    made = world()
    _, nobody = ready(made.proposal, made.task, False, Rehearsal)
    assert nobody.terms == made.ready()[1].terms
    assert not made.post.log
    with pytest.raises(HushError, match="The model has 4,810 parameters here"):
        ready(replace(made.proposal, parameters=made.proposal.parameters + 1), made.task, False, Rehearsal)


@pytest.mark.parametrize(
    ("clients", "how"),
    [
        (7, {"cohort": 4.0, "rounds": 5}),
        (4, {"sampling": "secret", "cohort": 2.0, "rounds": 4}),
        (5, {"tolerate": 0.2, "threat": "malicious"}),
        (4, {"sum_bits": 20}),
        (4, {"dtype": "float64", "seed": 5}),
    ],
    ids=str,
)
def test_whoever_takes_part_it_is_the_same_model(
    clients: int, how: dict[str, Any], world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(world(clients=clients, **settings_of("dp-fedavg", **how)), monkeypatch)


def test_in_a_rotation_a_client_is_asked_for_its_own_turns_alone(world: MakeWorld) -> None:
    made = world(clients=6, cohort=3.0, rounds=4, noise_seed=1)
    made.train()
    assert [made.diary(number)[1] for number in range(6)] == [2] * 6


def test_under_secret_participation_everybody_sends_and_nobody_sees_whose_data_are_in_it(world: MakeWorld) -> None:
    """Whatever their coins say: as often, and as much."""
    made = world(sampling="secret", cohort=2.0, rounds=3, noise_seed=1)
    made.train()
    assert [made.diary(number)[1] for number in range(4)] == [3] * 4
    vectors = [
        letters.read(answer, made.members[sent.number].key).pieces[0]
        for sent, answer in made.post.log
        if sent.letter.head.get("broadcast")
    ]
    assert len(vectors) == 12
    assert len({len(vector) for vector in vectors}) == 1
