"""Machines of a federation as network namespaces, and a bad network between them: slow, lossy, and cut for a while.

A server and clients each have an address of their own. Between them lies a namespace whose proxy carries their connections with
a delay (this needs no netem); iptables drops a share of its packets there, and `cut` takes the server's cable out. Root is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from types import TracebackType

ADDRESS = "10.77.255.1:9443"
"""Where clients reach the server: the proxy."""
_SERVER = ("10.77.0.1", 9443)
_BETWEEN, _HUB = "hush-soak-net", "hush-soak-server"


def why_not() -> str:
    """What this machine lacks."""
    if os.geteuid() != 0:
        return "namespaces are root's"
    return "" if shutil.which("ip") and shutil.which("iptables") else "iproute2 or iptables is missing"


class Network:
    """Everybody on one star, for as long as this is open."""

    def __init__(self, machines: int, delay: float, loss: float) -> None:
        self._clients = [f"hush-soak-{number}" for number in range(machines)]
        self._delay, self._loss = delay, loss
        self._proxy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        self._remove()
        try:
            _ip("netns", "add", _BETWEEN)
            _in(_BETWEEN, "ip", "link", "set", "lo", "up")
            _in(_BETWEEN, "ip", "address", "add", f"{ADDRESS.partition(':')[0]}/32", "dev", "lo")
            for place, name in enumerate((_HUB, *self._clients)):
                self._plug(name, place)
            if self._loss:
                drop = ["-m", "statistic", "--mode", "random", "--probability", str(self._loss), "-j", "DROP"]
                _in(_BETWEEN, "iptables", "-A", "INPUT", "!", "-i", "lo", *drop)
            self._proxy = subprocess.Popen(["ip", "netns", "exec", _BETWEEN, sys.executable, __file__, str(self._delay)])
            return self
        except BaseException:
            self._remove()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._proxy is not None:
            self._proxy.terminate()
            self._proxy.wait()
        self._remove()

    def _plug(self, name: str, place: int) -> None:
        _ip("netns", "add", name)
        _ip("link", "add", f"to{place}", "netns", _BETWEEN, "type", "veth", "peer", "name", "out", "netns", name)
        _in(_BETWEEN, "ip", "address", "add", f"10.77.{place}.254/24", "dev", f"to{place}")
        _in(_BETWEEN, "ip", "link", "set", f"to{place}", "up")
        _in(name, "ip", "address", "add", f"10.77.{place}.1/24", "dev", "out")
        for device in ("lo", "out"):
            _in(name, "ip", "link", "set", device, "up")
        _in(name, "ip", "route", "add", "default", "via", f"10.77.{place}.254")

    def _remove(self) -> None:
        for name in (_BETWEEN, _HUB, *self._clients):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @property
    def at_server(self) -> list[str]:
        """Before a command that shall run there."""
        return ["ip", "netns", "exec", _HUB]

    def at_client(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self._clients[number]]

    def cut(self, seconds: float) -> None:
        """The server's cable is out for so long."""
        _in(_BETWEEN, "ip", "link", "set", "to0", "down")
        time.sleep(seconds)
        _in(_BETWEEN, "ip", "link", "set", "to0", "up")

    def dropped(self) -> int:
        """Packets that were lost."""
        told = _in(_BETWEEN, "iptables", "-L", "INPUT", "-v", "-x", "-n")
        return sum(int(line.split()[0]) for line in told.splitlines() if " DROP " in line)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _in(name: str, *words: str) -> str:
    return _run("ip", "netns", "exec", name, *words)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


# -- the proxy: a program of its own -----------------------------------------------------------------------------------------------


async def _one_way(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
    """Every piece leaves `delay` seconds after it came."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

    async def take() -> None:
        while True:
            try:
                piece = await source.read(1 << 16)
            except OSError:
                piece = b""
            await held.put((time.monotonic() + delay, piece))
            if not piece:
                return

    taking = asyncio.create_task(take())
    with contextlib.suppress(OSError):
        while True:
            due, piece = await held.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not piece:
                break
            sink.write(piece)
            await sink.drain()
    taking.cancel()
    sink.close()


async def _proxy(delay: float) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*_SERVER)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_one_way(reader, back, delay), _one_way(there, writer, delay))

    host, _, port = ADDRESS.partition(":")
    async with await asyncio.start_server(carry, host, int(port)) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_proxy(float(sys.argv[1])))
