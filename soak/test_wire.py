"""What is on the wire, over Flower's real processes: as much as is counted, in TLS alone; and without TLS still no raw update."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federation.test_bytes import Raw
from wire import CountingProxy, is_tls, streams_of

from hush.config import RunConfig
from hush.engines.flower.superlink import SuperLink
from hush.engines.rundir import RunDir
from hush.engines.simulation import train
from hush.engines.traffic import Traffic
from hush.experiment import resolve
from hush.federation import trial
from hush.federation.folders import split_address
from hush.federation.propose import propose, ready, resolved, task_of
from hush.federation.server import Patience, RemoteFederation

CLIENTS, ROUNDS, IDLE = 3, 3, 15.0
SHARE, EACH = 0.03, 8192
"""The most that a message may take beside what is counted."""
DATA = os.environ.get("HUSH_DATA")
LARGE = {"data": "fashion-mnist", "model": "fed-smp-cnn", "set": {"local_steps": 1}}
"""1.66 million parameters."""
RUNS = {
    "dp-fedavg": {},
    "fed-smp-rand-k": {},
    "fed-smp-top-k": {},
    "dp-fedavg+sketch": {},
    "dp-sgd": {"set": {"rate": 0.2}},
    "dp-fedavg, 1.66 million parameters": LARGE,
    "fed-smp-rand-k, 1.66 million parameters": LARGE,
}


def config_of(name: str) -> RunConfig:
    usual = {"method": name.partition(",")[0], "rounds": ROUNDS, "noise": 1.0, "delta": 1e-3, "noise_seed": 3}
    return RunConfig.read(usual | {"set": {"local_steps": 2}} | RUNS[name])


@contextmanager
def captured(port: int, into: Path) -> Iterator[Path | None]:
    """By tcpdump, where it may."""
    if shutil.which("tcpdump") is None or os.geteuid() != 0:
        yield None
        return
    command = ["tcpdump", "-i", "lo", "-s", "0", "-B", "65536", "-U", "-w", str(into), f"tcp port {port}"]
    watching = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    time.sleep(2.0)
    try:
        yield into
    finally:
        time.sleep(2.0)
        watching.terminate()
        watching.wait(30)


@contextmanager
def run_of(asked: RunConfig, tmp_path: Path, insecure: bool, histories: list[Any]) -> Iterator[CountingProxy]:
    """A run over real processes, each round of which is added to `histories` with what the wire had carried by then."""
    place, told = tmp_path / "federation", []
    made = trial.make(place, CLIENTS, asked, None if DATA is None else Path(DATA), insecure)
    with ExitStack() as stack:
        proxy = stack.enter_context(CountingProxy(*split_address(made.invitation.address)))
        for number in range(CLIENTS):
            proxy.stands_before(trial.folder_of(place, number))
        carrier = stack.enter_context(SuperLink(made, made.members, place / "logs", tell=told.append))
        for started in trial.start(place, CLIENTS, CLIENTS):
            stack.callback(started.wait, 60)
            stack.callback(started.terminate)
        task = task_of(resolved(asked, made.members), None if DATA is None else Path(DATA))
        proposal = propose(resolved(asked, made.members), task, made.members)
        patience = Patience(300.0, 60.0, 300.0)
        run, clients = ready(proposal, task, insecure, lambda p: RemoteFederation(made.identity, p, carrier, patience, told.append))

        def on_round(record: dict[str, Any]) -> None:
            histories.append((record, proxy.up, proxy.down, time.monotonic()))

        train(run, out=place / "run", on_round=on_round)
        before = proxy.up, proxy.down
        time.sleep(IDLE)
        histories.append((None, proxy.up - before[0], proxy.down - before[1], IDLE))
        clients.finish(RunDir(place / "run"))
        yield proxy


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.filterwarnings("ignore")
def test_the_wire_carries_what_is_counted_and_tls_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if RUNS[name] is LARGE and (DATA is None or not (Path(DATA) / "fashion-mnist").is_dir()):
        pytest.skip("Fashion-MNIST is not in HUSH_DATA")
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    histories: list[Any] = []
    with run_of(config_of(name), tmp_path, False, histories) as proxy:
        pass
    *rounds, (_, idle_up, idle_down, _) = histories
    (_, up, down, began), (_, up_then, down_then, ended) = rounds[0], rounds[-1]
    waits = (ended - began) / IDLE  # Flower asks for messages all the time, whether there are any or not
    for way, carried, polls in (("up", up_then - up, waits * idle_up), ("down", down_then - down, waits * idle_down)):
        parts = sum((Traffic(**record["traffic"][way]) for record, *_ in rounds[1:]), Traffic())
        rounded = tuple(round(value / (ROUNDS - 1) / CLIENTS) for value in (parts.counted, parts.measured, carried, polls))
        letters = parts.letters / (ROUNDS - 1) / CLIENTS
        print(f"{name}, {way}: a client's round counts {rounded[0]:,}; letters {rounded[1]:,} in {letters:.1f}; ", end="")
        print(f"on the wire {rounded[2]:,}, of which {rounded[3]:,} are polls of {(ended - began) / (ROUNDS - 1):.0f} s")
    both = [Traffic(**record["traffic"][way]) for record, *_ in rounds[1:] for way in ("up", "down")]
    whole = sum(both, Traffic())
    carried = up_then - up + down_then - down - waits * (idle_up + idle_down)
    print(f"{name}: {(carried - whole.counted) / whole.letters:,.0f} bytes a message beside what is counted")
    assert whole.counted < carried <= (1 + SHARE) * whole.counted + EACH * whole.letters
    streams = [*filter(None, proxy.streams)]
    assert len(streams) >= 2 * CLIENTS
    assert all(map(is_tls, streams))


@pytest.mark.filterwarnings("ignore")
def test_tcpdump_sees_tls_alone_on_the_servers_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the server's own processes."""
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    own = trial.free_port()
    monkeypatch.setattr(trial, "free_port", lambda: own)
    with captured(own, tmp_path / "lo.pcap") as capture, run_of(config_of("fed-smp-rand-k"), tmp_path, False, []):
        pass
    if capture is None:
        pytest.skip("tcpdump is not here, or not for this user")
    streams = {who: stream for who, stream in streams_of(capture, own).items() if stream}
    print(f"{sum(map(len, streams.values())):,} bytes in {len(streams)} streams")
    assert len(streams) >= 2 * CLIENTS
    assert all(map(is_tls, streams.values()))


@pytest.mark.filterwarnings("ignore")
def test_without_tls_no_raw_update_is_on_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    asked = config_of("fed-smp-rand-k")
    with run_of(asked, tmp_path, True, []) as proxy:
        pass
    raw = Raw(monkeypatch)
    same = resolve(replace(asked, secure=True, clients=CLIENTS, cohort=float(CLIENTS), sampling="rotation", chunk=1))
    train(same.set_up(same.task(None)))  # the very updates: noise and batches come from seeds
    assert min(map(len, raw.written.values())) > 100
    sent = b"".join(map(bytes, proxy.streams))
    assert b"hush letter 1" in sent, "this is the wire, and it is open"
    assert not any(map(is_tls, filter(None, proxy.streams)))
    assert raw.seen_in(sent) == set()
