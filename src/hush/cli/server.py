"""`hush server`: a method over a real federation, with the flags of `hush run`; the same folder, report and certificate."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hush.cli.console import figures, print_json, say
from hush.cli.federation_flags import ServerFlags
from hush.cli.interrupt import heard, on_terminate
from hush.cli.options import takes_flags
from hush.cli.runs import empty_folder, write_certificate, write_pages
from hush.config import RunConfig
from hush.engines.rundir import CHECKPOINT, LEDGER, RunDir
from hush.errors import HushError, UsageError
from hush.experiment import Experiment

if TYPE_CHECKING:
    from hush.federation.folders import ServerFolder
    from hush.federation.initial import Initial
    from hush.federation.proposal import Proposal
    from hush.tasks.task import Task


@takes_flags
def server(
    federation: Annotated[Path, typer.Option("--federation", help="The server's folder (hush federation init).")],
    method: Annotated[str | None, typer.Argument(help="Method (hush methods lists them).")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this directory.")] = None,
    bind: Annotated[str | None, typer.Option("--bind", help="Listen on this address [default: the clients' host].")] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds that a client may take, training included.")] = 600.0,
    patience: Annotated[float, typer.Option("--patience", help="Seconds to wait for clients that are missing.")] = 900.0,
    *,
    flags: ServerFlags,
) -> None:
    """Run a method over real clients: the sum is secure, the noise is theirs, and this server sees sums alone."""
    moved = {key: str(Path(flags.values[key]).resolve()) for key in _MOVED if key in flags.values}
    others = replace(flags, values={key: value for key, value in flags.values.items() if key not in moved})
    if resume is not None and (method is not None or others.typed):
        raise UsageError(
            "--resume goes on with a run as it was begun: leave the method and the other flags out. Where its ledger and its "
            "tables lie by now may be said (--ledger, --data)."
        )
    asked = None if resume is not None else flags.asked(method)
    if flags.dry_run:
        _dry_run(federation, asked, flags.data_dir, flags.init)
        return
    serve(federation, asked, resume or flags.out, flags.data_dir, flags.json, bind, deadline, patience, flags.init, moved)


_MOVED = ("ledger", "data")
"""What may lie elsewhere when a run goes on: on another machine, say."""


class _Begun(NamedTuple):
    """A run that was asked for, as clients are, and what it begins with, where that is not random."""

    proposal: Proposal
    task: Task
    initial: Initial | None = None


def _begun(home: ServerFolder, asked: RunConfig, data_dir: Path | None, init: Path | None) -> _Begun:
    from hush.federation.initial import Initial, refuse_uncounted
    from hush.federation.proposal import agree
    from hush.federation.propose import propose, resolved, task_of

    members, initial = home.members, None
    if asked.ledger is not None and asked.population is None:
        asked = replace(asked, population=home.invitation.name)  # its clients, whatever they train on
    experiment = resolved(asked, members)
    task = task_of(experiment, data_dir)
    if init is not None:
        initial = Initial.of_run(RunDir(init), task)
        refuse_uncounted(RunDir(init), asked)
        task = initial.of(task)
        experiment = replace(experiment, config=replace(experiment.config, begins_with=initial.sha256))
    proposal = propose(experiment, task, members)
    agree(proposal, proposal.run.method if proposal.run.code is not None else None)  # refused now, or not at all
    return _Begun(proposal, task, initial)


def _gone_on_with(home: ServerFolder, folder: RunDir, data_dir: Path | None, moved: Mapping[str, str]) -> _Begun:
    from hush.federation.initial import Initial
    from hush.federation.kept import keep, kept
    from hush.federation.propose import task_of

    proposal = kept(folder)
    if proposal.members != home.members:
        raise UsageError(
            "The roster has changed since this run began, and its clients agreed to that one: start a new run, which may begin "
            f"with its model (--init {folder.path})."
        )
    run = replace(proposal.run, **moved)  # type: ignore[arg-type]
    if run.published() != proposal.run.published():
        raise UsageError(f"{moved['data']} is not what this run began with: its name is another.")
    if run.ledger is not None and not Path(run.ledger).is_file() and folder.has(CHECKPOINT):
        raise UsageError(f"There is no ledger {run.ledger}, which this run is charged in: say where it lies now (--ledger FILE).")
    proposal = replace(proposal, run=run)
    task = task_of(Experiment.of(run), data_dir)
    if moved:
        keep(folder, proposal)
    return _Begun(proposal, task if run.begins_with is None else Initial.kept(folder, run.begins_with).of(task))


def _dry_run(federation: Path, asked: RunConfig | None, data_dir: Path | None, init: Path | None) -> None:
    """What the first client would be shown; nobody is asked."""
    from hush.federation.consent import words
    from hush.federation.folders import ServerFolder
    from hush.federation.proposal import agree
    from hush.federation.propose import Rehearsal, ready

    if asked is None:
        raise UsageError("--dry-run is for a run that has not begun.")
    proposal, task, _ = _begun(ServerFolder.of(federation), asked, data_dir, init)
    ready(proposal, task, False, Rehearsal)
    for line in words(agree(proposal, proposal.run.method if proposal.run.code is not None else None), 0):
        print(line)


def serve(
    federation: Path,
    asked: RunConfig | None,
    place: Path | None,
    data_dir: Path | None,
    as_json: bool,
    bind: str | None = None,
    deadline: float = 600.0,
    patience: float = 900.0,
    init: Path | None = None,
    moved: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """The run that was asked for, in the folder `place`; or, where nothing was, the one that lies there."""
    from hush.engines.flower.superlink import SuperLink
    from hush.engines.simulation import train
    from hush.engines.traffic import in_words
    from hush.federation.folders import ServerFolder
    from hush.federation.initial import FILE
    from hush.federation.kept import keep
    from hush.federation.propose import ready
    from hush.federation.server import Patience, RemoteFederation

    on_terminate()
    home = ServerFolder.of(federation)
    _refuse_expired(home)
    members = home.members
    if len(members.cards) < 3:
        raise UsageError(f"The roster has {len(members.cards)} clients, and a sum hides its parts from three on: admit more.")
    if asked is None:
        assert place is not None
        folder = RunDir(place)
        proposal, task, initial = _gone_on_with(home, folder, data_dir, moved)
    else:
        proposal, task, initial = _begun(home, asked, data_dir, init)
        folder = empty_folder(place, Experiment.of(proposal.run).method.name)
    status = _Status(federation)
    with SuperLink(home, members, folder.path / "flower", bind, say) as carrier:

        def remote(proposed: Proposal) -> RemoteFederation:
            return RemoteFederation(home.identity, proposed, carrier, Patience(deadline, absent=patience), say, status.clients)

        run, clients = ready(proposal, task, home.invitation.insecure, remote)
        if initial is not None:
            folder.write_bytes(FILE, initial.content)
        if not folder.started:
            keep(folder, proposal)
        status.ledger(Path(run.config.ledger or folder.path / LEDGER))
        say(f"The roster's fingerprint: {members.fingerprint}. Clients connect to {home.invitation.address}.")
        late = folder.finished
        try:
            result = train(run, out=folder.path, resume=True, on_round=_progress(status, run.rounds, clients))
        except (KeyboardInterrupt, HushError) as error:
            status.doing(f"ended: {error}" if isinstance(error, HushError) else "interrupted")
            say(f"What was done is kept. Go on with: hush server --federation {federation} --resume {folder.path}")
            raise
        write_pages(folder, result)
        status.doing("the run is over")
        unsigned = clients.finish(folder, late, lambda: write_certificate(folder))
    if unsigned:
        names = ", ".join(unsigned[:5]) + (", ..." if len(unsigned) > 5 else "")
        say(
            f"Not signed by {len(unsigned)} of {len(members.cards)} clients: {names}. They can later: "
            f"hush server --federation {federation} --resume {folder.path}"
        )
    if as_json:
        print_json(result.to_dict())
        return
    print(result.sentence() + ("." if result.traffic is None else f"; of all clients {in_words(result.traffic)}."))
    say(f"Everything is in {folder.path}")


def _refuse_expired(home: ServerFolder) -> None:
    """Nobody gets through to a server whose certificate does not hold."""
    if (trouble := home.trouble()) is not None:
        if not trouble.usable:
            raise UsageError(trouble.told)
        say(f"warning: {trouble.told}")


def _progress(status: _Status, rounds: int, clients: Any) -> Callable[[dict[str, Any]], None]:
    """A line a round: what took minutes is worth one."""
    last = time.monotonic()

    def on_round(record: dict[str, Any]) -> None:
        nonlocal last
        if heard():
            raise KeyboardInterrupt
        now = time.monotonic()
        again = f"  after {record['tried_again']} that broke off" if record.get("tried_again") else ""
        opened = clients.opened
        summed = "" if opened is None else f"  {len(opened.included)} of {len(opened.session.cohort)} clients"
        trips = ", ".join(f"{what} {seconds:.1f}" for what, seconds in record["trip_seconds"].items() if seconds >= 0.05)
        told = f"round {record['round']} of {rounds}: {figures(record)}{summed}{again}  ({trips})  {now - last:.1f} s"
        last = now
        say(told)
        status.doing(told)

    return on_round


class _Status:
    """`status.json`, for `hush federation status`."""

    def __init__(self, folder: Path) -> None:
        self._path, self._told = folder / "status.json", {"doing": "waiting for clients"}

    def clients(self, told: dict[str, Any]) -> None:
        self._write(told)

    def doing(self, what: str) -> None:
        self._write({"doing": what})

    def ledger(self, file: Path) -> None:
        self._write({"ledger": str(file.resolve())})

    def _write(self, told: dict[str, Any]) -> None:
        from hush.federation.folders import write_text

        self._told = self._told | told | {"time": time.time()}
        write_text(self._path, json.dumps(self._told, indent=2) + "\n")
