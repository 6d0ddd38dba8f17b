"""The server among clients that vanish, come back, lie and say no: every round is exact, or breaks off at no charge."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.certify import verify_run
from hush.errors import HushError
from hush.federation import letters, member, standing
from hush.federation.member import Member
from hush.federation.server import Unreachable
from hush.privacy.ledger import Ledger
from hush.secagg import ServerRound, keyring
from hush.secagg import client as secagg_client
from hush.secagg.messages import ENVELOPE_BYTES, MOST_AHEAD, SIGNED_KEY_BYTES, Kind
from hush.secagg.packing import signed
from tests.federation.conftest import MakeWorld
from tests.federation.world import BEFORE, PATIENCE, Died, Sent, World, losing, nobody_asks_twice


class Added:
    """What every client put into every sum, and what every sum that was opened holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[ServerRound] = []
        self.by_letter: dict[tuple[int, str], np.ndarray] = {}
        right, total = Member._trained, ServerRound.signed_total

        def trained(one: Member, joined: Any, letter: Any, values: Any) -> np.ndarray:
            vector = right(one, joined, letter, values)
            self.by_letter[joined.adds.number, letter.name] = vector
            return vector

        def opened(one: ServerRound) -> Any:
            self.opened.append(one)
            return total.fget(one)  # type: ignore[attr-defined]

        monkeypatch.setattr(Member, "_trained", trained)
        monkeypatch.setattr(ServerRound, "signed_total", property(opened))

    def exact(self, world: World) -> bool:
        """Every sum that was opened is that of the vectors that its included clients sent for it."""
        sent = {
            (sent.number, round): self.by_letter.get((sent.number, sent.letter.name))
            for sent, _ in world.post.log
            for kind, round in sent.stages
            if kind is Kind.DELIVERY
        }
        for one in self.opened:
            held = [sent[number, one.session.round] for number in one.included]
            bits = one.session.terms.bits
            expected = signed(np.sum(held, axis=0).astype(np.int64).astype(np.uint64) & np.uint64(2**bits - 1), bits)
            if not (expected == signed(one.total, bits)).all():
                return False
        return True


def charges_of(path: Path) -> int:
    """Of the one run in a ledger."""
    ledger = Ledger(path, own=True, look=True)
    try:
        return sum(run.charges for pool in ledger.populations.values() for run in pool.runs.values())
    finally:
        ledger.close()


def certified(world: World) -> bool:
    return all(check.passed is not False for check in verify_run(world.out).checks)


@pytest.mark.parametrize("tolerate", [0.0, 0.34])
@pytest.mark.parametrize("moment", list(BEFORE))
def test_a_client_that_vanishes_costs_a_repetition_or_nothing(
    moment: str, tolerate: float, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, added = world(tolerate=tolerate), Added(monkeypatch)
    losing(made, 2, moment, round=1)
    result = made.train()
    assert added.exact(made)
    records = result.history
    again = sum(record.get("tried_again", 0) for record in records)
    broken = [record["broke_off"] for record in records if "broke_off" in record]
    sizes = [len(one.included) for one in added.opened]
    if tolerate:
        assert not again
        assert not broken
        assert sizes.count(3) <= 2, "a letter that is lost held the next round's invitation, too"
        assert set(sizes) == ({4} if moment == "opening" else {3, 4})
    elif moment == "opening":  # others may have shown their shares: that is a release, and paid for
        assert sizes == [4] * len(sizes)
        assert len(broken) + len(sizes) == 3
    else:
        assert 1 <= again <= 2
        assert sizes == [4, 4, 4]
    assert charges_of(made.out / "ledger.sqlite") == 3 == result.rounds_charged
    assert max(made.diary(number)[1] for number in range(4)) <= 3
    for number in range(4):
        assert charges_of(made.folder(number) / "ledger.sqlite") == made.diary(number)[1]
    assert certified(made)


def test_a_client_that_is_started_again_in_the_middle_takes_part_again(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made, added = world(), Added(monkeypatch)
    restarted = []

    def on_letter(sent: Sent) -> list[bytes]:
        if sent.number == 1 and sent.asks(Kind.DELIVERY, 1) and not restarted:
            made.restart(1, decide=nobody_asks_twice)
            restarted.append("again")
        return [sent.raw]

    made.post.on_letter = on_letter
    result = made.train()
    assert restarted == ["again"], "and was not asked for its consent a second time"
    assert added.exact(made)
    assert len(added.opened) == 3
    assert sum(record.get("tried_again", 0) for record in result.history) >= 1
    assert made.diary(1)[1] == 3


def test_a_client_that_is_away_for_a_while_is_waited_for(world: MakeWorld) -> None:
    made = world(noise_seed=1)
    gone: list[int] = []

    def on_letter(sent: Sent) -> list[bytes]:
        if sent.number == 3 and sent.asks(Kind.DELIVERY, 1):
            made.kill(3)
        elif gone == [] and 3 not in made.members and sent.kind == "propose":
            gone.append(1)
            made.restart(3)
        return [sent.raw]

    made.post.on_letter = on_letter
    made.clock.on_wait = lambda: made.restart(3) if 3 not in made.members else None
    result = made.train()
    assert len(result.history) == 3
    assert made.diary(3)[1] == 3


def test_answers_that_are_repeated_reordered_forged_or_of_others_change_nothing(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, added = world(noise_seed=1, rounds=4), Added(monkeypatch)
    made.post.chance = random.Random(3)
    old: list[bytes] = []

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        told = letters.read(answer, made.members[sent.number].key)
        other = made.members[(sent.number + 1) % 4]._identity
        forged = letters.write(other, told.head, list(told.pieces))  # names one, signed by another
        stolen = letters.write(other, told.head | {"key": other.public.hex()}, list(told.pieces))
        spoilt = bytes([*answer[:-1], answer[-1] ^ 1])
        old.append(answer)
        return [forged, stolen, spoilt, b"", b"noise", answer[:50], answer, answer, *old[:3]]

    made.post.on_answer = on_answer
    result = made.train()
    assert added.exact(made)
    assert len(added.opened) == 4
    assert not any(record.get("tried_again") for record in result.history)


def test_a_letter_to_the_wrong_client_is_answered_by_nobody(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made, added = world(noise_seed=1), Added(monkeypatch)

    def on_letter(sent: Sent) -> list[bytes]:
        made.post.deliver((sent.number + 1) % 4, sent.raw, sent)
        return [sent.raw]

    made.post.on_letter = on_letter
    made.train()
    assert added.exact(made)
    assert any("for another client" in line for line in made.heard)


def test_letters_that_arrive_twice_do_no_harm(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made, added = world(noise_seed=1), Added(monkeypatch)
    made.post.on_letter = lambda sent: [sent.raw, sent.raw]
    made.train()
    assert added.exact(made)
    assert [made.diary(number)[1] for number in range(4)] == [3] * 4


def test_an_answer_that_comes_too_late_is_no_answer(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector that is brought when its round was given up is in no sum."""
    made, added = world(tolerate=0.34, noise_seed=1), Added(monkeypatch)

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        if sent.number == 0 and sent.asks(Kind.DELIVERY, 1):
            held.append(answer)
            return []
        return [answer, *(held if sent.asks(Kind.SURVIVORS, 1) else [])]

    held: list[bytes] = []
    made.post.on_answer = on_answer
    made.train()
    assert held
    assert added.exact(made)
    assert 0 not in next(one for one in added.opened if one.session.round == 1).included


@pytest.mark.parametrize(
    "head",
    [
        {"why": 5},
        {"why": None},
        {"why": "no"},
        {"why": [[]]},
        {"keys": True},
        {"kind": []},
        {"kind": "yes", "next": 2**61},
        {"kind": "yes", "next": -1},
        {"next": "x"},
    ],
    ids=str,
)
def test_a_client_that_answers_nonsense_stops_nobody_but_its_own_rounds(
    head: dict[str, Any], world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the roster, with its own signature, in the second round: the others go on without it."""
    made, added = world(clients=5, tolerate=0.2, noise_seed=1, rounds=2), Added(monkeypatch)
    left = 1

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        nonlocal left
        if sent.number == 2 and sent.asks(Kind.DELIVERY) and left:
            left -= 1
            told = letters.read(answer, made.members[2].key)
            return [letters.write(made.members[2]._identity, told.head | head, [b"junk"])]
        return [answer]

    made.post.on_answer = on_answer
    made.train()
    assert len(added.opened) == 2
    assert added.exact(made)


def test_a_client_that_names_a_round_far_ahead_does_not_stop_the_run(world: MakeWorld) -> None:
    made = world(noise_seed=1, rounds=2)

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        told = letters.read(answer, made.members[sent.number].key)
        if sent.number == 2 and told.head["kind"] == "yes":
            return [letters.write(made.members[2]._identity, told.head | {"next": 2**61}, list(told.pieces))]
        return [answer]

    made.post.on_answer = on_answer
    assert len(made.train().history) == 2


def test_a_client_that_says_no_ends_the_run_with_its_reason(world: MakeWorld) -> None:
    made = world(noise_seed=1)
    made.restart(1, decide=lambda told, me, before: "the board meets on Friday")
    with pytest.raises(HushError, match=r"client-1 does not take part: the board meets on Friday\. Take it out of the roster"):
        made.train()
    assert not (made.out / "ledger.sqlite").exists() or charges_of(made.out / "ledger.sqlite") == 0
    assert [made.diary(number) for number in (0, 2, 3)] == [(0, 0)] * 3


def test_where_nobody_comes_the_server_gives_up_when_it_was_told_to(world: MakeWorld) -> None:
    made = world(noise_seed=1)
    made.members.clear()
    since = made.clock.now
    with pytest.raises(Unreachable, match="For 20 s these clients were not there: client-0, client-1"):
        made.train()
    assert 20 <= made.clock.now - since < 25


def test_one_who_never_came_is_waited_for_though_a_sum_could_do_without(world: MakeWorld) -> None:
    made = world(tolerate=0.34, noise_seed=1)
    made.kill(3)
    with pytest.raises(Unreachable, match="client-3"):
        made.train()


def test_a_rounds_record_says_what_clients_were_waited_for(world: MakeWorld) -> None:
    """By the server's clock: nothing that a client says of its time is in it, or in any answer."""
    made = world(noise_seed=1, tolerate=0.34)

    def on_letter(sent: Sent) -> list[bytes]:
        made.clock.now += 5.0 if sent.asks(Kind.DELIVERY) else 2.0 if sent.asks(Kind.SURVIVORS) else 0.0
        return [sent.raw]

    made.post.on_letter = on_letter
    records = made.train().history
    assert [record["trip_seconds"]["vectors"] for record in records] == [20.0] * 3, "of four clients"
    assert [record["trip_seconds"]["opening"] for record in records] == [8.0] * 3
    assert ["shares" in record["trip_seconds"] for record in records] == [True, False, False], "they come with the last vectors"
    for sent, raw in made.post.log:
        head = letters.read(raw, made.members[sent.number].key).head
        assert not any(isinstance(value, float) for value in head.values()), head


def test_a_round_that_was_tried_again_counts_all_its_waiting(world: MakeWorld) -> None:
    made = world(noise_seed=1)
    losing(made, 2, "vector", round=1)
    records = made.train().history
    again = next(record for record in records if record.get("tried_again"))
    assert again["trip_seconds"]["vectors"] >= PATIENCE.grace


def test_a_client_that_never_comes_back_is_done_without_however_long_the_run_is(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its keys are used up; and one that comes back after that takes part again."""
    for place in (member, standing):
        monkeypatch.setattr(place, "KEYS_AHEAD", 2)
    made, added = world(clients=5, tolerate=0.2, rounds=8, set={"local_steps": 1}), Added(monkeypatch)

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            made.kill(4)
        if record["round"] == 5:
            made.restart(4, decide=nobody_asks_twice)
            made.clock.now += 60

    result = made.train(on_round=on_round)
    assert added.exact(made)
    sizes = [len(one.included) for one in added.opened]
    assert sizes[:5] == [5, 4, 4, 4, 4]
    assert sizes[-2:] == [5, 5]
    assert result.rounds_charged == 8
    assert not any("broke_off" in record for record in result.history)


@pytest.mark.parametrize("keys", [True, False])
def test_one_that_names_rounds_far_ahead_again_and_again_is_done_without(
    keys: bool, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, added = world(clients=5, tolerate=0.2, rounds=3), Added(monkeypatch)
    evil = made.members[4]

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        told = letters.read(answer, made.members[sent.number].key)
        if sent.number == 4 and told.head["kind"] == "yes":
            named = told.head | {"next": sent.letter.head["round"] + MOST_AHEAD - 1}
            return [letters.write(evil._identity, named, list(told.pieces) if keys else [b"none"])]
        return [answer]

    made.post.on_answer = on_answer
    result = made.train()
    assert result.rounds_charged == len(added.opened) == 3
    assert max(one.session.round for one in added.opened) < 10, "nobody follows it"
    assert {number for one in added.opened for number in one.included} >= {0, 1, 2, 3}


@pytest.mark.parametrize("threat", ["curious", "malicious"])
def test_a_run_whose_openings_fail_one_after_the_other_stops_and_names_whom_it_suspects(
    threat: str, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client deals shares of another secret than it vouches for: each round would be paid for, and have no sum."""
    made = world(clients=8, tolerate=0.2, rounds=9, threat=threat)
    right = secagg_client.commitment
    monkeypatch.setattr(secagg_client, "commitment", lambda own, digest, me: right(bytes(32) if me == 6 else own, digest, me))
    with pytest.raises(Unreachable, match=r"3 rounds in a row .* no sum\. Suspected, .*: client-6\. "):
        made.train()
    assert charges_of(made.out / "ledger.sqlite") == 3
    monkeypatch.undo()


# -- a server that dies ------------------------------------------------------------------------------------------------------------


def dies_after(world: World, rounds: int, resume: bool = False) -> None:
    """A run whose process ends after so many rounds."""

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            raise Died

    with pytest.raises(Died):
        world.train(resume=resume, on_round=on_round)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_whose_server_died_goes_on_with_the_same_clients(
    restarted: bool, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, added = world(rounds=4), Added(monkeypatch)
    dies_after(made, 2)
    if restarted:
        for number in range(4):
            made.restart(number, decide=nobody_asks_twice)
    result = made.train(resume=True)
    assert [record["round"] for record in result.history] == [1, 2, 3, 4]
    assert added.exact(made)
    assert len(added.opened) == 4
    assert charges_of(made.out / "ledger.sqlite") == 4
    assert [made.diary(number)[1] for number in range(4)] == [4] * 4
    assert certified(made)


def test_a_run_goes_on_though_some_clients_are_rounds_behind_the_others(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """With turns, some were in the last round and some in none: their keys must be for the same rounds to come."""
    for place in (member, standing):
        monkeypatch.setattr(place, "KEYS_AHEAD", 2)
    made = world(clients=12, cohort=3.0, rounds=7, noise_seed=1)
    dies_after(made, 3)
    assert len(made.train(resume=True).history) == 7


def dies_while_it_opens(world: World, resume: bool) -> None:
    """All clients have shown their shares, and the server ends before it keeps anything of that."""
    left = world.clients

    def on_letter(sent: Sent) -> list[bytes]:
        nonlocal left
        if sent.asks(Kind.SURVIVORS):
            left -= 1
            if not left:
                world.post.deliver(sent.number, sent.raw, sent)
                raise Died
        return [sent.raw]

    world.post.on_letter = on_letter
    with pytest.raises(Died):
        world.train(resume=resume)
    world.post.on_letter = lambda sent: [sent.raw]


def test_clients_count_for_themselves_what_a_server_that_died_has_forgotten(world: MakeWorld) -> None:
    """The round that is drawn again is one sum more; the last one is then paid for, and not opened."""
    made = world(rounds=2)
    dies_while_it_opens(made, resume=False)
    assert [made.diary(number)[1] for number in range(4)] == [1] * 4
    result = made.train(resume=True)
    assert ["broke_off" in record for record in result.history] == [False, True]
    assert [made.diary(number)[1] for number in range(4)] == [2] * 4
    assert any("in 2 sums, and no more than 2 were agreed on" in line for line in made.heard)
    assert charges_of(made.out / "ledger.sqlite") == result.rounds_charged == 3
    assert certified(made)


def test_a_run_that_no_client_joins_any_more_ends_with_a_reason_and_a_certificate(world: MakeWorld) -> None:
    """Two deaths, and clients were in as many sums as they agreed to before the last invitation. A service that starts again
    whatever ends badly would otherwise never be done."""
    made = world(rounds=3)
    for resume in (False, True):
        dies_while_it_opens(made, resume)
    result = made.train(resume=True)
    last = result.history[-1]
    assert "in all 3 sums that they agreed to" in last["broke_off"]
    assert result.rounds_charged == charges_of(made.out / "ledger.sqlite") >= 3
    assert max(made.diary(number)[1] for number in range(4)) == 3
    assert certified(made)


def test_another_server_cannot_go_on_with_a_run_of_this_one(world: MakeWorld, tmp_path: Path) -> None:
    made = world(noise_seed=1, rounds=2)
    dies_after(made, 1)
    made.proposal = replace(made.proposal, name="another")
    with pytest.raises(HushError):
        made.train()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_of_more_rounds_than_keys_are_kept_for_goes_on(
    restarted: bool, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is started again knows by itself how far it came: what clients say of that is believed to a point."""
    for place in (secagg_client, keyring, standing):
        monkeypatch.setattr(place, "MOST_AHEAD", 6)
    for place in (member, standing):
        monkeypatch.setattr(place, "KEYS_AHEAD", 2)
    made = world(rounds=11, noise_seed=1)
    dies_after(made, 9)
    if restarted:
        for number in range(4):
            made.restart(number)
    assert len(made.train(resume=True).history) == 11
    assert [made.diary(number)[1] for number in range(4)] == [11] * 4


def test_the_furthest_round_that_a_client_may_name_does_not_stop_the_run(world: MakeWorld) -> None:
    made = world(noise_seed=1, rounds=2)
    named = 0

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        nonlocal named
        told = letters.read(answer, made.members[sent.number].key)
        if sent.number == 2 and told.head["kind"] == "yes" and not named:
            named = MOST_AHEAD - 1
            return [letters.write(made.members[2]._identity, told.head | {"next": named}, list(told.pieces))]
        return [answer]

    made.post.on_answer = on_answer
    assert len(made.train().history) == 2
    assert made.federation.opened is not None
    assert made.federation.opened.session.round >= named


def test_one_that_waits_long_for_its_turn_sends_the_keys_of_rounds_to_come_alone(world: MakeWorld) -> None:
    """Those of rounds that went by without it would soon be more than the server takes."""
    made = world(clients=6, cohort=3.0)
    for first in (0, 1000, 2000):
        answer = made.ask(0, {"kind": "propose", "round": first}, [made.proposal.to_json().encode()])
        assert answer.head["kind"] == "yes"
        assert len(answer.pieces[0]) < (member.KEYS_AHEAD + 1) * (8 + SIGNED_KEY_BYTES) + ENVELOPE_BYTES
