"""What a run's ledger says of its certificate: how often it was charged, what it gave out, who signed, what all runs had spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hush.engines.conclude import spent_together
from hush.engines.result import released, still_there
from hush.engines.rundir import RunDir
from hush.errors import HushError
from hush.federation import signatures
from hush.plain import differing
from hush.privacy.ledger import Ledger, as_released
from hush.privacy.population import Spending
from hush.privacy.written import plan_from_dict

Values = dict[str, Any]


def says_nothing_was_released(certificate: Values) -> bool:
    """As a secure sum does of which every round broke off."""
    aborted = certificate.get("rounds_aborted")
    return certificate.get("guarantee") is None and bool(aborted) and aborted == certificate.get("rounds")


def against_ledger(ledger: Ledger, folder: RunDir, certificate: Values, result: Values) -> list[str]:
    """Everything that the ledger says otherwise."""
    try:
        return list(_against(ledger, folder, certificate, result))
    except (HushError, KeyError, TypeError, ValueError, AttributeError) as error:
        return [str(error)]


def releases(ledger: Ledger, run: str) -> int:
    """How often a run was released: more than once where its process was killed after it."""
    return sum(len(pool.runs[run].released) for pool in ledger.populations.values() if run in pool.runs)


def _against(ledger: Ledger, folder: RunDir, certificate: Values, result: Values) -> Iterator[str]:
    shared, name = certificate.get("population"), certificate["run_id"]
    if ledger.charged_here(name) is False:
        yield "this machine has seen this run charged in another ledger"
    charged = [pool for pool in ledger.populations.values() if name in pool.runs]
    if certificate.get("guarantee") is None:
        if charges := sum(pool.runs[name].charges for pool in charged):
            yield f"{charges} rounds of this run are charged there, and the certificate has no guarantee"
        if shared is not None:
            yield from _against_pool(ledger, certificate, None)
        return
    if len(charged) != 1 or (shared is not None and charged[0].name != shared["name"]):
        yield f"this run is charged in {len(charged)} populations there" if len(charged) != 1 else "another population is charged"
        return
    run = charged[0].runs[name]
    if run.charges != certificate["rounds_charged"]:
        yield f"{run.charges} rounds of this run are charged there, not {certificate['rounds_charged']}"
    if len(run.rounds) != certificate["rounds_counted"]:
        yield f"{len(run.rounds)} different rounds of this run are charged there, not {certificate['rounds_counted']}"
    if run.phase != as_released(plan_from_dict(certificate["plan"])).again(0):
        yield "rounds of another plan are charged there"
    yield from _against_releases(run, folder, certificate, result)
    yield from _against_signed(run, folder)
    if shared is not None:
        yield from _against_pool(ledger, certificate, run)


def _against_releases(run: Spending, folder: RunDir, certificate: Values, result: Values) -> Iterator[str]:
    """Whoever changes a line of what was released would have to write the ledger anew: to add a release is not enough."""
    now = still_there(released(certificate, result, folder), result, folder)
    wrong = [name for name, hashed in now.items() if any(r.sha256.get(name) != hashed for r in run.released)]
    if not run.released:
        yield "nothing was released there"
    elif wrong:
        often = f" ({len(run.released)} releases are there, and all must agree)" if len(run.released) > 1 else ""
        yield f"another {' and '.join(wrong)} was released there{often}"


def _against_signed(run: Spending, folder: RunDir) -> Iterator[str]:
    """Who signed has signed. One whom the ledger does not know of yet signed just before the process was killed."""
    there = {one.sha256 for one in signatures.read(folder)} if folder.has(signatures.FILE) else set[str]()
    if lost := [name for name, hashed in run.signed.items() if hashed not in there]:
        yield f"{signatures.FILE} lacks what {', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''} signed"


def _against_pool(ledger: Ledger, certificate: Values, run: Spending | None) -> Iterator[str]:
    """What all runs had spent when this one ended: after its last charge, and before its last release."""
    together = certificate["population"]
    entries = together["ledger_entries"]
    if ledger.hash_of(entries) != together["ledger_head"]:
        yield f"entry {entries} is not the one that the certificate names"
        return
    pool = ledger.populations_at(entries)[together["name"]]
    told = spent_together(pool, certificate["configuration"]["delta"], entries, together["ledger_head"])
    if wrong := [*differing(told, together), *(key for key in together if key not in told)]:
        yield f"of all runs together it says something else: {', '.join(wrong)}"
    if run is None:
        return
    own = pool.runs.get(certificate["run_id"])
    if own is None or own.charges != run.charges or any(entries >= release.entry for release in run.released[-1:]):
        yield f"entry {entries} is not where this run ended"
