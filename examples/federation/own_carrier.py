"""A carrier of one's own: letters over HTTP, where clients ask whether there is one (docs/federation-python.md).

Nothing here is trusted: what is wrong with a letter, Hush finds. TLS, and who may ask for whose letters, are yours to add.
"""

from __future__ import annotations

import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from threading import Thread
from urllib.request import urlopen


class Mailbox(ThreadingHTTPServer):
    """The server's end, for `hush.federation.run(..., carrier=Mailbox(("", 8080)))`."""

    def __init__(self, address):
        super().__init__(address, Desk)
        self.letters, self.answers, self.seen = defaultdict(Queue), Queue(), {}
        Thread(target=self.serve_forever, daemon=True).start()

    def reachable(self):
        return {key for key, seen in self.seen.items() if time.monotonic() - seen < 30}

    def send(self, letters, ttl):
        for key, letter in letters.items():
            self.letters[key].put(letter)

    def receive(self, timeout):
        return [letter] if (letter := taken(self.answers, timeout)) else []

    def lost(self):
        return set()


class Desk(BaseHTTPRequestHandler):
    """A client brings its last answer, and waits up to a second for its next letter."""

    def do_POST(self):
        key = bytes.fromhex(self.path[1:])
        self.server.seen[key] = time.monotonic()
        if answer := self.rfile.read(int(self.headers["Content-Length"])):
            self.server.answers.put(answer)
        letter = taken(self.server.letters[key], timeout=1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(letter)))
        self.end_headers()
        self.wfile.write(letter)

    def log_message(self, *_):
        pass


def taken(box, timeout):
    try:
        return box.get(timeout=timeout)
    except Empty:
        return b""


def ask(url, client):
    """The client's end, with a client of `hush.federation.client(...)`, until the run is over."""
    answer = b""
    while answer or not client.over.is_set():
        try:
            with urlopen(f"{url}/{client.key.hex()}", data=answer) as reply:
                letter = reply.read()
        except OSError:  # the server is not there yet, or not there just now
            if client.over.is_set():
                return
            time.sleep(1)
            continue
        answer = (client.answer(letter) or b"") if letter else b""
