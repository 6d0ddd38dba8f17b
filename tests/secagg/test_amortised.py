"""CPFed's masks: exact with everybody, nothing without, each mask once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import UsageError
from hush.secagg import Aborted, AmortisedClient, AmortisedServer, BadMessage, Identity, Refused, Roster, Terms
from hush.secagg.keys import RoundKeys
from hush.secagg.messages import SERVER, SIGNED_KEY_BYTES, Kind, SignedKey, seal
from hush.secagg.packing import unpack
from tests.secagg.drive import LOW_ORDER, World, body_of, identities, true_sum, vectors_for


def amortised(clients: int, terms: Terms) -> tuple[World, AmortisedServer, list[AmortisedClient]]:
    world = World(clients, terms)
    server = AmortisedServer(world.who, world.roster, terms)
    people = [AmortisedClient(identity, world.roster, terms) for identity in world.own]
    for client in people:
        server.take_keys(client.number, client.keys())
    return world, server, people


def met(clients: int = 4, entries: int = 6, bits: int = 24) -> tuple[World, AmortisedServer, list[AmortisedClient]]:
    world, server, people = amortised(clients, Terms(entries, bits=bits, dropout=0, corrupted=0))
    directory = server.directory()
    for client in people:
        client.meet(directory)
    return world, server, people


@given(st.integers(3, 8), st.integers(1, 64), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_sum_is_exact_in_every_round(clients: int, bits: int, entries: int) -> None:
    world, server, people = met(clients, entries, bits)
    for round in (0, 1, 7):
        vectors = vectors_for(world, round)
        server.open(round)
        for client in people:
            server.receive(client.number, client.mask(round, vectors[client.number]))
        assert (server.close().astype(np.uint64) == true_sum(vectors, range(clients), bits)).all()


def test_a_missing_client_is_an_abort_that_names_it_and_the_next_round_works() -> None:
    world, server, people = met()
    vectors = vectors_for(world)
    server.open(0)
    for client in people[:-1]:
        server.receive(client.number, client.mask(0, vectors[client.number]))
    with pytest.raises(Aborted, match="client 3"):
        server.close()
    server.open(1)
    for client in people:
        server.receive(client.number, client.mask(1, vectors[client.number]))
    assert (server.close().astype(np.uint64) == true_sum(vectors, range(4), 24)).all()


def test_a_mask_serves_once() -> None:
    _, _, people = met()
    vector = np.zeros(6, dtype=int)
    people[0].mask(3, vector)
    for round in (3, 2, 0, -1):
        with pytest.raises(Refused, match="once"):
            people[0].mask(round, vector)
    people[0].mask(4, vector)


def test_a_wrong_vector_costs_no_mask() -> None:
    _, _, people = met()
    for bad in (np.zeros(5, dtype=int), np.zeros(6)):
        with pytest.raises(UsageError):
            people[0].mask(0, bad)
    people[0].mask(0, np.zeros(6, dtype=int))


def test_masks_differ_by_round_and_look_uniform() -> None:
    _, _, people = met(3, 20_000, 8)
    zero = np.zeros(20_000, dtype=int)
    masks = [unpack(body_of(people[0].mask(round, zero)), 20_000, 8) for round in range(3)]
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert (masks[a] == masks[b]).mean() < 0.02
    for mask in masks:
        counts = np.bincount(mask, minlength=256)
        chi = ((counts - 20_000 / 256) ** 2 / (20_000 / 256)).sum()
        assert abs(chi - 255) < 6 * np.sqrt(510)


def test_nothing_is_masked_before_the_others_are_known() -> None:
    _, _, people = amortised(3, Terms(2, dropout=0, corrupted=0))
    with pytest.raises(Refused, match="not met"):
        people[0].mask(0, np.zeros(2, dtype=int))


def test_keys_of_all_are_needed() -> None:
    world = World(3, Terms(2, dropout=0))
    server = AmortisedServer(world.who, world.roster, world.terms)
    with pytest.raises(Aborted, match="3 clients are missing"):
        server.directory()


def directory_with(world: World, server: AmortisedServer, number: int, key: SignedKey, about: bytes) -> bytes:
    body = bytearray(body_of(server.directory()))
    body[number * SIGNED_KEY_BYTES : (number + 1) * SIGNED_KEY_BYTES] = key.to_bytes()
    return seal(world.who, Kind.INVITATION, SERVER, 0, about, bytes(body))


def test_a_forged_or_swapped_key_in_the_directory_is_refused() -> None:
    world, server, people = amortised(4, Terms(2, dropout=0))
    me = people[0]
    about = me._about
    forged = {
        "another's signature": (1, RoundKeys(world.own[2], about, 1, 0).signed, "not signed"),
        "the server's": (1, RoundKeys(world.who, about, 1, 0).signed, "not signed"),
        "of another round": (1, RoundKeys(world.own[1], about, 1, 1).signed, "not signed"),
        "of other terms": (1, RoundKeys(world.own[1], bytes(32), 1, 0).signed, "not signed"),
        "a neighbour's in its place": (1, people[2]._keys.signed, "not signed"),
        "my own in its place": (1, me._keys.signed, "not signed"),
        "another for me": (0, RoundKeys(world.own[0], about, 0, 0).signed, "another key for this client"),
    }
    for number, key, reason in forged.values():
        with pytest.raises(Refused, match=reason):
            me.meet(directory_with(world, server, number, key, about))
    for point in LOW_ORDER:
        signature = world.own[1].sign(SignedKey.statement(about, 1, 0, bytes([9, *bytes(31)]), point))
        with pytest.raises(Refused, match="hide nothing"):
            me.meet(directory_with(world, server, 1, SignedKey(bytes([9, *bytes(31)]), point, signature), about))
    me.meet(server.directory())  # none of that has changed anything


def test_a_second_directory_is_refused() -> None:
    _, server, people = met()
    with pytest.raises(Refused, match="second directory"):
        people[0].meet(server.directory())


@pytest.mark.parametrize(
    "change", [lambda body: body[:-1], lambda body: body + b"\0", lambda body: body[:SIGNED_KEY_BYTES], lambda _: b""]
)
def test_a_directory_of_another_length_is_refused(change: object) -> None:
    world, server, people = amortised(3, Terms(2, dropout=0))
    forged = seal(world.who, Kind.INVITATION, SERVER, 0, people[0]._about, change(body_of(server.directory())))  # type: ignore[operator]
    with pytest.raises((Refused, BadMessage)):
        people[0].meet(forged)
    with pytest.raises(Refused):
        people[0].mask(0, np.zeros(2, dtype=int))


def test_a_directory_that_the_server_did_not_sign_changes_nothing() -> None:
    _, server, people = amortised(3, Terms(2, dropout=0))
    true = server.directory()
    with pytest.raises(BadMessage, match="signature"):
        people[0].meet(true[:-1] + bytes([true[-1] ^ 1]))
    people[0].meet(true)


def test_the_server_takes_signed_keys_of_the_enrolled_only() -> None:
    world, server, people = amortised(3, Terms(2, dropout=0))
    about = people[0]._about
    for key, reason in (
        (RoundKeys(world.own[1], about, 0, 0).signed, "signed key"),
        (RoundKeys(world.own[0], about, 0, 0).signed, "before"),
    ):
        with pytest.raises(BadMessage, match=reason) as refused:
            server.take_keys(0, seal(world.own[0], Kind.KEYS, 0, 0, about, key.to_bytes()))
        assert refused.value.sender == 0
    for body in (b"", bytes(128), bytes(127), bytes(500)):
        with pytest.raises(BadMessage):
            server.take_keys(0, seal(world.own[0], Kind.KEYS, 0, 0, about, body))
    for sender in (-1, 3):
        with pytest.raises(BadMessage, match="enrolled"):
            server.take_keys(sender, people[0].keys())
    server.take_keys(0, people[0].keys())  # the same again does no harm


def test_vectors_that_are_repeated_late_or_of_another_length_are_refused_and_change_nothing() -> None:
    world, server, people = met()
    vectors = vectors_for(world)
    server.open(0)
    old = people[0].mask(0, vectors[0])
    server.open(1)
    with pytest.raises(BadMessage, match="round 0"):
        server.receive(0, old)
    for client in people:
        message = client.mask(1, vectors[client.number])
        with pytest.raises(BadMessage):
            server.receive((client.number + 1) % 4, message)
        with pytest.raises(BadMessage, match="entries"):
            server.receive(client.number, seal(world.own[client.number], Kind.MASKED, client.number, 1, client._about, b"short"))
        server.receive(client.number, message)
        with pytest.raises(BadMessage, match="already"):
            server.receive(client.number, message)
    assert (server.close().astype(np.uint64) == true_sum(vectors, range(4), 24)).all()


def test_dropout_and_strangers_are_refused() -> None:
    world = World(3, Terms(2, dropout=0))
    with pytest.raises(UsageError, match="dropout"):
        AmortisedClient(world.own[0], world.roster, Terms(2))
    with pytest.raises(UsageError, match="dropout"):
        AmortisedServer(world.who, world.roster, Terms(2))
    with pytest.raises(UsageError, match="roster"):
        AmortisedClient(Identity.generate(), world.roster, world.terms)
    with pytest.raises(UsageError, match="server"):
        AmortisedServer(world.own[0], world.roster, world.terms)


def test_terms_that_differ_do_not_meet() -> None:
    world = World(3, Terms(2, dropout=0))
    server = AmortisedServer(world.who, world.roster, world.terms)
    other = AmortisedClient(world.own[0], world.roster, Terms(2, dropout=0, context=b"less noise"))
    with pytest.raises(BadMessage, match="terms"):
        server.take_keys(0, other.keys())


def test_sums_are_counted_and_a_server_that_lies_is_out_of_scope() -> None:
    terms = Terms(3, dropout=0, corrupted=0, participations=2)
    own = identities(3)
    roster = Roster.of(own[0], own[1:])
    server, clients = AmortisedServer(own[0], roster, terms), [AmortisedClient(one, roster, terms) for one in own[1:]]
    for client in clients:
        server.take_keys(client.number, client.keys())
    directory = server.directory()
    for client in clients:
        client.meet(directory)
    for round in range(2):
        clients[0].mask(round, np.zeros(3, dtype=int))
    with pytest.raises(Refused, match="no more were agreed on"):
        clients[0].mask(2, np.zeros(3, dtype=int))
    with pytest.raises(UsageError, match="malicious"):
        AmortisedClient(own[1], roster, Terms(3, dropout=0, corrupted=0, threat="malicious"))
