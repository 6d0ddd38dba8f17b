"""`hush certify RUN`: the privacy statement, recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hush.certify import runs_in, verify_run
from hush.cli import options
from hush.cli.console import print_json
from hush.privacy.guarantee import Guarantee


def certify(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    ledger: Annotated[Path | None, typer.Option("--ledger", help="Where it was charged, if its settings do not say.")] = None,
    as_json: options.Json = False,
) -> None:
    """Recompute a run's certificate and verify it. Exit code 2 if anything does not hold, 1 if something cannot be checked."""
    rows, good, complete = [], True, True
    for path in runs_in(run):
        certificate, checks, said = verify_run(path, ledger)
        holds = all(check.passed is not False for check in checks)
        whole = all(check.passed is not None for check in checks)
        good, complete = good and holds, complete and whole
        row = {"run": str(path), "verified": holds and whole, "checks": [c._asdict() for c in checks]}
        rows.append(row | {"said_by_the_author": said, "certificate": certificate})
        if as_json:
            continue
        proved = certificate.get("guarantee")
        claims = str(Guarantee.from_dict(proved)) if proved else "no privacy guarantee"
        if certificate.get("rounds_aborted") and certificate["rounds_aborted"] == certificate["rounds"]:
            claims = "nothing was released"
        verdict = "does NOT hold" if not holds else "verified" if whole else "not verified in full"
        print(f"{path}: {verdict}. The certificate says: {claims}")
        for check in checks:
            mark = {True: "ok   ", False: "WRONG", None: "-    "}[check.passed]
            print(f"  {mark} {check.name}: {check.detail}")
        print(f"  said by the author, and not recomputed: {', '.join(_own(said))}")
    if as_json:
        print_json(rows[0] if len(rows) == 1 else {"verified": good and complete, "runs": rows})
    elif not complete:
        print("What is marked - could not be checked.")
    if not (good and complete):
        raise typer.Exit(1 if good else 2)


def _own(said: list[str]) -> list[str]:
    """Of the certificate, line by line; of the result as a whole: all of it is the author's word but what is about privacy."""
    own = list(dict.fromkeys(leaf.split(".")[0] for leaf in said if not leaf.startswith("result.")))
    return [*own, "the other figures of result.json"]
