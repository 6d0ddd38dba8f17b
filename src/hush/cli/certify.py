"""`hush certify RUN`: the privacy statement, recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.certify import Check, leaves, runs_in, verify_run
from hush.cli.console import Json, print_json
from hush.privacy.guarantee import Guarantee
from hush.recorded import says_nothing_was_released

MOST_LINES = 20
"""As many clients are told one by one."""


def certify(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    ledger: Annotated[Path | None, typer.Option("--ledger", help="Where it was charged, if its settings do not say.")] = None,
    code: Annotated[
        list[Path] | None, typer.Option("--code", help="FILE.py of a method or model of one's own: no other is run. Repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute a run's certificate and verify it. Exit code 2 if anything does not hold, 1 if something cannot be checked."""
    rows, good, complete = [], True, True
    for path in runs_in(run):
        certificate, checks, said, unchecked = verify_run(path, ledger, code or ())
        holds = all(check.passed is not False for check in checks)
        whole = all(check.passed is not None for check in checks)
        good, complete = good and holds, complete and whole
        row = {
            "run": str(path),
            "verified": holds and whole,
            "checks": [_row(check) for check in checks],
        }
        rows.append(row | {"said_by_the_author": said, "not_checked": unchecked, "certificate": certificate})
        if as_json:
            continue
        proved = certificate.get("guarantee")
        claims = str(Guarantee.from_dict(proved)) if proved else "no privacy guarantee"
        if says_nothing_was_released(certificate):
            claims = "nothing was released"
        verdict = "does NOT hold" if not holds else "verified" if whole else "not verified in full"
        print(f"{path}: {verdict}. The certificate says: {claims}")
        for check in checks:
            mark = {True: "ok   ", False: "WRONG", None: "-    "}[check.passed]
            print(f"  {mark} {check.name}: {check.detail}")
            for client, words in _worth_a_line(check.clients or {}):
                print(f"          {client}: {words}")
        print(f"  said by the author, and not recomputed: {', '.join(_own(said, certificate))}")
        if unchecked:
            print(f"  not checked: {', '.join(unchecked)}")
    beside = [] if len(rows) == 1 else sorted(p.name for p in run.iterdir() if p.is_file() and p.name != "config.json")
    if as_json:
        print_json(rows[0] if len(rows) == 1 else {"verified": good and complete, "runs": rows, "not_checked": beside})
    else:
        if beside:
            print(f"{run}: not checked: {', '.join(beside)}")
        if not complete:
            print("What is marked - could not be checked.")
    if not (good and complete):
        raise typer.Exit(1 if good else 2)


def _row(check: Check) -> dict[str, Any]:
    row = {key: getattr(check, key) for key in ("name", "passed", "detail")}
    return row if check.clients is None else row | {"clients": dict(check.clients)}


def _worth_a_line(clients: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of many clients those alone who do not vouch."""
    for client, words in clients.items():
        if len(clients) <= MOST_LINES or not words.startswith("vouches"):
            yield client, words


def _own(said: list[str], certificate: dict[str, Any]) -> list[str]:
    """Of the certificate by the shortest names under which all is said; of the result all but what is about privacy."""
    derived = [f"{leaf}." for leaf in leaves(certificate) if leaf not in said]

    def shortest(leaf: str) -> str:
        parts = leaf.split(".")
        names = (".".join(parts[: i + 1]) for i in range(len(parts)))
        return next((name for name in names if not any(other.startswith(f"{name}.") for other in derived)), leaf)

    return [*dict.fromkeys(shortest(leaf) for leaf in said if not leaf.startswith("result.")), "the other figures of result.json"]
