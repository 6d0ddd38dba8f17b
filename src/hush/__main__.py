"""`python -m hush` is the `hush` command."""

from hush.cli import main

main()
