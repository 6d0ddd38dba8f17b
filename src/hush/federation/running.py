"""A run over real clients, from what was asked for to its result: the same with `hush server` and in Python, whoever carries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hush.config import RunConfig
from hush.engines.result import Result
from hush.engines.rundir import CHECKPOINT, LEDGER, RunDir
from hush.engines.simulation import OnRound, train
from hush.errors import HushError, UsageError
from hush.experiment import Experiment
from hush.federation import initial
from hush.federation.asking import Carrier, Patience
from hush.federation.folders import ServerFolder
from hush.federation.initial import Initial, charged, name_of, refuse_uncounted
from hush.federation.kept import keep, kept
from hush.federation.members import Members
from hush.federation.proposal import Proposal, agree
from hush.federation.propose import propose, ready, resolved, task_of
from hush.federation.server import RemoteFederation
from hush.federation.status import Status
from hush.report.figures import figures
from hush.report.pages import write_certificate, write_pages
from hush.tasks.task import Task

ANOTHERS = "letters were carried by means that are not Hush's own, which need not have hidden from the network what nobody sealed"
"""On the certificate, where nothing here knows of TLS: models travel as they are, for whoever is on the way."""


MOVED = ("ledger", "data")
"""What may lie elsewhere when a run goes on: on another machine, say."""


class Begun(NamedTuple):
    """A run that was asked for, as clients are, and what it begins with, where that is not random."""

    proposal: Proposal
    task: Task
    initial: Initial | None = None


def run(
    folder: Path | str,
    method: str | None = None,
    *,
    out: Path | str,
    carrier: Any = None,
    resume: bool = False,
    init: Path | str | None = None,
    data_dir: Path | str | None = None,
    patience: Patience | None = None,
    on_round: OnRound | None = None,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> Result:
    """Train a method over real clients; the same run, folder and certificate as those of `hush server`.

    Args:
        folder: the server's, as `hush federation init` made it.
        method: its name, with parts or without: `dp-fedavg`, `dp-sgd+adam`.
        out: a folder for the run; with `resume=True` a run found there goes on, with the clients that agreed to it.
        carrier: who brings the letters: the `grid` of a Flower app, any `Carrier`, or (default) processes of Flower's that are
            started here, as `hush server` does.
        init: the folder of a run whose model this one begins with.
        data_dir: where data sets lie that go by name.
        patience: how long clients may take, and be missing.
        on_round: called with each round's record.
        say: told, line by line, what `hush server` prints.
        settings: the keys of a run's configuration, such as `data`, `rounds`, `noise`, `delta`, and `set` for the method's own;
            without a method, `ledger` and `data` say where those of a run that goes on lie by now.
    """
    home, place = ServerFolder.of(Path(folder)), RunDir(Path(out))
    if carrier is None:
        from hush.engines.flower.process import check_flower
        from hush.engines.flower.superlink import check_certificate

        check_flower()
        check_certificate(home, say)
    data_folder = None if data_dir is None else Path(data_dir)
    if place.started and not resume:
        raise UsageError(f"{place.path} already holds a run: choose another folder, or go on with it (resume=True).")
    before = None if init is None else Path(init)
    asked = None if method is None else proposed(home, RunConfig.read({"method": method} | settings), data_folder, before)
    if place.started:
        begun = taken_up(home, place, data_folder, _moved(settings) if asked is None else {})
        if asked is not None and replace(asked.proposal, name=begun.proposal.name) != begun.proposal:
            raise UsageError(f"{place.path} holds a run with other settings: choose another folder.")
    elif asked is not None:
        begun = asked
    else:
        raise UsageError(f"{place.path} holds no run to go on with: say which method.")
    if carrier is not None:
        begun = begun._replace(task=replace(begun.task, caveats=(*begun.task.caveats, ANOTHERS)))
    with _carries(carrier, home, place, say) as carries:
        return conduct(home, begun, place, carries, patience or Patience(), say, on_round)


def _moved(settings: Mapping[str, Any]) -> dict[str, str]:
    if others := sorted(settings.keys() - MOVED):
        raise UsageError(f"A run goes on as it was begun: leave {', '.join(others)} out, or name the method to compare them.")
    return {key: str(Path(place).resolve()) for key, place in settings.items()}


def _carries(carrier: Any, home: ServerFolder, place: RunDir, say: Callable[[str], None]) -> AbstractContextManager[Carrier]:
    """Whoever was given, as a carrier; or processes of Flower's, for as long as they are needed."""
    if carrier is None:
        from hush.engines.flower.superlink import SuperLink

        return SuperLink(home, home.members, place.path / "flower", None, say)
    if hasattr(carrier, "push_messages"):
        from hush.engines.flower.grid import GridCarrier

        return nullcontext(GridCarrier(carrier, home))
    return nullcontext(carrier)


def proposed(home: ServerFolder, asked: RunConfig, data_dir: Path | None, init: Path | None = None) -> Begun:
    """What clients are asked for, and the server's own part; what cannot be run is refused now, or not at all."""
    members, first = _enough(home), None
    if asked.ledger is not None and asked.population is None:
        asked = replace(asked, population=home.invitation.name)  # its clients, whatever they train on
    experiment = resolved(asked, members)
    task = task_of(experiment, data_dir)
    if init is not None:
        first = Initial.of_run(RunDir(init), task)
        refuse_uncounted(RunDir(init), asked)
        task = first.of(task)
        experiment = replace(experiment, config=replace(experiment.config, begins_with=first.sha256))
    proposal = propose(experiment, task, members)
    agree(proposal, _own_code(proposal))
    return Begun(proposal, task, first)


def taken_up(home: ServerFolder, place: RunDir, data_dir: Path | None, moved: Mapping[str, str] = MappingProxyType({})) -> Begun:
    """The same of a run that goes on, among those who agreed to it; `moved` is where its ledger or its tables lie by now."""
    proposal = kept(place)
    if proposal.members != _enough(home):
        raise UsageError(
            "The roster has changed since this run began, and its clients agreed to that one: start a new run, which may begin "
            f"with its model (--init {place.path})."
        )
    asked = replace(proposal.run, **moved)  # type: ignore[arg-type]
    if asked.published() != proposal.run.published():
        raise UsageError(f"{moved['data']} is not what this run began with: its name is another.")
    if asked.ledger is not None and proposal.run.ledger is None:
        raise UsageError(f"This run goes on in its own ledger, which lies in {place.path}: leave --ledger out.")
    if asked.ledger is not None and (place.has(CHECKPOINT) or place.finished):
        _refuse_another_ledger(Path(asked.ledger), place)
    proposal = replace(proposal, run=asked)
    task = task_of(Experiment.of(asked), data_dir)
    if moved:
        keep(place, proposal)
    return Begun(proposal, task if asked.begins_with is None else Initial.kept(place, asked.begins_with).of(task))


def _refuse_another_ledger(file: Path, place: RunDir) -> None:
    """Before the folder says that its run is charged there."""
    if not file.is_file():
        raise UsageError(f"There is no ledger {file}, which this run is charged in: say where it lies now (--ledger FILE).")
    if charged(file, name_of(place)) is None:
        raise UsageError(
            f"{file} knows nothing of this run, which was charged in another ledger: say where that lies (--ledger FILE)."
        )


def conduct(
    home: ServerFolder,
    begun: Begun,
    place: RunDir,
    carrier: Carrier,
    patience: Patience,
    say: Callable[[str], None],
    on_round: OnRound | None = None,
) -> Result:
    """All rounds, and what people read of them; `place` keeps what was done, whatever ends it."""
    status, late = Status(home.path), place.finished

    def remote(proposed: Proposal) -> RemoteFederation:
        return RemoteFederation(home.identity, proposed, carrier, patience, say, status.clients)

    training, clients = ready(begun.proposal, begun.task, home.invitation.insecure, remote)
    if begun.initial is not None:
        place.write_bytes(initial.FILE, begun.initial.content)
    if not place.started:
        keep(place, begun.proposal)
    status.ledger(Path(training.config.ledger or place.path / LEDGER), training.privacy.delta)
    say(f"The roster's fingerprint: {home.members.fingerprint}. Clients connect to {home.invitation.address}.")
    last = time.monotonic()

    def told(record: dict[str, Any]) -> None:
        nonlocal last
        if on_round is not None:
            on_round(record)
        now = time.monotonic()
        line = f"round {record['round']} of {training.rounds}: {_in_words(record, clients)}  {now - last:.1f} s"
        last = now
        say(line)
        status.doing(line)

    try:
        result = train(training, out=place.path, resume=True, on_round=told)
    except (KeyboardInterrupt, HushError) as error:
        status.doing(f"ended: {error}" if isinstance(error, HushError) else "interrupted")
        raise
    write_pages(place, result)
    status.doing("the run is over")
    unsigned = clients.finish(place, late, lambda: write_certificate(place))
    if unsigned:
        names = ", ".join(unsigned[:5]) + (", ..." if len(unsigned) > 5 else "")
        say(
            f"Not signed by {len(unsigned)} of {len(begun.proposal.members.cards)} clients: {names}. They can later: "
            f"hush server --federation {home.path} --resume {place.path}"
        )
    return result


def _in_words(record: dict[str, Any], clients: RemoteFederation) -> str:
    """What a round came to, and where its time went: what took minutes is worth a line."""
    again = f"  after {record['tried_again']} that broke off" if record.get("tried_again") else ""
    opened = clients.opened
    summed = "" if opened is None else f"  {len(opened.included)} of {len(opened.session.cohort)} clients"
    summed = "  no sum" if "broke_off" in record else summed
    trips = ", ".join(f"{what} {seconds:.1f}" for what, seconds in record["trip_seconds"].items() if seconds >= 0.05)
    return f"{figures(record)}{summed}{again}  ({trips})"


def _enough(home: ServerFolder) -> Members:
    members = home.members
    if len(members.cards) < 3:
        raise UsageError(f"The roster has {len(members.cards)} clients, and a sum hides its parts from three on: admit more.")
    return members


def _own_code(proposal: Proposal) -> str | None:
    """Where the method lies, if it is not Hush's."""
    return proposal.run.method.partition("+")[0] if proposal.run.code is not None else None
