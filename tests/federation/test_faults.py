"""Machines that fail in the midst of a run: full disks, a server that ends at the worst moments, clients of another Hush."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from hush.engines.rundir import CHECKPOINT, DiskError, RunDir
from hush.errors import HushError
from hush.federation import letters, proposal
from hush.federation.folders import ClientFolder
from hush.federation.member import Member
from hush.federation.server import Patience, Unreachable
from hush.privacy.ledger import LedgerError, RunAccount
from hush.secagg.messages import Kind
from tests.federation.conftest import MakeWorld
from tests.federation.test_server import Added, certified, charges_of
from tests.federation.world import BEFORE, Died, Sent, World


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow: what a full disk does, in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def ends() -> Iterator[None]:
    """The process is gone before what follows."""
    raise Died
    yield


def every_sum_is_paid_for(made: World, added: Added) -> bool:
    """By the server and by each client, and holds what they sent."""
    ledgers = [made.folder(number) / "ledger.sqlite" for number in range(made.clients)]
    opened = [sum(number in one.included for one in added.opened) for number in range(made.clients)]
    paid = charges_of(made.out / "ledger.sqlite") >= len(added.opened)
    return paid and all(charges_of(path) >= sums for path, sums in zip(ledgers, opened, strict=True)) and added.exact(made)


# -- a server's machine ------------------------------------------------------------------------------------------------------------

POINTS: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "the second charge": (RunAccount, "charge", lambda account, *_: account.charges == 1),
    "the second record": (RunDir, "append", lambda folder, name, record: record["round"] == 2),
    "the second checkpoint": (RunDir, "write_bytes", lambda folder, name, *_: name == CHECKPOINT and _rounds(folder) == 2),
    "the model": (RunDir, "write_bytes", lambda folder, name, *_: name == "model.safetensors"),
    "the result": (RunDir, "write_bytes", lambda folder, name, *_: name == "result.json"),
}
"""What is written, and whether it is this time."""


def _rounds(folder: RunDir) -> int:
    return len(folder.read_rounds("rounds.jsonl", 100))


@pytest.mark.parametrize("tolerate", [0.0, 0.34])
@pytest.mark.parametrize("point", list(POINTS))
@pytest.mark.parametrize(("how", "says"), [(full_disk, (LedgerError, DiskError)), (ends, (Died,))], ids=["full", "ends"])
def test_a_server_that_cannot_write_or_ends_goes_on_from_there(
    how: Callable[[], AbstractContextManager[None]],
    says: tuple[type[Exception], ...],
    point: str,
    tolerate: float,
    world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, added = world(clients=4, rounds=3, set={"local_steps": 1}, tolerate=tolerate), Added(monkeypatch)
    owner, name, is_now = POINTS[point]
    right = getattr(owner, name)

    def at(*given: Any, **more: Any) -> Any:
        if not is_now(*given):
            return right(*given, **more)
        with how():
            return right(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, at)
        with pytest.raises(says):
            made.train()
    assert every_sum_is_paid_for(made, added)
    result = made.train(resume=True)
    assert every_sum_is_paid_for(made, added)
    assert [record["round"] for record in result.history] == [1, 2, 3]
    lost = [record for record in result.history if "broke_off" in record]
    again = point in ("the second record", "the second checkpoint")  # it was opened, and forgotten: to clients that was a sum
    assert len(lost) == again
    paid = 3 + (again and not tolerate)  # which clients see when they are asked to open it, or before a vector leaves
    assert result.rounds_charged == charges_of(made.out / "ledger.sqlite") == paid
    assert certified(made)


# -- a client's machine ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["yes", "vector"])
def test_a_client_whose_disk_is_full_is_in_no_sum_until_it_is_not(
    moment: str, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, added = world(tolerate=0.34, rounds=4, set={"local_steps": 1}), Added(monkeypatch)
    refused = 0

    def on_letter(sent: Sent) -> list[bytes]:
        nonlocal refused
        asked = sent.kind == "propose" if moment == "yes" else sent.asks(BEFORE["vector"])
        if sent.number != 1 or not asked or refused:
            return [sent.raw]
        refused += 1
        with full_disk():
            made.post.deliver(1, sent.raw, sent)
        return []

    made.post.on_letter = on_letter
    result = made.train(on_round=lambda record: made.clock.wait(60.0))
    assert refused == 1
    assert any("CANNOT TAKE PART" in line or "cannot be written down" in line for line in made.heard)
    sums = [1 in one.included for one in added.opened]
    assert sums == ([True] * 4 if moment == "yes" else [False, False, True, True]), "the next invitation came with the delivery"
    assert every_sum_is_paid_for(made, added)
    assert result.rounds_charged == 4


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["hush", "model"])
def test_a_client_of_another_hush_or_with_another_model_says_so(
    what: str, late: bool, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start nobody does without it; one that is updated in the midst of a run is one that vanished."""
    made, added = world(clients=5, tolerate=0.2, rounds=2, set={"local_steps": 1}), Added(monkeypatch)
    right = made.members[1].answer

    def answer(letter: bytes) -> bytes:
        with monkeypatch.context() as other:
            if what == "hush":
                other.setattr(proposal, "__version__", "9.9")
            else:
                build = proposal.build_model
                other.setattr(proposal, "build_model", lambda name, shape, *more: build("logistic", shape, *more))
            return right(letter)

    def update(record: dict[str, Any] | None = None) -> None:
        made.restart(1)
        nonlocal right
        right = made.members[1].answer
        monkeypatch.setattr(made.members[1], "answer", answer)

    if not late:
        update()
        with pytest.raises(Unreachable, match=r"client-1 does not take part: The (server runs Hush|model has .* parameters here)"):
            made.train()
        assert charges_of(made.out / "ledger.sqlite") == 0
        return
    made.train(on_round=lambda record: update() if record["round"] == 1 else None)
    assert [1 in one.included for one in added.opened] == [True, False]
    assert every_sum_is_paid_for(made, added)


@pytest.mark.parametrize(
    "vector", [np.zeros(7, np.int64), np.full(4810, np.nan), np.zeros((2, 3)), None], ids=["short", "nan", "flat", "none"]
)
def test_a_vector_that_is_none_is_in_no_sum(vector: Any, world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a client's training makes of it: it leaves the round, and the others' sum is theirs."""
    made, added = world(clients=5, tolerate=0.2, rounds=2, set={"local_steps": 1}), Added(monkeypatch)
    right = Member._trained
    bad = made.members[3].name
    monkeypatch.setattr(Member, "_trained", lambda one, *given: vector if one.name == bad else right(one, *given))
    made.train()
    assert [3 in one.included for one in added.opened] == [False, False]
    assert every_sum_is_paid_for(made, added)


def test_a_vector_out_of_the_ring_is_taken_modulo(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum hides poison as well as data: what a client sends is in it, and harms no other sum."""
    made = world(noise_seed=1, rounds=1, set={"local_steps": 1})
    right, chance = Member._trained, np.random.default_rng(1)
    bad = made.members[3].name

    def poisoned(one: Member, *given: Any) -> Any:
        honest = right(one, *given)
        return chance.integers(-(2**62), 2**62, honest.shape) if one.name == bad else honest

    monkeypatch.setattr(Member, "_trained", poisoned)
    added = Added(monkeypatch)
    made.train()
    assert added.exact(made)


def test_clients_that_stay_silent_for_good_end_a_run_that_cannot_do_without_them(world: MakeWorld) -> None:
    made = world(rounds=2, set={"local_steps": 1})
    made.post.on_letter = lambda sent: [] if sent.number == 2 and sent.asks(Kind.DELIVERY) else [sent.raw]
    with pytest.raises(HushError, match=r"Round 1 broke off 20 times, at last so: 3 of 4 clients sent their vectors"):
        made.train()
    assert charges_of(made.out / "ledger.sqlite") == 0
    assert [made.diary(number)[1] for number in range(4)] == [0] * 4


def test_one_that_answers_garbage_at_once_has_nobody_cut_off(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five one may be missing, and one takes half a minute: it is waited for, since four vectors are needed."""
    patience = Patience(stage=600.0, grace=10.0, absent=900.0)
    made, added = world(clients=5, tolerate=0.2, rounds=3, patience=patience), Added(monkeypatch)
    liar, on_their_way = ClientFolder.of(made.folder(0)).identity, list[tuple[float, bytes]]()

    def answered(sent: Sent, answer: bytes) -> list[bytes]:
        if not sent.asks(Kind.DELIVERY) or sent.number not in (0, 4):
            return [answer]
        if sent.number == 4:
            on_their_way.append((made.clock.now + 30.0, answer))
            return []
        head = {"kind": "answers", "why": [], "re": sent.letter.name, "key": liar.public.hex()}
        return [letters.write(liar, head, [b"garbage"])]

    def arrives() -> None:
        for due in [due for due in on_their_way if due[0] <= made.clock.now]:
            on_their_way.remove(due)
            made.post.late.append(due[1])

    made.post.on_answer, made.clock.on_wait = answered, arrives
    made.train()
    assert [set(one.included) for one in added.opened] == [{1, 2, 3, 4}] * 3
    assert charges_of(made.out / "ledger.sqlite") == 3
