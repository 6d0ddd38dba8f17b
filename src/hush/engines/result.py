"""What a run gives back: the contract of `result.json`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hush.engines.rundir import RunDir
from hush.privacy.certificate import FORMAT, digest, proof_from_dict, proof_to_dict
from hush.privacy.guarantee import Guarantee
from hush.privacy.settle import Proof
from hush.privacy.theorems import Claim

REPEATED = (
    *("method", "data", "model", "clients", "cohort", "sampling", "rounds", "rounds_charged", "rounds_counted", "rounds_aborted"),
    *("secure_sum", "noise_multiplier", "claimed_epsilon", "population", "run_id", "hush_version", "caveats", "un_noised"),
    "no_guarantee",
)
"""What a certificate says as the result does."""


@dataclass(frozen=True)
class Result:
    """Figures of one run. Unknown figures are None, never absent and never invented."""

    method: str
    data: str
    model: str
    clients: int
    cohort: float
    rounds: int
    seed: int
    parameters: int
    test_accuracy: float | None
    best_test_accuracy: float | None
    test_loss: float | None
    train_loss: float | None
    validation_accuracy: float | None
    epsilon: float | None
    epsilon_server: float | None
    delta: float | None
    unit: str | None
    relation: str | None
    view: str | None
    noise_multiplier: float | None
    clip: float | None
    claimed_epsilon: float | None
    uplink_bytes_per_client: float
    downlink_bytes_per_client: float
    seconds: float
    seconds_per_round: float | None
    device: str
    hush_version: str
    sampling: str = "poisson"
    rounds_planned: int = 0
    stopped: str | None = None
    best_by: str | None = None
    notes: tuple[str, ...] = ()
    clients_accuracy: float | None = None
    """How clients judged the model that the last round began with, by `score`: noised, and part of what was proved."""
    test_metrics: dict[str, float | None] = field(default_factory=dict)
    """What the task reports besides loss and accuracy, by name."""
    validation_metrics: dict[str, float | None] = field(default_factory=dict)
    wasted_work: float | None = None
    """The share of the examples computed that was padding, or of clients that waited for others: of their sizes, so un-noised."""
    per_client: dict[str, Any] | None = None
    """How unequally clients are served, where each has test examples of its own: mean, deviation, worst, worst tenth."""
    caveats: tuple[str, ...] = ()
    """What a reader of the certificate must know of who the clients are, and of what the model started from."""
    un_noised: tuple[str, ...] = ("train_loss",)
    """Figures here that no guarantee covers: for simulation alone, like diagnostics.jsonl."""
    run_id: str | None = None
    """Equal for the same run on the same machine; made from its secret, so it tells nothing else."""
    noise_mode: str | None = None
    rounds_charged: int | None = None
    """Rounds that were paid for: more than `rounds` where an interrupted one was drawn again."""
    rounds_counted: int | None = None
    """Different rounds among them."""
    rounds_aborted: int | None = None
    """Rounds that a secure sum broke off before anything was opened, which `rounds` counts and nobody paid for."""
    traffic: dict[str, dict[str, int]] | None = None
    """Bytes of all real clients together, up and down: counted, and measured in letters."""
    secure_sum: dict[str, Any] | None = None
    """What the secure sum withstands, where there was one."""
    population: dict[str, Any] | None = None
    """What all runs on the same clients spent together, where they share a ledger."""
    no_guarantee: str | None = None
    """Why a paper's own words, which ran here, have no proof."""
    configuration: dict[str, Any] = field(default_factory=dict, repr=False)
    proof: Proof | None = field(default=None, repr=False)
    claim: Claim | None = field(default=None, repr=False)
    """What the paper would print; never ours."""
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    state_dict: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The trained weights: the user's own module loads them."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: the figures alone."""
        skipped = ("configuration", "proof", "claim", "history", "state_dict")
        fields = {key: value for key, value in self.__dict__.items() if key not in skipped}
        return fields | {key: list(getattr(self, key)) for key in ("notes", "caveats", "un_noised")}

    @property
    def guarantee(self) -> Guarantee | None:
        """What was proved against readers of the models."""
        return self.proof.guarantee if self.proof else None

    @staticmethod
    def read(folder: RunDir) -> Result:
        """A complete run, from its files."""
        value = folder.read_json("result.json")
        certificate = folder.read_json("certificate.json")
        saved = folder.read_tensors("model.safetensors")
        return Result(
            **value | {key: tuple(value.get(key, ())) for key in ("notes", "caveats", "un_noised")},
            configuration=certificate["configuration"],
            proof=proof_from_dict(certificate),
            claim=Claim.from_dict(certificate["claim"]) if certificate.get("claim") else None,
            history=folder.read_rounds("rounds.jsonl", value["rounds"]),
            state_dict=saved[0] if saved is not None else {},
        )

    def certificate(self, model_sha256: str | None = None) -> dict[str, Any]:
        """What was proved, in a form to file: the statement and its assumptions, no figure of any client's data."""
        figures = self.to_dict()
        facts = {"format": FORMAT} | {key: figures[key] for key in REPEATED} | proof_to_dict(self.proof)
        return facts | {
            "claim": self.claim.to_dict() if self.claim else None,
            "configuration": self.configuration,
            "configuration_sha256": digest(self.configuration),
            "model_sha256": model_sha256,
        }

    def sentence(self, beside: Result | None = None) -> str:
        """What was learned, what privacy was spent, what it cost in bytes, in words a person can repeat."""
        if self.test_accuracy is not None:
            learned = f"{100 * self.test_accuracy:.0f}% accuracy"
        elif (root := self.test_metrics.get("rmse")) is not None:
            learned = f"root mean square error {root:.4g}"
        elif self.test_loss is not None:
            learned = ", ".join(
                [f"test loss {self.test_loss:.4g}", *(f"{k} {v:.4g}" for k, v in self.test_metrics.items() if v is not None)]
            )
        else:
            learned = f"{self.rounds} rounds trained"
        privacy = str(self.guarantee) if self.guarantee else "no privacy guarantee"
        if self.secure_sum is not None:
            privacy = privacy.replace("against the server", f"against a {self.secure_sum['threat']} server")
        if self.rounds_aborted and self.rounds_aborted == self.rounds:
            privacy = "nothing was released"
        sent = f"{self.uplink_bytes_per_client / 1e6:.2g} MB sent per client"
        if beside is not None and beside.uplink_bytes_per_client > 1.05 * self.uplink_bytes_per_client:
            ratio = beside.uplink_bytes_per_client / self.uplink_bytes_per_client
            sent += f", {ratio:.3g}x less than {display_name(beside.method)}"
        return f"{learned}; {privacy}; {sent}"


def released(certificate: dict[str, Any], result: dict[str, Any], folder: RunDir) -> dict[str, str]:
    """The hashes that the ledger keeps of what a run gives out.

    Without what all runs on these clients spent, but for their name: a run whose process was killed says the rest again to the
    letter, while others may have been charged since. Those figures follow from the ledger itself.
    """
    return given_out(_named(certificate), _named(result), folder)


def given_out(certificate: dict[str, Any], result: dict[str, Any], folder: RunDir) -> dict[str, str]:
    """The hashes of all of it, to the letter: what clients sign, who come when it lies there and is not written again."""
    rounds = folder.digest("rounds.jsonl") if folder.has("rounds.jsonl") else hashlib.sha256().hexdigest()
    told = {"certificate": digest(certificate), "result": digest(result), "rounds": rounds}
    return {"model": str(certificate.get("model_sha256"))} | told


def still_there(hashes: dict[str, str], result: dict[str, Any], folder: RunDir) -> dict[str, str]:
    """Those of what still lies there."""
    there = {"model": True, "certificate": True, "result": bool(result), "rounds": folder.has("rounds.jsonl")}
    return {name: hashed for name, hashed in hashes.items() if there[name]}


def _named(value: dict[str, Any]) -> dict[str, Any]:
    """With the population's name in place of its figures."""
    population = value.get("population")
    return value | {"population": population.get("name") if isinstance(population, dict) else population}


def display_name(method: str) -> str:
    """A method's name as its paper writes it."""
    known = {"fedavg": "FedAvg", "dp-fedavg": "DP-FedAvg"}
    return known.get(method, method)
