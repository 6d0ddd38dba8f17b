"""What a client answers to letters of the pinned server that it should not have written, and what it counts."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hush import secagg
from hush.core import Chain, Round, Server, Shard
from hush.errors import HushError
from hush.federation import letters, statement
from hush.federation.data import Held, zeros_and_ones
from hush.federation.diary import Before, Diary
from hush.federation.folders import ClientFolder
from hush.federation.member import KEYS_AHEAD, Member
from hush.federation.proposal import Examples, agree
from hush.local.flat import FlatModel
from hush.own import OwnSecrets
from hush.privacy.ledger import Ledger
from hush.random import derive, keys_of
from hush.secagg.messages import MOST_AHEAD, Kind, peek
from hush.secret import Secret
from tests.federation.conftest import MakeWorld
from tests.federation.world import Sent, World, changed, yes


def charged(world: World, number: int) -> int:
    ledger = Ledger(world.folder(number) / "ledger.sqlite", look=True)
    try:
        return sum(run.charges for pool in ledger.populations.values() for run in pool.runs.values())
    finally:
        ledger.close()


def answers(world: World, number: int, kind: Kind) -> list[int]:
    """The rounds in which a client sent a message of this kind."""
    found = []
    for sent, raw in world.post.log:
        if sent.number == number and sent.kind == "round":
            for piece in letters.read(raw, world.members[number].key).pieces:
                if piece and (told := peek(piece, number))[0] is kind:
                    found.append(told[1])
    return found


def test_a_vector_counts_when_it_leaves_where_others_may_open_it(world: MakeWorld) -> None:
    """A server that lies has a sum opened by the others, and never asks the one whose count shall not move."""
    made = world(clients=5, threat="malicious", tolerate=0.2, rounds=2)
    made.post.on_letter = lambda sent: [] if sent.number == 0 and sent.asks(Kind.SURVIVORS) else [sent.raw]
    result = made.train()
    assert result.rounds_charged == 2
    assert len(answers(made, 0, Kind.MASKED)) == 2
    assert made.diary(0)[1] == charged(made, 0) == 2


def test_no_more_vectors_leave_than_were_agreed_on(world: MakeWorld) -> None:
    made = world(clients=5, threat="malicious", tolerate=0.2, rounds=2)
    losses = Counter[int]()

    def on_letter(sent: Sent) -> list[bytes]:
        if sent.asks(Kind.SURVIVORS) and sent.number in (0, 1, 2):  # too few to open anything: every round is lost
            losses[sent.number] += 1
            return []
        return [sent.raw]

    made.post.on_letter = on_letter
    result = made.train()
    assert [record.get("broke_off", "") != "" for record in result.history] == [True, True]
    assert result.rounds_charged == 2
    for number in range(5):
        assert len(answers(made, number, Kind.MASKED)) <= 2 == made.diary(number)[1]


def test_what_cannot_be_written_down_is_not_answered(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tolerate=0.34)
    right = Diary.charge

    def full(diary: Diary, told: Any, round: int) -> None:
        if diary._path.parent == made.folder(0):
            raise OSError("no space left on device")
        right(diary, told, round)

    monkeypatch.setattr(Diary, "charge", full)
    made.train()
    assert answers(made, 0, Kind.REVEAL) == []
    assert any("cannot be written down" in line for line in made.heard)


def test_a_letter_that_is_read_twice_is_answered_once(world: MakeWorld) -> None:
    made = world()
    made.post.on_letter = lambda sent: [sent.raw, sent.raw]
    made.train()
    for number in range(4):
        sent = answers(made, number, Kind.MASKED)
        assert sorted(sent) == sorted(set(sent)), "one vector for one round, whoever repeats what"
        assert made.diary(number)[1] == 3


def test_letters_of_a_run_that_is_over_are_of_no_use(world: MakeWorld) -> None:
    made = world()
    made.train()
    before = [made.diary(number) for number in range(4)]
    rounds = [sent for sent, _ in made.post.log if sent.kind == "round"]
    for number in range(4):
        made.restart(number)
        made.propose(number)
    for sent in rounds:
        answer = letters.read(made.members[sent.number].answer(sent.raw), made.members[sent.number].key)
        assert not any(answer.pieces), "nothing of the secure sum"
    assert [made.diary(number) for number in range(4)] == before


def test_a_diary_that_was_lost_or_restored_does_not_forget(world: MakeWorld) -> None:
    """The ledger counted, too, and this machine remembers the ledger."""
    made = world()
    path = made.folder(0) / "diary.json"
    made.propose(0)
    early = path.read_text()
    made.train()
    for restored in (early, None):
        path.unlink() if restored is None else path.write_text(restored)
        made.restart(0)
        assert made.propose(0).head["opened"] == 3
    (made.folder(0) / "ledger.sqlite").unlink()
    path.unlink()
    made.restart(0)
    assert made.propose(0).head["kind"] == "refused"


def test_keys_for_ever_later_rounds_do_not_fill_a_clients_memory(world: MakeWorld) -> None:
    made = world(rounds=2)
    for ahead in range(0, 2 * MOST_AHEAD, KEYS_AHEAD):
        made.ask(0, {"kind": "propose", "round": ahead}, [made.proposal.to_json().encode()])
    joined = made.members[0]._joined
    assert joined is not None
    assert len(joined.client.prepared_rounds) == MOST_AHEAD
    assert max(joined.client.prepared_rounds) == 2 * MOST_AHEAD - 1, "those that were asked for last"
    made.propose(0)
    assert set(range(KEYS_AHEAD)) <= joined.client.prepared_rounds, "rounds that were forgotten get keys again"
    assert len(joined.client.prepared_rounds) == MOST_AHEAD


def test_an_old_runs_letters_end_nothing_and_begin_nothing(world: MakeWorld) -> None:
    """A carrier keeps them: `over` would end `hush client --once`, and a proposal would call the client away."""
    made, old = world(rounds=1), dict[str, bytes]()

    def on_letter(sent: Sent) -> list[bytes]:
        if sent.number == 0:
            old[sent.kind] = sent.raw
        return [sent.raw]

    made.post.on_letter = on_letter
    made.train()
    assert made.members[0].over.is_set()
    made.restart(0)
    for late in (False, True):  # before anything else was agreed to, and in the middle of another run
        if late:
            made.proposal = replace(made.proposal, name="ab" * 16)
            assert made.propose(0).head["kind"] == "yes"
        made.members[0].answer(old["over"])
        answer = letters.read(made.members[0].answer(old["propose"]), made.members[0].key)
        assert not made.members[0].over.is_set()
        assert answer.head["why"] == "This run is over: propose another one."
    made.out.rename(made.place / "first")
    made.train()
    assert made.members[0].over.is_set()
    assert not any("propose it anew" in line for line in made.heard), "it was in its run all the time"


TOLD = dict.fromkeys(("certificate", "model", "result", "rounds"), "0" * 64)


def test_a_client_that_was_started_again_hears_that_its_run_is_over(world: MakeWorld) -> None:
    made = world(rounds=1)
    made.propose(0)
    made.restart(0)
    made.ask(0, {"kind": "over", "released": TOLD})
    assert not made.members[0].over.is_set(), "its statement may never arrive"
    signed = made.ask(0, {"kind": "over", "released": TOLD}).pieces[0]
    made.ask(0, {"kind": "over", "released": TOLD, "kept": statement.read(signed).sha256})
    assert made.members[0].over.is_set()


def test_who_cannot_take_part_says_so_to_its_owner_and_remembers_no_yes(world: MakeWorld) -> None:
    """This machine's troubles: the server hears that there are some, and nothing of them."""
    made = world(rounds=1)
    made.train()
    (made.folder(0) / "ledger.sqlite").unlink()
    made.restart(0)
    made.heard.clear()
    before = (made.folder(0) / "diary.json").read_text()
    made.proposal = replace(made.proposal, name="ab" * 16)
    answer = made.propose(0)
    assert answer.head["kind"] == "refused"
    assert answer.head["why"] == "it cannot take part, and its owner is told why"
    assert any("CANNOT TAKE PART" in line and "ledger.sqlite" in line for line in made.heard)
    assert (made.folder(0) / "diary.json").read_text() == before


def test_a_diary_that_was_lost_does_not_forget_what_other_runs_cost(world: MakeWorld) -> None:
    made = world(rounds=2, noise=4.0)
    asked: list[Before] = []

    def decide(told: Any, me: int, before: Before) -> bool:
        asked.append(before)
        return True

    made.train()
    told = agree(made.proposal)
    assert told.proof is not None
    assert told.proof.server is not None
    epsilon, delta = told.proof.server.epsilon, told.proof.server.delta
    for number, name in enumerate(("ab", "cd", "ef")):
        if number == 1:
            (made.folder(0) / "diary.json").unlink()
        made.restart(0, decide=decide)
        made.propose(0, replace(made.proposal, name=name).to_json())
    there, lost, again = asked
    assert there[:3] == (epsilon, delta, False)
    assert lost.epsilon == pytest.approx(epsilon, rel=0.05)
    assert lost.delta == delta
    assert again.delta == pytest.approx(2 * delta), "what the ledger knows, and what the diary does"
    assert again.epsilon == pytest.approx(2 * epsilon, rel=0.05)
    made.restart(0, decide=decide)
    made.propose(0)
    assert asked[-1].epsilon == pytest.approx(2 * epsilon, rel=0.05), "the other two, without itself"


def test_whose_letters_are_lost_at_the_opening_counts_the_sums_that_others_opened(world: MakeWorld) -> None:
    made = world(clients=5, tolerate=0.2, rounds=3)
    made.post.on_letter = lambda sent: [] if sent.number == 0 and sent.asks(Kind.SURVIVORS) else [sent.raw]
    sums: list[tuple[int, ...]] = []
    result = made.train(on_round=lambda record: sums.append(made.federation.opened.included if made.federation.opened else ()))
    assert sum(0 in included for included in sums) == len(answers(made, 0, Kind.MASKED)) > 0
    assert made.diary(0)[1] == charged(made, 0) == len(answers(made, 0, Kind.MASKED))
    assert result.rounds_charged == 3


@pytest.mark.parametrize("threat", ["curious", "malicious"])
def test_two_sums_that_one_letter_opens_are_two(threat: str, world: MakeWorld) -> None:
    """A server of other code runs two rounds side by side, and puts what belongs to both into one letter."""
    made = world(clients=5, threat=threat, rounds=4)
    told = agree(made.proposal)
    server = secagg.Server(made.server.identity, made.proposal.members.roster, told.terms)
    for number in range(5):
        server.take_keys(number, made.propose(number).pieces[0])
    public = [None] * len(told.method.pipeline.parts)
    model, pieces = letters.pack([made.ready()[0].data.learner.initial(), *public])
    both = [server.open(round, range(5)) for round in (0, 1)]

    def trip(out: list[dict[int, bytes]]) -> list[dict[int, bytes]]:
        for number in range(5):
            answer = made.ask(
                number, {"kind": "round", "index": 0, "broadcast": model}, [*pieces, *(letter[number] for letter in out if letter)]
            )
            for piece in filter(None, answer.pieces):
                both[peek(piece, number)[1]].receive(number, piece)
        return [one.advance() if letter else {} for one, letter in zip(both, out, strict=True)]

    (first, _), (_, second) = trip([both[0].start(), {}]), trip([{}, both[1].start()])
    out = [first, second]
    while any(out):
        out = trip(out)
    assert [one.stage for one in both] == ["nothing more"] * 2, "both were opened"
    assert [made.diary(number)[1] for number in range(5)] == [2] * 5
    assert [charged(made, number) for number in range(5)] == [2] * 5


def test_a_copy_of_a_clients_folder_is_another_ledger_and_answers_nothing(world: MakeWorld) -> None:
    """One that was made before the first run would count from nothing, beside the one that counts."""
    made = world()
    copy = made.place / "copy"
    shutil.copytree(made.folder(0), copy)
    made.train()
    member = Member(ClientFolder.of(copy), str(made.data(0)), yes, say=made.heard.append)
    made.members[0] = member
    assert made.propose(0).head["kind"] in ("no", "refused")
    assert any("same owner" in line for line in made.heard)
    made.restart(0)
    another = replace(made.proposal, name="0" * 32)
    assert made.propose(0, another.to_json()).head["kind"] == "yes"


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "dance"},
        {"kind": "round", "broadcast": 5, "index": 0},
        {"kind": "round", "broadcast": [["float32", [1]]], "index": 0},
        {"kind": "round", "run": "00" * 32},
        {"kind": "propose"},
        {"kind": "propose", "round": 2**70},
        {"kind": "round", "keys_from": 2**70, "broadcast": []},
        {"key": "no key"},
        {"kind": 7},
        {},
    ],
)
def test_nonsense_of_the_server_itself_is_no_crash(head: dict[str, Any], world: MakeWorld) -> None:
    made = world(noise_seed=1)
    made.propose(0)
    try:
        answer = made.ask(0, head)
    except letters.BadLetter:
        return
    assert answer.head["kind"] in ("refused", "answers")
    assert not any(answer.pieces)


def test_a_model_of_another_size_or_kind_gets_no_vector(world: MakeWorld) -> None:
    made = world(noise_seed=1)

    def on_letter(sent: Sent) -> list[bytes]:
        if sent.number != 0 or not sent.asks(Kind.DELIVERY):
            return [sent.raw]
        told, pieces = letters.pack([torch.zeros(7), None, None, None, None])
        head = sent.letter.head | {"broadcast": told}
        return [letters.write(made.server.identity, head, [*pieces, *sent.messages])]

    made.post.on_letter = on_letter
    with pytest.raises(HushError, match="broke off"):
        made.train()
    assert answers(made, 0, Kind.MASKED) == []


def test_what_others_wrote_is_shown_without_its_commands(world: MakeWorld, tmp_path: Path) -> None:
    made = world(noise_seed=1)
    made.restart(0, decide=lambda told, me, before: "\x1b[2Jcome in\nround 9 of 3: validation 99%")
    with pytest.raises(HushError, match="come in"):
        made.train()
    assert not any("\x1b" in line or "\n" in line for line in made.heard)


def test_a_server_names_no_file_that_a_client_runs(world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(noise_seed=1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("raise SystemExit('this was run')\n")
    answer = made.propose(0, changed(made.proposal, model="net.py:net").to_json())
    assert answer.head["kind"] == "refused"
    assert "nobody runs a server's file" in answer.head["why"]


def test_a_letter_is_no_larger_than_makes_sense(world: MakeWorld) -> None:
    made = world(noise_seed=1)
    assert made.members[0].largest == 2**24
    made.propose(0)
    assert 2**24 < made.members[0].largest < 2**25


def test_a_silent_client_sends_what_one_without_data_sends(world: MakeWorld) -> None:
    """Its noise, by the same way as its vector: a clock tells no coin."""
    made = world(noise_seed=1, sampling="secret", cohort=2.0)
    made.propose(0)
    joined = made.members[0]._joined
    assert joined is not None
    method, learner = joined.told.method, joined.adds.data.learner
    own = OwnSecrets.simulated(Secret(bytes(32)), [0])
    shard = joined.adds.data.train.shard(torch.zeros(1, dtype=torch.int64))._replace(own=own, slots=True)
    args = (Round(0, 0, 2.0), keys_of(0, torch.zeros(1, dtype=torch.int64)), (None,) * len(method.pipeline.parts))
    silent, _ = method.contribute(learner, learner.initial(), shard, *args, torch.tensor([True]))
    absent, _ = method.contribute(learner, learner.initial(), shard._replace(size=torch.zeros_like(shard.size)), *args)
    spoken, _ = method.contribute(learner, learner.initial(), shard, *args, torch.tensor([False]))
    assert torch.equal(silent, absent)
    assert not torch.equal(silent, spoken)


# -- rows that cannot be used ------------------------------------------------------------------------------------------------------


class Watch:
    """The steps of the training that client 0 of a world makes in the first round, by the width of each, and its vector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int | None = None, nan_at: int | None = None) -> None:
        self._steps: list[int] = []
        self._heard: dict[str, tuple[np.ndarray, list[int]]] = {}
        right, trained = FlatModel.mean_loss, Member._trained

        def mean_loss(learner: FlatModel, named: Any, x: torch.Tensor, *more: Any) -> Any:
            self._steps.append(len(x))
            if len(self._steps) == fails_at:
                raise RuntimeError("the row of Mrs Miller")
            loss = right(learner, named, x, *more)
            return loss * float("nan") if len(self._steps) == nan_at else loss

        def vector(member: Member, *given: Any) -> np.ndarray:
            self._steps.clear()
            sent = trained(member, *given)
            self._heard.setdefault(member.name, (sent, list(self._steps)))
            return sent

        monkeypatch.setattr(FlatModel, "mean_loss", mean_loss)
        monkeypatch.setattr(Member, "_trained", vector)

    def of(self, made: World) -> tuple[np.ndarray, list[int]]:
        self._heard.clear()
        made.train()
        return self._heard["client-0"]


def noise_of(made: World) -> np.ndarray:
    """What client 0 would send in the first round if it had no example, from the same seed."""
    run, told = made.proposal.run, agree(made.proposal)
    task = made.proposal.model()
    learner = FlatModel(task, torch.nn.CrossEntropyLoss(reduction="none"))
    own = OwnSecrets.simulated(Secret.of_seed(run.seed, run.noise_seed or 0), [0])
    nobody = torch.zeros(1, dtype=torch.int64)
    shard = Shard(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), nobody, nobody, own=own, slots=True)
    rnd = Round(0, derive(run.seed, 1, 0), told.cohort.size)
    keys = keys_of(derive(run.seed, 2, 0), nobody)
    public = told.method.prepare(learner.initial(), told.method.init(learner.initial()), rnd, Server(learner, None))
    row, _ = told.method.contribute(learner, learner.initial(), shard, rnd, keys, public)
    return row[0].numpy()


def spoil(made: World, how: str) -> None:
    """Put something into client 0's table that no model of this proposal reads."""
    held = load_file(made.data(0))
    rows = len(held["y"])
    if how == "labels":
        held["y"] = torch.full((rows,), 77)
    elif how == "kind":
        held["y"] = torch.rand(rows)
    elif how == "shape":
        held["x"] = torch.zeros(rows, 1, 4, 4)
    elif how == "nan":
        held["x"] = torch.full_like(held["x"], float("nan"))
    save_file(held, made.data(0))


@pytest.mark.parametrize("how", ["labels", "kind", "shape", "nan"])
def test_a_client_whose_rows_do_not_fit_works_as_long_as_any_other(
    how: str, world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a clock would tell the server what no answer tells: the same steps of the same width, and nothing but the noise."""
    watch = Watch(monkeypatch)
    given: dict[str, Any] = {"noise_seed": 1, "rounds": 1, "set": {"local_steps": None, "local_epochs": 2}}
    good = world(place=tmp_path / "good", **given)
    spoken, taken = watch.of(good)
    bad = world(place=tmp_path / "bad", **given)
    spoil(bad, how)
    sent, worked = watch.of(bad)
    assert any("only noise is sent" in line for line in bad.heard)
    assert worked == taken
    assert len(taken) > 2
    assert np.array_equal(sent, noise_of(bad))
    assert not np.array_equal(spoken, noise_of(good))


def test_a_training_that_gives_nan_sends_noise_and_its_owner_is_told(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, nan_at=1)
    made = world(noise_seed=1, rounds=1)
    sent, worked = watch.of(made)
    assert len(worked) == 2, "as long as any other"
    assert np.array_equal(sent, noise_of(made))
    assert sum("TRAINING GAVE NaN" in line for line in made.heard) == made.clients, "each to its owner"


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_training_that_fails_midway_takes_the_steps_that_it_left_undone(
    at: int, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch, fails_at=at)
    made = world(noise_seed=1, rounds=1, set={"local_steps": 4})
    sent, worked = watch.of(made)
    assert any("TRAINING FAILED" in line and "Mrs Miller" in line for line in made.heard)
    assert len(worked) == 4, "as many as a training that does not fail"
    assert np.array_equal(sent, noise_of(made))


def test_what_fails_after_training_is_silenced_without_another_one(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, failed = Watch(monkeypatch), list[int]()
    made = world(noise_seed=1, rounds=1, set={"local_steps": 3})
    right = Chain.send

    def send(chain: Chain, *given: Any) -> Any:
        if not failed:
            failed.append(1)
            raise RuntimeError("no memory")
        return right(chain, *given)

    monkeypatch.setattr(Chain, "send", send)
    sent, worked = watch.of(made)
    assert len(worked) == 3
    assert np.array_equal(sent, noise_of(made))


def test_stand_ins_are_as_many_as_the_rows_or_a_constant() -> None:
    told = Examples((1, 8, 8), "float32", 10)
    assert Held("a", table={"x": np.zeros((7, 3)), "y": np.zeros(7)}).records(told) == 7
    assert Held("a:b", made=([1, 2, 3], None)).records(told) == 3
    assert Held("a:b", made=(object(), 1)).records(told) == 0
    x = zeros_and_ones(torch.rand(5, *told.shape))
    assert x.reshape(5, -1).unique(dim=1).flatten().tolist() == [0, 1, 0, 1, 0]
