"""Servers that speak TLS and nothing else."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from hush.federation.folders import ServerFolder, split_address

Listening = Callable[..., None]


@pytest.fixture
def listening() -> Iterator[Listening]:
    """`listening(folder)`: at its address and with its certificate, or as another program, which says `else_`."""
    with ExitStack() as stack:

        def listen(folder: ServerFolder, else_: bytes | None = None, host: str | None = None) -> None:
            own, port = split_address(folder.invitation.address)
            door = stack.enter_context(socket.create_server((host or own, port)))
            stack.callback(door.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=_serve, args=(door, folder, else_), daemon=True).start()

        yield listen


def _serve(door: socket.socket, folder: ServerFolder, else_: bytes | None) -> None:
    context = None
    if else_ is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder.path / "server.crt", folder.path / "server.key")
    with suppress(OSError), ExitStack() as kept:
        while True:
            link = kept.enter_context(door.accept()[0])
            with suppress(OSError):
                if context is not None:
                    kept.enter_context(context.wrap_socket(link, server_side=True))
                elif else_:
                    link.sendall(else_)
                    link.close()
