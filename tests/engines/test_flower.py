"""A federation over Flower's real processes: TLS, nodes with keys, client processes; and an app that a malicious server ships."""

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hush.config import RunConfig
from hush.engines.flower import process
from hush.engines.flower.bundles import unbundle
from hush.engines.flower.reach import is_let_in, refusal
from hush.engines.flower.superlink import SuperLink
from hush.engines.rundir import RunDir
from hush.engines.simulation import train
from hush.errors import HushError
from hush.experiment import resolve
from hush.federation import letters, trial
from hush.federation.folders import INVITATION, ClientFolder, ServerFolder
from hush.federation.keys import make_node_key
from hush.federation.members import Members
from hush.federation.propose import propose, ready, resolved, task_of
from hush.federation.server import Patience, RemoteFederation

CLIENTS = 3
ASKED = RunConfig.read(
    {"method": "fed-smp-rand-k", "rounds": 2, "noise": 1.0, "delta": 1e-3, "noise_seed": 3, "set": {"local_steps": 2}}
)

MALICIOUS_SERVER = """
import json, time
from flwr.app import ArrayRecord, Array, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    send = [Message(RecordDict({"x": ConfigRecord({"captured": context.run_config["captured"]})}), dst_node_id=n,
                    message_type="query", ttl=60.0) for n in nodes]
    waiting, found = set(grid.push_messages(send)), []
    until = time.time() + 50
    while waiting and time.time() < until:
        for answer in grid.pull_messages(waiting):
            waiting.discard(answer.metadata.reply_to_message_id)
            found.append(str(answer.error) if answer.has_error() else answer.content["x"]["told"])
        time.sleep(0.2)
    open(context.run_config["out"], "w").write(json.dumps(found))
"""
MALICIOUS_CLIENT = """
import json, os, pathlib, socket, struct
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

def ask(place, raw):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        try:
            link.connect(place)
            link.sendall(raw)
            link.shutdown(socket.SHUT_WR)
            got = b""
            while part := link.recv(1 << 16):
                got += part
            return got
        except OSError as error:
            return repr(error).encode()

def frame(body):
    return struct.pack(">IQ", 2, len(body)) + b"{}" + body

@app.query()
def attack(message, context):
    place = str(context.node_config["hush-socket"])
    around = pathlib.Path(place).parent
    bundle = lambda raw: struct.pack(">I", len(raw)) + raw
    captured = bytes.fromhex(str(message.content["x"]["captured"]))
    told = {
        "environment": sorted(os.environ),
        "files": sorted(str(path.relative_to(around)) for path in around.rglob("*") if "apps" not in path.parts),
        "garbage": ask(place, os.urandom(5000)).hex(),
        "huge": ask(place, struct.pack(">IQ", 1 << 31, 1 << 60)).hex(),
        "forged": ask(place, frame(bundle(b"hush letter 1\\n" + struct.pack(">I", 2) + b"{}" + bytes(64)))).hex(),
        "replayed": [ask(place, frame(bundle(captured))).hex() for _ in range(2)],
        "flooded": len([ask(place, frame(bundle(os.urandom(100)))) for _ in range(200)]),
    }
    return Message(RecordDict({"x": ConfigRecord({"told": json.dumps(told)})}), reply_to=message)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'hush-fl[federation]'")
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    return tmp_path / "federation"


def node(place: Path, name: str, key: Path, address: str, ca: Path, stack: ExitStack) -> Path:
    """A SuperNode of somebody's, and where it says what becomes of it."""
    home = place / name
    home.mkdir()
    log = home / "log"
    command = ["flower-supernode", "--superlink", address, "--host", "127.0.0.1", "--port", str(process.free_port())]
    command += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    with log.open("wb") as out:
        started = process.start(command, home, out)
    stack.callback(process.stop, started)
    return log


def test_the_same_bits_as_simulation_through_real_processes_whatever_else_knocks(place: Path) -> None:
    made = trial.make(place, CLIENTS, ASKED, None)
    members, told = made.members, []
    captured: list[bytes] = []

    class Watched(SuperLink):
        def send(self, out, ttl):
            captured.extend(out.values())
            super().send(out, ttl)

    with ExitStack() as stack:
        carrier = stack.enter_context(Watched(made, members, place / "logs", tell=told.append))
        for started in trial.start(place, CLIENTS, 2):  # one of them answers for two clients
            stack.callback(started.wait, 30)
            stack.callback(started.terminate)
        stranger = place / "stranger.key"
        make_node_key(stranger)
        address, ca = made.invitation.address, made.path / "ca.crt"
        unknown = node(place, "stranger", stranger, address, ca, stack)

        experiment = resolved(ASKED, members)
        task = task_of(experiment, None)
        remote: list[RemoteFederation] = []

        def clients(proposal):
            remote.append(RemoteFederation(made.identity, proposal, carrier, Patience(120.0, 5.0, 120.0), told.append))
            return remote[0]

        run, federation = ready(propose(experiment, task, members), task, False, clients)
        result = train(run, out=place / "run")

        # somebody who stole a node's key: at most it is a second relay, and the run did not need it
        shutil.copy(trial.folder_of(place, 0) / "node.key", place / "stolen.key")
        stolen = node(place, "thief", place / "stolen.key", address, ca, stack)
        attacked = attack(carrier, place, captured)
        before = federation.proposal.members.roster.clients
        assert federation.carrier.reachable() == set(before)
        federation.gather(range(CLIENTS))  # everybody is still there and in their senses
        assert federation.finish(RunDir(place / "run")) == []  # everybody signed
        for log in (unknown, stolen):  # neither was let in: one key is nobody's, the other is in use
            wait_for(lambda log=log: "failed" in log.read_text() or "ERROR" in log.read_text(), 30)
            assert not is_let_in(log.read_text())
            assert "refuses this client: it is not admitted" in refusal(made.invitation, log.read_text())
        assert any("connected to" in path.read_text() for path in place.glob("clients/*/client.log"))

    same = resolve(replace(ASKED, secure=True, clients=CLIENTS, cohort=float(CLIENTS), sampling="rotation", chunk=1))
    simulated = train(same.set_up(same.task(None)))
    for name, weights in simulated.state_dict.items():
        assert torch.equal(weights, result.state_dict[name])
    assert len(attacked) == 2
    secrets = b"".join(path.read_bytes() for path in place.glob("clients/*/identity.key"))
    for answer in attacked:
        seen = json.loads(answer)
        assert not [name for name in seen["environment"] if "HUSH" in name or str(place) in name]
        assert set(seen["files"]) <= {"ca.crt", "flower", "letters"} | flowers_own(seen)
        for nothing in (seen["garbage"], seen["huge"]):  # hung up on
            assert bytes.fromhex(nothing) == b"" or bytes.fromhex(nothing).startswith((b"ConnectionReset", b"BrokenPipe"))
        assert bytes.fromhex(seen["forged"])[12:] == b"{}"  # an empty bundle: nothing was answered
        for replayed in seen["replayed"]:  # at most a signed no: not a byte of the secure sum a second time
            for raw in unbundle(bytes.fromhex(replayed)[14:]):
                assert not any(letters.read(raw, letters.claimed_key(raw)).pieces)
        assert seen["flooded"] == 200
        assert secrets[:32] not in answer.encode()
    wait_for(lambda: not process.naming(str(place)) and not process.naming(str(carrier._place)), 20)  # nobody is left behind


def flowers_own(seen: dict) -> set[str]:
    """What Flower itself keeps in the folder that it is given."""
    return {name for name in seen["files"] if name.startswith("flower/") and not name.endswith((".key", ".safetensors", ".sqlite"))}


def attack(carrier: SuperLink, place: Path, captured: list[bytes]) -> list[str]:
    """Ship another app through the same SuperLink; what it found out at the clients' machines."""
    app = place / "malicious"
    shutil.copytree(Path(process.__file__).parent / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "hush_relay" / "server_app.py").write_text(MALICIOUS_SERVER)
    (app / "hush_relay" / "client_app.py").write_text(MALICIOUS_CLIENT)
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "hush-relay"', 'name = "nice-app"') + 'out = ""\ncaptured = ""\n')
    out, last = place / "found.json", next(letter for letter in reversed(captured) if b'"kind": "round"' in letter[:200])
    carrier._flwr("run", str(app), "hush", "--run-config", f'out="{out}" captured="{last.hex()}"')
    wait_for(out.exists, 60)
    wait_for(lambda: out.read_text().endswith("]"), 5)
    return json.loads(out.read_text())


def wait_for(done, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.2)
    assert done()


def test_who_cannot_be_registered_is_named(tmp_path: Path) -> None:
    """Of a roster from before node keys were looked at."""
    home = ServerFolder.init(tmp_path / "server", "study", f"127.0.0.1:{process.free_port()}")
    card = ClientFolder.enroll(tmp_path / "client", home.path / INVITATION, "hospital-a").card
    members = Members(card.server, (replace(card, node="ecdsa-sha2-nistp384 AAAA"),))
    (logs := tmp_path / "logs").mkdir()
    carrier = SuperLink(home, members, logs)
    try:
        carrier._write_connection()
        with pytest.raises(HushError, match=r"'hospital-a' cannot be registered: .* hush federation remove .* hospital-a"):
            carrier._register()
    finally:
        carrier.close()
