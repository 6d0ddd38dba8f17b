"""The server's end of a federation: the sum of a round, of messages that it cannot read, without those who are gone.

To the engine it is the sum of a round (`sum_of`), and everything before and after that is the simulation's own: cohort, charge,
decode, step, evaluation, ledger, certificate. A round takes two trips: the deliveries, with the model and with the next round's
invitations; and the opening.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hush.cohort import SecretParticipation
from hush.core import Public, Round
from hush.engines.federation import Remote
from hush.engines.run import Run, Snapshot
from hush.engines.rundir import RunDir
from hush.engines.summing import Summed
from hush.engines.traffic import Traffic, told
from hush.errors import HushError
from hush.federation.asking import Carrier, Correspondence, Draft, Patience
from hush.federation.letters import Letter
from hush.federation.models import Broadcast, SentModels
from hush.federation.proposal import Proposal
from hush.federation.signatures import Book
from hush.federation.standing import Attendance, Unreachable
from hush.secagg import Aborted, BadMessage, Server, ServerRound, Terms
from hush.secagg.identity import Identity

__all__ = ["Carrier", "Overtaken", "Patience", "RemoteFederation", "Unreachable"]


class Overtaken(HushError):
    """This copy of a server is not the one that went on."""


_Part = tuple[list[bytes], bool]
"""Messages of the secure sum to one client, and whether it trains, for which it gets the model."""


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
        self._ahead: _Ahead | None = None
        self._waited: dict[str, float] = {}
        self._lost: list[set[int]] = []
        """Of the last rounds that were paid for and not opened: who is suspected in each."""
        self._models = SentModels()
        self.opened: ServerRound | None = None
        """The last round of the secure sum that was opened."""
        self.attempts = 0
        """Rounds of the secure sum that were begun, those that broke off included."""

    def bind(self, terms: Terms) -> RemoteFederation:
        """The terms that this run is summed under."""
        self.terms = terms
        self._server = Server(self.identity, self.proposal.members.roster, terms)
        self._post = Correspondence(self.identity, self.proposal, self.carrier, self.patience)
        self.attendance = Attendance(self._post, self._server, self.tell, self.watch)
        return self

    @property
    def roster(self) -> dict[str, str]:
        return {card.name: card.first.hex() for card in self.proposal.members.cards}

    def gather(self, asked: Iterable[int]) -> None:
        """Wait until enough of these clients take part."""
        self.attendance.gather(asked)

    def finish(self, folder: RunDir, wait: bool = False, after: Callable[[], None] = lambda: None) -> list[str]:
        """Tell everybody that the run in this folder is over, and keep there what they sign; `after` is called whenever somebody
        did. The names of those who have not: with `wait` only when the server's patience has ended."""
        book = Book(folder, self.proposal, after)
        self.attendance.dismiss(book, wait)
        return book.missing

    # -- a round's sum -------------------------------------------------------------------------------------------------------------

    def sum_of(
        self, run: Run, now: Snapshot, ids: Tensor, rnd: Round, public: Public, pay: Callable[[Tensor | None], int]
    ) -> Summed:
        """One round's sum. A round that breaks off before anything was opened costs nothing, and is tried again."""
        self._refuse_to_lose_more()
        asked, after = _cohorts(run, now, ids)
        up, down, broken = self._post.up, self._post.down, 0
        self._models.take(now.params, public, run.method.pipeline.broadcast(run.data.learner.dim))
        self.attendance.go_on_from(now.begun)
        self._waited = {}
        while True:
            with self._waiting("gathering"):
                self.gather(asked)
            if run.privacy.plan is not None:
                self._refuse_to_forget(asked, now.charges)
            if (why := self._nobody_left(asked)) is not None:  # to clients a round that was played twice was two sums
                self.tell(f"round {now.round + 1} has no sum, and costs nothing: {why}")
                return self._summed(None, now.charges, True, why, (up, down), broken)
            try:
                total, charges, why = self._attempt(rnd.index, asked, after, lambda: pay(None))
            except Aborted as reason:
                broken += 1
                if broken >= self.patience.tries:
                    raise Unreachable(f"Round {now.round + 1} broke off {broken} times, at last so: {reason}") from None
                self._ahead = None  # it was shared among those of before
                self.tell(f"round {now.round + 1} breaks off: {reason} It is tried again.")
                continue
            if total is not None:
                self._lost = []
            summed = None if total is None else torch.from_numpy(total).to(now.params.device)
            return self._summed(summed, charges, False, why, (up, down), broken)

    def _summed(
        self, total: Tensor | None, charges: int, broke_off: bool, why: str, before: tuple[Traffic, Traffic], broken: int
    ) -> Summed:
        """A round's sum, with what it took since it began."""
        self.attendance.show()  # who was not in it, too
        up, down = self._post.up - before[0], self._post.down - before[1]
        waited = {what: round(seconds, 3) for what, seconds in self._waited.items()}
        begun, traffic = self.attendance.next_round, told(up, down)
        return Summed(total, charges, broke_off, why, up.counted, down.counted, broken, begun, waited, traffic)

    def _nobody_left(self, asked: tuple[int, ...]) -> str | None:
        """Why these clients can have no further sum, however often they are asked: too few may be in one more."""
        spent = self.attendance.spent(self.terms.participations, asked)
        if len(asked) - len(spent) >= self.terms.fewest(len(asked)):
            return None
        return f"{len(spent)} of {len(asked)} clients were in all {self.terms.participations} sums that they agreed to"

    def _attempt(
        self,
        index: int,
        asked: tuple[int, ...],
        after: tuple[int, ...] | None,
        pay: Callable[[], int],
    ) -> tuple[Any, int, str]:
        """The sum, what was charged, and why there is none where it could not be opened; `Aborted` where nothing was charged."""
        current = self._shared(index, asked)
        deliveries, charges = current.advance(), None
        if current.session.opens_without_one:  # to clients a vector counts when it leaves: so it does here
            charges = pay()
        self._deliver(index, current, deliveries, after)
        try:
            openings = current.advance()
        except Aborted as reason:
            if charges is None:
                raise
            return self._lose(current, index, charges, reason)
        charges = pay() if charges is None else charges
        try:
            while openings:
                self._trip(_alone(openings), [current], index)
                openings = current.advance()
        except Aborted as reason:
            return self._lose(current, index, charges, reason)
        self.opened = current
        return current.signed_total, charges, ""

    def _lose(self, current: ServerRound, index: int, charges: int, reason: Aborted) -> tuple[None, int, str]:
        """A round that was paid for, and has no sum."""
        self._lost.append(set(current.suspects))
        self.tell(f"round {index + 1} is paid for and has no sum: {reason}{self._suspected(self._lost[-1])}")
        return None, charges, str(reason)

    def _refuse_to_lose_more(self) -> None:
        if len(self._lost) < self.patience.lost:
            return
        blamed = self._suspected(set.intersection(*self._lost))
        raise Unreachable(
            f"{len(self._lost)} rounds in a row were paid for and have no sum.{blamed} Nothing more is spent: go on (--resume) "
            "when the cause is mended, or without a client that is suspected (hush federation remove), which is a new run."
        )

    def _refuse_to_forget(self, asked: tuple[int, ...], paid: int) -> None:
        """A sum is paid for before a client counts it. Where clients count more, it was paid for elsewhere: in a copy of this
        server that went on, or in a ledger of which this is an older copy. As many as may be dishonest are not believed."""
        ahead = self.attendance.in_more_sums_than(paid, asked)
        if len(ahead) > self.terms.corrupted * len(asked):
            raise Overtaken(
                f"{', '.join(ahead[:5])}{', ...' if len(ahead) > 5 else ''} say that they took part in more sums of this run "
                f"than the {paid} that its ledger here has paid for. If another copy of this server went on with it, go on there; "
                "if there is none, they do not say what is so: a new run, without them (hush federation remove). Here nothing "
                "more is spent."
            )

    def _suspected(self, numbers: set[int]) -> str:
        names = ", ".join(map(self.attendance.name_of, sorted(numbers)))
        return f" Suspected, by what others sent or showed: {names}." if names else ""

    def _shared(self, index: int, asked: tuple[int, ...]) -> ServerRound:
        """A round whose shares are here: the one that was begun with the last vectors, or one with a trip of its own."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.asked == asked:
            return ahead.round
        current = self._open(asked)
        self._trip(_alone(current.start()), [current], index)
        return current

    def _deliver(
        self,
        index: int,
        current: ServerRound,
        deliveries: Mapping[int, bytes],
        after: tuple[int, ...] | None,
    ) -> None:
        """The model and the deliveries, which masked vectors answer; and the invitations to the next round."""
        rounds = [current]
        parts: dict[int, _Part] = {number: ([letter], True) for number, letter in deliveries.items()}
        if after is not None and (following := self._opened_ahead(after)) is not None:
            self._ahead = _Ahead(after, following)
            rounds.append(following)
            for number, letter in following.start().items():
                own, trains = parts.get(number, ([], False))
                parts[number] = ([*own, letter], trains)
        self._trip(parts, rounds, index)

    def _open(self, asked: Iterable[int]) -> ServerRound:
        self.attempts += 1
        return self._server.open(self.attendance.next_round, asked)

    def _opened_ahead(self, asked: tuple[int, ...]) -> ServerRound | None:
        try:
            return self._open(asked)
        except Aborted:  # keys of some are missing: the round begins with a trip of its own
            return None

    # -- trips ---------------------------------------------------------------------------------------------------------------------

    def _trip(self, parts: Mapping[int, _Part], rounds: list[ServerRound], index: int) -> None:
        """Letters of the secure sum to some clients, each with the model or without; their answers go where they belong."""
        waited = {number for number, (_, trains) in parts.items() if trains} or set(parts)
        fewest = min(self.terms.fewest(len(rounds[0].session.cohort)), len(waited))
        lacking: list[int] = []

        def enough(answered: set[int]) -> bool:  # answers that help: with others one client could have the rest cut off
            return sum(map(rounds[0].has_of, waited)) >= fewest

        def heard(number: int, answer: Letter) -> None:
            if answer.head.get("kind") == "lacking" and number not in lacking:  # it has answered nothing else, and is asked again
                lacking.append(number)
                return
            self._take(number, answer, rounds)
            if parts[number][1] and answer.head.get("kind") == "answers":
                self._models.answered(number)

        trip = rounds[0].stage.name.lower()
        with self._waiting(trip):
            self.attendance.ask(self._drafts(parts, index), enough, trip, heard)
            if again := {number: parts[number] for number in lacking}:  # the same letter, with the whole model
                self.attendance.ask(self._drafts(again, index), enough, trip, heard)

    def _drafts(self, parts: Mapping[int, _Part], index: int) -> dict[int, Draft]:
        out = {}
        for number, (messages, trains) in parts.items():
            model = self._models.broadcast(number) if trains else Broadcast({}, [], 0)
            head = {"kind": "round", "index": index} | model.head
            if self.attendance.needs_keys(number):
                head["keys_from"] = self.attendance.next_round
            out[number] = Draft(head, [*model.pieces, *messages], model.counted + sum(map(len, messages)))
        return out

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Add up by the server's own clock. What a client says of its time would tell of its data, so nobody is asked."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited[what] = self._waited.get(what, 0.0) + time.monotonic() - began

    def _take(self, number: int, answer: Letter, rounds: list[ServerRound]) -> None:
        if answer.head.get("kind") != "answers":
            self.attendance.forgot(number)
            return
        messages = list(answer.pieces)
        if answer.head.get("keys") and messages:
            self.attendance.take_keys(number, messages.pop())
        for message in filter(None, messages):
            if (error := _refused_by_all(rounds, number, message)) is not None:
                self.tell(f"{self.attendance.name_of(number)}: {error}")
        self.attendance.answered(number, answer.head.get("why", []))


def _alone(out: Mapping[int, bytes]) -> dict[int, _Part]:
    """Letters without the model."""
    return {number: ([letter], False) for number, letter in out.items()}


def _refused_by_all(rounds: list[ServerRound], number: int, message: bytes) -> BadMessage | None:
    """Why no round takes a message; None where one does."""
    error: BadMessage | None = None
    for one in rounds:
        try:
            one.receive(number, message)
        except BadMessage as reason:
            error = reason
        else:
            return None
    return error


def _cohorts(run: Run, now: Snapshot, ids: Tensor) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
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
