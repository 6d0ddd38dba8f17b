"""Who agreed, answers, and has keys for the rounds to come; and waiting until enough do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hush.errors import HushError
from hush.federation import letters
from hush.federation.asking import Correspondence, Draft, Heard, Out
from hush.federation.letters import Letter
from hush.federation.member import KEYS_AHEAD
from hush.federation.signatures import Book
from hush.federation.statement import BadStatement
from hush.secagg import BadMessage, Server
from hush.secagg.messages import MOST_AHEAD

_AGAIN = 2.0
"""Seconds before somebody who did not say yes is asked again."""
_AFTER_NO = 15.0
"""The same after a no."""
_OTHERS = 30.0
"""The same for those whom this round does not ask."""
_LAST_WORDS = 3
"""How often clients that are there are asked to sign."""
_FAREWELL = 60.0
"""Seconds in which one of them answers."""


class Unreachable(HushError):
    """Too few clients came, for too long."""


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
    came: bool = False
    """It agreed, be it long ago."""
    next: int = 0
    """The first round that it may join, as it says."""
    opened: int = 0
    """How many sums of this run it was in, as it says."""

    def in_words(self, reachable: bool) -> str:
        if self.refused:
            return f"says no: {self.refused}"
        if self.done:
            return "took part; the run is over"
        if not reachable:
            return "not connected"
        return "takes part" if self.agreed and self.fresh else "was asked" if not self.agreed else "did not answer"


class Attendance:
    """Everybody's standing, and the next round of the secure sum that nobody has begun."""

    def __init__(
        self,
        post: Correspondence,
        server: Server,
        tell: Callable[[str], None],
        watch: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self._post, self._server, self._tell, self._watch = post, server, tell, watch
        self._clients = [Standing(name) for name in post.proposal.members.names]

    @property
    def next_round(self) -> int:
        """The first round that nobody has begun."""
        return self._server.next_round

    def go_on_from(self, round: int) -> None:
        """Rounds before this one were begun already, by a server that died."""
        self._server.next_round = max(self._server.next_round, round)

    def ask(self, out: Out, enough: Callable[[set[int]], bool], trip: str, heard: Heard | None = None) -> dict[int, Letter]:
        """Letters and answers; whoever is asked must answer to count as there."""
        for number in out:
            self._clients[number].fresh = False
        return self._post.ask(out, enough, trip, heard=heard)

    # -- what answers tell ---------------------------------------------------------------------------------------------------------

    def name_of(self, number: int) -> str:
        return self._clients[number].name

    def answered(self, number: int, complaints: object) -> None:
        """It did what it was asked, if it complains of nothing."""
        self._clients[number].fresh = isinstance(complaints, list) and not any(complaints)

    def forgot(self, number: int) -> None:
        """It was started again, and must be asked anew."""
        self._clients[number].fresh = self._clients[number].agreed = False

    def in_more_sums_than(self, paid: int, asked: Iterable[int]) -> list[str]:
        """Those of these clients who say that they were."""
        return [self.name_of(number) for number in asked if self._clients[number].opened > paid]

    def spent(self, most: int | None, asked: Iterable[int]) -> list[str]:
        """Those of these clients who say that they were in as many sums as they agreed to, and so join no other."""
        return [] if most is None else [self.name_of(number) for number in asked if self._clients[number].opened >= most]

    def needs_keys(self, number: int) -> bool:
        """Whether it should send more of them with its next answer."""
        return self._clients[number].keys_until < self.next_round + KEYS_AHEAD // 2

    def take_keys(self, number: int, message: bytes) -> None:
        """Keys of a client for rounds to come."""
        try:
            rounds = self._server.take_keys(number, message)
        except BadMessage as error:
            self._tell(f"{self.name_of(number)}: {error}")
            return
        self._clients[number].keys_until = max(rounds, default=-1) + 1

    # -- waiting -------------------------------------------------------------------------------------------------------------------

    def gather(self, asked: Iterable[int]) -> None:
        """Wait until enough of these clients agreed, are there, and sent keys: all of those who never agreed, and of the others as
        many as a sum needs."""
        wanted, since, told = set(asked), time.monotonic(), ""
        self._propose(self._may_be_back(wanted))
        while not self._enough(wanted):
            self._propose([*self._missing(wanted), *self._others(wanted)])
            self.go_on_from(self._joinable(wanted))
            if not (missing := self._missing(wanted)):
                return
            names = ", ".join(map(self.name_of, missing[:5])) + (", ..." if len(missing) > 5 else "")
            if names != told:
                told = names
                self._tell(f"waiting for {len(missing)} of {len(wanted)} clients: {names}")
            if time.monotonic() - since > self._post.patience.absent:
                raise self._gave_up(missing, names)
            self._post.listen()

    def _enough(self, wanted: set[int]) -> bool:
        missing = self._missing(wanted)
        never_there = any(not self._clients[number].came for number in missing)
        return not never_there and len(wanted) - len(missing) >= self._server.terms.fewest(len(wanted))

    def _joinable(self, wanted: set[int]) -> int:
        """The first round that as many of them may join as a sum needs. After a server died, clients know of rounds that nobody
        kept; but one that names a round far ahead is done without, where one may be missing, and not followed."""
        near = self.next_round + MOST_AHEAD
        named = sorted(state.next for state in map(self._clients.__getitem__, wanted) if state.agreed and state.next < near)
        fewest = self._server.terms.fewest(len(wanted))
        return named[fewest - 1] if len(named) >= fewest else 0

    def _missing(self, wanted: set[int]) -> list[int]:
        return sorted(number for number in wanted if not self._ready(number))

    def _ready(self, number: int) -> bool:
        state = self._clients[number]
        return state.agreed and state.fresh and number in self._server.ready(self.next_round)

    def _others(self, wanted: set[int]) -> list[int]:
        """Clients of later rounds, whose yes and keys should be here by then."""
        before = time.monotonic() - _OTHERS
        return [n for n, one in enumerate(self._clients) if n not in wanted and not self._ready(n) and one.asked_again < before]

    def _may_be_back(self, wanted: set[int]) -> list[int]:
        """Those whom a round does without, since they were started again or were gone until their keys were used up."""
        before, invited = time.monotonic() - _OTHERS, self._server.ready(self.next_round)
        gone = [n for n in wanted if self._clients[n].came and not (self._clients[n].agreed and n in invited)]
        return sorted(n for n in gone if self._clients[n].asked_again < before)

    def _gave_up(self, missing: list[int], names: str) -> Unreachable:
        refused = next((one for one in map(self._clients.__getitem__, missing) if one.refused), None)
        if refused is None:
            return Unreachable(f"For {self._post.patience.absent:.0f} s these clients were not there: {names}.")
        return Unreachable(
            f"{refused.name} does not take part: {refused.refused}. Take it out of the roster (hush federation remove), or "
            "change the run."
        )

    # -- asking for a yes ----------------------------------------------------------------------------------------------------------

    def _propose(self, numbers: list[int]) -> None:
        """Ask those who are there once more, unless they were asked just now."""
        if not (due := self._due(numbers)):
            return
        for number in due:
            self._clients[number].asked_again = time.monotonic()
        text = self._post.proposal.to_json().encode()
        out: Out = {number: Draft({"kind": "propose", "round": self.next_round}, [text]) for number in due}
        for number, answer in self.ask(out, lambda answered: True, "proposal").items():
            if answer.head.get("kind") == "yes" and answer.pieces:
                self._said_yes(number, answer)
            elif answer.head.get("kind") in ("no", "refused"):
                self._said_no(self._clients[number], str(answer.head.get("why", "")))
        self.show()

    def _due(self, numbers: list[int]) -> list[int]:
        there, before = self._post.reachable(), time.monotonic() - _AGAIN
        return [number for number in numbers if number in there and self._clients[number].asked_again < before]

    def _said_yes(self, number: int, answer: Letter) -> None:
        state = self._clients[number]
        state.agreed, state.fresh, state.came, state.refused = True, True, True, ""
        further = answer.head.get("next")
        state.next = further if isinstance(further, int) else 0
        opened = answer.head.get("opened")
        opened = opened if isinstance(opened, int) else 0
        if opened < state.opened:
            self._tell(
                f"{state.name} was in {state.opened} sums, as it said before, and says {opened} now: an older copy of its folder "
                "answers, whose diary and ledger have forgotten the others"
            )
        state.opened = max(state.opened, opened)
        self.take_keys(number, answer.pieces[0])

    def _said_no(self, state: Standing, why: str) -> None:
        """It may change its mind, or mend its data, while the server is patient."""
        state.asked_again = time.monotonic() + _AFTER_NO
        before, state.refused = state.refused, letters.printable(why[:500]) or "it does not say why"
        if state.refused != before:
            self._tell(f"{state.name} says no: {state.refused}")

    # -- the end -------------------------------------------------------------------------------------------------------------------

    def dismiss(self, book: Book, wait: bool = False) -> None:
        """Tell everybody that the run is over, and keep what they sign; with `wait` be patient with those who are not there.
        Whoever signed hears that it is kept, and may go."""
        began, tries = time.monotonic(), 0
        left = set(range(len(self._clients))) - book.signed.keys()
        while left and (time.monotonic() - began < self._post.patience.absent if wait else tries < _LAST_WORDS):
            if there := left & self._post.reachable():
                left -= self._say_over(there, book)
                tries += 1
            elif not wait:
                break
            if left:
                self._post.listen()
        if signed := book.signed.keys() & self._post.reachable():
            self._say_over(signed, book)
        self.show()

    def _say_over(self, numbers: set[int], book: Book) -> set[int]:
        """Who answered. What they signed is on disk then."""
        out: Out = {n: Draft({"kind": "over", "released": book.told, "kept": book.sha256(n)}, []) for n in numbers}
        before, heard = len(book.signed), set[int]()
        patient = not numbers <= book.signed.keys()  # who signed may be gone by the time that it hears
        for number, answer in self._post.ask(out, lambda answered: bool(answered) or not patient, "end", _FAREWELL).items():
            if answer.head.get("kind") != "bye":
                self._tell(f"{self.name_of(number)} does not sign: {letters.printable(str(answer.head.get('why', ''))[:500])}")
                continue
            self._clients[number].done = True
            heard.add(number)
            try:
                if answer.pieces:
                    book.take(number, answer.pieces[0])
            except BadStatement as error:
                self._tell(f"{self.name_of(number)} sends a statement that is not kept: {error}")
        if len(book.signed) > before:
            book.save()
        self.show()
        return heard

    def show(self) -> None:
        """Everybody's standing in words, to whoever watches."""
        if self._watch is not None:
            there = self._post.reachable()
            self._watch({"clients": {state.name: state.in_words(n in there) for n, state in enumerate(self._clients)}})
