"""`hush.federation.client` and `run`: inside a Flower app of one's own, and over a carrier of one's own."""

from __future__ import annotations

import io
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush.certify import verify_run
from hush.config import RunConfig
from hush.engines.flower.process import free_port
from hush.engines.rundir import RunDir
from hush.errors import UsageError
from hush.federation import Policy, trial
from hush.federation.diary import Diary
from hush.federation.folders import ClientFolder, ServerFolder
from hush.federation.kept import kept
from hush.federation.proposal import agree
from hush.federation.resident import Resident
from hush.federation.running import ANOTHERS

CLIENTS, ROUNDS = 3, 3
MakeResident = Callable[..., Resident]
EXAMPLES = Path(__file__).parents[2] / "examples" / "federation"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFolder:
    """A server and three clients, enrolled, with digits."""
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    return trial.make(tmp_path, CLIENTS, RunConfig(method="dp-fedavg"), None)


@pytest.fixture
def resident(made: ServerFolder, tmp_path: Path) -> Iterator[MakeResident]:
    """Clients by their numbers, closed in the end."""
    with ExitStack() as stack:

        def make(number: int, **given: Any) -> Resident:
            folder = trial.folder_of(tmp_path, number)
            told = {"policy": tmp_path / "policy.toml", "say": lambda line: None} | given
            return stack.enter_context(hush.federation.client(folder, folder / "data.safetensors", **told))

        yield make


def refuse_less_than_the_usual(place: Path, out: Path, rounds: int) -> None:
    """Proposal, consent, everybody's count, ledger and certificate, as after `hush server`."""
    proposal = kept(RunDir(out))
    for number in range(CLIENTS):
        assert Diary(trial.folder_of(place, number), "trial").standing(agree(proposal))[1] == rounds
    checks = {check.name: check.passed for check in verify_run(out).checks}
    assert checks["proposal"]
    assert checks["ledger"]
    assert all(passed is not False for passed in checks.values())
    assert ANOTHERS in RunDir(out).read_json("certificate.json")["caveats"]
    assert (out / "report.html").exists()


# -- a Flower app of one's own -----------------------------------------------------------------------------------------------------


class Nodes:
    """A grid of Flower's whose nodes are in this process: each runs the ClientApp itself, one thread a message."""

    def __init__(self, app: Any, doors: list[Path]) -> None:
        self._app, self._doors = app, doors
        self._replies: dict[str, Any] = {}

    def get_node_ids(self) -> Iterable[int]:
        return range(len(self._doors))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        return [self._pushed(message) for message in messages]

    def _pushed(self, message: Any) -> str:
        name = message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        threading.Thread(target=self._answer, args=(name, message), daemon=True).start()
        return str(name)

    def _answer(self, name: str, message: Any) -> None:
        from flwr.app import Context, Error, Message, RecordDict

        number = message.metadata.dst_node_id
        around = Context(1, number, {"hush-socket": str(self._doors[number])}, RecordDict(), {})
        try:
            self._replies[name] = self._app(message, around)
        except Exception as error:
            self._replies[name] = Message(Error(0, str(error)), reply_to=message)

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        return [self._replies.pop(name) for name in names if name in self._replies]


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'hush-fl[federation]'")
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)  # what Flower tells an app's process when it starts it
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    return EXAMPLES / "stock" / "stock_app"


@contextmanager
def listening(place: Path, residents: Iterable[Resident]) -> Iterator[list[Path]]:
    """Clients that answer at sockets, until their first run is over."""
    doors, threads = [], []
    for number, one in enumerate(residents):
        doors.append(place / f"{number}.sock")
        threads.append(threading.Thread(target=one.serve, args=(doors[-1],), kwargs={"once": True}))
        threads[-1].start()
    yield doors
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_flower_app_of_ones_own(
    stock: Path, made: ServerFolder, resident: MakeResident, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flwr.app import Context, RecordDict

    client_app = runpy.run_path(str(stock / "client_app.py"))["app"]
    server_app = runpy.run_path(str(stock / "server_app.py"))["app"]
    out = tmp_path / "run"
    with listening(tmp_path, [resident(number) for number in range(CLIENTS)]) as doors:
        told = {"federation": str(made.path), "data": "digits", "out": str(out)}
        server_app(Nodes(client_app, doors), Context(1, 0, {}, RecordDict(), told))
    assert "delta=0.0010) for each client" in capsys.readouterr().out
    refuse_less_than_the_usual(tmp_path, out, ROUNDS)
    assert not any(door.exists() for door in doors)


@pytest.mark.parametrize("garbage", ["nothing", "no bundle", "text", "an array of another kind", "an array that is too large"])
def test_what_one_node_answers_ends_nobodys_run(garbage: str, stock: Path) -> None:
    """Whoever has a client's node key answers Flower's messages with whatever Flower can carry."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

    from hush.engines.flower.exchange import UnderWay, wrap

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 44,)})
    content = {
        "nothing": {},
        "no bundle": {"letters": ConfigRecord({})},
        "text": {"letters": ConfigRecord({"bundle": "text"})},
        "an array of another kind": {"letters": ArrayRecord({"bundle": Array("uint8", (1,), "pickle", b"x")})},
        "an array that is too large": {
            "letters": ArrayRecord({"bundle": Array("uint8", (1,), "numpy.ndarray", header.getvalue())})
        },
    }

    class Grid:
        def push_messages(self, messages: list[Any]) -> list[str]:
            self.pushed = messages
            for message in messages:
                message.metadata.__dict__["_message_id"] = str(message.metadata.dst_node_id)
            return [message.metadata.message_id for message in messages]

        def pull_messages(self, names: list[str]) -> list[Any]:
            return [Message(wrap(b"well"), reply_to=self.well), Message(RecordDict(content[garbage]), reply_to=self.pushed[0])]

    grid = Grid()
    under_way = UnderWay(grid)
    assert under_way.push(1, 1, 60.0, b"letters")
    grid.well = grid.pushed[0]  # type: ignore[attr-defined]
    assert under_way.push(2, 2, 60.0, b"letters")
    assert [(number, answers) for number, answers, _ in under_way.pull()] == [(1, b"well"), (2, None)]


def test_what_flower_itself_cannot_read_is_one_nodes_own(stock: Path) -> None:
    from flwr.app import Message

    from hush.engines.flower.exchange import UnderWay, wrap

    class Grid:
        """It raises of node 2 and forgets all that it was asked for, as Flower's does."""

        def __init__(self) -> None:
            self.there: dict[str, Any] = {}

        def push_messages(self, messages: list[Any]) -> list[str]:
            for message in messages:
                name = message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
                self.there[name] = message
            return [message.metadata.message_id for message in messages]

        def pull_messages(self, names: list[str]) -> list[Any]:
            asked = [self.there.pop(name) for name in names if name in self.there]
            if any(message.metadata.dst_node_id == 2 for message in asked):
                raise ValueError("Unexpected set of `children`.")
            return [Message(wrap(b"well"), reply_to=message) for message in asked]

    under_way = UnderWay(Grid())
    answered = list[tuple[int, bytes | None]]()
    for number in range(0, 9, 3):
        for node in (1, 2, 3):
            assert under_way.push(number + node, node, 60.0, b"letters")
        answered += [(number, answers) for number, answers, _ in under_way.pull()]
    assert answered == [(4, b"well"), (5, None), (6, b"well"), (7, b"well"), (8, None), (9, b"well")], "after the first trip"


def test_the_two_apps_and_the_client_are_under_twenty_lines(stock: Path) -> None:
    files = (stock / "client_app.py", stock / "server_app.py", stock.parent / "hospital.py")
    lines = [line for file in files for line in file.read_text().split('"""')[-1].splitlines() if line.strip()]
    assert len(lines) < 20


def test_a_relay_loads_neither_torch_nor_what_needs_it() -> None:
    """Flower starts a process for every message: torch would cost it seconds."""
    pytest.importorskip("flwr")
    told = "import sys; from hush.federation import relay; print('torch' in sys.modules, 'hush.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "False False\n"


# -- the socket --------------------------------------------------------------------------------------------------------------------


def test_a_socket_that_a_killed_process_left_is_taken_over_and_one_that_is_used_is_not(
    made: ServerFolder, resident: MakeResident, tmp_path: Path
) -> None:
    left = tmp_path / "0.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    first, second = resident(0), resident(1)
    with listening(tmp_path, [first]):
        wait_for_listener(left)
        assert left.stat().st_mode & 0o777 == 0o600
        with pytest.raises(UsageError, match=r"cannot be listened for at .*0.sock: Address already in use"):
            second.serve(left)
        first.over.set()


def wait_for_listener(path: Path) -> None:
    for _ in range(200):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        threading.Event().wait(0.05)
    raise AssertionError("nobody listens")


# -- a carrier of one's own --------------------------------------------------------------------------------------------------------


class Here:
    """A carrier without a way to go."""

    def __init__(self, residents: list[Resident]) -> None:
        self._residents = {one.key: one for one in residents}
        self._came: list[bytes] = []

    def reachable(self) -> set[bytes]:
        return set(self._residents)

    def send(self, letters: dict[bytes, bytes], ttl: float) -> None:
        for key, letter in letters.items():
            answer = self._residents[key].answer(letter)
            assert answer is not None
            self._came.append(answer)

    def receive(self, timeout: float) -> list[bytes]:
        came, self._came = self._came, []
        return came

    def lost(self) -> set[str]:
        return set()


ASKED: dict[str, Any] = {"rounds": 2, "noise": 1.0, "delta": 1e-3, "set": {"local_steps": 2}}


def test_the_mailbox_of_the_documents(made: ServerFolder, resident: MakeResident, tmp_path: Path) -> None:
    own = runpy.run_path(str(EXAMPLES / "own_carrier.py"))
    port = free_port()
    clients = [threading.Thread(target=own["ask"], args=(f"http://127.0.0.1:{port}", resident(n))) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(0.2)  # nobody listens yet: whoever is started first waits
    with own["Mailbox"](("127.0.0.1", port)) as mailbox:
        hush.federation.run(made.path, "dp-fedavg", out=tmp_path / "run", carrier=mailbox, say=lambda line: None, **ASKED)
        for client in clients:
            client.join(30)
            assert not client.is_alive()
        mailbox.shutdown()
    refuse_less_than_the_usual(tmp_path, tmp_path / "run", 2)


def test_a_run_that_was_broken_off_goes_on(made: ServerFolder, resident: MakeResident, tmp_path: Path) -> None:
    out, told = tmp_path / "run", []

    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    residents = [resident(number) for number in range(CLIENTS)]
    given: dict[str, Any] = {"out": out, "carrier": Here(residents), "say": told.append}
    with pytest.raises(KeyboardInterrupt):
        hush.federation.run(made.path, "dp-fedavg", on_round=stop, **given, **ASKED)
    with pytest.raises(UsageError, match=r"already holds a run: .*resume=True"):
        hush.federation.run(made.path, "dp-fedavg", **given, **ASKED)
    with pytest.raises(UsageError, match="holds a run with other settings"):
        hush.federation.run(made.path, "dp-fedavg", resume=True, **given, **ASKED | {"noise": 0.9})
    again = {"resume": True} | given | ASKED  # an app that is started again says the same
    result = hush.federation.run(made.path, "dp-fedavg", **again)
    assert result.rounds_counted == 2
    assert "round 2 of 2: " in told[-1]
    refuse_less_than_the_usual(tmp_path, out, 2)
    assert hush.federation.run(made.path, resume=True, **given).epsilon == result.epsilon
    with pytest.raises(UsageError, match="goes on as it was begun: leave rounds out"):
        hush.federation.run(made.path, resume=True, rounds=3, **given)


def test_what_is_no_letter_has_no_answer(resident: MakeResident) -> None:
    one = resident(0)
    assert one.answer(b"") is None
    assert one.answer(os.urandom(500)) is None


def test_one_process_answers_for_a_client(resident: MakeResident) -> None:
    with resident(0), pytest.raises(UsageError, match="Another hush client answers"):
        resident(0)
    resident(0).close()


def test_a_policy_is_asked_and_may_be_a_function(made: ServerFolder, resident: MakeResident, tmp_path: Path) -> None:
    asked: list[Any] = []

    def never(told: Any, number: int, before: Any) -> str:
        asked.append((told.run.method, number))
        return "not on a Thursday"

    told: list[str] = []
    residents = [resident(0, policy=Policy(unproved=True)), *(resident(n, policy=never) for n in (1, 2))]
    patience = hush.federation.Patience(absent=1.0)
    given: dict[str, Any] = {"carrier": Here(residents), "patience": patience, "say": told.append}
    with pytest.raises(hush.HushError, match="client-0 does not take part: the policy names no roster"):
        hush.federation.run(made.path, "dp-fedavg", out=tmp_path / "run", **given, **ASKED)
    assert ("dp-fedavg", 1) in asked
    assert "client-1 says no: not on a Thursday" in told
    with pytest.raises(UsageError, match="A policy is a"):
        hush.federation.client(ClientFolder.of(trial.folder_of(tmp_path, 0)).path, tmp_path, policy=3)  # type: ignore[arg-type]
