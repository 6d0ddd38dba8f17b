"""Consent: what a client is told, what its policy says, and what it refuses whoever asks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hush.cli.client import Asked
from hush.errors import HushError, UsageError
from hush.federation import letters
from hush.federation import proposal as proposal_module
from hush.federation.consent import Policy, words
from hush.federation.data import Held
from hush.federation.diary import Before
from hush.federation.folders import ClientFolder, ServerFolder
from hush.federation.member import Member
from hush.federation.members import Card, Members
from hush.federation.proposal import Agreement, Examples, Proposal, agree
from hush.privacy.guarantee import at_least
from hush.secagg.identity import Identity
from hush.tasks.columns import Columns
from tests.federation.conftest import MakeWorld
from tests.federation.world import Clock, World, changed

OWN = """
from hush.methods import dp_fedavg, method

@method("mine", dp_fedavg.settings)
def mine(s):
    "A method of one's own."
    return dp_fedavg.make(s)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Nobody changes it: each test makes members of its own."""
    return World(place=tmp_path_factory.mktemp("consent") / "world", clock=Clock(), config={"rounds": 3})


@pytest.fixture(scope="module")
def told(made: World) -> Agreement:
    return agree(made.proposal)


# -- the policy --------------------------------------------------------------------------------------------------------------------


def test_what_is_inside_a_policy_is_agreed_to(told: Agreement) -> None:
    assert Policy(roster=told.proposal.members.fingerprint).objection(told) is None


def test_a_policy_without_a_roster_agrees_to_nothing(told: Agreement) -> None:
    """A server that may invent clients can surround one."""
    assert "names no roster" in str(Policy().objection(told))


def test_all_runs_together_cost_what_one_may_unless_it_is_said(told: Agreement) -> None:
    assert told.proof is not None
    assert told.proof.server is not None
    epsilon, roster = told.proof.server.epsilon, told.proposal.members.fingerprint
    own = Policy(epsilon=1.5 * epsilon, roster=roster)
    assert own.objection(told, Before(0.4 * epsilon)) is None
    assert "epsilon in all runs" in str(own.objection(told, Before(0.6 * epsilon)))
    assert replace(own, epsilon_in_all=9 * epsilon).objection(told, Before(7.9 * epsilon)) is None


def test_runs_that_cost_hardly_any_epsilon_cost_their_delta(told: Agreement) -> None:
    """Two thousand runs of epsilon 0 at delta 0.01 are not private at all."""
    assert told.proof is not None
    assert told.proof.server is not None
    delta, roster = told.proof.server.delta, told.proposal.members.fingerprint
    own = Policy(delta=2 * delta, roster=roster)
    assert own.objection(told, Before(0.0, delta)) is None
    assert "delta in all runs" in str(own.objection(told, Before(0.0, 1.1 * delta)))
    more = replace(own, delta_in_all=10 * delta)
    assert more.objection(told, Before(0.0, math.fsum([delta] * 9))) is None
    assert "delta in all runs" in str(more.objection(told, Before(0.0, math.fsum([delta] * 10))))


def around(told: Agreement) -> dict[str, tuple[Any, Any, str]]:
    """For each key a value that allows this run, one that does not, and a word of the objection."""
    assert told.proof is not None
    assert told.proof.server is not None
    epsilon, roster = told.proof.server.epsilon, told.proposal.members.fingerprint
    return {
        "epsilon": (epsilon, epsilon * 0.999, "epsilon would be"),
        "delta": (told.proof.server.delta, told.proof.server.delta * 0.999, "delta would be"),
        "methods": (("skellam", "dp-fedavg"), ("skellam",), "the method would be dp-fedavg"),
        "smallest_cohort": (4, 5, "the number of clients in a sum would be 4, and 5 is the least"),
        "epsilon_in_all": (epsilon, epsilon * 0.999, "epsilon in all runs would be"),
        "delta_in_all": (told.proof.server.delta, told.proof.server.delta * 0.999, "delta in all runs would be"),
        "corrupted": (0.1, 0.11, "may help the server would be 0.1"),
        "participations": (3, 2, "sums that this client is in would be 3"),
        "parameters": (4_810, 4_809, "the number of parameters would be 4,810, and 4,809 is the most"),
        "steps": (2, 1, "the steps of a round's training would be 2, and 1 is the most"),
        "rounds": (3, 2, "rounds would be 3"),
        "features": (("x", "z"), ("z",), "a column that is read would be x"),
        "target": ("y", "income", "the target would be y"),
        "threat": ("curious", "malicious", "threat that the sum is safe from would be curious"),
        "roster": (roster, roster[::-1], "fingerprint would be"),
    }


def test_every_key_of_a_policy_says_yes_on_one_side_and_no_on_the_other(told: Agreement, tmp_path: Path) -> None:
    cases = around(told)
    assert {*cases, "unproved", "passes", "person"} == set(Policy.__dataclass_fields__)
    known = {"roster": told.proposal.members.fingerprint, "target": "y"}
    path = tmp_path / "policy.toml"
    for key, (inside, outside, why) in cases.items():
        for value, objects in ((inside, False), (outside, True)):
            path.write_text("".join(f"{name} = {json.dumps(said)}\n" for name, said in (known | {key: value}).items()))
            objection = Policy.read(path).objection(told)
            assert (objection is not None) == objects, key
            assert objection is None or why in objection


def test_a_run_without_a_proof_is_objected_to_whatever_else_it_is(made: World) -> None:
    for change in ({"noise_seed": 3}, {"noise": 0.0, "set": dict(made.proposal.run.set) | {"noise": 0.0}}):
        try:
            told = agree(changed(made.proposal, **change))
        except HushError:
            continue
        assert "nothing is proved against the server" in str(Policy(epsilon=1e9).objection(told))


def test_a_table_of_which_all_columns_are_read_needs_a_policy_that_names_none(made: World, told: Agreement) -> None:
    everything = replace(told, proposal=replace(made.proposal, examples=replace(made.proposal.examples, features=None)))
    roster = everything.proposal.members.fingerprint
    assert Policy(roster=roster).objection(everything) is None
    assert "(all columns)" in str(Policy(features=("x",), target="y", roster=roster).objection(everything))


def test_passes_over_rows_are_limited_where_no_number_of_steps_is(made: World) -> None:
    roster = made.proposal.members.fingerprint

    def with_(**own: Any) -> Agreement:
        told = dict(made.proposal.run.set) | {"local_steps": None} | own
        return agree(changed(made.proposal, set={key: value for key, value in told.items() if value is not None}))

    for own, words_, objects in (
        ({"local_epochs": 5}, "5 passes over your rows.", False),
        ({"local_epochs": 1}, "1 pass over your rows.", False),
        ({"local_epochs": 6}, "6 passes over your rows.", True),
        ({"local_epochs": 10**9, "batch_size": 2**31 - 1}, "1,000,000,000 passes over your rows.", True),
        ({"local_epochs": 10**9, "max_local_steps": 20}, "for 20 steps.", False),
        ({"local_epochs": 6, "max_local_steps": 21}, "6 passes over your rows, 21 steps at most.", True),
        ({"local_steps": 10**9}, "1,000,000,000 steps.", True),
    ):
        told = with_(**own)
        assert any(words_ in line for line in words(told, 0))
        objection = Policy(roster=roster, steps=20, passes=5).objection(told)
        assert (objection is not None) == objects, own
        assert Policy(roster=roster).objection(told) is None or "1,000,000,000" in str(objection)


def test_a_message_of_many_more_numbers_than_the_model_is_objected_to(told: Agreement) -> None:
    """A sketch may be as large as a server likes."""
    most = Policy(roster=told.proposal.members.fingerprint, parameters=told.proposal.parameters)
    large = replace(told, terms=replace(told.terms, entries=2 * told.proposal.parameters + 1))
    assert most.objection(told) is None
    assert "the numbers in a message would be 9,621, and 9,620 is the most" in str(most.objection(large))


def test_the_smallest_sum_is_one_of_those_who_are_still_there(world: MakeWorld) -> None:
    """Of ten clients of whom half may vanish, sums of five are opened."""
    told = agree(world(clients=10, rounds=1, noise=20.0, tolerate=0.5).proposal)
    policy = Policy(roster=told.proposal.members.fingerprint)
    assert replace(policy, smallest_cohort=5).objection(told) is None
    assert "clients in a sum would be 5, and 6 is the least" in str(replace(policy, smallest_cohort=6).objection(told))


def test_a_policy_that_names_features_names_the_target(tmp_path: Path) -> None:
    """Or a server has any other column learned."""
    path = tmp_path / "policy.toml"
    path.write_text('features = ["x"]\n')
    with pytest.raises(HushError, match=r"policy\.toml: .* names the target, too"):
        Policy.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "epsilon = 'ten'",
        "epsilon = true",
        "methods = 'dp-fedavg'",
        "rounds = 2.5",
        "target = 3",
        "epsilom = 3",
        "epsilon = ",
        "[a]\nb=1",
    ],
)
def test_a_policy_that_cannot_be_meant_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(HushError, match=r"policy\.toml"):
        Policy.read(path)


@pytest.mark.parametrize("text", ["epsilon = nan", "threat = 'malicous'", "methods = [1]"])
def test_a_policy_that_limits_nothing_by_mistake_is_refused(text: str, tmp_path: Path) -> None:
    """No number is greater than nan, and only one word means anything as a threat."""
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(HushError, match=r"policy\.toml"):
        Policy.read(path)


# -- words -------------------------------------------------------------------------------------------------------------------------


def test_a_client_reads_what_it_says_yes_to(made: World, told: Agreement) -> None:
    said = "\n".join(words(told, 2))
    assert told.proof is not None
    assert told.proof.server is not None
    server = told.proof.server
    assert f"epsilon {at_least(server.epsilon)} at delta {at_least(server.delta, 2)}" in said
    assert "in at most 3 sums, of at least 4 clients each" in said
    assert f"the fingerprint {made.proposal.members.fingerprint}, has 4 clients: client-0, client-1, client-2, client-3" in said
    assert "You are client-2." in said
    assert "dp-fedavg trains" in said
    assert f"({made.proposal.parameters:,} parameters) in 3 rounds" in said
    assert "Protected is" in said
    assert "learned: y" in said
    assert "Assumed: " in said


def test_where_nothing_is_proved_the_words_shout_it(made: World) -> None:
    said = "\n".join(words(agree(changed(made.proposal, noise_seed=1)), 0))
    assert "NOTHING IS PROVED" in said
    assert "epsilon" not in said


# -- what a client refuses ---------------------------------------------------------------------------------------------------------


def asked(world: World, proposal: Proposal | str, decide: Any = None, number: int = 0) -> tuple[letters.Letter, list[Agreement]]:
    """A client's answer to a proposal, and what it was asked to decide."""
    seen: list[Agreement] = []

    def decided(told: Agreement, me: int, before: Before) -> Any:
        if not before.agreed:
            seen.append(told)
        return True if decide is None or before.agreed else decide

    world.members[number] = world.member(number, decide=decided)
    text = proposal if isinstance(proposal, str) else proposal.to_json()
    return world.propose(number, text), seen


def refuses(world: World, proposal: Proposal | str, why: str) -> None:
    """It says no with a sentence, asks nobody, and remembers nothing."""
    answer, seen = asked(world, proposal)
    assert answer.head["kind"] == "refused"
    assert why in answer.head["why"]
    assert not answer.pieces
    assert not seen
    assert any(why in line for line in world.heard), "both sides are told"


def test_another_servers_key_is_refused(made: World) -> None:
    other = Members(Identity.generate().public, made.proposal.members.cards)
    refuses(made, replace(made.proposal, members=other), "another server than the one that invited")


def test_a_roster_without_this_client_is_refused(made: World) -> None:
    others = made.proposal.members.cards[1:]
    stranger = Card("client-9", Identity.generate().public, "", made.proposal.members.server)
    refuses(made, replace(made.proposal, members=Members(made.proposal.members.server, (*others, stranger))), "not in the roster")


def test_another_version_is_refused(made: World) -> None:
    refuses(made, replace(made.proposal, hush="0.0.1"), "The server runs Hush 0.0.1")
    refuses(made, replace(made.proposal, format=2), "format 2")


@pytest.mark.parametrize(
    "garble",
    [
        lambda text: text + " ",
        lambda text: text.replace(":", ": ", 1),
        lambda text: json.dumps(json.loads(text), sort_keys=True),
        lambda text: json.dumps(json.loads(text), separators=(",", ":")).replace('{"', '{"zzz":1,"', 1),
        lambda text: text.replace('"rounds":3', '"rounds":3.0'),
        lambda text: text.replace('"parameters":', '"parameters":1,"parameters":'),
        lambda text: text.replace('"format":1', '"format":true'),
        lambda text: text[:-1],
        lambda text: "[]",
        lambda text: "",
        lambda text: text.replace('"examples":{', '"examples":{"shape":null,"mine":1,'),
        lambda text: text.replace('"parameters":', '"parameters":"x","p":'),
        lambda text: text.replace('"clients":[', '"clients":[5,'),
    ],
)
def test_a_proposal_that_is_not_written_in_the_one_way_is_refused(made: World, garble: Any) -> None:
    text = made.proposal.to_json()
    assert garble(text) != text
    refuses(made, garble(text), "")


ODD: tuple[Any, ...] = (None, -1, 0, 2**70, 1.5, "x", "", [], {}, [None], True, [["a"]], -0.0, "\0")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where anything stands in JSON."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return [*([path] if path else []), *(place for key, one in inner for place in places(one, (*path, key)))]
    return [path]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_a_proposal_says_a_client_answers_or_refuses(made: World, data: st.DataObject) -> None:
    """Signed by its own server, in the one way; each word of it another."""
    value = json.loads(made.proposal.to_json())
    *path, last = data.draw(st.sampled_from(places(value)))
    inner = value
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(st.sampled_from(ODD))
    answer, _ = asked(made, json.dumps(value, sort_keys=True, separators=(",", ":")), "no")
    assert answer.head["kind"] in ("refused", "no")
    assert answer.head["why"]
    assert not answer.pieces


def test_what_nothing_is_proved_of_is_refused_before_anybody_is_asked(made: World) -> None:
    refuses(made, changed(made.proposal, secure=False), "In a federation the sum is secure")
    refuses(made, changed(made.proposal, sampling="poisson"), "amplifies nothing")
    refuses(made, changed(made.proposal, masks="amortised"), "Amortised masks")
    refuses(made, changed(made.proposal, rounds=10**7), "at most 100,000 rounds")
    refuses(made, changed(made.proposal, dtype="nn"), "dtype must be float32 or float64")
    refuses(made, changed(made.proposal, clients=7), "The roster has 4 clients")
    refuses(made, changed(made.proposal, method="fedavg", set={}, noise=None), "adds no noise")
    refuses(made, changed(made.proposal, method="nosuch"), "nosuch")


def test_a_model_of_another_size_than_was_said_is_refused(made: World) -> None:
    refuses(
        made, replace(made.proposal, parameters=made.proposal.parameters + 1), "4,810 parameters here, and the server says 4,811"
    )


class Builds:
    """What is done for a proposal, in its order: models made (how many weights have memory), rows looked at, questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Any] = []
        build, examples = proposal_module.build_model, Held.examples

        def made(*given: Any) -> Any:
            network = build(*given)
            self.seen.append(sum(p.numel() for p in network.parameters() if p.device.type != "meta"))
            return network

        def looked(held: Held, told: Examples) -> Any:
            self.seen.append("rows")
            return examples(held, told)

        monkeypatch.setattr(proposal_module, "build_model", made)
        monkeypatch.setattr(Held, "examples", looked)

    def decide(self, told: Agreement, number: int, before: float) -> bool:
        self.seen.append("asked")
        return True


def test_no_weight_is_made_and_no_row_read_before_a_yes(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a clock tells whether the rows fit, of a proposal that is refused at no cost; and one letter takes all memory."""
    builds = Builds(monkeypatch)
    made.members[0] = made.member(0, decide=builds.decide)
    huge = replace(made.proposal, examples=replace(made.proposal.examples, classes=10**12))
    assert made.propose(0, huge.to_json()).head["kind"] == "refused"
    assert builds.seen == [0]


@pytest.mark.parametrize("fit", [True, False])
def test_one_model_is_made_whether_the_rows_fit_or_not(fit: bool, world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    if not fit:
        save_file({"x": torch.zeros(50, 1, 8, 8), "y": torch.full((50,), 77)}, made.data(0))
    builds = Builds(monkeypatch)
    made.members[0] = made.member(0, decide=builds.decide)
    assert made.propose(0).head["kind"] == "yes"
    assert builds.seen == [0, "asked", 4_810, "rows"]


WARDS = "ward,age,again\n" + "A,50,0\nB,60,1\nC,70,1\n" * 20


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
def test_no_proposal_gets_another_answer_where_rows_do_not_fit(dtype: str, world: MakeWorld, tmp_path: Path) -> None:
    """Such as one whose examples of nobody fail alone: whoever needs them would say no, and the server has a category's name."""
    made = world()
    (tmp_path / "own.csv").write_text(WARDS)
    answers = []
    for wards in (["A", "B", "C"], ["A", "B", "D"]):
        own = Examples((4,), dtype, 2, "again", ("ward", "age"), {"ward": wards})
        asked = replace(made.proposal, examples=own, parameters=10, run=replace(made.proposal.run, model="logistic"), name=wards[2])
        made.members[0] = made.member(0, source=str(tmp_path / "own.csv"))
        head = made.propose(0, asked.to_json()).head
        answers.append({key: value for key, value in head.items() if key != "re"})
    assert answers[0] == answers[1]


def test_what_only_examples_of_nobody_fail_is_refused_before_any_row(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError("no such examples")

    read: list[Any] = []
    monkeypatch.setattr("hush.federation.member.stand_in_task", fails)
    monkeypatch.setattr(Held, "examples", lambda *given: read.append(given))
    made.members[0] = made.member(0)
    assert made.propose(0).head["kind"] == "refused"
    assert read == []


@pytest.mark.parametrize("column", range(3))
def test_a_table_is_read_to_its_last_column_whichever_does_not_fit(
    column: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the time of a yes tells in which column a category is missing."""
    (tmp_path / "own.csv").write_text("a,b,y\nA,A,A\nB,B,B\n")
    kinds = {name: ["A", "B"] for name in "aby"}
    kinds["aby"[column]] = ["A", "C"]
    seen: list[str] = []
    codes = Columns._codes
    monkeypatch.setattr(Columns, "_codes", lambda self, name, values: [seen.append(name), codes(self, name, values)][1])
    own = Examples((4,), "float32", 2, "y", ("a", "b"), kinds)
    with pytest.raises(UsageError, match=f"The column '{'aby'[column]}' holds 'B'"):
        Held.read(str(tmp_path / "own.csv"), own).examples(own)
    assert sorted(seen) == ["a", "b", "y"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "nn"),
        ("dtype", "no_such"),
        ("dtype", "complex64"),
        ("shape", [-3]),
        ("shape", [0]),
        ("shape", ["a"]),
        ("shape", [True]),
        ("shape", [2**12, 2**13]),
        ("shape", [1] * 9),
        ("classes", 0),
        ("classes", True),
        ("classes", 2.0),
        ("target", 5),
        ("target", ["y"]),
        ("features", [5]),
        ("features", [["x"]]),
        ("categories", [1]),
        ("categories", {"x": 5}),
        ("categories", {"x": [None]}),
        ("mean", [0.5]),
        ("mean", ["a"]),
        ("numbers", 1),
    ],
)
def test_examples_that_there_cannot_be_are_refused_before_anybody_is_asked(made: World, name: str, value: Any) -> None:
    told = json.loads(made.proposal.to_json())
    assert told["examples"][name] != value or type(told["examples"][name]) is not type(value)
    told["examples"][name] = value
    refuses(made, json.dumps(told, sort_keys=True, separators=(",", ":")), f"cannot be, by their {name}")


def test_no_is_no_and_later_is_later(made: World) -> None:
    answer, _ = asked(made, made.proposal, "the board says no")
    assert (answer.head["kind"], answer.head["why"]) == ("no", "the board says no")
    answer, _ = asked(made, made.proposal, False)
    assert answer.head["kind"] == "no"
    member = made.members[0] = made.member(0, decide=lambda told, me, before: None)
    assert made.propose(0).head["kind"] == "later"
    assert member is made.members[0]
    assert not (made.folder(0) / "diary.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"set": {"clip": 2.0}},
        {"set": {"noise": 2.0}, "noise": 2.0},
        {"rounds": 4},
        {"cohort": 3.0},
        {"seed": 1},
        {"corrupted": 0.2},
    ],
    ids=str,
)
def test_what_was_changed_after_the_yes_is_another_proposal_and_asked_anew(world: MakeWorld, change: dict[str, Any]) -> None:
    made = world(clients=6, cohort=6.0)
    _, seen = asked(made, made.proposal)
    assert len(seen) == 1
    run = made.proposal.run
    own = {"set": dict(run.set) | change["set"]} if "set" in change else {}
    other = changed(made.proposal, **change | own)
    answer, seen = asked(made, other, "not that one")
    assert len(seen) == 1
    assert answer.head["kind"] == "no"
    old, new = agree(made.proposal).terms, agree(other).terms
    assert old.digest != new.digest
    answer, seen = asked(made, made.proposal)
    assert answer.head["kind"] == "yes"
    assert not seen, "the first one is still agreed to"


def test_a_server_that_sums_under_other_terms_than_it_proposed_gets_nothing(world: MakeWorld) -> None:
    """It shows the client one run, and invites to the sum of another: less noise, a larger clip."""
    made = world(clients=4)
    for change in ({"set": dict(made.proposal.run.set) | {"noise": 0.1}, "noise": 0.1}, {"rounds": 30}):
        other = changed(made.proposal, **change)
        _, federation = made.ready(other)
        for number in range(4):
            answer = made.propose(number)
            assert answer.head["kind"] == "yes"
            federation.attendance.take_keys(number, answer.pieces[0])
        assert federation._server.ready(0) == set(), "keys are signed for the terms"
        assert any("not signed" in line or "signature" in line for line in made.heard)
        made.heard.clear()


def test_a_policy_that_became_stricter_is_asked_of_a_run_that_goes_on(world: MakeWorld) -> None:
    made = world()
    roster = made.proposal.members.fingerprint
    for policy, kind in ((Policy(roster=roster), "yes"), (Policy(roster=roster, rounds=2), "no"), (Policy(roster=roster), "yes")):
        made.restart(0, decide=lambda told, me, before, own=policy: own.objection(told, before) or True)
        assert made.propose(0).head["kind"] == kind


def test_a_yes_that_was_typed_is_remembered(world: MakeWorld) -> None:
    made = world()
    made.propose(0)
    made.restart(0, decide=Asked())
    assert made.propose(0).head["kind"] == "yes"
    made.restart(1, decide=Asked())
    assert made.propose(1).head["kind"] == "later"


def test_a_yes_to_two_runs_at_once_is_asked_for_anew_once_the_first_is_agreed_to(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was shown without what the other adds to it."""
    shown: list[str] = []
    monkeypatch.setattr("hush.cli.client.say", shown.append)
    monkeypatch.setattr("typer.prompt", lambda *text, **more: "yes")
    consent, folder = Asked(), ClientFolder.enroll(tmp_path / "own", made.server.path / "invitation.json", "own")
    cards = (*made.proposal.members.cards[1:], folder.card)
    texts = [
        replace(made.proposal, members=Members(made.proposal.members.server, cards), name=name).to_json().encode()
        for name in ("ab", "cd")
    ]
    member = Member(folder, str(made.data(0)), consent, say=shown.append)

    def asked() -> list[str]:
        told = {"kind": "propose", "round": 0, "key": member.key.hex()}
        raw = [letters.write(made.server.identity, told, [text]) for text in texts]
        return [letters.read(member.answer(one), member.key).head["kind"] for one in raw]

    assert asked() == ["later", "later"]
    consent.ask()
    assert not any("in other runs of this federation" in line for line in shown)
    assert asked() == ["yes", "later"]
    consent.ask()
    assert any("in other runs of this federation" in line for line in shown)
    assert asked() == ["yes", "yes"]


# -- a method of one's own ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def test_a_method_of_ones_own_must_lie_at_the_client_with_the_same_bytes(world: MakeWorld, own_file: Path, tmp_path: Path) -> None:
    name = f"{own_file}:mine"
    made = world(method=f"{name}+blur", own_code=name, rounds=1)
    assert made.ready(), "the server finds it, too"
    assert made.propose(0).head["kind"] == "yes"
    assert made.proposal.run.code in "\n".join(words(agree(made.proposal, name), 0))
    assert str(tmp_path) not in made.proposal.to_json()
    made.restart(1, own_code=None)
    answer = made.propose(1)
    assert answer.head["kind"] == "refused"
    assert "--code FILE.py:NAME" in answer.head["why"]
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "mine.py"
    other.write_text(OWN.replace("one's own", "another's"))
    made.restart(2, own_code=f"{other}:mine")
    answer = made.propose(2)
    assert answer.head["kind"] == "refused"
    assert "another file here than at the server" in answer.head["why"]
    assert not (made.folder(2) / "diary.json").exists()


def test_a_client_of_another_federation_answers_nothing(made: World, tmp_path: Path) -> None:
    other = ServerFolder.init(tmp_path / "other", "other", "127.0.0.1:9444", insecure=True)
    own = ClientFolder.enroll(tmp_path / "client", other.path / "invitation.json", "client-0")
    member = Member(own, str(made.data(0)), lambda told, me, before: True, say=made.heard.append)
    with pytest.raises(letters.BadLetter, match="not signed by whom"):
        member.answer(made.write({"kind": "propose", "round": 0}, [made.proposal.to_json().encode()]))


def test_data_that_do_not_fit_are_told_here_and_not_to_the_server(world: MakeWorld) -> None:
    made = world()
    secret = "visits of Mrs Miller"
    made.data(0).write_text(secret)
    made.heard.clear()
    answer = made.propose(0)
    assert answer.head == {"kind": "no", "why": "its table cannot be read", "re": answer.head["re"]} | {
        "key": made.members[0].key.hex()
    }
    assert any("the data cannot be read" in line for line in made.heard)
    assert not (made.folder(0) / "diary.json").exists(), "nothing was agreed to"


def test_a_column_that_is_not_there_is_named(world: MakeWorld) -> None:
    made = world()
    save_file({"x": torch.zeros(5, 1, 8, 8)}, made.data(0))
    assert made.propose(0).head["why"] == "its table has no column y"
    assert any("does not take part: its table has no column y" in line for line in made.heard), "who can mend it is told, too"


def test_rows_that_do_not_fit_say_nothing_by_a_yes_or_a_no(world: MakeWorld) -> None:
    """Or a server would read a column out, one proposal of other classes or categories after another."""
    made = world(noise_seed=1)
    labels = torch.full((50,), 77)
    save_file({"x": torch.zeros(50, 1, 8, 8), "y": labels}, made.data(0))
    made.heard.clear()
    assert made.propose(0).head["kind"] == "yes"
    assert any("only noise is sent" in line for line in made.heard)
    made.train()  # with its noise, and nothing else of it
