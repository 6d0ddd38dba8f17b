"""A federation in one process: real folders, members and a real server, and a carrier that does to letters whatever a test says.

Time is the carrier's own: where nothing comes, waiting costs no time at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hush.config import RunConfig
from hush.engines.result import Result
from hush.engines.run import Run
from hush.engines.rundir import RunDir
from hush.engines.simulation import train
from hush.experiment import Experiment
from hush.federation import letters
from hush.federation.diary import Before, Diary
from hush.federation.folders import INVITATION, ClientFolder, ServerFolder
from hush.federation.letters import BadLetter, Letter
from hush.federation.member import Decide, Member
from hush.federation.proposal import Proposal, agree
from hush.federation.propose import propose, ready, resolved, task_of
from hush.federation.server import Patience, RemoteFederation
from hush.secagg.messages import Kind, peek
from hush.tasks.task import Task

PATIENCE = Patience(stage=60.0, grace=1.0, absent=20.0)
BEFORE = {"shares": Kind.INVITATION, "vector": Kind.DELIVERY, "opening": Kind.SURVIVORS}
"""What a client is sent before it answers with these."""


MOST_TRIPS = 80
"""A run that goes on for ever is a failure, and not a test that never ends."""


class Died(Exception):
    """Of a process that a test ends."""


class Clock:
    """Seconds that pass where somebody waits in vain."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.most = self.now + 20_000
        """When a test has waited long enough."""
        self.on_wait: Callable[[], None] = lambda: None

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.on_wait()
        assert self.now < self.most, "somebody waits for ever"

    def monotonic(self) -> float:
        return self.now


@dataclass(frozen=True)
class Sent:
    """One letter of the server's to one client, read as a carrier with nothing to lose could."""

    number: int
    raw: bytes
    letter: Letter

    @property
    def kind(self) -> str:
        return str(self.letter.head["kind"])

    @property
    def stages(self) -> tuple[tuple[Kind, int], ...]:
        """Messages of the secure sum in it, and their rounds."""
        return tuple(peek(piece, None) for piece in self.messages)

    @property
    def messages(self) -> tuple[bytes, ...]:
        tensors = sum(isinstance(item, list) for item in self.letter.head.get("broadcast", []))
        return self.letter.pieces[tensors:] if self.kind == "round" else ()

    def asks(self, kind: Kind, round: int | None = None) -> bool:
        return any(one is kind and round in (None, other) for one, other in self.stages)


OnLetter = Callable[[Sent], Iterable[bytes]]
OnAnswer = Callable[[Sent, bytes], Iterable[bytes]]


class Post:
    """The carrier. `on_letter` says what arrives of a letter, `on_answer` what comes back of an answer."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world, self._clock = world, clock
        self.on_letter: OnLetter = lambda sent: [sent.raw]
        self.on_answer: OnAnswer = lambda sent, answer: [answer]
        self.chance: random.Random | None = None
        """Answers come in any order, where this is given."""
        self.log: list[tuple[Sent, bytes]] = []
        """Every letter that was answered, and its answer."""
        self.late: list[bytes] = []
        """What a test held back; it is brought when nothing else is there."""
        self._came: list[bytes] = []
        self._trips = 0

    def reachable(self) -> set[bytes]:
        return {member.key for member in self._world.members.values()}

    def send(self, out: Mapping[bytes, bytes], ttl: float) -> None:
        self._trips += 1
        assert self._trips < MOST_TRIPS, "the server goes on and on"
        numbers = self._world.proposal.members.roster.numbers
        for key, raw in out.items():
            number = numbers[key]
            sent = Sent(number, raw, letters.read(raw, self._world.server.identity.public))
            for arrived in self.on_letter(sent):
                self.deliver(number, arrived, sent)

    def deliver(self, number: int, raw: bytes, sent: Sent) -> None:
        """To one member, whoever it is for."""
        member = self._world.members.get(number)
        if member is None:
            return
        try:
            answer = member.answer(raw)
        except BadLetter as error:
            self._world.heard.append(f"{member.name}: {error}")
            return
        self.log.append((sent, answer))
        self._came += self.on_answer(sent, answer)

    def lost(self) -> set[str]:
        return set()

    def receive(self, timeout: float) -> list[bytes]:
        if not self._came and self.late:
            self._came, self.late = self.late, []
        if not self._came:
            self._clock.wait(timeout)
        came, self._came = self._came, []
        if self.chance is not None:
            self.chance.shuffle(came)
        return came


def yes(told: Any, number: int, before: Before) -> bool:
    return True


def nobody_asks_twice(told: Any, number: int, before: Before) -> bool | str:
    return before.agreed or "it was asked a second time"


@dataclass
class World:
    """A server, its clients, their data, and a run that is proposed to them."""

    place: Path
    clock: Clock
    config: dict[str, Any]
    clients: int = 4
    decide: Decide = yes
    patience: Patience = PATIENCE
    heard: list[str] = field(default_factory=list)
    """What the server and its clients said."""
    own_code: str | None = None
    out_name: str = "run"
    """Of the run's folder."""

    def __post_init__(self) -> None:
        self.server = ServerFolder.init(self.place / "server", "test", "127.0.0.1:9443", insecure=True)
        for number in range(self.clients):
            own = ClientFolder.enroll(self.folder(number), self.server.path / INVITATION, f"client-{number}")
            self.server.admit(own.card)
        self.experiment, self.task = self._resolved()
        self.proposal = propose(self.experiment, self.task, self.server.members)
        self.members = {number: self.member(number) for number in range(self.clients)}
        self.post = Post(self, self.clock)

    def folder(self, number: int) -> Path:
        return self.place / f"client-{number}"

    def _resolved(self) -> tuple[Experiment, Task]:
        experiment = resolved(config_of(**self.config), self.server.members)
        dealt = experiment.task(None).train
        for number in range(self.clients):
            shard = dealt.shard(torch.tensor([number]))
            rows = slice(int(shard.start[0]), int(shard.start[0] + shard.size[0]))
            save_file({"x": dealt.x[rows].contiguous(), "y": dealt.y[rows].contiguous()}, self.data(number))
        return experiment, task_of(experiment, None)

    def data(self, number: int) -> Path:
        return self.folder(number) / "data.safetensors"

    # -- clients -------------------------------------------------------------------------------------------------------------------

    def member(self, number: int, **more: Any) -> Member:
        """A process of this client's, on the folder that it has."""
        given: dict[str, Any] = {"decide": self.decide, "own_code": self.own_code, "say": self.heard.append} | more
        source = given.pop("source", str(self.data(number)))
        return Member(ClientFolder.of(self.folder(number)), source, **given)

    def kill(self, number: int) -> None:
        self.members.pop(number, None)

    def restart(self, number: int, **more: Any) -> None:
        """Killed, and started again."""
        self.members[number] = self.member(number, **more)

    def diary(self, number: int) -> tuple[int, int]:
        """Next round and opened sums, as this client's disk has them."""
        return Diary(self.folder(number), "test").standing(agree(self.proposal))

    # -- the server ----------------------------------------------------------------------------------------------------------------

    @property
    def out(self) -> Path:
        return self.place / self.out_name

    def ready(self, proposal: Proposal | None = None) -> tuple[Run, RemoteFederation]:
        def remote(proposed: Proposal) -> RemoteFederation:
            return RemoteFederation(self.server.identity, proposed, self.post, self.patience, self.heard.append)

        return ready(proposal or self.proposal, self.task, True, remote)

    def train(self, resume: bool = False, on_round: Any = None) -> Result:
        """The whole run."""
        run, self.federation = self.ready()
        result = train(run, out=self.out, resume=resume, on_round=on_round)
        self.federation.finish(RunDir(self.out))
        return result

    def write(self, head: dict[str, Any], pieces: Iterable[bytes] = (), to: int = 0) -> bytes:
        """A letter of the server's to a client, whether it should write it or not."""
        told = {"key": self.proposal.members.cards[to].key.hex(), "run": self.proposal.digest.hex()} | head
        return letters.write(self.server.identity, told, list(pieces))

    def ask(self, number: int, head: dict[str, Any], pieces: Iterable[bytes] = ()) -> Letter:
        """What a client answers to it."""
        member = self.members[number]
        return letters.read(member.answer(self.write(head, pieces, number)), member.key)

    def propose(self, number: int, text: str | None = None) -> Letter:
        text = self.proposal.to_json() if text is None else text
        return self.ask(number, {"kind": "propose", "round": 0}, [text.encode()])


def config_of(**given: Any) -> RunConfig:
    """A small run on digits."""
    usual: dict[str, Any] = {"method": "dp-fedavg", "data": "digits", "rounds": 3, "noise": 1.0, "delta": 1e-3}
    own = {"local_steps": 2} | given.pop("set", {})
    told = {key: value for key, value in (usual | given).items() if value is not None}
    return RunConfig.read(told | {"set": {key: value for key, value in own.items() if value is not None}})


def losing(world: World, number: int, moment: str, round: int | None = None, times: int = 1) -> None:
    """This client does not answer `times` times when it is asked for `moment`; it is asked, and the letter is lost."""
    left = times

    def on_letter(sent: Sent) -> list[bytes]:
        nonlocal left
        if sent.number == number and left and sent.asks(BEFORE[moment], round):
            left -= 1
            return []
        return [sent.raw]

    world.post.on_letter = on_letter


def changed(proposal: Proposal, **config: Any) -> Proposal:
    """The same proposal of a run that differs."""
    return replace(proposal, run=replace(proposal.run, **config))
