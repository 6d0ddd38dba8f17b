"""What a client signs when a run is over: what it derived and counted by itself, and what it was told that the run gives out.

No figure in it is the server's. The server's only words are hashes (`told`), and they stand there as such: whoever writes model,
certificate, result or rounds anew afterwards has other hashes than all clients that signed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from hush.errors import HushError
from hush.federation.proposal import Agreement
from hush.privacy.certificate import digest
from hush.privacy.vocabulary import Plan
from hush.privacy.written import plan_to_dict
from hush.secagg.identity import Identity, is_signed

FORMAT = 1
MOST_BYTES = 1 << 14
_DOMAIN = b"hush statement 1\0"
"""No other signature of Hush's begins so, hence none can be taken for this one."""
_FOUND = ("hush", "proposal", "plan", "epsilon", "delta", "at_most")
_COUNTED = ("participations", "ledger", "time")
_TOLD = ("certificate", "model", "result", "rounds")
_TIME = "%Y-%m-%dT%H:%M:%SZ"

Values = dict[str, Any]


class BadStatement(HushError):
    """What is not a client's statement on this run."""


class Signed(NamedTuple):
    """A statement, and the signature of the client that it names."""

    statement: Values
    signature: str

    def to_dict(self) -> Values:
        return {"statement": self.statement, "signature": self.signature}

    @property
    def sha256(self) -> str:
        return digest(self.to_dict())

    @staticmethod
    def of(value: Any) -> Signed:
        """As it lies in a file, whoever wrote it; `BadStatement` where it is none in form."""
        if not isinstance(value, dict) or set(value) != {"statement", "signature"} or not isinstance(value["signature"], str):
            raise BadStatement("it is no statement and its signature")
        if not isinstance(value["statement"], dict) or not _well_formed(value["statement"]):
            raise BadStatement("it is not what a client of Hush's states")
        return Signed(value["statement"], value["signature"])

    def is_by(self, key: bytes) -> bool:
        """Whether the owner of this key signed it, to the letter."""
        try:
            signature = bytes.fromhex(self.signature)
        except ValueError:
            return False
        return signature.hex() == self.signature and is_signed(key, signature, _DOMAIN + _written(self.statement))


def read(raw: bytes) -> Signed:
    """A statement as it travelled."""
    try:
        if len(raw) > MOST_BYTES:
            raise BadStatement("it is longer than any statement")
        return Signed.of(json.loads(raw))
    except (ValueError, RecursionError):
        raise BadStatement("it is not JSON that Hush writes") from None


def found(told: Agreement) -> Values:
    """What follows from a proposal, whoever derives it."""
    proved = told.proof.server if told.proof is not None else None
    return {
        "hush": told.proposal.hush,
        "proposal": told.proposal.digest.hex(),
        "plan": plan_digest(told.plan) if told.plan is not None else None,
        "epsilon": proved.epsilon if proved is not None else None,
        "delta": proved.delta if proved is not None else told.delta,
        "at_most": told.participations,
    }


def plan_digest(plan: Plan) -> str:
    """A hash of a plan, its figures to nine digits: machines that differ in the last bit derive the same plan."""
    return digest(_nine_digits(plan_to_dict(plan)))


def sign(
    identity: Identity, client: str, own: Mapping[str, Any], participations: int, ledger: Values | None, told: Values
) -> Signed:
    """A client's statement. `own` is what it `found` before it said yes, `ledger` its own ledger's charges and head."""
    statement = {"format": FORMAT, "client": client, "key": identity.public.hex()} | {key: own[key] for key in _FOUND}
    statement |= {"participations": participations, "ledger": ledger, "told": told, "time": time.strftime(_TIME, time.gmtime())}
    return Signed(statement, identity.sign(_DOMAIN + _written(statement)).hex())


def can_be_told(value: Any) -> TypeGuard[Values]:
    """Whether these are hashes of what a run gives out, and nothing else that a server would have signed."""
    return isinstance(value, dict) and set(value) == set(_TOLD) and all(map(_is_hash, value.values()))


def _well_formed(statement: Values) -> bool:
    """What can be held against nothing is at least what it should be; the rest is compared."""
    if set(statement) != {"format", "client", "key", "told", *_FOUND, *_COUNTED} or not can_be_told(statement["told"]):
        return False
    own = statement["ledger"]
    if own is not None and not (isinstance(own, dict) and set(own) == {"charges", "head"} and _is_hash(own["head"])):
        return False
    try:
        time.strptime(statement["time"], _TIME)
    except (TypeError, ValueError):
        return False
    return (
        isinstance(statement["client"], str)
        and _is_count(statement["participations"])
        and (own is None or _is_count(own["charges"]))
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _written(statement: Values) -> bytes:
    """In one way alone, so that it has one signature."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _nine_digits(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _nine_digits(item) for key, item in value.items()}
    return [_nine_digits(item) for item in value] if isinstance(value, list) else value
