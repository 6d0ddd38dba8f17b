"""`hush federation`: who belongs to it, and keys that nobody else has seen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.commands import Commands
from hush.cli.console import Json, print_json, print_table, say
from hush.cli.federation_flags import TrialFlags
from hush.cli.ledger import CLIENT, client_in_words
from hush.cli.options import takes_flags
from hush.errors import UsageError
from hush.plugins import is_in_file

federation = Commands(help="A real federation: enrol clients, compare rosters.")

Folder = Annotated[Path, typer.Argument(help="The server's folder.")]


@federation.command("init")
def init(
    folder: Folder,
    address: Annotated[str, typer.Option("--address", help="Where clients reach the server: HOST:PORT.")],
    name: Annotated[str | None, typer.Option("--name", help="Of the federation [default: the folder's].")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and node authentication.")] = False,
) -> None:
    """Make the server's keys and certificates, and the invitation that clients enrol with."""
    from hush.federation.folders import INVITATION, ServerFolder

    made = ServerFolder.init(folder, name or folder.resolve().name, address, insecure)
    print(
        f"{made.path / INVITATION} invites clients to {made.invitation.name} at {made.invitation.address}. Nothing in it is secret."
    )
    say("Next, at each client: hush federation enroll --invitation invitation.json --name NAME")


@federation.command("enroll")
def enroll(
    invitation: Annotated[Path, typer.Option("--invitation", help="The server's invitation.json.")],
    name: Annotated[str, typer.Option("--name", help="What others shall call this client.")],
    out: Annotated[Path | None, typer.Option("--out", help="The client's folder [default: the name].")] = None,
) -> None:
    """On the client: make its keys here, and a card that shows the public ones."""
    from hush.federation.folders import ClientFolder

    made = ClientFolder.enroll(out or Path(name), invitation, name)
    print(f"{made.path / 'card.json'} is for the server: hush federation admit DIR card.json. The keys stay in {made.path}.")


@federation.command("admit")
def admit(folder: Folder, cards: Annotated[list[Path], typer.Argument(help="Clients' cards.")]) -> None:
    """On the server: take clients into the roster, or the new keys of those who are in it."""
    from hush.federation.folders import ServerFolder, read_text
    from hush.federation.members import Card

    server = ServerFolder.of(folder)
    for card in [Card.read(read_text(path), str(path)) for path in cards]:  # all are read before any is taken
        if card in server.members.cards:
            say(f"{card.name} is in the roster with this card already.")
        else:
            server.admit(card)
    _tell(folder)


@federation.command("rotate")
def rotate(
    folder: Annotated[Path, typer.Argument(help="The client's folder.")],
    node: Annotated[bool, typer.Option("--node", help="Only the key of its Flower node.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="Also leave a run that is not over.")] = False,
) -> None:
    """On the client: new keys, which the old one signs for. Its diary and ledger go on."""
    from contextlib import closing

    from hush.federation.diary import Diary
    from hush.federation.folders import ClientFolder

    own = ClientFolder.of(folder)
    with closing(own.lock()):
        if not leave and Diary(folder, own.invitation.name).unfinished:
            raise UsageError(
                "A run that this client agreed to is not over, and its roster has the old keys: wait for its end, or leave it "
                "(--leave)."
            )
        own.rotate(node)
    print(
        f"{folder / 'card.json'} has the new keys; the old ones are gone. It is for the server: hush federation admit DIR card.json"
    )


@federation.command("remove")
def remove(folder: Folder, name: Annotated[str, typer.Argument(help="The client.")]) -> None:
    """On the server: take a client out of the roster. Runs under the old roster do not go on; what they spent stays spent."""
    from hush.federation.folders import ServerFolder

    ServerFolder.of(folder).remove(name)
    _tell(folder)
    say("Everybody agrees to the new roster when the next run is proposed. What runs spent so far is in their ledgers, and counts.")


@federation.command("renew")
def renew(
    folder: Folder,
    address: Annotated[str | None, typer.Option("--address", help="Where clients reach the server from now on: HOST:PORT.")] = None,
) -> None:
    """On the server: another key and certificate for TLS; with --address for a server that has moved."""
    from hush.federation.folders import INVITATION, ServerFolder

    server = ServerFolder.of(folder)
    invites = server.renew(address)
    print(f"{server.invitation.name} has a new certificate for {server.invitation.address}; hush server takes it when it starts.")
    if invites:
        say(f"Next, at each client, with {folder / INVITATION}: hush federation take CLIENT {INVITATION}")


@federation.command("take")
def take(
    folder: Annotated[Path, typer.Argument(help="The client's folder.")],
    invitation: Annotated[Path, typer.Argument(help="The server's new invitation.json.")],
) -> None:
    """On the client: take a new invitation of the same server, which has another address or certificate authority."""
    from hush.federation.folders import ClientFolder

    taken = ClientFolder.of(folder).take(invitation)
    print(f"{folder} reaches {taken.name} at {taken.address} from now on; hush client takes it when it starts.")


@federation.command("status")
def status(
    folder: Folder,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="What was spent [default: the last run's ledger].")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Tell epsilon at this delta [default: the last run's].")] = None,
    as_json: Json = False,
) -> None:
    """Who belongs to the federation, what the server last knew of each, and what it cost them."""
    from hush.federation.folders import ServerFolder

    server = ServerFolder.of(folder)
    members, path = server.members, folder / "status.json"
    last = json.loads(path.read_text()) if path.is_file() else {}
    clients = last.get("clients", {})
    book = ledger or (Path(last["ledger"]) if "ledger" in last else None)
    spent = [] if book is None else _spent(book, delta if delta is not None else last.get("delta"))
    if as_json:
        told = {"name": server.invitation.name, "address": server.invitation.address, "fingerprint": members.fingerprint}
        print_json(told | {"clients": {name: clients.get(name) for name in members.names}, "server": last, "spent": spent})
        return
    _tell(folder)
    if (trouble := server.trouble()) is not None:
        say(f"warning: {trouble.told}")
    for name in members.names:
        print(f"  {name}: {clients.get(name, 'not seen yet')}")
    if last:
        ago = max(0, round(time.time() - last.get("time", 0)))
        print(f"The server, {ago} s ago: {last.get('doing', 'started')}.")
    if spent:
        print(f"By {book}:")
        print_table(("population", *CLIENT, ""), [_line(one, members.names) for one in spent])


def _spent(book: Path, delta: float | None) -> list[dict[str, Any]]:
    """What each client of a ledger was in, and what that cost it; nothing where there is no ledger yet."""
    from hush.cli.ledger import rows_of

    if not book.is_file():
        say(f"note: {book} is not there, so what was spent cannot be told: give the ledger (--ledger)")
        return []
    return [{"population": row["name"], "delta": row["delta"]} | one for row in rows_of(book, delta) for one in row["members"]]


def _line(one: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    return one["population"], *client_in_words(one, one["delta"]), "" if one["name"] in names else "not in the roster any more"


@federation.command("local")
@takes_flags
def local(
    number: Annotated[int, typer.Argument(help="How many clients.")],
    method: Annotated[str | None, typer.Argument(help="Method (hush methods lists them).")] = None,
    processes: Annotated[int | None, typer.Option("--processes", help="Client processes [default: 4 at most].")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and node authentication.")] = False,
    *,
    flags: TrialFlags,
) -> None:
    """A whole federation on this machine, for a trial: keys, TLS, client processes with their part of a data set, and a run."""
    from hush.cli.runs import empty_folder
    from hush.cli.server import serve
    from hush.engines.flower.process import check_flower
    from hush.federation import trial

    check_flower()
    asked = flags.asked(method)
    place = empty_folder(flags.out, "federation").path.resolve()
    made = trial.make(place, number, asked, flags.data_dir, insecure)
    say(f"{number} clients are enrolled in {place}; the roster's fingerprint: {made.members.fingerprint}")
    code = asked.method.partition("+")[0] if is_in_file(asked.method) else None
    started = trial.start(place, number, processes or min(number, 4), code)
    try:
        serve(made.path, asked, place / "run", flags.data_dir, flags.json)
        for process in started:
            process.wait(timeout=30)
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=30)


def _tell(folder: Path) -> None:
    from hush.federation.folders import ServerFolder

    server = ServerFolder.of(folder)
    members = server.members
    print(f"{server.invitation.name}: {len(members.cards)} clients. The roster's fingerprint: {members.fingerprint}")
