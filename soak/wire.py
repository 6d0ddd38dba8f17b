"""What is on the wire between clients and their server: a TCP relay that counts, and streams that hold TLS and nothing else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from hush.federation.folders import INVITATION, ClientFolder, write_text

_PIECE = 1 << 16


class CountingProxy:
    """Listens on a free port of this machine, and passes everything on. `up` is what callers sent, `down` what they got."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._lock = threading.Lock()
        self.up = self.down = 0
        self.streams: list[bytearray] = []
        """One for each direction of each connection; callers' come first."""

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._door.close()

    def stands_before(self, folder: Path) -> None:
        """This client then calls here. The address of an invitation is not signed: what answers there must be the server."""
        own = ClientFolder.of(folder).invitation
        write_text(folder / INVITATION, replace(own, address=f"127.0.0.1:{self.port}").to_json())

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
            for source, target, upwards in ((caller, called, True), (called, caller, False)):
                self.streams.append(bytearray())
                kept = self.streams[-1]
                threading.Thread(target=self._pass_on, args=(source, target, upwards, kept), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, upwards: bool, kept: bytearray) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    self.up += upwards * len(piece)
                    self.down += (not upwards) * len(piece)
                kept += piece
                target.sendall(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def is_tls(stream: bytes) -> bool:
    """Whether a stream is records of TLS from its first byte to its last, of which the last may be cut off."""
    place = 0
    while place + 5 <= len(stream):
        kind, version, size = struct.unpack_from(">BHH", stream, place)
        if not 20 <= kind <= 23 or version not in (0x0301, 0x0302, 0x0303) or size > 2**14 + 256:
            return False
        place += 5 + size
    return True


def streams_of(capture: Path, port: int) -> Mapping[tuple[int, int], bytes]:
    """What tcpdump saw of a port of the loopback, put together: by the ports that it went from and to."""
    parts: dict[tuple[int, int], dict[int, bytes]] = {}
    first: dict[tuple[int, int], int] = {}
    for source, target, number, payload, begins in _segments(capture.read_bytes()):
        if port in (source, target):
            if begins:
                first[source, target] = number + 1
            held = parts.setdefault((source, target), {})
            if len(payload) > len(held.get(number, b"")):
                held[number] = payload
    return {who: _in_order(held, first.get(who, min(held, default=0))) for who, held in parts.items()}


def _segments(raw: bytes) -> Iterator[tuple[int, int, int, bytes, bool]]:
    """Ports, sequence number, payload, and whether a connection begins, of each TCP segment in a capture of Ethernet frames."""
    place = 24
    while place + 16 <= len(raw):
        (size,) = struct.unpack_from("<8xI", raw, place)
        packet = raw[place + 16 + 14 : place + 16 + size]
        place += 16 + size
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != 6:
            continue
        length, head = int.from_bytes(packet[2:4], "big") or len(packet), 4 * (packet[0] & 15)  # 0: more than one packet in one
        source, target, number = struct.unpack_from(">HHI", packet, head)
        data = head + 4 * (packet[head + 12] >> 4)
        yield source, target, number, packet[data:length], bool(packet[head + 13] & 2)


def _in_order(parts: Mapping[int, bytes], begin: int) -> bytes:
    """Segments one after another, what was sent twice once. It raises where one is missing: nobody knows what was in it."""
    whole = bytearray()
    for number in sorted(parts, key=lambda number: (number - begin) % 2**32):
        place = (number - begin) % 2**32
        if place > len(whole) and parts[number]:
            raise ValueError("tcpdump lost a segment")
        whole += parts[number][len(whole) - place :]
    return bytes(whole)
