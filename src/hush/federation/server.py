"""The server's end of a federation: it asks, waits, adds up what it cannot read, and goes on without those who are gone.

To the engine it is the sum of a round (`sum_of`), and everything before and after that is the simulation's own: cohort, charge,
decode, step, evaluation, ledger, certificate. A round takes two trips: the deliveries, with the model and with the next round's
invitations; and the opening.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hush.cohort import SecretParticipation
from hush.core import Public, Round
from hush.engines.federation import Remote
from hush.engines.run import Run, Snapshot
from hush.engines.summing import Summed
from hush.errors import HushError
from hush.federation import letters
from hush.federation.letters import BadLetter, Letter
from hush.federation.member import KEYS_AHEAD
from hush.federation.proposal import Proposal
from hush.secagg import Aborted, BadMessage, Server, ServerRound, Terms
from hush.secagg.identity import Identity
from hush.secagg.messages import MOST_AHEAD

_POLL = 0.5
_AFTER_NO = 15.0
"""Seconds before somebody who said no is asked again."""
_Part = tuple[list[bytes], tuple[list[Any], list[bytes]] | None]
"""Messages of the secure sum to one client, and the model, where it trains."""
_Out = Mapping[int, tuple[dict[str, Any], list[bytes]]]
"""Letters before they are signed."""


class Unreachable(HushError):
    """Too few clients came, for too long."""


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


@dataclass
class Standing:
    """What the server knows of one client."""

    name: str
    agreed: bool = False
    fresh: bool = False
    """It answered the last thing that it was asked."""
    refused: str = ""
    done: bool = False
    """It was told that the run is over."""
    asked_again: float = 0.0
    keys_until: int = 0

    def in_words(self, reachable: bool) -> str:
        if self.refused:
            return f"says no: {self.refused}"
        if self.done:
            return "took part; the run is over"
        if not reachable:
            return "not connected"
        return "takes part" if self.agreed and self.fresh else "was asked" if not self.agreed else "did not answer"


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds."""

    stage: float = 600.0
    """For the answers of one trip: the longest that a client may train."""
    grace: float = 10.0
    """For stragglers, once enough have answered; or as long as these took, if that is more."""
    absent: float = 900.0
    """For clients to come back, before the run stops where it is."""
    tries: int = 20
    """How often a round may break off, one time after the other."""


@dataclass
class _Ahead:
    """The next round, whose shares came with this round's vectors."""

    asked: tuple[int, ...]
    round: ServerRound


@dataclass
class RemoteFederation(Remote):
    """Everybody whom the server speaks with, over many rounds."""

    identity: Identity
    proposal: Proposal
    carrier: Carrier
    patience: Patience = field(default_factory=Patience)
    tell: Callable[[str], None] = print
    watch: Callable[[dict[str, Any]], None] | None = None
    """Told of everybody's standing whenever that changes."""

    def __post_init__(self) -> None:
        self.name = self.proposal.digest
        members = self.proposal.members
        self.standing = [Standing(name) for name in members.names]
        self._keys = members.roster.clients
        self._ahead: _Ahead | None = None
        self._sent = self._received = 0
        self.opened: ServerRound | None = None
        """The last round of the secure sum that was opened."""
        self.attempts = 0
        """Rounds of the secure sum that were begun, those that broke off included."""

    def bind(self, terms: Terms) -> RemoteFederation:
        """The terms that this run is summed under."""
        self.terms = terms
        self._server = Server(self.identity, self.proposal.members.roster, terms)
        self._next = 0
        return self

    # -- a round's sum -------------------------------------------------------------------------------------------------------------

    def sum_of(
        self, run: Run, now: Snapshot, ids: Tensor, rnd: Round, public: Public, pay: Callable[[Tensor | None], int]
    ) -> Summed:
        """One round's sum. A round that breaks off before anything was opened costs nothing, and is tried again."""
        asked, after = self._cohorts(run, now, ids)
        sent, received, broken = self._sent, self._received, 0
        broadcast = letters.pack([now.params, *public])
        while True:
            self.gather(asked)
            try:
                total, charges, why = self._attempt(rnd.index, asked, after, broadcast, lambda: pay(None))
            except Aborted as reason:
                broken += 1
                if broken >= self.patience.tries:
                    raise Unreachable(f"Round {now.round + 1} broke off {broken} times, at last so: {reason}") from None
                self._ahead = None  # it was shared among those of before
                self.tell(f"round {now.round + 1} breaks off: {reason} It is tried again.")
                continue
            device = now.params.device
            summed = None if total is None else torch.from_numpy(total).to(device)
            return Summed(summed, charges, False, why, self._sent - sent, self._received - received, broken)

    def _cohorts(self, run: Run, now: Snapshot, ids: Tensor) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Whom this round asks, and the next one if this one counts; None after the last."""
        clients = run.data.train.count
        if isinstance(run.cohort, SecretParticipation):
            everybody = tuple(range(clients))
            return everybody, everybody if now.round + 1 < run.rounds else None
        if now.round + 1 >= run.rounds:
            return tuple(ids.tolist()), None
        state = run.cohort.draw(now.counted, clients, now.cohort_state, run.identity.secret)[1]
        after, _ = run.cohort.draw(now.counted + 1, clients, state, run.identity.secret)
        return tuple(ids.tolist()), tuple(after.tolist())

    def _attempt(
        self,
        index: int,
        asked: tuple[int, ...],
        after: tuple[int, ...] | None,
        broadcast: tuple[list[Any], list[bytes]],
        pay: Callable[[], int],
    ) -> tuple[Any, int, str]:
        """The sum, what was charged, and why there is none where it could not be opened; `Aborted` where nothing was charged."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.asked == asked:
            current = ahead.round
        else:
            current = self._open(asked)
            self._trip({number: ([letter], None) for number, letter in current.start().items()}, [current], index)
        deliveries, charges = current.advance(), None
        if self.terms.threat == "malicious":  # to clients a vector counts when it leaves: so it does here
            charges = pay()
        rounds = [current]
        parts: dict[int, _Part] = {number: ([letter], broadcast) for number, letter in deliveries.items()}
        if after is not None and (following := self._opened_ahead(after)) is not None:
            self._ahead = _Ahead(after, following)
            rounds.append(following)
            for number, letter in following.start().items():
                own, told = parts.get(number, ([], None))
                parts[number] = ([*own, letter], told)
        self._trip(parts, rounds, index)
        try:
            openings = current.advance()
        except Aborted as reason:
            if charges is None:
                raise
            return None, charges, str(reason)
        charges = pay() if charges is None else charges
        try:
            while openings:
                self._trip({number: ([letter], None) for number, letter in openings.items()}, [current], index)
                openings = current.advance()
        except Aborted as reason:
            return None, charges, str(reason)
        self.opened = current
        return current.signed_total, charges, ""

    @property
    def _coming(self) -> int:
        """The first round of the secure sum that nobody has begun: also of those whom a server that died asked last."""
        return max(self._next, self._server.next_round)

    def _open(self, asked: Iterable[int]) -> ServerRound:
        self._next = self._coming
        self.attempts += 1
        return self._server.open(self._next, asked)

    def _opened_ahead(self, asked: tuple[int, ...]) -> ServerRound | None:
        try:
            return self._open(asked)
        except Aborted:  # keys of some are missing: the round begins with a trip of its own
            return None

    # -- trips ---------------------------------------------------------------------------------------------------------------------

    def _trip(
        self,
        parts: Mapping[int, _Part],
        rounds: list[ServerRound],
        index: int,
    ) -> None:
        """Letters of the secure sum to some clients, each with the model or without; their answers go where they belong."""
        out: dict[int, tuple[dict[str, Any], list[bytes]]] = {}
        for number, (messages, broadcast) in parts.items():
            told, pieces = broadcast if broadcast is not None else ([], [])
            head: dict[str, Any] = {"kind": "round", "index": index, "broadcast": told}
            if self.standing[number].keys_until < self._coming + KEYS_AHEAD // 2:
                head["keys_from"] = self._coming
            out[number] = head, [*pieces, *messages]
        waited = {number for number, (_, broadcast) in parts.items() if broadcast is not None} or set(parts)
        fewest = min(self.terms.fewest(len(rounds[0].session.cohort)), len(waited))

        def enough(answered: set[int]) -> bool:
            return len(answered & waited) >= fewest

        for number, answer in self.ask(out, enough).items():
            self._take(number, answer, rounds)

    def _take(self, number: int, answer: Letter, rounds: list[ServerRound]) -> None:
        state = self.standing[number]
        if answer.head.get("kind") != "answers":
            state.fresh, state.agreed = False, False  # it was started again, and must be asked anew
            return
        messages = list(answer.pieces)
        if answer.head.get("keys") and messages:
            self._take_keys(number, messages.pop())
        for message in filter(None, messages):
            error: BadMessage | None = None
            for one in rounds:
                try:
                    one.receive(number, message)
                    error = None
                    break
                except BadMessage as reason:
                    error = reason
            if error is not None:
                self.tell(f"{state.name}: {error}")
        why = answer.head.get("why", [])
        state.fresh = isinstance(why, list) and not any(why)

    def _take_keys(self, number: int, message: bytes) -> None:
        try:
            rounds = self._server.take_keys(number, message)
        except BadMessage as error:
            self.tell(f"{self.standing[number].name}: {error}")
            return
        self.standing[number].keys_until = max(rounds, default=-1) + 1

    def gather(self, asked: Iterable[int]) -> None:
        """Wait until enough of these clients agreed, are there, and sent keys: all of those who were never there, and of the others
        as many as a sum needs."""
        wanted, since, told = set(asked), time.monotonic(), ""
        while True:
            missing = sorted(number for number in wanted if not self._ready(number))
            gone = [number for number in missing if not self.standing[number].keys_until > self._coming]
            if not gone and len(wanted) - len(missing) >= self.terms.fewest(len(wanted)):
                return
            self._propose([*missing, *self._others(wanted)])
            missing = [number for number in missing if not self._ready(number)]
            if not missing:
                return
            names = ", ".join(self.standing[number].name for number in missing[:5]) + (", ..." if len(missing) > 5 else "")
            if names != told:
                told = names
                self.tell(f"waiting for {len(missing)} of {len(wanted)} clients: {names}")
            if time.monotonic() - since > self.patience.absent:
                if (no := next((self.standing[number] for number in missing if self.standing[number].refused), None)) is not None:
                    raise Unreachable(
                        f"{no.name} does not take part: {no.refused}. Take it out of the roster (hush federation remove), or "
                        "change the run."
                    )
                raise Unreachable(f"For {self.patience.absent:.0f} s these clients were not there: {names}.")
            self.carrier.receive(_POLL)

    def _others(self, wanted: set[int]) -> list[int]:
        """Clients of later rounds, whose yes and keys should be here by then; asked every half a minute."""
        now = time.monotonic()
        return [n for n, one in enumerate(self.standing) if n not in wanted and not self._ready(n) and now - one.asked_again > 30.0]

    def _ready(self, number: int) -> bool:
        state = self.standing[number]
        return state.agreed and state.fresh and state.keys_until > self._coming

    def _propose(self, numbers: list[int]) -> None:
        """Ask once more, no more often than every two seconds."""
        there, now = self.carrier.reachable(), time.monotonic()
        numbers = [n for n in numbers if self._keys[n] in there and now - self.standing[n].asked_again > 2.0]
        for number in numbers:
            self.standing[number].asked_again = now
        if not numbers:
            return
        text = self.proposal.to_json().encode()
        out = {number: ({"kind": "propose", "round": self._coming}, [text]) for number in numbers}
        for number, answer in self.ask(out, lambda answered: True).items():
            state, kind = self.standing[number], answer.head.get("kind")
            if kind == "yes" and answer.pieces:
                state.agreed, state.fresh, state.refused = True, True, ""
                if isinstance(further := answer.head.get("next"), int) and further < self._server.next_round + MOST_AHEAD:
                    self._next = max(self._next, further)
                self._take_keys(number, answer.pieces[0])
            elif kind in ("no", "refused"):  # it may change its mind, or mend its data, while the server is patient
                state.asked_again = time.monotonic() + _AFTER_NO
                before, why = state.refused, letters.printable(str(answer.head.get("why", ""))[:500])
                state.refused = why or "it does not say why"
                if state.refused != before:
                    self.tell(f"{state.name} says no: {state.refused}")
        self._show()

    def ask(self, out: _Out, enough: Callable[[set[int]], bool]) -> dict[int, Letter]:
        """Letters to clients, and their answers: all of them, or those that came in time."""
        run = self.proposal.digest.hex()
        waiting: dict[str, int] = {}
        sealed: dict[bytes, bytes] = {}
        for number, (head, pieces) in out.items():
            told = head | {"key": self._keys[number].hex(), "run": run}
            sealed[self._keys[number]] = letters.write(self.identity, told, pieces)
            waiting[letters.name_of(sealed[self._keys[number]])] = number
            self._received += len(sealed[self._keys[number]]) - sum(map(len, pieces[: _models(head)]))
            self.standing[number].fresh = False
        self.carrier.send(sealed, self.patience.stage)
        answers: dict[int, Letter] = {}
        began, good = time.monotonic(), None
        while waiting:
            for raw in self.carrier.receive(_POLL):
                if (found := self._answer(raw, waiting)) is not None:
                    number, answer = found
                    answers[number] = answer
                    self._sent += len(raw)
            for name in self.carrier.lost() & waiting.keys():
                del waiting[name]
            spent = time.monotonic() - began
            if good is None and enough(set(answers)):
                good = spent
            if spent > self.patience.stage or (good is not None and spent > good + max(self.patience.grace, good)):
                break
            there = self.carrier.reachable()
            if all(self._keys[number] not in there for number in waiting.values()):
                break
        return answers

    def _answer(self, raw: bytes, waiting: dict[str, int]) -> tuple[int, Letter] | None:
        """An answer to a letter that is waited for, signed by whom it was sent to; whatever else comes is dropped."""
        try:
            number = self._numbers[letters.claimed_key(raw)]
            answer = letters.read(raw, self._keys[number])
        except (BadLetter, KeyError):
            return None
        if waiting.get(str(answer.head.get("re"))) != number:
            return None
        del waiting[str(answer.head["re"])]
        return number, answer

    @property
    def _numbers(self) -> dict[bytes, int]:
        return self.proposal.members.roster.numbers

    def finish(self) -> None:
        """Tell everybody that the run is over."""
        there = self.carrier.reachable()
        out: _Out = {n: ({"kind": "over"}, []) for n, state in enumerate(self.standing) if state.agreed and self._keys[n] in there}
        if out:
            for number in self.ask(out, lambda answered: True):
                self.standing[number].done = True
        self._show()

    def _show(self) -> None:
        if self.watch is not None:
            there = self.carrier.reachable()
            told = {state.name: state.in_words(self._keys[n] in there) for n, state in enumerate(self.standing)}
            self.watch({"clients": told})


def _models(head: dict[str, Any]) -> int:
    """How many of a letter's pieces are the model and what belongs to it: counted apart, as in simulation."""
    return sum(isinstance(item, list) for item in head.get("broadcast", []))
