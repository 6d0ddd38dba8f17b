"""A thousand clients sign, and one machine holds all of it against the roster: `make soak`."""

from __future__ import annotations

import time
from pathlib import Path

from hush.engines.rundir import RunDir
from hush.federation import signatures, statement
from hush.federation.folders import ServerFolder
from hush.federation.keys import make_node_key
from hush.federation.members import Card, Members
from hush.secagg.identity import Identity

CLIENTS = 1000


def test_a_thousand_signatures_are_verified_in_about_a_second(tmp_path: Path) -> None:
    server = ServerFolder.init(tmp_path / "server", "many", "127.0.0.1:9443", insecure=True)
    node = make_node_key(tmp_path / "node.key")
    own = [Identity.generate() for _ in range(CLIENTS)]
    cards = tuple(Card(f"c{n}", one.public, f"{node} {n}", server.identity.public) for n, one in enumerate(own))
    members = Members(server.identity.public, cards)
    found = {"hush": "0", "proposal": "0" * 64, "plan": "0" * 64, "epsilon": 4.845, "delta": 1e-3, "at_most": 10}
    told = dict.fromkeys(("certificate", "model", "result", "rounds"), "0" * 64)
    ledger = {"charges": 3, "head": "0" * 64}
    there = [statement.sign(one, card.name, found, 3, ledger, told).to_dict() for one, card in zip(own, cards, strict=True)]
    folder = RunDir(tmp_path / "run")
    folder.write_json(signatures.FILE, {"format": signatures.FORMAT, "statements": there})
    began = time.perf_counter()
    numbers = [signatures.signer(one, members) for one in signatures.read(folder)]
    seconds = time.perf_counter() - began
    print(f"{CLIENTS:,} signatures read and verified in {seconds:.2f} s")
    assert numbers == list(range(CLIENTS))
    assert seconds < 10, "about a second, where nothing else runs"
