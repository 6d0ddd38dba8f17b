"""The commands, and how they end: errors are one sentence and exit code 2; Ctrl-C is 130 and loses nothing."""

from __future__ import annotations

import sys
import warnings

import typer

from hush.cli import data, lists, privacy, runs
from hush.cli.audit import audit
from hush.cli.bench import bench
from hush.cli.certify import certify
from hush.cli.client import client
from hush.cli.commands import Commands
from hush.cli.console import say
from hush.cli.federation import federation
from hush.cli.ledger import ledger
from hush.cli.server import server
from hush.cli.tune import tune
from hush.errors import HushError

# the base of typer's complaints about flags, whether typer brings its own click (>= 0.27) or imports it
_FlagError: type[Exception] = next(kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "format_message"))

app = Commands(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning that says as little as possible.",
)
app.command("run")(runs.run)
app.command("compare")(runs.compare)
app.command("tune")(tune)
app.command("epsilon")(privacy.epsilon)
app.command("calibrate")(privacy.calibrate)
app.command("audit")(audit)
app.command("certify")(certify)
app.command("server")(server)
app.command("client")(client)
app.add_typer(federation, name="federation")
app.add_typer(ledger, name="ledger")
app.add_typer(bench, name="bench")
app.command("methods")(lists.methods)
app.add_typer(data.data, name="data")
app.command("models")(lists.models)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from hush.version import __version__

        print(__version__)
        raise typer.Exit()


def run_command() -> None:
    """Run what was typed, and exit."""
    warnings.showwarning = _one_line
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        sys.exit(1)
    except (HushError, _FlagError, MemoryError, OSError) as error:
        told = _sentence(error)
        say(told if told.startswith("Usage:") else f"hush: {told}")  # where nothing was typed, the help is the answer
        sys.exit(2)


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory: lower --memory or --cohort."
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}."
    return str(error.format_message() if hasattr(error, "format_message") else error)


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    say(f"note: {message}")
