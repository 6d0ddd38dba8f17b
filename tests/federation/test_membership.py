"""Membership over months: rosters that change, keys that are rotated, a server and a client that move to another machine."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hush.certify import verify_run
from hush.engines.rundir import RunDir
from hush.errors import DataError, HushError, UsageError
from hush.federation import folders
from hush.federation.consent import words
from hush.federation.diary import Before, Diary
from hush.federation.folders import INVITATION, ClientFolder, ServerFolder
from hush.federation.initial import Initial, refuse_uncounted
from hush.federation.kept import keep
from hush.federation.member import Member
from hush.federation.members import Card, Former, Members, changes
from hush.federation.proposal import agree
from hush.federation.propose import propose, resolved, task_of
from hush.federation.running import taken_up
from hush.federation.server import Overtaken
from hush.privacy.guarantee import Relation, Unit
from hush.privacy.ledger import Ledger
from hush.privacy.population import Population, Spending
from hush.secagg.identity import Identity
from tests.cli.test_cli import hush
from tests.federation.conftest import MakeWorld
from tests.federation.test_server import dies_after
from tests.federation.world import World, nobody_asks_twice

DELTA = 1e-3
pytestmark = pytest.mark.filterwarnings("ignore:.*has no budget")


def pool_of(path: Path, name: str = "study") -> Population:
    with closing(Ledger(path, look=True)) as book:
        return book.populations[name]


def again(world: World, run: str, **config: Any) -> World:
    """Another run of the same federation, whose roster is what it is by now."""
    asked = replace(world.experiment.config, **{"clients": None, "cohort": None, "federation": None} | config)
    names = world.server.members.names
    world.experiment = resolved(asked, world.server.members)
    world.task = task_of(world.experiment, None)
    world.proposal = propose(world.experiment, world.task, world.server.members)
    world.out_name = run
    there = [int(name.rpartition("-")[2]) for name in names]
    world.members = {place: world.member(number) for place, number in enumerate(there)}
    return world


def enrolled(world: World, number: int) -> ClientFolder:
    """One client more, with the data of the first."""
    own = ClientFolder.enroll(world.folder(number), world.server.path / INVITATION, f"client-{number}")
    shutil.copy(world.data(0), world.data(number))
    return own


# -- a roster that changes between runs, and what the ledger says ------------------------------------------------------------------


def test_everybody_pays_for_the_runs_that_it_was_in(world: MakeWorld, tmp_path: Path) -> None:
    book = tmp_path / "study.sqlite"
    made = world(rounds=2, ledger=str(book), population="study", noise=2.0)
    first = made.train()
    card = ClientFolder.of(made.folder(3)).card
    made.server.remove("client-3")
    made.server.admit(enrolled(made, 4).card)
    made.server.admit(enrolled(made, 5).card)
    second = again(made, "second", rounds=3).train()  # five clients, where the first had four
    made.server.admit(card)
    made.server.remove("client-0")
    third = again(made, "third", rounds=1).train()

    pool = pool_of(book)
    assert pool.size == 5
    runs = [first.run_id, second.run_id, third.run_id]
    assert [pool.runs[run].charges for run in runs if run] == [2, 3, 1]
    was_in = {one.name: [runs.index(run) for run in one.runs] for one in pool.by_client(DELTA)}
    assert was_in == {
        "client-0": [0, 1],
        "client-1": [0, 1, 2],
        "client-2": [0, 1, 2],
        "client-3": [0, 2],
        "client-4": [1, 2],
        "client-5": [1, 2],
    }
    cost = {one.name: one.epsilon for one in pool.by_client(DELTA)}
    alone = {name: replace(pool, runs={run: pool.runs[run]}).spent(DELTA) for name, run in zip("abc", runs, strict=True) if run}
    assert cost["client-1"] == pool.spent(DELTA), "who was in all runs paid for all"
    for name in ("client-0", "client-3", "client-4"):
        assert 0 < cost[name] < pool.spent(DELTA)
    assert max(alone.values()) < cost["client-0"] < alone["a"] + alone["b"]

    own = Ledger(made.folder(1) / "ledger.sqlite", look=True)
    (mine,) = own.populations.values()
    assert sum(run.charges for run in mine.runs.values()) == 6, "a client's own ledger knows the same"
    assert mine.spent(DELTA) == pytest.approx(cost["client-1"])
    own.close()
    assert all(check.passed is not False for check in verify_run(made.out).checks)


def test_who_was_readmitted_under_the_same_key_goes_on_where_it_was(world: MakeWorld, tmp_path: Path) -> None:
    made = world(rounds=1, ledger=str(tmp_path / "study.sqlite"), population="study")
    made.train()
    card = ClientFolder.of(made.folder(2)).card
    made.server.remove("client-2")
    made.server.admit(card)
    told = agree(again(made, "second").proposal)
    before = Diary(made.folder(2), "test").before(told)
    assert before.epsilon > 0
    made.train()
    assert pool_of(tmp_path / "study.sqlite").of_client("client-2").runs.keys() == pool_of(tmp_path / "study.sqlite").runs.keys()


def test_who_comes_back_under_a_new_key_pays_for_both_in_the_servers_ledger_alone(world: MakeWorld, tmp_path: Path) -> None:
    made = world(rounds=1, ledger=str(tmp_path / "study.sqlite"), population="study")
    made.train()
    made.server.remove("client-2")
    own = ClientFolder.enroll(made.folder(9), made.server.path / INVITATION, "client-2")
    shutil.copy(made.data(2), made.data(9))
    made.server.admit(own.card)
    told = agree(again(made, "second").proposal)
    made.members[3] = made.member(9)
    assert Diary(made.folder(9), "test").before(told).epsilon == 0, "it has forgotten, and only its owner knows"
    made.train()
    (one,) = [one for one in pool_of(tmp_path / "study.sqlite").by_client(DELTA) if one.name == "client-2"]
    assert (len(one.runs), len(one.keys)) == (2, 2)


def test_a_population_without_rosters_stays_as_large_as_it_is(world: MakeWorld, tmp_path: Path) -> None:
    """Simulated clients are no federation: another number of them is another population."""
    from hush import NoGuarantee

    made = world(rounds=1, ledger=str(tmp_path / "study.sqlite"), population="study")
    made.train()
    plan = agree(made.proposal).plan
    assert plan is not None
    with closing(Ledger(tmp_path / "study.sqlite")) as book, pytest.raises(NoGuarantee, match="do not add up"):
        book.open_run("simulated", "study", replace(plan, population=7))


@pytest.mark.parametrize(("sampling", "then"), [("rotation", 5.0), ("secret", 3.0)])
def test_rosters_of_all_sizes_add_up_under_any_sampling(sampling: str, then: float, world: MakeWorld, tmp_path: Path) -> None:
    """The larger roster first, and then the smaller one; nothing is less than the sum of what was released."""
    book = tmp_path / "study.sqlite"
    made = world(clients=6, cohort=3.0, rounds=2, sampling=sampling, ledger=str(book), population="study", noise=3.0)
    made.train()
    made.server.remove("client-5")
    one = pool_of(book).spent(DELTA)
    again(made, "second", cohort=then).train()
    assert pool_of(book).size == 6
    assert pool_of(book).spent(DELTA) > one
    assert all(check.passed is not False for check in verify_run(made.out).checks)


def test_a_budget_is_spent_by_all_rosters_together(world: MakeWorld, tmp_path: Path) -> None:
    book = tmp_path / "study.sqlite"
    with closing(Ledger(book)) as opened:
        made = world(rounds=2, noise=2.0)
        plan = agree(made.proposal).plan
        assert plan is not None
        alone = made.train().epsilon
        opened.set_budget("study", 4, 1.1 * alone, DELTA, plan.relation)
    made.server.admit(enrolled(made, 4).card)
    made.server.remove("client-0")
    again(made, "second", ledger=str(book), population="study").train()
    made.server.admit(ClientFolder.of(made.folder(0)).card)
    with pytest.raises(UsageError, match="Not one round fits"):
        again(made, "third", ledger=str(book), population="study").train()


def test_a_key_under_another_name_pays_for_all_that_its_names_may_have_been() -> None:
    first, second, third = {"a": "1", "b": "2"}, {"a": "3", "b": "2"}, {"c": "3", "d": "4"}
    pool = Population("study", 2, Unit.CLIENT, Relation.ADD_REMOVE, rosters={"one": first, "two": second, "three": third})
    pool.runs = dict.fromkeys(pool.rosters, Spending(phase=None))  # type: ignore[arg-type]
    runs = {name: list(pool.of_client(name).runs) for name in "abcd"}
    assert runs == {"a": ["one", "two", "three"], "b": ["one", "two"], "c": ["one", "two", "three"], "d": ["three"]}


def test_what_is_said_of_each_client(world: MakeWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "study.sqlite"
    made = world(rounds=1, ledger=str(book), population="study")
    made.train()
    made.server.remove("client-3")
    made.server.admit(enrolled(made, 4).card)
    again(made, "second").train()
    code, out, err = hush(capsys, "ledger", "show", str(book))
    assert code == 0, err
    assert "counts every run for everybody" in out
    code, out, _ = hush(capsys, "ledger", "show", str(book), "--json")
    (row,) = json.loads(out)["populations"]
    assert {one["name"]: len(one["runs"]) for one in row["members"]} == {
        **dict.fromkeys(("client-0", "client-1", "client-2"), 2),
        "client-3": 1,
        "client-4": 1,
    }
    code, out, err = hush(capsys, "federation", "status", str(made.server.path), "--ledger", str(book))
    assert code == 0, err
    assert "not in the roster any more" in out
    assert out.count("client-4") == 2
    for command in (["ledger", "show", str(book)], ["federation", "status", str(made.server.path), "--ledger", str(book)]):
        usual, other = (hush(capsys, *command, *delta)[1] for delta in ([], ["--delta", "1e-9"]))
        assert "1.0e-09" not in usual
        assert "1.0e-09" in other
    code, out, err = hush(capsys, "federation", "status", str(made.server.path), "--ledger", str(tmp_path / "none"))
    assert code == 0
    assert "what was spent cannot be told" in err


# -- going on with the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_a_new_roster_goes_on_with_the_model_and_in_the_ledger(finished: bool, world: MakeWorld, tmp_path: Path) -> None:
    book = tmp_path / "study.sqlite"
    made = world(rounds=3, ledger=str(book), population="study", noise=2.0)
    old = made.out
    keep(RunDir(old), made.proposal)
    dies_after(made, 2, resume=True)
    if finished:
        made.train(resume=True)
    made.server.remove("client-3")
    made.server.admit(enrolled(made, 4).card)
    again(made, "second", rounds=1)
    for wrong in ({"ledger": None, "population": None}, {"population": "others"}, {"ledger": str(tmp_path / "other.sqlite")}):
        with pytest.raises(UsageError, match="on the same clients: charge it there, too"):
            refuse_uncounted(RunDir(old), replace(made.experiment.config, **wrong))
    refuse_uncounted(RunDir(old), made.experiment.config)

    initial = Initial.of_run(RunDir(old), made.task)
    made.task = initial.of(made.task)
    made.experiment = replace(made.experiment, config=replace(made.experiment.config, begins_with=initial.sha256))
    made.proposal = propose(made.experiment, made.task, made.server.members)
    assert any(initial.sha256 in line for line in words(agree(made.proposal), 0)), "clients are told"
    RunDir(made.out).write_bytes("initial.safetensors", initial.content)
    keep(RunDir(made.out), made.proposal)
    run, _ = made.ready()
    begun = run.data.learner.initial()
    kept = RunDir(old).read_tensors("model.safetensors" if finished else "checkpoint.safetensors")
    assert kept is not None
    there = run.data.learner.state_dict(begun) if finished else {"params": begun}
    assert all(torch.equal(there[name], kept[0][name]) for name in there)
    result = made.train(resume=True)
    assert any(initial.sha256 in line for line in result.caveats)
    pool = pool_of(book)
    assert [run.charges for run in pool.runs.values()] == [3 if finished else 2, 1]
    assert result.population["epsilon"] == pool.of_client("client-0").spent(DELTA)
    verified = verify_run(made.out)
    assert all(check.passed is not False for check in verified.checks)
    assert "initial.safetensors" not in verified.unchecked
    (made.out / "initial.safetensors").write_bytes(initial.content + b"\0")
    assert any(check.passed is False for check in verify_run(made.out).checks if check.name == "proposal")
    with pytest.raises(DataError, match="is not what this run began with"):
        Initial.kept(RunDir(made.out), initial.sha256)


@pytest.mark.parametrize("own", [True, False])
def test_a_run_that_broke_off_is_not_gone_on_from_without_its_ledger(own: bool, world: MakeWorld, tmp_path: Path) -> None:
    """It has no certificate, and clients paid for two rounds of it all the same."""
    book = tmp_path / "study.sqlite"
    made = world(rounds=3, **({} if own else {"ledger": str(book), "population": "study"}))
    old = made.out
    keep(RunDir(old), made.proposal)
    dies_after(made, 2, resume=True)
    for file in (old if own else tmp_path).glob("*.sqlite*"):
        file.unlink()
    again(made, "second", rounds=1, ledger=str(tmp_path / "other.sqlite"), population="study")
    with pytest.raises(UsageError, match="on the same clients: charge it there, too"):
        refuse_uncounted(RunDir(old), made.experiment.config)


def test_a_run_without_a_guarantee_that_broke_off_needs_no_ledger(world: MakeWorld) -> None:
    made = world(rounds=3, noise_seed=1)
    old = made.out
    keep(RunDir(old), made.proposal)
    dies_after(made, 2, resume=True)
    refuse_uncounted(RunDir(old), made.experiment.config)


def test_another_model_is_not_begun_with(world: MakeWorld) -> None:
    made = world(rounds=1)
    with pytest.raises(UsageError, match="no round of it is complete"):
        Initial.of_run(RunDir(made.out), made.task)
    made.train()
    other = replace(made.task, model=torch.nn.Linear(3, 2))
    with pytest.raises(UsageError, match="of another model"):
        Initial.of_run(RunDir(made.out), made.task).of(other)


# -- keys that are rotated ---------------------------------------------------------------------------------------------------------


def test_a_client_with_a_new_key_is_the_same_client(world: MakeWorld, tmp_path: Path) -> None:
    book = tmp_path / "study.sqlite"
    made = world(rounds=1, ledger=str(book), population="study")
    made.train()
    own, old = ClientFolder.of(made.folder(1)), made.server.members
    before = own.card
    for _ in range(2):
        own.rotate()
    assert own.identity.public == own.card.key != before.key
    members = made.server.admit(Card.read((own.path / "card.json").read_text(), "card.json"))
    assert members.names == old.names, "in its place"
    assert members.cards[1].first == before.key
    assert Members.read(members.to_json(), "roster") == members
    assert members.fingerprint != old.fingerprint
    told = agree(again(made, "second").proposal)
    cost = Diary(made.folder(1), "test").before(told)
    assert cost.epsilon > 0, "its diary goes on"
    assert any("client-1 has a new key, which its old one signed for" in line for line in words(told, 0, cost))
    made.train()
    (one,) = [one for one in pool_of(book).by_client(DELTA) if one.name == "client-1"]
    assert (len(one.runs), len(one.keys)) == (2, 1)
    assert made.diary(1)[1] == 1


def test_only_the_node_key_is_another(world: MakeWorld) -> None:
    made = world(rounds=1)
    own = ClientFolder.of(made.folder(1))
    before = own.card
    own.rotate(node_only=True)
    assert (own.card.key, own.card.before) == (before.key, ())
    assert own.card.node != before.node
    assert made.server.admit(own.card).names == ("client-0", "client-1", "client-2", "client-3")
    again(made, "second").train()


def test_nobody_takes_a_clients_place_without_its_key(world: MakeWorld, tmp_path: Path) -> None:
    made = world(rounds=1)
    own = ClientFolder.of(made.folder(1))
    stolen, thief = own.card, Identity.generate()
    other = ClientFolder.enroll(tmp_path / "other", made.server.path / INVITATION, "client-1")
    with pytest.raises(UsageError, match=r"with the name of 'client-1' already. A client with a new key is rotated"):
        made.server.admit(other.card)
    forged = Former(stolen.key, thief.sign(b"whatever"))
    with pytest.raises(DataError, match="did not sign for the next one"):
        replace(stolen, key=thief.public, before=(forged,))
    own.rotate()
    made.server.admit(own.card)
    with pytest.raises(UsageError, match="already"):
        made.server.admit(stolen)  # an old card brings no old key back
    renamed = replace(stolen, name="client-9", node=other.card.node)
    with pytest.raises(UsageError, match="first key of 'client-9' already"):
        made.server.admit(renamed)
    text = json.loads((own.path / "card.json").read_text())
    for before in ([], [text["before"][0] | {"key": thief.public.hex()}], [{}], 7, [{"key": "zz", "signature": "zz"}]):
        with pytest.raises(DataError):
            Card.read(json.dumps(text | {"before": before}), "card.json")


@pytest.mark.parametrize("moment", range(4))
def test_a_rotation_that_is_killed_is_done_or_was_not_begun(moment: int, world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(rounds=1)
    own = ClientFolder.of(made.folder(1))
    calls, right = iter(range(9)), {name: getattr(folders, name) for name in ("make_node_key", "write_secret", "write_text")}

    def killed(name: str) -> Any:
        def write(*given: Any) -> Any:
            if next(calls) == moment:
                raise KeyboardInterrupt
            return right[name](*given)

        return write

    with monkeypatch.context() as patch:
        for name in right:
            patch.setattr(folders, name, killed(name))
        patch.setattr(ClientFolder, "_finish_rotation", killed("write_text"))
        with pytest.raises(KeyboardInterrupt):
            own.rotate()
    after = ClientFolder.of(made.folder(1))
    assert after.identity.public == after.card.key
    assert (len(after.card.before) == 1) == (moment == 3)
    assert folders.public_node_key((after.path / "node.key").read_bytes()) == after.card.node
    assert not list(after.path.glob("*.next"))


def test_cards_that_are_in_the_roster_are_no_hindrance_and_a_wrong_file_admits_nobody(
    world: MakeWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    before, old, new = made.server.members, str(made.folder(0) / "card.json"), str(enrolled(made, 4).path / "card.json")
    (tmp_path / "wrong").write_text("a,b\n")
    assert hush(capsys, "federation", "admit", str(made.server.path), new, str(tmp_path / "wrong"))[0] == 2
    assert made.server.members == before
    code, out, err = hush(capsys, "federation", "admit", str(made.server.path), old, new)
    assert code == 0
    assert "client-0 is in the roster" in err
    assert "5 clients" in out


def test_whoever_opens_a_folder_that_is_just_rotated_takes_no_key_away(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(rounds=1)
    own, right = ClientFolder.of(made.folder(1)), folders.write_text

    def while_another_looks(path: Path, text: str) -> None:
        ClientFolder.of(made.folder(1))
        right(path, text)

    monkeypatch.setattr(folders, "write_text", while_another_looks)
    with closing(own.lock()):
        own.rotate()
    after = ClientFolder.of(made.folder(1))
    assert after.identity.public == after.card.key
    assert len(after.card.before) == 1
    assert folders.public_node_key((after.path / "node.key").read_bytes()) == after.card.node


@pytest.mark.parametrize("change", [{"address": "elsewhere.org:9443"}, {"ca": "another"}, {"insecure": False}, {"signature": ""}])
def test_nobody_is_enrolled_with_an_invitation_that_was_changed(change: dict[str, Any], world: MakeWorld, tmp_path: Path) -> None:
    """Where the server is, and whether there is TLS, no fingerprint tells."""
    invitation = json.loads((world().server.path / INVITATION).read_text())
    assert invitation["insecure"]
    (tmp_path / INVITATION).write_text(json.dumps(invitation | change))
    with pytest.raises(DataError, match="not as its server signed it"):
        ClientFolder.enroll(tmp_path / "own", tmp_path / INVITATION, "client-9")
    assert not (tmp_path / "own").exists()


def test_a_run_that_goes_on_is_left_only_where_that_is_typed(world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    made = world(rounds=3)
    dies_after(made, 1)
    key = made.proposal.members.cards[1].key
    code, _, err = hush(capsys, "federation", "rotate", str(made.folder(1)))
    assert code == 2
    assert "is not over" in err
    assert ClientFolder.of(made.folder(1)).card.key == key
    code, out, _ = hush(capsys, "federation", "rotate", str(made.folder(1)), "--leave")
    assert code == 0
    assert "hush federation admit" in out
    assert ClientFolder.of(made.folder(1)).card.key != key


def test_what_changed_in_a_roster_is_said_to_who_agrees() -> None:
    server, old, new = (Identity.generate() for _ in range(3))
    rest = [Identity.generate() for _ in range(3)]
    cards = [Card(name, one.public, f"node of {name}", server.public) for name, one in zip("abc", rest, strict=True)]
    before = {card.name: card.key.hex() for card in (*cards, Card("d", old.public, "node of d", server.public))}
    assert changes(before, Members(server.public, (*cards, Card("d", old.public, "another", server.public)))) == []
    followed = Card("d", new.public, "node", server.public, (Former.of(old, new.public),))
    assert changes(before, Members(server.public, (*cards, followed))) == ["d has a new key, which its old one signed for"]
    replaced, renamed = Card("d", new.public, "node", server.public), Card("e", old.public, "node", server.public)
    assert changes(before, Members(server.public, (*cards, replaced)))[0].startswith("d HAS ANOTHER KEY")
    assert changes(before, Members(server.public, (*cards[1:], renamed))) == [
        "a is not in it any more",
        "d is not in it any more",
        "e is new",
        "e was called d",
    ]
    assert Before().members == {}


# -- a server that moves -----------------------------------------------------------------------------------------------------------


def machine(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """From here on everything is another machine's, which remembers other ledgers."""
    monkeypatch.setenv("HUSH_HOME", str(place))


@pytest.fixture
def moved(world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A server that was stopped after two rounds of four, on one machine, and all that is its own on another one, too."""
    (tmp_path / "old").mkdir()
    made = world(rounds=4, ledger=str(tmp_path / "old" / "study.sqlite"), population="study")
    made.server.path.rename(tmp_path / "old" / "server")
    made.server, made.out_name = ServerFolder.of(tmp_path / "old" / "server"), str(tmp_path / "old" / "run")
    machine(monkeypatch, tmp_path / "home-a")
    keep(RunDir(made.out), made.proposal)
    dies_after(made, 2, resume=True)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    return made


def goes_on(world: World, where: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """On the machine whose folder that is. Clients are machines of their own, whose memory does not move."""
    machine(monkeypatch, where.parent / f"home-of-{where.name}")
    world.server, world.out_name = ServerFolder.of(where / "server"), str(where / "run")
    told = {"ledger": str(where / "study.sqlite")}
    world.proposal = taken_up(world.server, RunDir(world.out), None, told).proposal
    for number in range(4):
        world.restart(number, decide=nobody_asks_twice)
    return world.train(resume=True)


def test_a_server_that_moves_goes_on_and_its_old_copy_does_not(
    moved: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = goes_on(moved, tmp_path / "new", monkeypatch)
    book = tmp_path / "new" / "study.sqlite"
    assert len(result.history) == 4
    assert [run.charges for run in pool_of(book).runs.values()] == [4] == [result.rounds_charged]
    assert [moved.diary(number)[1] for number in range(4)] == [4] * 4
    assert all(check.passed is not False for check in verify_run(moved.out).checks)
    with pytest.raises(HushError, match="This run is over"):
        goes_on(moved, tmp_path / "old", monkeypatch)
    assert [run.charges for run in pool_of(tmp_path / "old" / "study.sqlite").runs.values()] == [2]
    assert [moved.diary(number)[1] for number in range(4)] == [4] * 4


def test_an_old_copy_goes_on_with_nobody_once_the_new_one_has(
    moved: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not over, and clients agreed to more sums: what they counted says that they were paid for elsewhere."""
    machine(monkeypatch, tmp_path / "home-of-new")
    moved.server, moved.out_name = ServerFolder.of(tmp_path / "new" / "server"), str(tmp_path / "new" / "run")
    told = {"ledger": str(tmp_path / "new" / "study.sqlite")}
    moved.proposal = taken_up(moved.server, RunDir(moved.out), None, told).proposal
    dies_after(moved, 3, resume=True)
    assert [moved.diary(number)[1] for number in range(4)] == [3] * 4
    with pytest.raises(Overtaken, match="more sums of this run than the 2"):
        goes_on(moved, tmp_path / "old", monkeypatch)
    assert [run.charges for run in pool_of(tmp_path / "old" / "study.sqlite").runs.values()] == [2]
    assert [moved.diary(number)[1] for number in range(4)] == [3] * 4, "nobody was in another sum"
    result = goes_on(moved, tmp_path / "new", monkeypatch)
    assert (len(result.history), result.rounds_charged) == (4, 4)


def test_a_ledger_that_did_not_come_along_is_missed(moved: World, tmp_path: Path) -> None:
    server, run = ServerFolder.of(tmp_path / "new" / "server"), RunDir(tmp_path / "new" / "run")
    (tmp_path / "old" / "study.sqlite").unlink()
    with pytest.raises(UsageError, match=r"There is no ledger .*study\.sqlite, which this run is charged in: say where"):
        taken_up(server, run, None, {})
    assert taken_up(server, run, None, {"ledger": str(tmp_path / "new" / "study.sqlite")}).proposal.digest == moved.proposal.digest
    with pytest.raises(UsageError, match="is not what this run began with"):
        taken_up(server, run, None, {"data": "mnist"})


def test_a_run_with_its_own_ledger_is_charged_to_no_other_population(world: MakeWorld, tmp_path: Path) -> None:
    made = world(rounds=2)
    keep(RunDir(made.out), made.proposal)
    with pytest.raises(UsageError, match="goes on in its own ledger"):
        taken_up(made.server, RunDir(made.out), None, {"ledger": str(tmp_path / "study.sqlite")})
    assert taken_up(made.server, RunDir(made.out), None).proposal.run.ledger is None


@pytest.mark.parametrize("finished", [True, False])
def test_a_ledger_that_is_another_one_is_refused_before_the_folder_names_it(
    finished: bool, world: MakeWorld, tmp_path: Path
) -> None:
    made = world(rounds=3, ledger=str(tmp_path / "study.sqlite"), population="study")
    keep(RunDir(made.out), made.proposal)
    if finished:
        made.train(resume=True)
    else:
        dies_after(made, 2, resume=True)
    before = (made.out / "config.json").read_bytes()
    Ledger(tmp_path / "other.sqlite").close()
    with pytest.raises(UsageError, match="knows nothing of this run"):
        taken_up(made.server, RunDir(made.out), None, {"ledger": str(tmp_path / "other.sqlite")})
    assert (made.out / "config.json").read_bytes() == before


# -- a client that moves -----------------------------------------------------------------------------------------------------------


def test_a_client_that_moves_goes_on_and_a_copy_that_stays_behind_is_heard_of(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(rounds=4)
    dies_after(made, 1)
    shutil.copytree(made.folder(1), tmp_path / "copy")
    dies_after(made, 2, resume=True)
    shutil.move(made.folder(1), tmp_path / "moved")
    machine(monkeypatch, tmp_path / "another")
    made.members[1] = Member(ClientFolder.of(tmp_path / "moved"), str(tmp_path / "moved" / "data.safetensors"), nobody_asks_twice)

    def other_copy_answers(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            machine(monkeypatch, tmp_path / "third")
            copy = ClientFolder.of(tmp_path / "copy")
            made.members[1] = Member(copy, str(copy.path / "data.safetensors"), nobody_asks_twice)

    result = made.train(resume=True, on_round=other_copy_answers)
    assert len(result.history) == 4
    machine(monkeypatch, tmp_path / "another")
    assert Diary(tmp_path / "moved", "test").standing(agree(made.proposal))[1] == 3
    assert any("client-1 was in 2 sums, as it said before, and says 1 now: an older copy" in line for line in made.heard)
