"""`hush server`: a method over a real federation, with the flags of `hush run`; the same folder, report and certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from hush.cli.console import print_json, say
from hush.cli.federation_flags import ServerFlags
from hush.cli.interrupt import on_terminate, stop_if_heard
from hush.cli.options import takes_flags
from hush.cli.runs import empty_folder
from hush.config import RunConfig
from hush.engines.flower.process import check_flower
from hush.engines.rundir import RunDir
from hush.engines.traffic import in_words
from hush.errors import HushError, UsageError
from hush.experiment import Experiment


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
    from hush.federation.running import MOVED

    moved = {key: str(Path(flags.values[key]).resolve()) for key in MOVED if key in flags.values}
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


def _dry_run(federation: Path, asked: RunConfig | None, data_dir: Path | None, init: Path | None) -> None:
    """What the first client would be shown; nobody is asked."""
    from hush.federation.consent import words
    from hush.federation.folders import ServerFolder
    from hush.federation.proposal import agree
    from hush.federation.propose import Rehearsal, ready
    from hush.federation.running import proposed

    if asked is None:
        raise UsageError("--dry-run is for a run that has not begun.")
    proposal, task, _ = proposed(ServerFolder.of(federation), asked, data_dir, init)
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
    check_flower()
    from hush.engines.flower.superlink import SuperLink, check_certificate
    from hush.federation.asking import Patience
    from hush.federation.folders import ServerFolder
    from hush.federation.running import conduct, proposed, taken_up

    on_terminate()
    home = ServerFolder.of(federation)
    check_certificate(home, say)
    if asked is None:
        assert place is not None
        folder = RunDir(place)
        begun = taken_up(home, folder, data_dir, moved)
    else:
        begun = proposed(home, asked, data_dir, init)
        folder = empty_folder(place, Experiment.of(begun.proposal.run).method.name)
    with SuperLink(home, begun.proposal.members, folder.path / "flower", bind, say) as carrier:
        try:
            result = conduct(home, begun, folder, carrier, Patience(deadline, absent=patience), say, _stop_if_heard)
        except (KeyboardInterrupt, HushError):
            if folder.started:
                say(f"What was done is kept. Go on with: hush server --federation {federation} --resume {folder.path}")
            raise
    if as_json:
        print_json(result.to_dict())
        return
    print(result.sentence() + ("." if result.traffic is None else f"; all clients together {in_words(result.traffic)}."))
    say(f"Everything is in {folder.path}")


def _stop_if_heard(record: dict[str, Any]) -> None:
    stop_if_heard()
