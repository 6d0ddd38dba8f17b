"""A TCP relay that counts: what clients really send and get, whoever carries it, and in whatever wrapping."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_PIECE = 1 << 16


class CountingProxy:
    """Listens on a free port of this machine, and passes everything on. `up` is what callers sent, `down` what they got."""

    def __init__(self, host: str, port: int, keep: bool = False) -> None:
        self._to = host, port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._lock = threading.Lock()
        self._keep = keep
        self.up = self.down = self.calls = 0
        self.kept_up, self.kept_down = bytearray(), bytearray()

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._door.close()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._door.accept()
            except OSError:
                return
            try:
                called = socket.create_connection(self._to)
            except OSError:
                caller.close()
                continue
            self.calls += 1
            for source, target, upwards in ((caller, called, True), (called, caller, False)):
                threading.Thread(target=self._pass_on, args=(source, target, upwards), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, upwards: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._count(piece, upwards)
                target.sendall(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, piece: bytes, upwards: bool) -> None:
        with self._lock:
            if upwards:
                self.up += len(piece)
            else:
                self.down += len(piece)
            if self._keep:
                (self.kept_up if upwards else self.kept_down).extend(piece)
