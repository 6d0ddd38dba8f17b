"""What everybody agreed on before: the terms; and one round under them: the session.

Degree, threshold and the fewest survivors follow from the terms and the size of the cohort. Each client computes them itself and
nothing of a server's can change them; a server with other terms cannot even address it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from functools import cached_property

from hush.errors import UsageError
from hush.secagg.identity import Roster
from hush.secagg.packing import LARGEST_BITS, packed_bytes
from hush.secagg.parameters import THREATS, Graph, exactly, graph_for, whole_below

LARGEST_ENTRIES = 2**31


@dataclass(frozen=True)
class Terms:
    """What a client agrees to sum, and how."""

    entries: int
    bits: int = 24
    dropout: float = 0.1
    """The share of a cohort that may vanish. A sum of fewer survivors is not opened: too little noise would be in it."""
    corrupted: float = 0.1
    """The share of a cohort that may tell the server all it knows."""
    threat: str = "curious"
    """`curious`: the server follows the protocol and looks at everything. `malicious`: it may say different things to different
    clients; survivors are then signed by those who saw them."""
    smallest: int = 3
    """The smallest cohort that a client joins."""
    context: bytes = b""
    """Whatever else was agreed on (clip, grid, noise): clients whose contexts differ cannot be summed."""

    def __post_init__(self) -> None:
        if not 1 <= self.entries <= LARGEST_ENTRIES or self.entries != int(self.entries):
            raise UsageError(f"entries must be a whole number from 1 to {LARGEST_ENTRIES:,}, not {self.entries}.")
        if not 1 <= self.bits <= LARGEST_BITS or self.bits != int(self.bits):
            raise UsageError(f"bits must be a whole number from 1 to {LARGEST_BITS}, not {self.bits}.")
        if self.smallest < 3 or self.smallest != int(self.smallest):
            raise UsageError(f"A sum hides its parts from three clients on: smallest must be at least 3, not {self.smallest}.")
        if self.threat not in THREATS:
            raise UsageError(f"threat must be one of {', '.join(THREATS)}, not '{self.threat}'.")
        for name in ("dropout", "corrupted"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie in [0, 1), not {getattr(self, name):g}.")
        if self.honest_min < 2:
            raise UsageError("Fewer than two honest clients may be left in a sum: lower dropout or corrupted, or raise smallest.")
        self.graph(self.smallest)

    def graph(self, clients: int) -> Graph:
        """Neighbours and threshold in a cohort of this size."""
        return graph_for(clients, self.corrupted, self.dropout, self.threat)

    def fewest(self, clients: int) -> int:
        """How many of a cohort must be in a sum that is opened."""
        return clients - whole_below(self.dropout, clients)

    @property
    def honest_min(self) -> int:
        """The fewest honest clients in any sum that is opened, whatever the cohort's size: so many shares of noise it holds.

        n - floor(d n) - ceil(c n) > n (1 - d - c) - 1 >= smallest (1 - d - c) - 1 for every n >= smallest, and is a whole number.
        """
        return math.floor(self.smallest * (1 - exactly(self.dropout) - exactly(self.corrupted)))

    @property
    def message_bytes(self) -> int:
        """Of one packed vector."""
        return packed_bytes(self.entries, self.bits)

    @cached_property
    def digest(self) -> bytes:
        numbers = struct.pack(">QHddQ", self.entries, self.bits, self.dropout, self.corrupted, self.smallest)
        return hashlib.sha256(b"hush secagg terms" + numbers + self.threat.encode() + b"\0" + self.context).digest()


@dataclass(frozen=True)
class Session:
    """One round: who of the roster takes part. `digest` names all of it, and every key and message of the round depends on it."""

    terms: Terms
    roster: Roster
    round: int
    cohort: tuple[int, ...]
    """Numbers in the roster, ascending."""

    def __post_init__(self) -> None:
        if not 0 <= self.round < 2**63:
            raise UsageError(f"A round is a whole number from 0 on, not {self.round}.")
        if any(a >= b for a, b in zip(self.cohort, self.cohort[1:], strict=False)):
            raise UsageError("The cohort lists a client twice, or out of order.")
        if self.cohort and not 0 <= self.cohort[0] <= self.cohort[-1] < len(self.roster.clients):
            raise UsageError("The cohort lists a client that was never enrolled.")
        if len(self.cohort) < self.terms.smallest:
            raise UsageError(f"The cohort has {len(self.cohort)} clients, and {self.terms.smallest} were agreed on at least.")

    @cached_property
    def digest(self) -> bytes:
        members = struct.pack(f">Q{len(self.cohort)}I", self.round, *self.cohort)
        return hashlib.sha256(b"hush secagg session" + self.terms.digest + self.roster.digest + members).digest()

    @cached_property
    def graph(self) -> Graph:
        return self.terms.graph(len(self.cohort))

    @property
    def fewest(self) -> int:
        return self.terms.fewest(len(self.cohort))

    @cached_property
    def places(self) -> dict[int, int]:
        """A member's place in the cohort by its number."""
        return {number: place for place, number in enumerate(self.cohort)}
