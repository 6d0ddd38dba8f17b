"""The statement to file: what is protected, against whom, how much, on what assumptions, and how anybody can recompute it."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from typing import Any

from hush.privacy.accountant import REPORTED_STEP, account
from hush.privacy.attack import risk
from hush.privacy.guarantee import Guarantee, Relation, Unit, View
from hush.privacy.losses import RENYI
from hush.privacy.settle import Proof, replaced_epsilon
from hush.privacy.theorems import Claim
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.version import __version__

FORMAT = 2
"""Of certificates: settings and parts as data. In format 1 they were text."""

_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)

_PROTECTED = {
    Unit.CLIENT: "everything that one client holds: all its examples together",
    Unit.RECORD: "one record of one client",
    Unit.PERSON: "one person: all rows of theirs at a client together",
}
_RELATIONS = {
    Relation.ADD_REMOVE: "whether the {unit} was there at all; how many {unit}s there are is public",
    Relation.REPLACE_ONE: "which {unit} it was, out of any two",
    Relation.ZERO_OUT: "whether the {unit}'s data were used, or nothing in their place",
}
_AGAINST = {
    View.RELEASED: "anyone who reads the models of any number of rounds, with any knowledge of all other {unit}s",
    View.SECAGG: "the server, which sees the sums of all rounds, and anyone who reads the models",
    View.MESSAGES: "anyone who reads every message of the client, the server included",
}


def statement(guarantee: Guarantee) -> dict[str, str]:
    """Whose secret is kept, and from whom, in words."""
    unit = str(guarantee.unit)
    return {
        "protected": _PROTECTED[guarantee.unit],
        "hidden": _RELATIONS[guarantee.relation].format(unit=unit),
        "against": _AGAINST[guarantee.view].format(unit=unit),
    }


def proof_to_dict(proof: Proof | None) -> dict[str, Any]:
    """The proved part of a certificate; every figure follows from `plan`."""
    if proof is None:
        return dict.fromkeys(_KEYS)
    deltas = sorted({proof.guarantee.delta, *_DELTAS}, reverse=True)
    guess = risk(proof.plan)
    replaced = replaced_epsilon(proof.plan, proof.guarantee.delta)
    return ({} if replaced is None else {"epsilon_replaced": replaced}) | {
        "statement": statement(proof.guarantee),
        "guarantee": proof.guarantee.to_dict(),
        "server_guarantee": proof.server.to_dict() if proof.server else None,
        "no_server_guarantee": proof.no_server,
        "epsilon_at": [{"delta": d, "epsilon": account(proof.plan, d).epsilon} for d in deltas],
        "attack": {"true_positives_at_1_percent_false_positives": guess.true_positives, "membership_advantage": guess.advantage},
        "noise": "secure" if proof.plan.secure else "fast",
        "claim": proof.claim.to_dict() if proof.claim else None,
        "computed": {"method": proof.guarantee.method, "step": REPORTED_STEP, "versions": _versions()},
        "plan": plan_to_dict(proof.plan),
    }


def proof_from_dict(certificate: dict[str, Any]) -> Proof | None:
    """The inverse of `proof_to_dict`, as far as it goes without computing anything anew."""
    if certificate.get("guarantee") is None:
        return None
    server, claim = certificate["server_guarantee"], certificate["claim"]
    return Proof(
        plan=plan_from_dict(certificate["plan"]),
        guarantee=Guarantee.from_dict(certificate["guarantee"]),
        server=Guarantee.from_dict(server) if server is not None else None,
        no_server=certificate["no_server_guarantee"],
        claim=Claim.from_dict(claim) if claim is not None else None,
    )


def has_old_skellam(certificate: dict[str, Any]) -> bool:
    """Whether its figures are by the looser bound that Skellam noise had before `hush.privacy.skellam`."""
    try:
        releases = [release for phase in certificate["plan"]["phases"] for release in phase["releases"]]
        kinds, method = {release["noise"]["kind"] for release in releases}, certificate["computed"]["method"]
    except (KeyError, TypeError):  # of a run without a guarantee, or damaged
        return False
    return method == RENYI and "SkellamNoise" in kinds and "DiscreteGaussianNoise" not in kinds


_KEYS = (
    *("statement", "guarantee", "server_guarantee", "no_server_guarantee", "epsilon_at", "attack", "noise", "claim", "computed"),
    "plan",
)


def _versions() -> dict[str, str]:
    names = ("dp-accounting", "numpy", "scipy", "torch")
    return {"hush": __version__, "python": platform.python_version()} | {name: metadata.version(name) for name in names}


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON: the hash of a configuration."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()
