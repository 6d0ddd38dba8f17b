"""Bytes that are counted are those that travel; a model is sent as what changed of it; and no raw update is among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hush.core import Method
from hush.engines.federation import beside_the_vector
from hush.engines.traffic import Traffic, in_words
from hush.federation import letters
from hush.secagg import client as sums
from hush.secagg.messages import ENVELOPE_BYTES, SIGNED_KEY_BYTES, Kind, peek
from hush.secagg.packing import pack
from tests.federation.conftest import MakeWorld
from tests.federation.test_paths_agree import agree, settings_of, simulated
from tests.federation.world import Sent, World, losing

METHODS = ("dp-fedavg", "fed-smp-rand-k", "fed-smp-top-k", "dp-fedavg+sketch", "dp-sgd")
ENVELOPE = 700
"""Bytes that a letter may have beside its pieces: the names of two models and of a letter, lengths, a signature."""


def total(history: list[dict[str, Any]], way: str) -> Traffic:
    return sum((Traffic(**record["traffic"][way]) for record in history), Traffic())


# -- counted and measured ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_what_is_counted_is_what_is_simulated_and_what_is_measured_is_hardly_more(name: str, world: MakeWorld) -> None:
    made = world(**settings_of(name, rounds=3))
    there, here = made.train(), simulated(made)
    up, down = total(there.history, "up"), total(there.history, "down")
    log = [(sent, answer) for sent, answer in made.post.log if sent.kind != "over"]  # that is after the last round
    assert (up.letters, down.letters) == (len(log), len(log))
    assert up.measured == sum(len(answer) for _, answer in log)
    assert down.measured == sum(len(sent.raw) for sent, _ in log)
    for way in (up, down):
        assert way.counted < way.measured <= 1.01 * way.counted + ENVELOPE * way.letters
    assert there.traffic == {"up": up.__dict__, "down": down.__dict__}
    assert there.uplink_bytes_per_client == up.counted / made.clients
    assert there.downlink_bytes_per_client == down.counted / made.clients

    # a simulation counts the same, but that keys are sent for each round by themselves, and it knows of no proposal
    keys = sum(len(piece) for sent, answer in log for piece in pieces_of(made, sent, answer, Kind.KEYS))
    own = ENVELOPE_BYTES + 16 + SIGNED_KEY_BYTES
    assert up.counted - keys == made.clients * (here.uplink_bytes_per_client - 3 * own)
    assert here.traffic is None
    # and both are what is told before a run: each of the planes that an entry's bits lie in may be a byte longer
    wire = made.ready()[0].method.uplink(here.parameters)
    counted = wire.bytes + beside_the_vector(made.federation.terms) - own
    assert 0 <= up.counted - keys - made.clients * 3 * counted <= made.clients * 3 * 8
    vectors = [piece for sent, answer in log for piece in pieces_of(made, sent, answer, Kind.MASKED)]
    assert all(0 <= len(piece) - ENVELOPE_BYTES - wire.bytes <= 8 for piece in vectors)
    assert len(vectors) == made.clients * 3


def pieces_of(made: World, sent: Sent, answer: bytes, kind: Kind) -> list[bytes]:
    """Messages of one kind in an answer."""
    said = letters.read(answer, made.members[sent.number].key)
    return [piece for piece in said.pieces if piece and peek(piece, sent.number)[0] is kind]


@pytest.mark.parametrize(("name", "sparse"), [("dp-fedavg", False), ("fed-smp-top-k", True), ("dp-fedavg+sketch", True)])
def test_where_few_coordinates_change_those_alone_travel(name: str, sparse: bool, world: MakeWorld) -> None:
    made = world(**settings_of(name, rounds=3))
    result = made.train()
    method, dim = made.ready()[0].method, result.parameters
    models = [sent for sent, _ in made.post.log if sent.letter.head.get("model")]
    assert len(models) == 3 * made.clients
    assert [("base" in sent.letter.head) for sent in models] == [False] * made.clients + [sparse] * 2 * made.clients
    for sent in models:
        whole = "base" not in sent.letter.head
        counted = method.downlink_bytes(dim) if whole else method.answer_bytes(dim)
        assert counted is not None
        brought = sum(map(len, sent.letter.pieces)) - sum(map(len, sent.messages))
        assert brought <= counted + 8
        assert whole or counted < 0.2 * method.downlink_bytes(dim)
        assert not [kind for kind, _ in filter(None, listed(sent)) if kind == "int64"], "a mask takes a few bits an entry"


def listed(sent: Sent) -> Iterator[list[Any]]:
    return (item for item in sent.letter.head["broadcast"] if isinstance(item, list))


# -- what changed of a model -------------------------------------------------------------------------------------------------------


def bases(made: World, number: int) -> list[bool]:
    """Of each model that a client was sent, whether it came as what changed."""
    return ["base" in sent.letter.head for sent, _ in made.post.log if sent.number == number and "model" in sent.letter.head]


def test_a_client_that_sat_out_gets_all_that_changed_since(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(**settings_of("fed-smp-rand-k", rounds=6, clients=6, cohort=3.0, noise_seed=4))
    agree(made, monkeypatch)
    assert [bases(made, number) for number in range(6)] == [[False, True, True]] * 6


def test_a_client_that_was_started_again_gets_the_whole_model(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(**settings_of("fed-smp-rand-k", rounds=3))

    def again(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            made.restart(1)

    made.train(on_round=again)
    assert bases(made, 0) == [False, True, True, True], "the second round was tried again"
    assert bases(made, 1) == [False, True, False, True], "it was in no round any more when the second letter came"
    same(made)


def test_a_client_whose_answer_was_lost_gets_the_whole_model(world: MakeWorld) -> None:
    """It may hold the model or not: nobody knows."""
    made = world(**settings_of("fed-smp-rand-k", rounds=3))
    lost = []

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        if sent.number == 1 and sent.asks(Kind.DELIVERY) and not lost:
            lost.append(sent)
            return []
        return [answer]

    made.post.on_answer = on_answer
    made.train()
    assert lost
    assert bases(made, 1)[:2] == [False, False]
    assert bases(made, 0)[1], "of the others each holds the very model of the round that is tried again"
    same(made)


def test_a_round_that_is_tried_again_brings_the_model_once(world: MakeWorld) -> None:
    made = world(**settings_of("dp-fedavg", rounds=1))
    losing(made, 1, "vector")
    made.train()
    twice = [sent for sent, _ in made.post.log if sent.number == 0 and "model" in sent.letter.head]
    assert len(twice) == 2
    assert len(twice[1].raw) < 2000 < len(twice[0].raw)
    same(made)


def test_a_client_that_holds_another_model_says_so_and_no_round_breaks_off(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(**settings_of("fed-smp-rand-k", rounds=3))

    def forget(record: dict[str, Any]) -> None:
        joined = made.members[1]._joined
        assert joined is not None
        joined.model.name = "another"

    made.train(on_round=forget)
    said = [letters.read(answer, made.members[1].key).head["kind"] for sent, answer in made.post.log if sent.number == 1]
    assert said.count("lacking") == 2
    assert bases(made, 1) == [False, True, False, True, False]
    assert not any("breaks off" in line for line in made.heard)
    same(made)


def test_a_client_that_always_wants_the_whole_model_stops_nobody(world: MakeWorld) -> None:
    made = world(**settings_of("fed-smp-rand-k", rounds=2, clients=5, tolerate=0.2))

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        if sent.number == 1 and sent.asks(Kind.DELIVERY):
            said = {"kind": "lacking", "re": sent.letter.name, "key": made.members[1].key.hex()}
            return [letters.write(made.members[1]._identity, said)]
        return [answer]

    made.post.on_answer = on_answer
    made.train()
    assert made.federation.opened is not None
    assert made.federation.opened.included == (0, 2, 3, 4)


def test_a_server_that_was_started_again_sends_whole_models(world: MakeWorld) -> None:
    made = world(**settings_of("fed-smp-rand-k", rounds=3))

    class Stopped(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        made.train(on_round=stop)
    result = made.train(resume=True)
    assert bases(made, 0) == [False, True, False]
    assert total(result.history, "down").measured > sum(len(s.raw) for s, _ in made.post.log if "model" in s.letter.head)
    same(made)


def test_bits_that_are_not_those_of_the_model_that_a_letter_names_get_no_vector(world: MakeWorld) -> None:
    made = world(**settings_of("fed-smp-rand-k", rounds=2, clients=5, tolerate=0.2))

    def on_letter(sent: Sent) -> list[bytes]:
        if sent.number != 0 or "base" not in sent.letter.head:
            return [sent.raw]
        where, values, *rest = sent.letter.pieces
        return [letters.write(made.server.identity, sent.letter.head, [where, bytes(len(values)), *rest])]

    made.post.on_letter = on_letter
    made.train()
    assert made.federation.opened is not None
    assert made.federation.opened.included == (1, 2, 3, 4)
    assert any("another model than it names" in line for line in made.heard)


def same(made: World) -> None:
    """Whatever became of letters, the model is the one that is simulated."""
    here = simulated(made).state_dict
    run, _ = made.ready()
    saved = load_file(made.out / "model.safetensors")
    assert all(torch.equal(value, saved[key]) for key, value in here.items())
    assert run.data.learner.dim == sum(value.numel() for value in here.values())


# -- no raw update -----------------------------------------------------------------------------------------------------------------


class Raw:
    """What clients must not send: their updates, before a mask is on them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[str, set[bytes]] = {}
        contribute = Method.contribute

        def watched(method: Method, learner: Any, params: Any, data: Any, rnd: Any, keys: Any, public: Any, *more: Any) -> Any:
            rows, trained = contribute(method, learner, params, data, rnd, keys, public, *more)
            update = trained.updates[0]
            if not method.local.by_record:
                on_grid = method.pipeline.encode(trained.updates, rnd, keys, public)[0]
                self.take("on the grid", on_grid, method)
            self.take("an update", update, method)
            self.take("under its noise", rows[0], method)
            return rows, trained

        monkeypatch.setattr(Method, "contribute", watched)

    def take(self, what: str, values: torch.Tensor, method: Method) -> None:
        held = values.detach().cpu().numpy()
        ways: dict[str, list[np.ndarray]] = {kind: [held.astype(kind)] for kind in ("<f4", "<f8", ">f4", ">f8")}
        if on_grid := bool((held == held.round()).all()):
            whole = held.astype(np.int64)
            ways |= {kind: [whole.astype(kind)] for kind in ("<i4", "<i8", ">i4", ">i8")}
            bits = method.uplink(len(held)).bits
            ways["packed"] = [np.frombuffer(plane, np.uint8) for plane in pack(whole.astype(np.uint64), bits)]
        for way, planes in ways.items():
            for plane in planes:
                size = 16 if on_grid and way.endswith("8") else 8
                self.written.setdefault(f"{what}, {way}", set()).update(windows(plane.tobytes(), plane.itemsize, size))

    def seen_in(self, sent: bytes) -> set[str]:
        there = windows(sent, 1, 8) | windows(sent, 1, 16)
        return {name for name, those in self.written.items() if those & there}


def windows(raw: bytes, step: int, size: int) -> set[bytes]:
    """So many bytes in a row, which are an entry, or two small ones: too many for a coincidence. Without those that anything may
    hold, zeros above all."""
    return {part for place in range(0, len(raw) - size + 1, step) if len(set(part := raw[place : place + size])) > 4}


@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp-rand-k", "dp-sgd"])
def test_no_entry_of_a_raw_update_is_among_the_bytes_that_clients_send(
    name: str, world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = Raw(monkeypatch)
    made = world(**settings_of(name, rounds=1))
    made.train()
    sent = b"".join(answer for _, answer in made.post.log)
    assert len(raw.written) >= 8
    assert min(map(len, raw.written.values())) > 100, {what: len(those) for what, those in raw.written.items()}
    assert raw.seen_in(sent) == set()
    for what, those in raw.written.items():  # it would be seen
        assert what in raw.seen_in(sent + next(iter(those)) + sent[:100])


def test_a_client_that_forgets_its_masks_would_be_seen(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Raw(monkeypatch)
    monkeypatch.setattr(sums, "add_masks", lambda *given: None)
    made = world(**settings_of("dp-fedavg", rounds=1))
    made.train()
    assert "under its noise, packed" in raw.seen_in(b"".join(answer for _, answer in made.post.log))


def test_bytes_in_words() -> None:
    told = {
        "up": {"counted": 1_234_567, "measured": 1_240_000, "letters": 9},
        "down": {"counted": 99, "measured": 1500, "letters": 2},
    }
    assert in_words(told) == "sent 1.23 MB (1.24 MB as letters) and received 0.099 kB (1.5 kB as letters)"
