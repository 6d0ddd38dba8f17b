"""Letters out and answers back: who carries them, how long they are waited for, and which answer is to which letter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hush.engines.traffic import Traffic
from hush.federation import letters
from hush.federation.letters import BadLetter, Letter
from hush.federation.proposal import Proposal
from hush.secagg.identity import Identity

POLL = 0.5
"""Seconds between two looks at what came."""


class Draft(NamedTuple):
    """A letter before it is signed."""

    head: dict[str, Any]
    pieces: list[bytes]
    counted: int | None = None
    """Its bytes as they are counted; None: those of its pieces."""


Out = Mapping[int, Draft]
"""Letters by the client's number."""


Heard = Callable[[int, Letter], None]
"""Told of a client's answer, by its number."""


class Carrier(Protocol):
    """Whoever brings letters to clients, by their keys, and answers back. It may lose and repeat them."""

    def reachable(self) -> set[bytes]:
        """The keys of the clients that seem to be there."""
        ...

    def send(self, letters: Mapping[bytes, bytes], ttl: float) -> None:
        """On their way; after `ttl` seconds a letter is of no use any more."""
        ...

    def receive(self, timeout: float) -> list[bytes]:
        """Answers that came, at the latest after `timeout` seconds."""
        ...

    def lost(self) -> set[str]:
        """The names of letters that nobody will answer any more, as far as is known."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds."""

    stage: float = 600.0
    """For the answers of one trip: the longest that a client may train."""
    grace: float = 10.0
    """For stragglers, once enough have answered, and more for some (`Pace`)."""
    absent: float = 900.0
    """For clients to come back, before the run stops where it is."""
    tries: int = 20
    """How often a round may break off, one time after the other."""
    lost: int = 3
    """How many rounds may be paid for and come to nothing, one after the other."""


@dataclass
class Correspondence:
    """The server's letters to its clients about one proposal, each answered once at most."""

    identity: Identity
    proposal: Proposal
    carrier: Carrier
    patience: Patience

    def __post_init__(self) -> None:
        self._keys = self.proposal.members.roster.clients
        self._numbers = self.proposal.members.roster.numbers
        self._pace = Pace(self.patience)
        self.up, self.down = Traffic(), Traffic()
        """What clients sent, and what they were sent."""

    def reachable(self) -> set[int]:
        """The clients that seem to be there."""
        there = self.carrier.reachable()
        return {number for number, key in enumerate(self._keys) if key in there}

    def ask(
        self, out: Out, enough: Callable[[set[int]], bool], trip: str, stage: float | None = None, heard: Heard | None = None
    ) -> dict[int, Letter]:
        """Letters to clients, and their answers: all of them, or those that came in time. `trip` is what is asked for: what one of
        a kind took says how long the next may take; `stage` is the longest, where that is less than ever. `heard` is told of each
        answer as it comes, before `enough` is asked."""
        waiting = self._send(out)
        answers: dict[int, Letter] = {}
        self._pace.begin(trip, waiting, stage)
        while waiting:
            before = set(answers)
            self._receive(waiting, answers)
            if heard is not None:
                for number in [number for number in answers if number not in before]:
                    heard(number, answers[number])
            late = self._pace.late(set(waiting.values()), enough(set(answers)))
            if not self.reachable() & set(waiting.values()) - late:
                break
        self._pace.end(self.reachable() & set(waiting.values()))
        return answers

    def listen(self) -> None:
        """A moment in which nothing is asked: what comes is too late for its trip, and tells how long it takes."""
        self._receive({}, {})

    def _send(self, out: Out) -> dict[str, int]:
        """Sign and send; the clients that are waited for, by the names of their letters."""
        run = self.proposal.digest.hex()
        waiting: dict[str, int] = {}
        sealed: dict[bytes, bytes] = {}
        for number, (head, pieces, counted) in out.items():
            key = self._keys[number]
            sealed[key] = letters.write(self.identity, head | {"key": key.hex(), "run": run}, pieces)
            waiting[letters.name_of(sealed[key])] = number
            self.down += Traffic(sum(map(len, pieces)) if counted is None else counted, len(sealed[key]), 1)
        self.carrier.send(sealed, self.patience.stage)
        return waiting

    def _receive(self, waiting: dict[str, int], answers: dict[int, Letter]) -> None:
        """What came by now; answers that came, and letters that are lost, are waited for no longer."""
        for raw in self.came():
            if (found := self._answer(raw, waiting)) is not None:
                number, answer = found
                answers[number] = answer
                self.up += Traffic(counted=sum(map(len, answer.pieces)))
        for name in self.carrier.lost() & waiting.keys():
            del waiting[name]

    def came(self) -> list[bytes]:
        """Whatever was brought by now; what nobody waits for was sent as well."""
        found = self.carrier.receive(POLL)
        self.up += Traffic(measured=sum(map(len, found)), letters=len(found))
        return found

    def _answer(self, raw: bytes, waiting: dict[str, int]) -> tuple[int, Letter] | None:
        """An answer to a letter that is waited for, signed by whom it was sent to; whatever else comes is dropped."""
        try:
            number = self._numbers[letters.claimed_key(raw)]
            answer = letters.read(raw, self._keys[number])
        except (BadLetter, KeyError):
            return None
        name = str(answer.head.get("re"))
        self._pace.answered(number, name)
        if waiting.get(name) != number:
            return None
        del waiting[name]
        return number, answer


class Pace:
    """How long each client is waited for, by what it took before: of each kind of trip the last one, by the server's own clock.

    Before enough have answered nobody is late. Then the others have as long again. One that took longer the last time has twice
    what it took then; one that did not answer at all has no more than the grace, until it answers: be it too late for its round.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._took: dict[tuple[str, int], float] = {}
        """Seconds; nothing yet of who never answered."""
        self._silent: set[tuple[str, int]] = set()
        """Who did not answer the last time."""
        self._sent: dict[str, tuple[str, int, float]] = {}
        """Letters that may still be answered, this trip's and those of before: of which trip, to whom, and when."""
        self._trip, self._began, self._stage = "", 0.0, patience.stage
        self._enough: float | None = None
        """When enough had answered, in seconds from the beginning."""

    def begin(self, trip: str, waiting: Mapping[str, int], stage: float | None = None) -> None:
        self._trip, self._began, self._enough = trip, time.monotonic(), None
        self._stage = min(self._patience.stage, stage or self._patience.stage)
        oldest = self._began - self._patience.stage
        self._sent = {name: told for name, told in self._sent.items() if told[2] > oldest}
        self._sent |= {name: (trip, number, self._began) for name, number in waiting.items()}

    def answered(self, number: int, name: str) -> None:
        """This client answered the letter of this name, in time or not."""
        trip, asked, sent = self._sent.get(name, ("", -1, 0.0))
        if asked == number:
            del self._sent[name]
            self._took[trip, number] = time.monotonic() - sent
            self._silent.discard((trip, number))

    def late(self, waiting: set[int], enough: bool) -> set[int]:
        """Those that are waited for no longer."""
        spent = time.monotonic() - self._began
        if enough and self._enough is None:
            self._enough = spent
        return {number for number in waiting if spent > self._most(number)}

    def end(self, waiting: set[int]) -> None:
        """The trip is over, and these were there and did not answer."""
        self._silent |= {(self._trip, number) for number in waiting}

    def _most(self, number: int) -> float:
        """Seconds from the beginning on."""
        if self._enough is None:
            return self._stage
        most = self._enough + self._patience.grace
        if (self._trip, number) not in self._silent:
            most = max(most, 2 * self._enough, 2 * self._took.get((self._trip, number), 0.0))
        return min(most, self._stage)
