"""The server's side of Flower: its SuperLink, its nodes, and the relay that brings letters to them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from hush.engines.flower import frames, process
from hush.engines.flower.post import Post
from hush.engines.flower.working import WorkingFolder
from hush.errors import HushError, UsageError
from hush.federation.folders import ServerFolder, split_address
from hush.federation.members import Members

_START = 90.0


def check_certificate(folder: ServerFolder, tell: Callable[[str], None]) -> None:
    """Nobody gets through to a server whose certificate does not hold."""
    if (trouble := folder.trouble()) is not None:
        if not trouble.usable:
            raise UsageError(trouble.told)
        tell(f"warning: {trouble.told}")


class SuperLink(Post):
    """A `Carrier` over Flower. Its processes are started here, watched, and started again where they end."""

    def __init__(
        self, folder: ServerFolder, members: Members, logs: Path, bind: str | None = None, tell: Callable[[str], None] = print
    ) -> None:
        process.check_flower()
        super().__init__(folder.identity, members)
        self._folder, self._logs, self._tell = folder, logs, tell
        self._insecure = folder.invitation.insecure
        self._host, self._port = split_address(folder.invitation.address)
        self._bind = bind or self._host
        self._working = WorkingFolder("server", folder.path)
        self._place = self._working.path
        self._nodes: set[int] = set()
        self._link: socket.socket | None = None
        self._sending = threading.Lock()
        self._superlink: subprocess.Popen[bytes] | None = None
        self._closing = False

    # -- processes -----------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> SuperLink:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin(self) -> None:
        self._refuse_taken_port()
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / "superlink.log").open("ab") as log:
            self._superlink = process.start(self._command(), self._place, log)
        self._wait_for_port()
        self._write_connection()
        self._register()
        self._run()

    def _refuse_taken_port(self) -> None:
        family = socket.AF_INET6 if ":" in self._bind else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._bind, self._port))
            except OSError as error:
                raise HushError(
                    f"This machine cannot listen on {self._bind}:{self._port} ({error.strerror}): end what does "
                    "(another hush server?), or give the address of this machine (--bind)."
                ) from None

    def _command(self) -> list[str]:
        own = ["flower-superlink", "--host", self._bind, "--port", str(self._port)]
        if self._insecure:
            return [*own, "--insecure"]
        place = self._folder.path.resolve()
        keys = ["--ssl-ca-certfile", f"{place / 'ca.crt'}", "--ssl-certfile", f"{place / 'server.crt'}"]
        return [*own, *keys, "--ssl-keyfile", f"{place / 'server.key'}", "--enable-supernode-auth"]

    def _wait_for_port(self) -> None:
        until = time.monotonic() + _START
        while time.monotonic() < until:
            if self._superlink is not None and self._superlink.poll() is not None:
                raise HushError(f"Flower's SuperLink ended at once; {self._logs / 'superlink.log'} says why.")
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((self._here, self._port)) == 0:
                    return
            time.sleep(0.2)
        raise HushError(f"Flower's SuperLink does not listen on port {self._port} after {_START:.0f} s.")

    @property
    def _here(self) -> str:
        """Where this machine reaches its own SuperLink."""
        return "127.0.0.1" if self._bind in ("0.0.0.0", "::", "localhost") else self._bind

    def _write_connection(self) -> None:
        ca = json.dumps(str(self._folder.path.resolve() / "ca.crt"))
        how = "insecure = true" if self._insecure else f"root-certificates = {ca}"
        text = f'[superlink]\ndefault = "hush"\n\n[superlink.hush]\naddress = "{self._here}:{self._port}"\n{how}\n'
        (self._place / "config.toml").write_text(text)

    def _flwr(self, *arguments: str) -> str:
        """A command of Flower's own."""
        around = process.environment(self._place)
        try:
            done = subprocess.run(
                ["flwr", *arguments], cwd=self._place, env=around, timeout=_START, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            raise HushError(
                f"flwr {' '.join(arguments[:2])} does not end in {_START:.0f} s: is this machine too busy? Try again."
            ) from None
        with (self._logs / "flwr.log").open("a") as log:
            log.write(f"$ flwr {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()
            raise HushError(f"flwr {' '.join(arguments[:2])} failed: {last[-1] if last else 'it does not say why'}")
        return done.stdout

    def _register(self) -> None:
        if self._insecure:
            return
        for number, card in enumerate(self._members.cards):
            key = self._place / f"node-{number}.pub"
            key.write_text(card.node + "\n")
            try:
                self._flwr("supernode", "register", str(key), "hush")
            except HushError as error:
                mend = f"hush federation remove {self._folder.path} {card.name}"
                raise HushError(
                    f"The client '{card.name}' cannot be registered: {error} If its card is at fault: {mend}."
                ) from None

    def _run(self) -> None:
        """Start the relay, and wait until it speaks."""
        place = self._place / "relay"
        place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(place))
            place.chmod(0o600)
            door.listen(1)
            door.settimeout(_START)
            app = self._place / "app"
            if not app.exists():
                shutil.copytree(Path(__file__).parent / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
                for shared in ("frames.py", "exchange.py"):
                    shutil.copy(Path(__file__).parent / shared, app / "hush_relay")
            self._flwr("run", str(app), "hush", "--run-config", f"socket={json.dumps(str(place))}")
            try:
                link, _ = door.accept()
            except TimeoutError:
                raise HushError(f"Flower's ServerApp did not start; see {self._logs}.") from None
        link.settimeout(None)
        self._link = link
        threading.Thread(target=self._listen, args=(link,), name="hush-relay", daemon=True).start()

    def _listen(self, link: socket.socket) -> None:
        """What the relay brings: nodes that come and go, and bundles of answers."""
        try:
            while (frame := frames.receive(link)) is not None:
                head, body = frame
                if "nodes" in head:
                    self._nodes = set(head["nodes"])
                else:
                    self._came_back(head["id"], None if "error" in head else body)
        except (OSError, ValueError, KeyError):
            pass
        self._nodes = set()
        self._link = None

    def _supervise(self) -> None:
        """Start again what has ended."""
        if self._closing or self._link is not None:
            return
        self._tell("Flower's server has ended: it is started again")
        process.stop(self._superlink)
        self._forget_nodes()
        self._begin()

    # -- the carrier ---------------------------------------------------------------------------------------------------------------

    def _nodes_there(self) -> set[int]:
        self._supervise()
        return self._nodes

    def _push_bundle(self, number: int, node: int, ttl: float, raw: bytes) -> None:
        link = self._link
        if link is None:
            return
        try:
            with self._sending:
                frames.send(link, {"id": number, "node": node, "ttl": ttl}, raw)
        except OSError:
            return

    def close(self) -> None:
        """End everything that was started here."""
        self._closing = True
        link, self._link = self._link, None
        if link is not None:
            link.close()
        process.stop(self._superlink)
        self._working.close()
