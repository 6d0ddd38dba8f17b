"""A federation in one process: real clients and a real server of `hush.secagg`, driven round by round, some of whom vanish.

What crosses between them are the bytes that would cross a network, and they are counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hush.secagg import AmortisedClient, AmortisedServer, Client, Identity, Refused, Roster, Server, ServerRound, Terms
from hush.secagg.identity import SIGNATURE_BYTES
from hush.secagg.messages import DIGEST_BYTES, ENVELOPE_BYTES, SEALED_BYTES, SIGNED_KEY_BYTES
from hush.secagg.packing import signed
from hush.secagg.shamir import SHARE_BYTES

if TYPE_CHECKING:
    from hush.core import Public, Round
    from hush.engines.run import Run, Snapshot
    from hush.engines.summing import Summed

MOMENTS = 3
"""When a client may vanish: before it shares its secrets, before it sends its vector, before it opens the sum."""


def beside_the_vector(terms: Terms) -> int:
    """Bytes that a client sends in a round beside its vector: keys, shares, openings, signatures."""
    neighbours, votes = terms.graph(terms.smallest).degree, terms.threat == "malicious"
    bodies = 16 + SIGNED_KEY_BYTES + DIGEST_BYTES + neighbours * (SEALED_BYTES + SHARE_BYTES) + votes * SIGNATURE_BYTES
    return bodies + (4 + votes) * ENVELOPE_BYTES


def letters_of(terms: Terms) -> int:
    """Bytes that the server sends a client in a round beside the model: invitation, delivery, survivors, and votes."""
    clients, neighbours = terms.smallest, terms.graph(terms.smallest).degree
    invitation = DIGEST_BYTES + 4 + clients * (4 + DIGEST_BYTES) + neighbours * SIGNED_KEY_BYTES
    delivery, survivors = 4 + neighbours * (4 + SEALED_BYTES), -(-clients // 8)
    votes = 4 + (terms.quorum(clients) - 1) * (4 + SIGNATURE_BYTES) + ENVELOPE_BYTES if terms.threat == "malicious" else 0
    return invitation + delivery + survivors + 3 * ENVELOPE_BYTES + votes


def _enrolled(clients: int) -> tuple[Identity, list[Identity], Roster]:
    """A server, its clients, and the roster that they all pin."""
    server, own = Identity.generate(), [Identity.generate() for _ in range(clients)]
    return server, own, Roster.of(server, own)


class Federation:
    """Everybody's identity and state; it lives as long as the process, like the secrets in it."""

    def __init__(self, clients: int, terms: Terms) -> None:
        server, own, roster = _enrolled(clients)
        self.terms = terms
        self.server = Server(server, roster, terms)
        self.clients = [Client(identity, roster, terms) for identity in own]

    def begin(self, round: int, asked: Sequence[int], lost: dict[int, int]) -> SecureRound:
        """A round among those who are asked; `lost` says who of them vanishes at which moment."""
        sent = 0
        for number in asked:
            keys = self.clients[number].prepare([round])
            self.server.take_keys(number, keys)
            sent += len(keys)
        return SecureRound(self, self.server.open(round, asked), lost, sent)


class AmortisedFederation:
    """The same with CPFed's masks: pairs agree on seeds once, a round is one trip, and it counts with everybody or not at all."""

    def __init__(self, clients: int, terms: Terms) -> None:
        server, own, roster = _enrolled(clients)
        self.terms = terms
        self.server = AmortisedServer(server, roster, terms)
        self.clients = [AmortisedClient(identity, roster, terms) for identity in own]
        self.sent = self.received = 0  # bytes of the set-up, which the first round is charged with
        for client in self.clients:
            keys = client.keys()
            self.server.take_keys(client.number, keys)
            self.sent += len(keys)
        directory = self.server.directory()
        for client in self.clients:
            client.meet(directory)
            self.received += len(directory)

    def begin(self, round: int, asked: Sequence[int], lost: dict[int, int]) -> AmortisedRound:
        """A round; everybody is asked, or masks would not cancel."""
        assert len(asked) == len(self.clients)
        self.server.open(round)
        running = AmortisedRound(self, round, lost, self.sent, self.received)
        self.sent = self.received = 0
        return running


@dataclass
class AmortisedRound:
    """One round of it. The server has the sum as soon as it has the last vector."""

    federation: AmortisedFederation
    round: int
    lost: dict[int, int]
    bytes_up: int
    bytes_down: int
    opens_at_once = True

    def share(self) -> None:
        """There is nothing to share."""

    @property
    def training(self) -> list[int]:
        """Who is there to train, and will send a vector."""
        return [client.number for client in self.federation.clients if self.lost.get(client.number, MOMENTS) > 1]

    def send(self, numbers: Sequence[int], rows: Tensor) -> None:
        """Some clients' vectors, masked and added up."""
        for number, vector in zip(numbers, rows.cpu().numpy(), strict=True):
            message = self.federation.clients[number].mask(self.round, vector)
            self.federation.server.receive(number, message)
            self.bytes_up += len(message)

    def close(self) -> None:
        """It raises `Aborted` where anybody is missing: masks of pairs then stay on the sum."""
        self._total = self.federation.server.close()

    def open(self) -> Tensor:
        """The sum, as whole numbers around zero."""
        return torch.from_numpy(signed(self._total, self.federation.terms.bits))


@dataclass
class SecureRound:
    """One round of a federation."""

    federation: Federation
    server: ServerRound
    lost: dict[int, int]
    sent: int
    """Bytes of everybody's keys."""

    def __post_init__(self) -> None:
        self._letters: dict[int, bytes] = {}

    @property
    def opens_at_once(self) -> bool:
        """Whether a vector counts when it leaves, as it does to its client: the others may open the sum without it."""
        return self.server.session.opens_without_one

    def _there(self, number: int, moment: int) -> bool:
        return self.lost.get(number, MOMENTS) > moment

    def share(self) -> None:
        """Invitations and shares; deliveries then wait for vectors. It raises `Aborted` where too few are left."""
        for number, letter in self.server.start().items():
            if self._there(number, 0):
                self._answer(number, letter)
        self._letters = self.server.advance()

    @property
    def training(self) -> list[int]:
        """Who is still there to train, and will send a vector."""
        return [number for number in self._letters if self._there(number, 1)]

    def send(self, numbers: Sequence[int], rows: Tensor) -> None:
        """Some clients' vectors, masked and added up."""
        vectors = rows.cpu().numpy()
        for number, vector in zip(numbers, vectors, strict=True):
            self._answer(number, self._letters.pop(number), vector)

    def close(self) -> None:
        """Who has not sent a vector by now has vanished. It raises `Aborted` where too few are left; nothing was opened then."""
        self._letters = self.server.advance()

    def open(self) -> Tensor:
        """The sum, as whole numbers around zero. From here on clients show their shares: what this opens is released."""
        while self._letters:
            for number, letter in self._letters.items():
                if self._there(number, 2):
                    self._answer(number, letter)
            self._letters = self.server.advance()
        return torch.from_numpy(self.server.signed_total)

    def _answer(self, number: int, letter: bytes, vector: np.ndarray | None = None) -> None:
        try:
            answer = self.federation.clients[number].answer(letter, vector)
        except Refused as refusal:  # too few of its neighbours are left for its own safety: to the server it has vanished
            if refusal.complaint is None:
                return
            answer = refusal.complaint
        self.server.receive(number, answer)

    @property
    def bytes_up(self) -> int:
        """What all clients sent."""
        return self.sent + sum(self.server.bytes_up.values())

    @property
    def bytes_down(self) -> int:
        """What the protocol sent all of them, the model not counted."""
        return sum(self.server.bytes_down.values())


class Remote(ABC):
    """Clients on machines of their own: what a round's sum is made by, where it is not made here."""

    name: bytes
    """Of the run, among all runs of its clients: part of the terms."""
    terms: Terms

    @property
    def roster(self) -> dict[str, str] | None:
        """Who the clients are, for a ledger: names, and the first key of each. None where nobody knows."""
        return None

    @abstractmethod
    def bind(self, terms: Terms) -> Remote:
        """This, told the terms that the run is summed under."""

    @abstractmethod
    def sum_of(
        self, run: Run, now: Snapshot, ids: Tensor, rnd: Round, public: Public, pay: Callable[[Tensor | None], int]
    ) -> Summed:
        """One round's sum over the clients `ids`; `pay` is called before anything of it is opened."""


FEDERATIONS: dict[str, type[Federation] | type[AmortisedFederation]] = {"fresh": Federation, "amortised": AmortisedFederation}
"""By the kind of masks."""
