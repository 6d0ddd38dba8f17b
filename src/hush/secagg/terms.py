"""What everybody agreed on before: the terms; and one round under them: the session.

Degree, threshold and the fewest survivors follow from the terms and the size of the cohort. Each client computes them itself and
nothing of a server's can change them; a server with other terms cannot even address it.
"""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hush.errors import UsageError
from hush.secagg.identity import Roster
from hush.secagg.packing import LARGEST_BITS, Vector, packed_bytes, reduced
from hush.secagg.parameters import THREATS, Graph, exactly, graph_for, leak_bound, whole_above, whole_below

ABSENT = bytes(32)
"""In the place of a digest of keys: this one has none, and is missing from the round as if it had vanished before it."""
LARGEST_VECTOR = 2**32 - 2**16
"""Bytes of a packed vector: the length of a message has 32 bits."""


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
    """Whatever else was agreed on (clip, grid, noise), and a name that no other run of these clients has: those whose contexts
    differ cannot be summed, and what was said in an earlier run says nothing in this one."""
    participations: int | None = None
    """The most sums that a client takes part in, counted by itself; None: as many as it is asked for."""

    def __post_init__(self) -> None:
        for name in ("entries", "bits", "smallest"):
            try:
                object.__setattr__(self, name, operator.index(getattr(self, name)))  # numpy's whole numbers, too
            except TypeError:
                raise UsageError(f"{name} must be a whole number, not {getattr(self, name)!r}.") from None
        if not 1 <= self.bits <= LARGEST_BITS:
            raise UsageError(f"bits must be a whole number from 1 to {LARGEST_BITS}, not {self.bits}.")
        if self.entries < 1 or self.message_bytes > LARGEST_VECTOR:
            most = LARGEST_VECTOR * 8 // self.bits
            raise UsageError(f"entries must be a whole number from 1 to {most:,} at {self.bits} bits, not {self.entries:,}.")
        if self.smallest < 3:
            raise UsageError(f"A sum hides its parts from three clients on: smallest must be at least 3, not {self.smallest}.")
        if self.threat not in THREATS:
            raise UsageError(f"threat must be one of {', '.join(THREATS)}, not '{self.threat}'.")
        for name in ("dropout", "corrupted"):
            if not isinstance(getattr(self, name), int | float) or not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must lie in [0, 1), not {getattr(self, name)}.")
        if not isinstance(self.context, bytes):
            raise UsageError(f"context must be bytes, not {type(self.context).__name__}.")
        times = self.participations
        if times is not None and (not isinstance(times, int) or not 1 <= times < 2**63):
            raise UsageError(f"participations must be a whole number of at least 1, or None, not {times!r}.")
        if self.honest_min < 2:
            raise UsageError("Fewer than two honest clients may be left in a sum: lower dropout or corrupted, or raise smallest.")
        self.graph(self.smallest)
        if self.threat == "malicious" and self.fewest(self.smallest) < self.quorum(self.smallest):
            raise UsageError("Fewer may survive than must vouch for the survivors: lower dropout or corrupted.")

    def graph(self, clients: int) -> Graph:
        """Neighbours and threshold in a cohort of this size."""
        return graph_for(clients, self.corrupted, self.dropout, self.threat)

    def leak(self, clients: int) -> float:
        """A bound on the chance that a round of so many shows more than its sum: see `parameters`."""
        corrupted, dropped = whole_above(self.corrupted, clients), whole_below(self.dropout, clients)
        return leak_bound(self.graph(clients), clients, corrupted, dropped, self.threat)

    def fewest(self, clients: int) -> int:
        """How many of a cohort must be in a sum that is opened."""
        return clients - whole_below(self.dropout, clients)

    def quorum(self, clients: int) -> int:
        """How many of a cohort must sign the same survivors, where the server may lie: two lists cannot both have so many, since
        the corrupted alone sign twice."""
        return (clients + whole_above(self.corrupted, clients)) // 2 + 1

    def opens_without_one(self, clients: int) -> bool:
        """Whether a sum over so many can be opened though one of them shows nothing: to that one a vector counts when it leaves.

        It cannot where a curious server needs everybody's shares of every secret, as it does where nobody may vanish.
        """
        graph = self.graph(clients)
        return self.threat == "malicious" or graph.threshold < graph.degree

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

    def own_copy(self, vector: npt.NDArray[np.integer]) -> Vector:
        """A vector to sum, checked, modulo 2^bits and in an array of its own."""
        vector = np.asarray(vector)
        if vector.shape != (self.entries,) or vector.dtype.kind not in "iu":
            raise UsageError(f"A vector to sum has {self.entries:,} whole numbers, not {vector.shape} of {vector.dtype}.")
        return reduced(vector, self.bits)

    @cached_property
    def digest(self) -> bytes:
        times = 2**64 - 1 if self.participations is None else self.participations
        numbers = struct.pack(">QHddQQ", self.entries, self.bits, self.dropout, self.corrupted, self.smallest, times)
        return hashlib.sha256(b"hush secagg terms" + numbers + self.threat.encode() + b"\0" + self.context).digest()


@dataclass(frozen=True)
class Session:
    """One round: who of the roster takes part. `digest` names all of it, and every key and message of the round depends on it."""

    terms: Terms
    roster: Roster
    round: int
    cohort: tuple[int, ...]
    """Numbers in the roster, ascending."""
    keys: tuple[bytes, ...] = ()
    """A digest of each one's keys of this round, or `ABSENT`: a round that is run again has another name, and what was signed in
    the first one is of no use in the second."""

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
        told = self.terms.digest + self.roster.digest + members + b"".join(self.keys)
        return hashlib.sha256(b"hush secagg session" + told).digest()

    @cached_property
    def graph(self) -> Graph:
        return self.terms.graph(len(self.cohort))

    @cached_property
    def absent(self) -> frozenset[int]:
        """Those of the cohort who have no keys: everybody knows that they are in no sum."""
        return frozenset(number for number, key in zip(self.cohort, self.keys, strict=False) if key == ABSENT)

    @property
    def fewest(self) -> int:
        return self.terms.fewest(len(self.cohort))

    @property
    def opens_without_one(self) -> bool:
        return self.terms.opens_without_one(len(self.cohort))

    @property
    def quorum(self) -> int:
        return self.terms.quorum(len(self.cohort))

    @cached_property
    def graph_seed(self) -> bytes:
        """The circle follows from everybody's keys."""
        return hashlib.sha256(b"hush secagg graph" + self.digest).digest()

    @cached_property
    def places(self) -> dict[int, int]:
        """A member's place in the cohort by its number."""
        return {number: place for place, number in enumerate(self.cohort)}
