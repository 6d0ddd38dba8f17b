"""The command line: a thin skin over the library."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `hush` command. What is heavy is imported here, where Ctrl-C is heard."""
    try:
        from hush.cli.app import run_command

        run_command()
    except KeyboardInterrupt:
        print("hush: interrupted.", file=sys.stderr, flush=True)
        sys.exit(130)
