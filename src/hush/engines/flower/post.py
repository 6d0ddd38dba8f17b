"""Letters to clients that Flower's nodes answer for: which node that is, and what became of each letter."""

from __future__ import annotations

import os
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

from hush.engines.flower.bundles import bundle, unbundle
from hush.federation import letters as written
from hush.federation.letters import BadLetter
from hush.federation.members import Members
from hush.secagg.identity import Identity

_WHO = 20.0
"""Seconds before a node is asked again whom it answers for."""


class Post(ABC):
    """A `Carrier`, but for the way that bundles take. Nodes are asked whom they answer for, and believed what is signed."""

    def __init__(self, identity: Identity, members: Members) -> None:
        self._identity, self._members = identity, members
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._clients: dict[bytes, int] = {}
        self._asked: dict[int, float] = {}
        self._asking: dict[str, int] = {}
        """Nodes that were asked whom they answer for, by the letter."""
        self._number = 0
        self._pushed: dict[int, set[str]] = {}
        """The names of the letters in each bundle that is on its way."""

    @abstractmethod
    def _nodes_there(self) -> set[int]:
        """The nodes that are connected."""

    @abstractmethod
    def _push_bundle(self, number: int, node: int, ttl: float, raw: bytes) -> None:
        """A bundle on its way to a node; what becomes of it is told to `_came_back`."""

    def _came_back(self, number: int, raw: bytes | None) -> None:
        """The answers to a bundle; None where it is lost."""
        answers = [] if raw is None else unbundle(raw)
        answered = {name for one in answers if (name := self._heard(one)) is not None}
        for name in self._pushed.pop(number, set()) - answered:
            self._lost.put(name)

    def _heard(self, raw: bytes) -> str | None:
        """Keep an answer; which letter it answers."""
        try:
            key = written.claimed_key(raw)
            if key in self._members.roster.numbers:
                answer = written.read(raw, key)
                if answer.head.get("kind") != "here":
                    self._answers.put(raw)
                elif (node := self._asking.get(str(answer.head.get("re")))) is not None:
                    self._clients[key] = node
                return str(answer.head.get("re"))
        except BadLetter:
            pass
        return None

    # -- the carrier ---------------------------------------------------------------------------------------------------------------

    def reachable(self) -> set[bytes]:
        nodes = self._nodes_there()
        known = set(self._clients.values())
        for node in nodes:
            if node not in known and time.monotonic() - self._asked.get(node, -_WHO) >= _WHO:
                self._ask_who(node)
        return {key for key, node in self._clients.items() if node in nodes}

    def _ask_who(self, node: int) -> None:
        self._asked[node] = time.monotonic()
        letter = written.write(self._identity, {"kind": "who", "nonce": os.urandom(16).hex()})
        others = {name: asked for name, asked in self._asking.items() if asked != node}
        self._asking = {**others, written.name_of(letter): node}  # one for each, also where nobody ever answers
        self._push(node, [letter], _WHO)

    def _forget_nodes(self) -> None:
        self._clients.clear()
        self._asked.clear()

    def send(self, letters: Mapping[bytes, bytes], ttl: float) -> None:
        by_node: dict[int, list[bytes]] = {}
        for key, letter in letters.items():
            if key in self._clients:
                by_node.setdefault(self._clients[key], []).append(letter)
        for node, bundled in by_node.items():
            self._push(node, bundled, ttl)

    def _push(self, node: int, letters: list[bytes], ttl: float) -> None:
        self._number += 1
        self._pushed[self._number] = {written.name_of(letter) for letter in letters}
        self._push_bundle(self._number, node, ttl, bundle(letters))

    def receive(self, timeout: float) -> list[bytes]:
        found: list[bytes] = []
        try:
            found.append(self._answers.get(timeout=timeout))
            while True:
                found.append(self._answers.get_nowait())
        except queue.Empty:
            return found

    def lost(self) -> set[str]:
        return {self._lost.get() for _ in range(self._lost.qsize())}
