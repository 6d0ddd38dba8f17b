"""The command line: a thin skin over the library."""

from __future__ import annotations

import os
import sys

from hush.cli.interrupt import INTERRUPTED, heard, interrupted_at_once


def main() -> None:
    """Entry point of the `hush` command. What is heavy is imported here, where Ctrl-C is heard."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before PyTorch is loaded: spinning threads waste busy cores
    speaks = True
    try:
        with interrupted_at_once():
            from hush.cli.app import run_command
            from hush.cli.together import help_out, helps

        speaks = not helps()
        if not speaks:
            sys.exit(help_out())
        run_command()
    except (Exception, KeyboardInterrupt) as error:
        if not heard() and not isinstance(error, KeyboardInterrupt):
            raise
        if speaks:
            print(INTERRUPTED, file=sys.stderr, flush=True)
        sys.exit(130)
