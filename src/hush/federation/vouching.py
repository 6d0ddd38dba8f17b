"""Who vouches for a certificate of real clients: every statement held against the roster, the proposal and the certificate.

The server charges a sum before a client counts it, and a client counts it before it can be opened. So no client honestly counts
more than was charged. It may well count less: it was away, or not asked, or the sum was lost before its part of it left. But every
sum that was opened was counted by as many clients as the terms ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hush.config import runs_of
from hush.engines.result import given_out, still_there
from hush.engines.rundir import RunDir
from hush.errors import HushError
from hush.federation import kept, letters, signatures, statement
from hush.federation.folders import read_text
from hush.federation.proposal import Agreement, Proposal, agree
from hush.federation.statement import BadStatement, Signed
from hush.plain import differing
from hush.privacy.guarantee import at_least

Values = dict[str, Any]


class Signers(NamedTuple):
    """Of everybody in a roster, in its order."""

    signed: tuple[str, ...]
    missing: tuple[str, ...]


def signers(folder: RunDir) -> Signers | None:
    """Whose statements lie in a run's folder, by their signatures alone; None of a run that has no real clients."""
    if not folder.has(kept.FILE):
        return None
    members = Proposal.read(read_text(folder.path / kept.FILE)).members
    there = signatures.read(folder) if folder.has(signatures.FILE) else []
    signed = set[int]()
    for one in there:
        with suppress(BadStatement):
            signed.add(signatures.signer(one, members))
    both = [tuple(name for number, name in enumerate(members.names) if (number in signed) == is_in) for is_in in (True, False)]
    return Signers(*both)


@dataclass(frozen=True)
class Vouched:
    """What became of every statement."""

    roster: str
    """Its fingerprint: signatures say as much as it does."""
    clients: dict[str, str]
    """What each client of the roster says, in words."""
    signed: int = 0
    wrong: tuple[str, ...] = ()
    underived: str | None = None
    """Why the plan could not be derived here, so that what clients found was held against nothing."""

    @property
    def missing(self) -> list[str]:
        return [name for name, words in self.clients.items() if words == _NOT_SIGNED]


_NOT_SIGNED = "has not signed"


@dataclass
class _Held:
    """What statements are held against."""

    proposal: Proposal
    found: Values
    """What follows from the proposal, as it was derived here."""
    there: Values
    """The hashes of what the run gave out, as far as it lies there."""
    most: int | None
    """The most sums that one client can have been in, by what was charged; None where nothing was."""
    names: set[str] = field(default_factory=set)

    def wrong(self, one: Signed) -> Iterator[str]:
        """Everything that a statement says otherwise; nothing of it is believed where it is forged."""
        said = one.statement
        name, count, own = said["client"], said["participations"], said["ledger"]
        try:
            signatures.signer(one, self.proposal.members)
        except BadStatement as forged:
            yield str(forged)
            return
        if name in self.names:
            yield "it signed twice"
        self.names.add(name)
        if said["proposal"] != self.proposal.digest.hex():
            yield "it signed another run"
            return
        if other := [_CALLED.get(key, key) for key in differing(self.found, said)]:
            yield f"it signed something else of {', '.join(other)}"
        if other := differing(self.there, said["told"]):
            yield f"it was told of another {' and '.join(other)}"
        if count > said["at_most"]:
            yield f"it was in {count} sums, and had agreed to {said['at_most']}"
        if self.most is not None and count > self.most:
            yield f"it was in {count} sums, and {self.most} of one client are accounted for"
        if own is not None and own["charges"] != count:
            yield f"its own ledger has {own['charges']} charges for {count} sums"
        if (own is None) != (said["plan"] is None):
            yield "what it charged does not go with what it found proved"


def vouching(folder: RunDir, certificate: Values, result: Values) -> Vouched:
    """Statement by statement. It raises what is raised of a damaged folder or certificate."""
    proposal = Proposal.read(read_text(folder.path / kept.FILE))
    told: Agreement | None = None
    underived = None
    try:
        told = agree(proposal, runs_of(folder)[0].method if proposal.run.code is not None else None)
    except HushError as error:
        underived = str(error)
    found = {"format": statement.FORMAT} | (statement.found(told) if told is not None else {})
    there = still_there(given_out(certificate, result, folder), result, folder)
    held = _Held(proposal, found, there, _most(told, certificate))
    clients, wrong = dict.fromkeys(proposal.members.names, _NOT_SIGNED), list[str]()
    counts = dict[str, int]()
    for one in signatures.read(folder):
        name = one.statement["client"]
        counts[name] = one.statement["participations"]
        if against := list(held.wrong(one)):
            wrong.append(f"{letters.printable(name[:64])}: {'; '.join(against)}")
        if name in clients:
            clients[name] = f"CONTRADICTS: {'; '.join(against)}" if against else _in_words(one)
    if not wrong and told is not None:
        wrong += _too_few(folder, told, held, counts)
    return Vouched(proposal.members.fingerprint, clients, len(held.names), tuple(wrong), underived)


def _most(told: Agreement | None, certificate: Values) -> int | None:
    """A round that was drawn again is one sum more to whoever was in both."""
    charged, counted = certificate.get("rounds_charged"), certificate.get("rounds_counted")
    if told is None or told.plan is None or charged is None or counted is None:
        return None
    return told.cohort.most_participations(int(counted), len(told.proposal.members.cards)) + int(charged) - int(counted)


def _too_few(folder: RunDir, told: Agreement, held: _Held, counts: dict[str, int]) -> Iterator[str]:
    """Rounds that were opened without the clients that must have been in them."""
    opened = sum("broke_off" not in record for record in folder.read_rounds("rounds.jsonl", told.run.rounds or 0))
    fewest, away = told.terms.fewest(told.terms.smallest), len(told.proposal.members.cards) - len(counts)
    together = sum(counts.values()) + away * min(told.participations, held.most if held.most is not None else told.participations)
    if together < fewest * opened:
        yield f"{opened} rounds of {fewest} clients or more were opened, and clients counted {together} at most, all added up"


def _in_words(one: Signed) -> str:
    said = one.statement
    proved = "a plan of which nothing is proved"
    if said["epsilon"] is not None:
        proved = f"the plan, with epsilon {at_least(said['epsilon'])} at delta {at_least(said['delta'], 2)}"
    return f"vouches for {proved}, and for {said['participations']} sums of at most {said['at_most']} (signed {said['time']})"


_CALLED = {"at_most": "how many sums it agreed to", "hush": "Hush's version"}
