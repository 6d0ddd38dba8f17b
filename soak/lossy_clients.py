"""Clients that vanish at random: `python soak/lossy_clients.py PLACE SHARE VECTORS NUMBER ...` for some clients of a trial.

In every round each client draws whether and before which of its answers it goes silent. What it adds to a sum is written down in
VECTORS, so that a test can add it up again.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from hush.cli.interrupt import on_terminate
from hush.engines.flower.supernode import SuperNode
from hush.federation import trial
from hush.federation.consent import Policy
from hush.federation.folders import ClientFolder
from hush.federation.letters import BadLetter, read
from hush.federation.member import Member
from hush.secagg.messages import Kind, peek


class Lossy(Member):
    share: float
    vectors: Path

    def answer(self, letter: bytes) -> bytes:
        told = read(letter, self._server)
        for piece in told.pieces if told.head.get("kind") == "round" else ():
            try:
                kind, round = peek(piece, None)
            except Exception:  # the model
                continue
            stages = (Kind.INVITATION, Kind.DELIVERY, Kind.SURVIVORS)
            dice = random.Random(f"{self.name} {round}")
            lost = dice.choice(stages) if dice.random() < self.share else None
            if kind in stages and lost is not None and stages.index(kind) >= stages.index(lost):
                raise BadLetter("silence")
            if kind is Kind.DELIVERY:
                self.round = round
        return super().answer(letter)

    def _trained(self, joined, letter, values):
        vector = super()._trained(joined, letter, values)
        np.save(self.vectors / f"{self.round}-{joined.adds.number}.npy", vector)
        return vector


def main() -> None:
    on_terminate()
    place, share, vectors = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    policy, members = Policy.read(place / "policy.toml"), []
    for number in map(int, sys.argv[4:]):
        folder = ClientFolder.of(trial.folder_of(place, number))
        own = Lossy(folder, str(folder.path / "data.safetensors"), lambda told, _, before: policy.objection(told, before) or True)
        own.share, own.vectors = share, vectors
        members.append(own)
    with SuperNode(ClientFolder.of(trial.folder_of(place, int(sys.argv[4]))), members, place / f"logs-{sys.argv[4]}"):
        while not all(member.over.is_set() for member in members):
            time.sleep(0.2)


if __name__ == "__main__":
    main()
