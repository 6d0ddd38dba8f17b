"""How long answers are waited for: until enough are there, and then as long as who is missing usually takes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hush.federation import letters
from hush.federation.asking import Correspondence, Draft, Patience
from tests.federation.conftest import MakeWorld
from tests.federation.world import Clock, World

PATIENCE = Patience(stage=300.0, grace=10.0)
ENOUGH = 4


class Slow:
    """A carrier to clients that take a given time for every answer; none, where they never answer."""

    def __init__(self, made: World, clock: Clock) -> None:
        self._made, self._clock = made, clock
        self.takes: dict[int, float | None] = {}
        self.gone: set[int] = set()
        self._due: list[tuple[float, bytes]] = []

    def reachable(self) -> set[bytes]:
        return {member.key for number, member in self._made.members.items() if number not in self.gone}

    def send(self, out: Mapping[bytes, bytes], ttl: float) -> None:
        for key, letter in out.items():
            member = self._made.members[self._made.proposal.members.roster.numbers[key]]
            takes = self.takes[self._made.proposal.members.roster.numbers[key]]
            if takes is not None:
                head = {"kind": "answers", "re": letters.name_of(letter), "key": key.hex()}
                self._due.append((self._clock.now + takes, letters.write(member._identity, head)))

    def receive(self, timeout: float) -> list[bytes]:
        if not (came := self._now()):
            self._clock.wait(timeout)
            came = self._now()
        return came

    def _now(self) -> list[bytes]:
        came = [answer for due, answer in self._due if due <= self._clock.now]
        self._due = [(due, answer) for due, answer in self._due if due > self._clock.now]
        return came

    def lost(self) -> set[str]:
        return set()


class Asking:
    """Trips to five clients, of whom four are enough."""

    def __init__(self, made: World, clock: Clock) -> None:
        self.slow = Slow(made, clock)
        self._clock = clock
        self._post = Correspondence(made.server.identity, made.proposal, self.slow, PATIENCE)

    def trip(self, what: str, *takes: float | None) -> tuple[set[int], float]:
        """Who answered in time, and when the trip was over."""
        self.slow.takes = dict(enumerate(takes))
        began = self._clock.now
        out = {number: Draft({"kind": "round", "nonce": began}, []) for number in range(5)}
        answered = set(self._post.ask(out, lambda there: len(there) >= ENOUGH, what))
        return answered, self._clock.now - began


@pytest.fixture
def asking(world: MakeWorld, clock: Clock) -> Asking:
    return Asking(world(clients=5, noise_seed=1), clock)


FOUR, ALL = {0, 1, 2, 3}, {0, 1, 2, 3, 4}
SOON = pytest.approx(30, abs=1.5)
"""Ten seconds after the four, who took twenty."""
TWICE = pytest.approx(40, abs=1.5)
"""As long again."""


def test_before_enough_have_answered_nobody_is_late(asking: Asking) -> None:
    for _ in range(2):  # whatever was learned of them
        assert asking.trip("vectors", 20, 20, 20, None, None) == ({0, 1, 2}, pytest.approx(300, abs=1.5))
    assert asking.trip("vectors", 20, 20, 20, 250, None)[0] == FOUR


def test_one_that_always_takes_longer_is_waited_for_and_another_that_stops_answering_is_not(asking: Asking) -> None:
    assert asking.trip("vectors", 20, 20, 20, 20, 90) == (FOUR, TWICE)
    assert asking.trip("vectors", 20, 20, 20, 20, 90) == (FOUR, SOON), "it did not answer the last time"
    seconds = 0.0
    for _ in range(3):  # its first answer came late, and said how long it takes
        answered, seconds = asking.trip("vectors", 20, 20, 20, 20, 90)
    assert (answered, seconds) == (ALL, pytest.approx(90, abs=1.5))
    assert asking.trip("vectors", 20, 20, 20, 20, None) == (FOUR, pytest.approx(180, abs=1.5)), "twice what it takes"
    assert asking.trip("vectors", 20, 20, 20, 20, None) == (FOUR, SOON)
    assert asking.trip("vectors", 20, 20, 20, 20, 15) == (ALL, pytest.approx(20, abs=1.5))
    assert asking.trip("vectors", 20, 20, 20, 20, None) == (FOUR, TWICE), "it is as fast as the others now"


def test_what_one_kind_of_trip_takes_says_nothing_of_another(asking: Asking) -> None:
    assert asking.trip("vectors", 20, 20, 20, 20, 35)[0] == ALL
    assert asking.trip("vectors", 20, 20, 20, 20, 65)[0] == ALL
    assert asking.trip("opening", 20, 20, 20, 20, None) == (FOUR, TWICE)


def test_nobody_has_more_than_the_deadline(asking: Asking) -> None:
    assert asking.trip("vectors", 20, 20, 20, 180, 290)[0] == ALL
    assert asking.trip("vectors", 20, 20, 20, 20, None) == (FOUR, pytest.approx(300, abs=1.5))


def test_one_that_was_not_there_is_not_taken_for_one_that_does_not_answer(asking: Asking) -> None:
    asking.slow.gone = {4}
    assert asking.trip("vectors", 20, 20, 20, 20, None) == (FOUR, pytest.approx(20, abs=1.5))
    asking.slow.gone = set()
    assert asking.trip("vectors", 20, 20, 20, 20, 38)[0] == ALL


def test_an_answer_under_another_name_tells_nothing(asking: Asking) -> None:
    """A client cannot lengthen what others are waited for, nor name a letter that nobody sent."""
    pace = asking._post._pace
    pace.begin("vectors", {"to-four": 4})
    pace.answered(3, "to-four")
    pace.answered(3, "to-nobody")
    assert not pace._took
    pace.answered(4, "to-four")
    pace.answered(4, "to-four")
    assert list(pace._took) == [("vectors", 4)]
