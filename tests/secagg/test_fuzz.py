"""Mutated messages of every kind against clients and server: no crash, no hang, no accepted forgery. `make soak` has many more."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hush.errors import UsageError
from hush.secagg import Aborted, AmortisedClient, AmortisedServer, BadMessage, Client, Identity, Refused, ServerRound, Terms
from hush.secagg.keyring import KeyRing
from hush.secagg.messages import SERVER, Kind, addressed, seal
from tests.secagg.drive import HEADER, SIGNATURE, Vectors, World, body_of, exact, finish, until, vectors_for

CLEAN = (BadMessage, Refused, Aborted, UsageError)
TERMS = Terms(5, bits=13, dropout=0.25, corrupted=0, threat="malicious", smallest=4)
N = 4


@dataclass
class Target:
    """One true message, who takes it, and how it would be signed."""

    name: str
    message: bytes
    take: Callable[[bytes], object]
    """For good: what is accepted here changes the world."""
    try_it: Callable[[bytes], object]
    """On a copy, to the round's end."""
    signer: Identity
    sender: int
    about: bytes


def copy_of_client(client: Client) -> Client:
    own = copy.copy(client)
    own._rounds = {round: copy.copy(inside) for round, inside in client._rounds.items()}
    for inside in own._rounds.values():
        inside._answered = set(inside._answered)
    own._prepared = dict(client._prepared)
    return own


def copy_of_round(current: ServerRound) -> ServerRound:
    own = copy.copy(current)
    for name, value in vars(own).items():
        if isinstance(value, dict):
            setattr(own, name, {key: copy.copy(inside) if isinstance(inside, dict) else inside for key, inside in value.items()})
        elif isinstance(value, set | np.ndarray):
            setattr(own, name, value.copy())
    return own


class Fuzz:
    """A round at each stage, with everything that could be sent next."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rounds: list[tuple[World, ServerRound, dict[int, bytes], dict[int, bytes], Vectors]] = []
        self.targets: list[Target] = []
        for stage in range(4):
            world = World(N, replace(TERMS, context=bytes([stage])))  # no message of one fits another
            vectors = vectors_for(world, stage)
            current, letters = until(world, stage, vectors)
            said = {number: world.people[number].answer(letters[number], vectors[number]) for number in range(1, N)}
            self.rounds.append((world, current, letters, said, vectors))
            self._client(world, current, letters, vectors)
            for number in range(1, N):
                self._server(world, current, number, said)
        self._keys()
        self._amortised()

    def _client(self, world: World, current: ServerRound, letters: dict[int, bytes], vectors: Vectors) -> None:
        client = world.people[0]
        about = addressed(world.roster.digest if Kind(letters[0][4]) is Kind.INVITATION else current.session.digest, 0)
        self.targets.append(
            Target(
                f"letter {Kind(letters[0][4]).name}",
                letters[0],
                lambda data: client.answer(data, vectors[0]),
                lambda data: copy_of_client(client).answer(data, vectors[0]),
                world.who,
                SERVER,
                about,
            )
        )

    def _server(self, world: World, current: ServerRound, number: int, said: dict[int, bytes]) -> None:
        def to_the_end(data: bytes) -> None:
            own = copy_of_round(current)
            own.receive(number, data)
            for other, answer in said.items():
                if other != number:
                    own.receive(other, answer)
            own.advance()

        self.targets.append(
            Target(
                f"answer {Kind(said[number][4]).name}",
                said[number],
                lambda data: current.receive(number, data),
                to_the_end,
                world.own[number],
                number,
                current.session.digest,
            )
        )

    def _keys(self) -> None:
        self.key_world = World(N, TERMS)
        message = self.key_world.people[0].prepare([0, 1, 5])

        def try_it(data: bytes) -> None:
            server = copy.copy(self.key_world.server)
            server._keys = KeyRing(self.key_world.roster, TERMS)
            server.take_keys(0, data)

        about = self.key_world.roster.digest + TERMS.digest
        server = self.key_world.server
        self.targets.append(Target("KEYS", message, lambda d: server.take_keys(0, d), try_it, self.key_world.own[0], 0, about))

    def _amortised(self) -> None:
        world = World(3, Terms(5, dropout=0))
        server = AmortisedServer(world.who, world.roster, world.terms)
        clients = [AmortisedClient(identity, world.roster, world.terms) for identity in world.own]
        for client in clients[1:]:
            server.take_keys(client.number, client.keys())
        complete = copy.copy(server)
        complete._keys = {**server._keys, 0: clients[0]._keys.signed}
        directory = complete.directory()

        def fresh_server() -> AmortisedServer:
            own = copy.copy(server)
            own._keys, own._came, own._sum = dict(server._keys), set(), server._sum.copy()
            return own

        about = clients[0]._about
        self.targets.append(
            Target(
                "amortised keys",
                clients[0].keys(),
                lambda data: server.take_keys(0, data),
                lambda data: fresh_server().take_keys(0, data),
                world.own[0],
                0,
                about,
            )
        )
        self.targets.append(
            Target(
                "amortised directory",
                directory,
                clients[0].meet,
                lambda data: copy.copy(clients[0]).meet(data),
                world.who,
                SERVER,
                about,
            )
        )
        clients[1].meet(directory)
        vector = clients[1].mask(0, np.arange(5))
        self.targets.append(
            Target(
                "amortised vector",
                vector,
                lambda data: server.receive(1, data),
                lambda data: fresh_server().receive(1, data),
                world.own[1],
                1,
                about,
            )
        )

    # -- mutations ----------------------------------------------------------------------------------------------------------------

    def mutate(self, data: bytes, other: bytes) -> bytes:
        """Flips, inserts, deletes, splices, repeats and cuts, one to four of them."""
        rng, out = self.rng, bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            place = rng.randrange(len(out) + 1)
            near = min(len(out), place + rng.choice([1, 4, 33, 64, 100]))
            what = rng.randrange(9)
            if what <= 2 and out:
                out[min(place, len(out) - 1)] ^= 1 << rng.randrange(8)
            elif what == 3:
                out[place:place] = rng.randbytes(rng.choice([1, 4, 33, 82, 500]))
            elif what == 4:
                del out[place:near]
            elif what == 5:
                start = rng.randrange(len(other) + 1)
                out[place:near] = other[start : start + near - place]
            elif what == 6:
                out[place:near] = rng.choice([b"\xff", b"\0", b"\x7f"]) * (near - place)
            elif what == 7:
                out[place:place] = out[place:near]
            else:
                out = out[:place]
        return bytes(out)

    def once(self) -> None:
        target, other = self.rng.choice(self.targets), self.rng.choice(self.targets)
        if self.rng.random() < 0.5:
            self.unsigned(target, self.mutate(target.message, other.message))
        elif self.rng.random() < 0.1:
            self.unsigned(target, other.message)  # a true message, in the wrong place
        else:
            self.signed(target, other)

    def unsigned(self, target: Target, data: bytes) -> None:
        """Nothing that differs from the true message is ever taken."""
        if data == target.message or any(data == same.message and same.name == target.name for same in self.targets):
            return
        try:
            target.take(data)
        except (BadMessage, Refused):
            return
        raise AssertionError(f"a forged {target.name} was accepted: {data.hex()}")

    def signed(self, target: Target, other: Target) -> None:
        """The sender itself cheats: whatever comes of it, it is one of our own errors, or nothing, and soon."""
        body = self.mutate(body_of(target.message), body_of(other.message))
        kind, round = Kind(target.message[4]), int.from_bytes(target.message[9:17], "big")
        if self.rng.random() < 0.1:
            kind = self.rng.choice(list(Kind))
        if self.rng.random() < 0.05:
            round = self.rng.choice([0, 1, 2**63, 2**64 - 1])
        data = seal(target.signer, kind, target.sender, round, target.about, body)
        began = time.monotonic()
        try:
            target.try_it(data)
        except CLEAN:
            pass
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} from a {target.name}: {error}; {data.hex()}") from error
        assert time.monotonic() - began < 5, "too long"

    def finish(self) -> None:
        """After all of it every round ends with the exact sum of everybody."""
        for world, current, letters, said, vectors in self.rounds:
            current.receive(0, world.people[0].answer(letters[0], vectors[0]))
            for number, answer in said.items():
                current.receive(number, answer)
            finish(world, current, current.advance(), vectors)
            assert current.included == tuple(range(N))
            assert exact(world, current, vectors)
        keys = next(target for target in self.targets if target.name == "KEYS")
        assert self.key_world.server.take_keys(0, keys.message) == (0, 1, 5)


def run(count: int, seed: int, batch: int = 1000) -> None:
    """In batches, each with rounds of its own."""
    for start in range(0, count, batch):
        fuzz = Fuzz(seed + start)
        for _ in range(min(batch, count - start)):
            fuzz.once()
        fuzz.finish()


def test_three_thousand_mutated_messages_do_no_harm() -> None:
    run(3000, seed=1)


def test_single_bits_of_every_message_are_never_ignored() -> None:
    fuzz = Fuzz(2)
    for target in fuzz.targets:
        for place in range(0, len(target.message), max(1, len(target.message) // 25)):
            data = target.message[:place] + bytes([target.message[place] ^ 1]) + target.message[place + 1 :]
            fuzz.unsigned(target, data)
    fuzz.finish()


def test_the_fuzzer_would_notice() -> None:
    """True messages on copies are taken, each of them: what is refused above is refused for what was changed."""
    fuzz = Fuzz(3)
    for target in fuzz.targets:
        kind, round = Kind(target.message[4]), int.from_bytes(target.message[9:17], "big")
        again = seal(target.signer, kind, target.sender, round, target.about, body_of(target.message))
        assert again == target.message  # Ed25519 signs the same the same way
        try:
            target.try_it(again)
        except Aborted:
            assert target.name.startswith("answer")  # client 0 has not answered on the copy
    assert len(target.message) > HEADER + SIGNATURE
