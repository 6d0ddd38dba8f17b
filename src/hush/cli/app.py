"""The commands, and how they end: errors are one sentence and exit code 2; Ctrl-C is 130 and loses nothing."""

from __future__ import annotations

import sys
import warnings

import typer

from hush.cli.commands import Commands, loads_later
from hush.cli.console import say
from hush.cli.together import dismiss, processes_started
from hush.errors import HushError, UsageError

# the base of typer's complaints about flags, whether typer brings its own click (>= 0.27) or imports it
_FlagError: type[Exception] = next(kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "format_message"))

COMMANDS = {
    "run": ("hush.cli.runs:run", "Train one method and say what was learned, what it cost and what privacy was spent."),
    "compare": ("hush.cli.runs:compare", "Train several methods on the same task: one table, one plot."),
    "tune": (
        "hush.cli.tune:tune",
        "Search over settings at a fixed epsilon, judged on validation examples; the test examples stay unseen.",
    ),
    "epsilon": ("hush.cli.privacy:epsilon", "The epsilon that is proved for a noise multiplier."),
    "calibrate": ("hush.cli.privacy:calibrate", "The least noise that is proved to spend at most an epsilon."),
    "audit": ("hush.cli.audit:audit", "Attack a method as it runs: structural checks, its whole claimed profile, one training."),
    "certify": ("hush.cli.certify:certify", "Recompute a run's certificate and verify it."),
    "server": (
        "hush.cli.server:server",
        "Run a method over real clients: the sum is secure, the noise is theirs, and this server sees sums alone.",
    ),
    "client": ("hush.cli.client:client", "Take part in a federation with this machine's data."),
    "methods": ("hush.cli.lists:methods", "The methods, with one line each; or one, with all its settings."),
    "models": ("hush.cli.lists:models", "The models, with one line each."),
    "federation": ("hush.cli.federation:federation", "A real federation: enrol clients, compare rosters."),
    "ledger": ("hush.cli.ledger:ledger", "Privacy spent, across runs: create a budget, show what was spent, verify the record."),
    "bench": ("hush.cli.bench:bench", "Figures of this machine beside the peers', as ratios."),
    "data": ("hush.cli.data:data", "Data sets: list them, fetch one, or look at a partition."),
}
"""Where each lies, and its line in the help, which is the first of its own."""
_TOGETHER = ("run", "compare")
"""What several processes do together."""

app = Commands(
    cls=loads_later(COMMANDS),
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning that says as little as possible.",
)


@app.callback(invoke_without_command=True)
def _root(asked: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if processes_started() > 1 and asked.invoked_subcommand not in _TOGETHER:
        raise UsageError(f"torchrun is for hush {' and hush '.join(_TOGETHER)}, whose cohorts processes share: leave it out.")
    if version:
        from hush.version import __version__

        print(__version__)
        raise typer.Exit()


def run_command() -> None:
    """Run what was typed, and exit."""
    warnings.showwarning = _one_line
    try:
        code = app(standalone_mode=False) or 0
        dismiss()
        sys.exit(code)
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
