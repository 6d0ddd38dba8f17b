"""A federation's letters over the grid of a Flower app that is not Hush's: in its ServerApp, among its other messages."""

from __future__ import annotations

import time
from typing import Any

from hush.engines.flower.exchange import UnderWay
from hush.engines.flower.post import Post
from hush.federation.folders import ServerFolder

KIND = "query.hush"
"""The messages that are Hush's: the ClientApp answers them with a function under `@app.query("hush")`."""
_LOOK = 0.2
"""Seconds between two looks at what came."""
_NODES = 1.0
"""Seconds between two looks at who is there."""


class GridCarrier(Post):
    """A `Carrier` over `grid`. It starts nothing and knows no more of the nodes than what their clients sign."""

    def __init__(self, grid: Any, folder: ServerFolder) -> None:
        super().__init__(folder.identity, folder.members)
        self._grid, self._under_way = grid, UnderWay(grid, KIND)
        self._nodes: set[int] = set()
        self._looked = -_NODES

    def _nodes_there(self) -> set[int]:
        self._pull()
        if time.monotonic() - self._looked >= _NODES:
            self._nodes, self._looked = set(self._grid.get_node_ids()), time.monotonic()
        return self._nodes

    def _push_bundle(self, number: int, node: int, ttl: float, raw: bytes) -> None:
        if not self._under_way.push(number, node, ttl, raw):
            self._came_back(number, None)

    def _pull(self) -> None:
        for number, answers, _ in self._under_way.pull():
            self._came_back(number, answers)

    def receive(self, timeout: float) -> list[bytes]:
        until = time.monotonic() + timeout
        while True:
            self._pull()
            left = until - time.monotonic()
            if not self._answers.empty() or left <= 0:
                return super().receive(0.001)
            time.sleep(min(_LOOK, left))
