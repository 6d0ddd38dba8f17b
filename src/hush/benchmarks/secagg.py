"""What a secure sum costs: a client's time, the server's, and bytes; beside Flower's SecAgg+ where that is installed."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hush.secagg import Client, Graph, Identity, Roster, Server, Terms
from hush.secagg.masks import add_masks

Tell = Callable[[str], None]


@dataclass(frozen=True)
class FixedTerms(Terms):
    """Terms with a number of neighbours of somebody else's choice, so that two protocols can be compared at the same one."""

    degree: int = 0

    def graph(self, clients: int) -> Graph:
        if not self.degree:
            return super().graph(clients)
        return Graph(min(self.degree, clients - 1), self.degree // 2 + 1, complete=self.degree >= clients - 1)


@dataclass
class Clock:
    """Processor time by name, of this process and those it started."""

    seconds: dict[str, float] = field(default_factory=dict)

    def take(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        began = _processor_time()
        answer = work(*args)
        self.seconds[name] = self.seconds.get(name, 0.0) + _processor_time() - began
        return answer

    def total(self, side: str) -> float:
        return sum(spent for name, spent in self.seconds.items() if name.startswith(side))


def _processor_time() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(
    clients: int, entries: int, dropout: float, degree: int = 0, bits: int = 24, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """One round of ours; the dropouts vanish after they shared their secrets, where they cost the most. The sum is checked."""
    server_identity, identities = Identity.generate(), [Identity.generate() for _ in range(clients)]
    roster = Roster.of(server_identity, identities)
    terms = FixedTerms(entries, bits, dropout, 0.1, "curious", clients, degree=degree)
    server, members = Server(server_identity, roster, terms), [Client(own, roster, terms) for own in identities]
    clock, wall = Clock(), time.perf_counter()
    keys = 0
    for member in members:
        message = clock.take("client keys", member.prepare, [0])
        clock.take("server keys", server.take_keys, member.number, message)
        keys = len(message)
    round = server.open(0, range(clients))
    gone = set(range(0, clients, max(1, math.floor(1 / dropout)))) if dropout else set()
    gone = set(sorted(gone)[: math.floor(dropout * clients)])
    base = np.arange(entries, dtype=np.int64) % 65_521
    letters = clock.take("server invitations", round.start)
    opening = 0.0
    while letters:
        stage = str(round.stage)
        tell(f"{clients} clients: {stage}")
        for number, letter in letters.items():
            if stage != "shares" and number in gone:
                continue
            answer = clock.take(f"client {stage}", members[number].answer, letter, base + number)
            clock.take(f"server {stage}", round.receive, number, answer)
        began = time.perf_counter()
        letters = clock.take(f"server after {stage}", round.advance)
        opening = time.perf_counter() - began
    expected = len(round.included) * base + sum(round.included)
    exact = bool((round.total.astype(np.int64) == expected % 2**bits).all())
    alive = [number for number in range(clients) if number not in gone]
    return {
        "implementation": "hush",
        "clients": clients,
        "neighbours": round.session.graph.degree,
        "threshold": round.session.graph.threshold,
        "entries": entries,
        "bits": bits,
        "dropout": dropout,
        "exact": exact,
        "client_ms": 1e3 * clock.total("client") / clients,
        "server_s": clock.total("server"),
        "opening_wall_s": opening,
        "upload_bytes": sum(round.bytes_up[n] for n in alive) / len(alive) + keys,
        "download_bytes": sum(round.bytes_down[n] for n in alive) / len(alive),
        "wall_s": time.perf_counter() - wall,
        "parts": {name: round_to(spent) for name, spent in clock.seconds.items()},
    }


def round_to(value: float) -> float:
    """To three digits."""
    return float(f"{value:.3g}")


def masking(neighbours: int = 100, entries: int = 1_600_000, repeats: int = 3) -> dict[str, Any]:
    """Masks of so many neighbours on one vector, beside AES alone on as many bytes, the best of a few runs each."""
    seeds = [os.urandom(32) for _ in range(neighbours)]
    vector = np.zeros(entries, dtype="<u4")
    masks = min(_timed(lambda: add_masks(vector, seeds[::2], seeds[1::2])) for _ in range(repeats))
    bound = min(_timed(lambda: _aes_alone(seeds, vector.nbytes)) for _ in range(repeats))
    return {"neighbours": neighbours, "entries": entries, "masks_s": masks, "aes_s": bound, "ratio": masks / bound}


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _aes_alone(seeds: list[bytes], size: int) -> None:
    """The keystream and nothing else, in pieces of the size that is best for it."""
    piece = 1 << 18
    zeros, room = bytes(piece), bytearray(piece + 16)
    for seed in seeds:
        stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
        for begin in range(0, size, piece):
            left = min(piece, size - begin)
            stream.update_into(zeros if left == piece else zeros[:left], room)
