"""A run's proposal in its folder: to go on with it, and to hold a certificate against what clients agreed to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hush.config import CONFIG_FORMAT, runs_of
from hush.engines.rundir import RunDir
from hush.errors import HushError, UsageError
from hush.federation import initial
from hush.federation.folders import read_text
from hush.federation.proposal import Proposal

FILE = "proposal.json"


def keep(folder: RunDir, proposal: Proposal) -> None:
    """The run and what clients were asked for, before the first of them is."""
    folder.write_json("config.json", {"format": CONFIG_FORMAT, "runs": [proposal.run.to_dict()], "seeds": 1, "data_dir": None})
    folder.write_bytes(FILE, proposal.to_json().encode())


def kept(folder: RunDir) -> Proposal:
    """The proposal of a run that goes on, with the server's own paths, which no client was told."""
    if not folder.has(FILE):
        raise UsageError(f"{folder.path} holds no run of a federation.")
    proposal, run = Proposal.read(read_text(folder.path / FILE)), runs_of(folder)[0]
    if proposal.run.published() != run.published():
        raise UsageError(f"config.json and {FILE} in {folder.path} describe different runs: bring back the one that was changed.")
    return replace(proposal, run=run)


def against_proposal(folder: RunDir, certificate: dict[str, Any]) -> list[str]:
    """Everything that the proposal says otherwise than the certificate."""
    try:
        return list(_against(Proposal.read(read_text(folder.path / FILE)), certificate["configuration"], folder))
    except (HushError, KeyError, TypeError, ValueError, AttributeError) as error:
        return [str(error)]


def _against(proposal: Proposal, ran: dict[str, Any], folder: RunDir) -> Iterator[str]:
    if proposal.digest.hex() != ran.get("proposal"):
        yield f"{FILE} is not the proposal that the certificate names"
    told = {
        "run": proposal.run.published(),
        "clients": len(proposal.members.cards),
        "parameters": proposal.parameters,
    }
    if wrong := [key for key, value in told.items() if ran[key] != value]:
        yield f"{FILE} says something else of {', '.join(wrong)}"
    if proposal.members.fingerprint != ran["run"]["federation"]:
        yield f"{FILE} has another roster"
    if (begun := proposal.run.begins_with) is not None and (not folder.has(initial.FILE) or folder.digest(initial.FILE) != begun):
        yield f"{initial.FILE} is not what the run began with"
