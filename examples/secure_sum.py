"""A secure sum by itself: a server and five clients in threads, bytes in queues, and one client that falls silent.

python examples/secure_sum.py
"""

from __future__ import annotations

import queue
import threading

import numpy as np

from hush.secagg import Aborted, BadMessage, Client, Identity, Refused, Roster, Server, Terms

CLIENTS, ENTRIES, PATIENCE = 5, 1000, 1.0

server_identity = Identity.generate()
identities = [Identity.generate() for _ in range(CLIENTS)]
roster = Roster.of(server_identity, identities)  # everybody has the same, beforehand
terms = Terms(ENTRIES, bits=24, dropout=0.2, corrupted=0, smallest=CLIENTS, context=b"an example")

inboxes: list[queue.Queue[bytes | None]] = [queue.Queue() for _ in range(CLIENTS)]
outbox: queue.Queue[tuple[int, bytes]] = queue.Queue()


def live(number: int) -> None:
    """A client: it answers whatever comes, and client 3 falls silent after it has shared its secrets."""
    client = Client(identities[number], roster, terms)
    outbox.put((number, client.prepare([0])))
    answers = 0
    while (letter := inboxes[number].get()) is not None and not (number == 3 and answers == 1):
        try:
            outbox.put((number, client.answer(letter, np.full(ENTRIES, number - 2))))
        except Refused as refusal:
            if refusal.complaint is not None:
                outbox.put((number, refusal.complaint))
        except BadMessage as error:
            print(error)
        answers += 1


threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
server = Server(server_identity, roster, terms)
for _ in range(CLIENTS):
    server.take_keys(*outbox.get())
try:
    current = server.open(0, range(CLIENTS))
    letters = current.start()
    while letters:
        for number, letter in letters.items():
            inboxes[number].put(letter)
        try:
            while current.waiting:  # the deadline is ours: who is silent for so long has vanished
                current.receive(*outbox.get(timeout=PATIENCE))
        except queue.Empty:
            print(f"without an answer: clients {sorted(current.waiting)}")
        letters = current.advance()
    print(f"the sum over clients {current.included} is {current.signed_total[0]} in every entry")
    assert (current.signed_total == sum(number - 2 for number in current.included)).all()
except Aborted as reason:
    print(f"no sum: {reason}")
for inbox in inboxes:
    inbox.put(None)
