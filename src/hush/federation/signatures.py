"""`signatures.json` in a run's folder: what its clients signed when it was over. It only grows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hush.config import runs_of
from hush.engines.result import given_out
from hush.engines.rundir import LEDGER, RunDir
from hush.errors import DataError
from hush.federation import statement
from hush.federation.members import Members
from hush.federation.proposal import Proposal
from hush.federation.statement import BadStatement, Signed
from hush.privacy.ledger import Ledger

FILE = "signatures.json"
FORMAT = 1


class Book:
    """The statements of one run's clients, as they are collected. `ledger` is where the run was charged, if it was."""

    def __init__(self, folder: RunDir, proposal: Proposal, after: Callable[[], None] = lambda: None) -> None:
        self._folder, self._proposal, self._after = folder, proposal, after
        certificate = folder.read_json("certificate.json")
        self._run_id = certificate["run_id"]
        self.told = given_out(certificate, folder.read_json("result.json"), folder)
        """What the run gives out, by its hashes."""
        self.signed: dict[int, Signed] = {}
        for one in read(folder) if folder.has(FILE) else []:
            try:
                self._take(one)
            except BadStatement as error:
                raise DataError(f"{folder.path / FILE} was changed ({error}): delete it, and its clients sign again.") from None

    @property
    def missing(self) -> list[str]:
        """The names of those who have not signed."""
        return [name for number, name in enumerate(self._proposal.members.names) if number not in self.signed]

    def sha256(self, number: int) -> str | None:
        """Of what this client signed."""
        return self.signed[number].sha256 if number in self.signed else None

    def take(self, number: int, raw: bytes) -> None:
        """What a client answered; `BadStatement` where it is not this client's statement on this run. What it says is its own
        affair, and stays as it is."""
        one = statement.read(raw)
        if one.statement["client"] != self._proposal.members.names[number]:
            raise BadStatement("it is of another client")
        self._take(one)

    def _take(self, one: Signed) -> None:
        number = signer(one, self._proposal.members)
        if one.statement["proposal"] != self._proposal.digest.hex():
            raise BadStatement("it is of another run")
        self.signed.setdefault(number, one)

    def save(self) -> None:
        """The file first: what the ledger knows of must be there, and what it does not know of yet is still signed."""
        in_order = [self.signed[number].to_dict() for number in sorted(self.signed)]
        self._folder.write_json(FILE, {"format": FORMAT, "statements": in_order})
        self._note()
        self._after()

    def _note(self) -> None:
        """In the ledger: who signed what, so that no signer vanishes unseen."""
        config = runs_of(self._folder)[0] if self._folder.has("config.json") else self._proposal.run
        path = Path(config.ledger or self._folder.path / LEDGER)
        if not path.is_file():  # nothing was proved, so nothing was charged
            return
        with closing(Ledger(path, own=config.ledger is None, rollback_protection=config.rollback_protection)) as ledger:
            ledger.sign(self._run_id, {one.statement["client"]: one.sha256 for one in self.signed.values()})


def read(folder: RunDir) -> list[Signed]:
    """Every statement in the file, believed as little as the file is."""
    value = folder.read_json(FILE)
    if not isinstance(value, dict) or set(value) != {"format", "statements"} or value["format"] != FORMAT:
        raise DataError(f"{folder.path / FILE} is not what a run of Hush writes.")
    if not isinstance(value["statements"], list):
        raise DataError(f"{folder.path / FILE} holds no list of statements.")
    try:
        return [Signed.of(one) for one in value["statements"]]
    except BadStatement as error:
        raise DataError(f"{folder.path / FILE} holds something else than statements: {error}.") from None


def signer(one: Signed, members: Members) -> int:
    """The number of the client that signed; `BadStatement` where it is not the one that is named."""
    try:
        number = members.roster.numbers[bytes.fromhex(str(one.statement["key"]))]
    except (KeyError, ValueError):
        raise BadStatement("its key is not in the roster") from None
    if members.cards[number].name != one.statement["client"]:
        raise BadStatement("the roster has this key under another name")
    if not one.is_by(members.cards[number].key):
        raise BadStatement("it is not signed with the key that the roster has")
    return number
