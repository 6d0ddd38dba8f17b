"""A federation for a trial, all of it on one machine: real keys, real processes, real TLS, and a data set dealt to its clients."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from hush.config import RunConfig
from hush.engines.flower.process import free_port
from hush.errors import UsageError
from hush.experiment import resolve
from hush.federation.folders import INVITATION, ClientFolder, ServerFolder, write_text

POLICY = """# What these clients agree to unasked.
epsilon = 1000.0
delta = 0.01
smallest_cohort = 2  # as few as --tolerate may leave
parameters = 1_000_000_000
steps = 1_000_000
passes = 100_000
unproved = true  # the data are public
"""


def make(
    place: Path, clients: int, asked: RunConfig, data_dir: Path | None, insecure: bool = False, address: str | None = None
) -> ServerFolder:
    """A server's folder and `clients` enrolled ones, each with its part of the data set; on this machine, unless it is said."""
    if clients < 3:
        raise UsageError(f"A sum hides its parts from three clients on: {clients} are too few.")
    if asked.data.endswith(".toml"):
        raise UsageError("A trial deals a data set of hush data to its clients; your own tables belong to real ones.")
    server = ServerFolder.init(place / "server", "trial", address or f"127.0.0.1:{free_port()}", insecure)
    dealt = resolve(replace(asked, secure=True, clients=clients, cohort=float(clients), sampling="rotation")).task(data_dir).train
    for number in range(clients):
        own = ClientFolder.enroll(folder_of(place, number), server.path / INVITATION, f"client-{number}")
        shard = dealt.shard(torch.tensor([number]))
        rows = slice(int(shard.start[0]), int(shard.start[0] + shard.size[0]))
        save_file({"x": dealt.x[rows].contiguous(), "y": dealt.y[rows].contiguous()}, own.path / "data.safetensors")
        server.admit(own.card)
    write_text(place / "policy.toml", POLICY + f'roster = "{server.members.fingerprint}"\n')
    return server


def folder_of(place: Path, number: int) -> Path:
    """Where one of the clients has its keys and its data."""
    return place / "clients" / f"client-{number}"


def command(place: Path, numbers: list[int], code: str | None = None) -> list[str]:
    """`hush client` for some of the clients, as it is typed."""
    own = [sys.executable, "-m", "hush", "client", "--policy", str(place / "policy.toml"), "--once"]
    for number in numbers:
        folder = folder_of(place, number)
        own += ["--federation", str(folder), "--data", str(folder / "data.safetensors")]
    return own + (["--code", code] if code is not None else [])


def start(
    place: Path, clients: int, processes: int, code: str | None = None, only: list[int] | None = None
) -> list[subprocess.Popen[bytes]]:
    """Client processes, each for some of the clients, or `only` some of them; what they say is in the first one's `client.log`."""
    started, threads = [], max(1, (os.cpu_count() or 1) // processes)  # more than there are cores wait for each other
    around = os.environ | {"OMP_NUM_THREADS": str(threads)}
    for first in range(min(processes, clients)) if only is None else only:
        numbers = list(range(first, clients, processes))
        with (folder_of(place, first) / "client.log").open("ab") as log:
            own = command(place, numbers, code)
            started.append(subprocess.Popen(own, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=around))
    return started
